/* A journal's bytes as they are after a crash and after damage: cut at every byte, with bits flipped and with bytes
 * overwritten. A session is either given out as it was written, or named as damaged; never with less. */
#include "orchestrator/journal/replay.h"
#include "tests/quiet_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_SESSION 6
#define N_RECORD 60
#define IMAGE_MAX 32768
#define KIND 3

struct image {
    uint8_t p[IMAGE_MAX];
    size_t n;
    uint64_t salt;
};

/* Who writes it: as the journal does. */
struct author {
    uint64_t seq, before, number[N_SESSION + 1];
};

static uint64_t random_state = 1;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static void begin(struct image *m, const struct author *a, uint64_t generation)
{
    m->salt = 0x1234567890abcdef + generation;
    const struct gr_segment_head h = {.generation = generation, .first_seq = a->seq + 1, .salt = m->salt};
    gr_segment_head_encode(&h, m->p);
    m->n = GR_SEGMENT_HEAD_BYTES;
}

static void add(struct image *m, struct author *a, uint64_t session, const uint8_t *body, uint32_t n_body)
{
    const struct gr_record r = {.seq = ++a->seq,
                                .session = session,
                                .number = session != 0 ? ++a->number[session] : 0,
                                .before = a->before,
                                .kind = session != 0 ? KIND : GR_RECORD_SEALED,
                                .n_body = n_body,
                                .body = body};
    assert_true(m->n + gr_record_bytes(n_body) <= IMAGE_MAX);
    gr_record_encode(&r, m->salt, m->p + m->n);
    m->n += gr_record_bytes(n_body);
    a->before = session;
}

/* Every body tells where it belongs. */
static void add_some(struct image *m, struct author *a, int n)
{
    for (int i = 0; i < n; i++) {
        const uint64_t session = 1 + draw(N_SESSION);
        uint8_t body[80];
        memset(body, (int)session, sizeof(body));
        body[0] = (uint8_t)(a->number[session] + 1);
        add(m, a, session, body, 1 + draw(sizeof(body)));
    }
}

/* What a reader makes of it. */
struct reading {
    struct gr_replay *r;
    struct gr_replay_report report;
    uint64_t n[N_SESSION + 1]; /* records of each session */
    uint64_t n_all;
};

static enum gr_status take(void *ctx, const struct gr_record *d)
{
    struct reading *x = ctx;
    assert_true(d->session >= 1 && d->session <= N_SESSION && d->kind == KIND && d->n_body >= 1);
    x->n[d->session]++;
    x->n_all++;
    assert_int_equal(d->number, x->n[d->session]); /* nothing is left out, and nothing comes twice */
    assert_int_equal(d->body[0], d->number);
    for (uint32_t i = 1; i < d->n_body; i++) {
        assert_int_equal(d->body[i], d->session);
    }
    return GR_OK;
}

static void start(struct reading *x)
{
    *x = (struct reading){.n_all = 0};
    assert_int_equal(gr_replay_create(x, take, &x->r), GR_OK);
}

static void read_on(struct reading *x, uint64_t generation, const uint8_t *p, size_t n)
{
    const enum gr_status st = gr_replay_segment(x->r, generation, p, n);
    assert_true(st == GR_OK || st == GR_EFORMAT);
}

static void finish(struct reading *x)
{
    gr_replay_end(x->r, &x->report);
}

/* Two segments, from their beginning to their end. */
static void read_both(struct reading *x, const struct image m[2])
{
    start(x);
    read_on(x, 1, m[0].p, m[0].n);
    read_on(x, 2, m[1].p, m[1].n);
    finish(x);
}

static bool is_damaged(const struct reading *x, uint64_t session)
{
    return gr_replay_is_damaged(x->r, session);
}

static size_t n_damaged(const struct reading *x)
{
    size_t n = 0;
    for (size_t at = 0; gr_replay_damaged(x->r, &at) != 0;) {
        n++;
    }
    return n;
}

static void test_whole(void **state)
{
    (void)state;
    static struct image m[2];
    struct author a = {0};
    struct reading x;
    begin(&m[0], &a, 1);
    add_some(&m[0], &a, N_RECORD);
    add(&m[0], &a, 0, NULL, 0);
    begin(&m[1], &a, 2);
    add_some(&m[1], &a, N_RECORD);
    read_both(&x, m);
    assert_int_equal(x.n_all, 2 * N_RECORD);
    assert_int_equal(x.report.last_seq, a.seq);
    assert_int_equal(x.report.last_session, a.before);
    assert_true(x.report.n_lost == 0 && x.report.n_cut_bytes == 0 && x.report.bad_generation == 0);
    assert_int_equal(n_damaged(&x), 0);
    gr_replay_destroy(x.r);
}

/* Each length that the file can have after a crash, and with zeros to its old length: what is whole is used. */
static void test_cut_anywhere(void **state)
{
    (void)state;
    static struct image m;
    static uint8_t zeroed[IMAGE_MAX];
    struct author a = {0};
    size_t end[N_RECORD + 1];
    begin(&m, &a, 1);
    end[0] = m.n;
    for (int i = 1; i <= N_RECORD; i++) {
        add_some(&m, &a, 1);
        end[i] = m.n;
    }
    for (size_t n = GR_SEGMENT_HEAD_BYTES; n < m.n; n++) {
        size_t whole = 0;
        while (whole < N_RECORD && end[whole + 1] <= n) {
            whole++;
        }
        memset(zeroed, 0, m.n);
        memcpy(zeroed, m.p, n);
        for (int padded = 0; padded < 2; padded++) {
            struct reading x;
            start(&x);
            read_on(&x, 1, zeroed, padded ? m.n : n);
            finish(&x);
            assert_true(x.n_all >= whole && x.n_all <= whole + (size_t)padded); /* its last bytes may be zeros */
            assert_true(padded || x.report.n_cut_bytes == n - end[whole]);
            assert_int_equal(n_damaged(&x), 0);
            assert_int_equal(x.report.n_lost, 0);
            gr_replay_destroy(x.r);
        }
    }
}

/* A life that ended within a record, and the next one, which gives that record's number to another. */
static void test_two_lives(void **state)
{
    (void)state;
    static struct image m[2];
    struct author a = {0};
    struct reading x;
    begin(&m[0], &a, 1);
    add_some(&m[0], &a, N_RECORD);
    const struct author before = a;
    add(&m[0], &a, 1, (const uint8_t *)"torn", 4);
    a = before;
    begin(&m[1], &a, 2);
    add_some(&m[1], &a, N_RECORD);
    for (size_t cut = 1; cut < gr_record_bytes(4); cut++) {
        start(&x);
        read_on(&x, 1, m[0].p, m[0].n - cut);
        read_on(&x, 2, m[1].p, m[1].n);
        finish(&x);
        assert_int_equal(x.n_all, 2 * N_RECORD);
        assert_true(x.report.n_lost == 0 && x.report.n_cut_bytes == 0 && n_damaged(&x) == 0);
        gr_replay_destroy(x.r);
    }
}

/* Both segments end in order, so that nothing can be missing at their ends without a trace. */
static void check_damaged(const struct image m[2], const struct author *a)
{
    struct reading x;
    read_both(&x, m);
    for (uint64_t s = 1; s <= N_SESSION; s++) {
        const bool is_whole = x.n[s] == a->number[s];
        const bool is_cut = x.report.n_cut_bytes > gr_record_bytes(0);
        assert_true(is_whole || is_damaged(&x, s) || is_cut || (x.n[s] == 0 && x.report.n_lost > 0));
    }
    gr_replay_destroy(x.r);
}

static void test_damage_anywhere(void **state)
{
    (void)state;
    static struct image m[2];
    static struct image spoilt[2];
    struct author a = {0};
    for (int i = 0; i < 2; i++) {
        begin(&m[i], &a, (uint64_t)i + 1);
        add_some(&m[i], &a, N_RECORD);
        add(&m[i], &a, 0, NULL, 0);
    }
    for (int try = 0; try < 6000; try++) {
        memcpy(spoilt, m, sizeof(m));
        struct image *where = &spoilt[draw(2)];
        const size_t at = draw((uint32_t)where->n);
        const size_t n = GR_MIN(1 + draw(try % 2 == 0 ? 1 : 400), where->n - at);
        for (size_t i = 0; i < n; i++) {
            where->p[at + i] ^= (uint8_t)(try % 2 == 0 ? 1u << draw(8) : 1 + draw(255));
        }
        check_damaged(spoilt, &a);
    }
}

/* One flipped bit names one session at most: the records of all others are used. */
static void test_one_record_is_one_session(void **state)
{
    (void)state;
    static struct image m;
    struct author a = {0};
    struct reading x;
    begin(&m, &a, 1);
    add_some(&m, &a, N_RECORD);
    add(&m, &a, 0, NULL, 0);
    for (size_t at = 0; at + gr_record_bytes(0) < m.n; at++) {
        const uint64_t want = at < GR_SEGMENT_HEAD_BYTES ? 0 : 1; /* of the head there are two */
        m.p[at] ^= 0x40;
        start(&x);
        read_on(&x, 1, m.p, m.n);
        finish(&x);
        assert_int_equal(n_damaged(&x), want);
        assert_int_equal(x.report.n_lost, want);
        gr_replay_destroy(x.r);
        m.p[at] ^= 0x40;
    }
}

/* A segment is missing, or cannot be read: nobody is given out with less than it had. */
static void test_missing_segment(void **state)
{
    (void)state;
    static struct image m[3];
    for (int spoil = 0; spoil < 2; spoil++) {
        struct author a = {0};
        struct reading x;
        for (int i = 0; i < 3; i++) {
            begin(&m[i], &a, (uint64_t)i + 1);
            add_some(&m[i], &a, 5);
            add(&m[i], &a, 0, NULL, 0);
        }
        start(&x);
        read_on(&x, 1, m[0].p, m[0].n);
        if (spoil) {
            memset(m[1].p, 0x55, GR_SEGMENT_HEAD_BYTES);
            read_on(&x, 2, m[1].p, m[1].n);
        }
        read_on(&x, 3, m[2].p, m[2].n);
        finish(&x);
        assert_int_equal(x.report.n_lost, 6);
        for (uint64_t s = 1; s <= N_SESSION; s++) {
            assert_true(is_damaged(&x, s) || x.n[s] == a.number[s] || x.n[s] == 0);
        }
        gr_replay_destroy(x.r);
    }
}

/* The last segment has no record, or no head: all that is known is that anybody may lack something. */
static void test_nothing_behind_the_gap(void **state)
{
    (void)state;
    static struct image m[2];
    for (int spoil = 0; spoil < 2; spoil++) {
        struct author a = {0};
        struct reading x;
        begin(&m[0], &a, 1);
        add_some(&m[0], &a, N_RECORD);
        a.seq += spoil ? 0 : 3;
        begin(&m[1], &a, 2);
        if (spoil) {
            memset(m[1].p, 0x55, m[1].n);
        }
        read_both(&x, m);
        assert_int_equal(n_damaged(&x), N_SESSION);
        assert_int_equal(x.report.n_lost, spoil ? 0 : 3);
        assert_int_equal(x.report.last_seq, a.seq);
        gr_replay_destroy(x.r);
    }
}

/* What a client writes into a body is never read as a record, also where the record around it is damaged. */
static void test_a_record_in_a_body(void **state)
{
    (void)state;
    static struct image m;
    static struct image inner;
    struct author a = {0};
    struct author forged = {.seq = 100};
    struct reading x;
    begin(&inner, &forged, 7);
    add(&inner, &forged, 2, (const uint8_t *)"forged", 6);
    begin(&m, &a, 1);
    add(&m, &a, 1, inner.p, (uint32_t)inner.n);
    m.p[GR_SEGMENT_HEAD_BYTES] ^= 1;
    start(&x);
    read_on(&x, 1, m.p, m.n);
    finish(&x);
    assert_int_equal(x.n_all, 0);
    assert_int_equal(x.report.last_seq, 0);
    gr_replay_destroy(x.r);
}

/* A segment that stands for the second to the fifth: of 20 records that those had, it has none. */
static void begin_compacted(struct image *m, struct author *a)
{
    m->salt = 77;
    const uint64_t from_seq = a->seq + 1;
    a->seq += 20;
    const struct gr_segment_head h = {
        .generation = 5, .first_seq = a->seq + 1, .salt = m->salt, .from_generation = 2, .from_seq = from_seq};
    gr_segment_head_encode(&h, m->p);
    m->n = gr_segment_head_bytes(&h);
}

static void read_three(struct reading *x, const struct image m[3], size_t n_first)
{
    static const uint64_t generation[] = {1, 5, 6};
    start(x);
    for (int i = 0; i < 3; i++) {
        read_on(x, generation[i], m[i].p, i == 0 ? n_first : m[i].n);
    }
    finish(x);
}

/* What was left out when a segment was compacted is not missing; what is missing before it is. */
static void test_compacted(void **state)
{
    (void)state;
    static struct image m[3];
    struct author a = {0};
    struct reading x;
    begin(&m[0], &a, 1);
    add_some(&m[0], &a, 20);
    const size_t n_first = m[0].n;
    add_some(&m[0], &a, 1);
    const uint64_t last = a.before;
    begin_compacted(&m[1], &a);
    add_some(&m[1], &a, 20);
    begin(&m[2], &a, 6);
    add_some(&m[2], &a, 20);
    read_three(&x, m, m[0].n);
    assert_true(x.n_all == 61 && x.report.n_lost == 0 && x.report.bad_generation == 0);
    gr_replay_destroy(x.r);
    read_three(&x, m, n_first);
    assert_int_equal(x.report.n_lost, 1);
    for (uint64_t s = 1; s <= N_SESSION; s++) {
        assert_int_equal(is_damaged(&x, s), s == last);
    }
    gr_replay_destroy(x.r);
    for (size_t n = 0; n < m[0].n; n += 7) {
        read_three(&x, m, n);
        for (uint64_t s = 1; s <= N_SESSION; s++) {
            assert_true(is_damaged(&x, s) || x.n[s] == a.number[s]);
        }
        gr_replay_destroy(x.r);
    }
}

static void test_heads_of_compacted(void **state)
{
    (void)state;
    uint8_t head[GR_COMPACTED_HEAD_BYTES];
    struct gr_segment_head h = {.generation = 5, .first_seq = 90, .salt = 9, .from_generation = 2, .from_seq = 40};
    struct gr_segment_head out;
    gr_segment_head_encode(&h, head);
    for (size_t at = 0; at < sizeof(head); at++) { /* there are two copies */
        head[at] ^= 0x10;
        assert_int_equal(gr_segment_head_decode(head, sizeof(head), &out), GR_OK);
        assert_memory_equal(&out, &h, sizeof(h));
        head[at] ^= 0x10;
    }
    h.from_seq = 91;
    gr_segment_head_encode(&h, head);
    assert_int_equal(gr_segment_head_decode(head, sizeof(head), &out), GR_EFORMAT);
    h = (struct gr_segment_head){.generation = 5, .first_seq = 90, .from_generation = 6, .from_seq = 40};
    gr_segment_head_encode(&h, head);
    assert_int_equal(gr_segment_head_decode(head, sizeof(head), &out), GR_EFORMAT);
}

static void test_other_versions(void **state)
{
    (void)state;
    uint8_t head[GR_SEGMENT_HEAD_BYTES];
    struct gr_segment_head h = {.generation = 1, .first_seq = 1, .salt = 9};
    struct gr_segment_head out;
    gr_segment_head_encode(&h, head);
    assert_int_equal(gr_segment_head_decode(head, sizeof(head), &out), GR_OK);
    assert_true(out.generation == 1 && out.first_seq == 1 && out.salt == 9);
    for (size_t n = 0; n < sizeof(head); n++) {
        assert_int_equal(gr_segment_head_decode(head, n, &out), GR_EFORMAT);
    }
    head[0] ^= 1; /* the other copy is whole */
    assert_int_equal(gr_segment_head_decode(head, sizeof(head), &out), GR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_two_lives),
        cmocka_unit_test(test_damage_anywhere),
        cmocka_unit_test(test_one_record_is_one_session),
        cmocka_unit_test(test_missing_segment),
        cmocka_unit_test(test_nothing_behind_the_gap),
        cmocka_unit_test(test_a_record_in_a_body),
        cmocka_unit_test(test_compacted),
        cmocka_unit_test(test_heads_of_compacted),
        cmocka_unit_test(test_other_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
