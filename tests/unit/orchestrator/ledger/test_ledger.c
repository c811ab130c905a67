/* What messages make of a session, which of them do not fit, and that a session that is told anew in few messages is
 * the same. */
#include "common/rules/hash.h"
#include "orchestrator/ledger/ledger.h"
#include "tests/quiet_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define ID 0xfeed0000feedu

static uint64_t random_state = 1;

static uint32_t draw(uint32_t below)
{
    random_state = gr_mix64(random_state + GR_HASH_GOLDEN);
    return (uint32_t)(random_state % below);
}

/* ---- messages; their ids and segments are those of the last one of a kind ---- */

static int32_t id[64], pair[2];

static struct gr_msg_ids some_ids(uint32_t n)
{
    assert_true(n <= GR_ARRAY_LEN(id));
    for (uint32_t i = 0; i < n; i++) {
        id[i] = (int32_t)draw(1000);
    }
    return (struct gr_msg_ids){.p = id, .n = n};
}

static char answer[] = "{\"id\":\"cmpl-1\"}";

static struct gr_msg opening(uint64_t session, uint32_t n, bool keep_open)
{
    struct gr_msg m = {.type = GR_MSG_OPEN, .session = session, .open = {.epoch = 1, .ids = some_ids(n)}};
    pair[0] = GR_SEGMENT_PROMPT;
    pair[1] = (int32_t)n;
    m.open.segments = (struct gr_msg_ids){.p = pair, .n = 2};
    m.open.tokenizer_fingerprint = 77;
    m.open.answer = (struct gr_msg_long){.p = answer, .n = sizeof(answer) - 1};
    memcpy(m.open.model, "small", sizeof("small"));
    m.open.wishes.sampling.seed = 5;
    m.open.wishes.keep_open = keep_open;
    m.open.wishes.turn.max_tokens = 40;
    return m;
}

static struct gr_msg keeping(const struct gr_ledger_session *s, uint32_t epoch)
{
    struct gr_msg m = {.type = GR_MSG_KEPT,
                       .session = s->id,
                       .kept = {.epoch = epoch,
                                .turn = s->turn,
                                .turn_base = s->turn_base,
                                .turn_len = s->turn_len,
                                .model_fingerprint = 9}};
    memcpy(m.kept.numerics_id, "cpu-1", sizeof("cpu-1"));
    return m;
}

static struct gr_msg appending(const struct gr_ledger_session *s, uint32_t keep_len, uint32_t n)
{
    struct gr_msg m = {.type = GR_MSG_APPEND, .session = s->id, .append = {.keep_len = keep_len, .ids = some_ids(n)}};
    m.append.hash = gr_transcript_hash_at(&s->text, keep_len);
    m.append.wishes.max_tokens = 20;
    return m;
}

static struct gr_msg committing(const struct gr_ledger_session *s, uint32_t n)
{
    struct gr_msg m = {
        .type = GR_MSG_COMMIT, .session = s->id, .commit = {.keep_len = s->text.len, .ids = some_ids(n)}};
    m.commit.final_len = s->text.len + n;
    m.commit.hash = s->text.hash;
    for (uint32_t i = 0; i < n; i++) {
        m.commit.hash = gr_hash_extend(m.commit.hash, id[i]);
    }
    return m;
}

static struct gr_msg finishing(const struct gr_ledger_session *s, uint32_t n_token, enum gr_finish finish)
{
    struct gr_msg m = {.type = GR_MSG_FINISHED,
                       .session = s->id,
                       .finished = {.epoch = s->epoch, .n_token = n_token, .finish = (uint32_t)finish}};
    memcpy(m.finished.text, "why", sizeof("why"));
    return m;
}

static void apply(struct gr_ledger *l, const struct gr_msg m)
{
    assert_int_equal(gr_ledger_apply(l, &m), GR_OK);
}

static struct gr_ledger *make(void)
{
    struct gr_ledger *l = NULL;
    assert_int_equal(gr_ledger_create(&l), GR_OK);
    return l;
}

/* ---- tests ---- */

static void test_turns(void **state)
{
    (void)state;
    struct gr_ledger *l = make();
    apply(l, opening(ID, 10, true));
    const struct gr_ledger_session *s = gr_ledger_find(l, ID);
    assert_true(s->state == GR_LEDGER_TURN && s->turn == 1 && s->turn_base == 0 && s->turn_len == 10);
    assert_int_equal(gr_ledger_tokens_left(s), 40);
    apply(l, keeping(s, 2));
    assert_true(s->epoch == 2 && s->model_fingerprint == 9);
    assert_string_equal(s->answer, answer);
    apply(l, committing(s, 7));
    assert_true(s->text.len == 17 && s->text.n_segment == 2);
    assert_int_equal(gr_ledger_tokens_left(s), 33);
    apply(l, finishing(s, 15, GR_FINISH_STOP)); /* the last two came after a stop string */
    assert_true(s->state == GR_LEDGER_IDLE && s->text.len == 15 && s->finish == GR_FINISH_STOP);
    assert_int_equal(gr_ledger_tokens_left(s), 0);
    apply(l, appending(s, 12, 5));
    assert_true(s->state == GR_LEDGER_TURN && s->turn == 2 && s->turn_base == 12 && s->turn_len == 17);
    assert_true(s->finish == GR_FINISH_NONE && s->error[0] == '\0');
    assert_int_equal(gr_ledger_tokens_left(s), 20);
    apply(l, finishing(s, 12, GR_FINISH_ERROR)); /* it could not be served: all is as before */
    assert_true(s->state == GR_LEDGER_IDLE && s->text.len == 12 && s->turn_len == 12);
    assert_string_equal(s->error, "why");
    apply(l, (struct gr_msg){.type = GR_MSG_CLOSED, .session = ID});
    assert_null(gr_ledger_find(l, ID));
    assert_int_equal(gr_ledger_n(l), 0);
    gr_ledger_destroy(l);
}

static void test_over(void **state)
{
    (void)state;
    struct gr_ledger *l = make();
    apply(l, opening(ID, 4, false));
    const struct gr_ledger_session *s = gr_ledger_find(l, ID);
    apply(l, committing(s, 3));
    apply(l, finishing(s, 7, GR_FINISH_LENGTH));
    assert_true(s->state == GR_LEDGER_OVER && s->text.len == 7);
    struct gr_restored_session r;
    assert_false(gr_ledger_fill_restored(s, &r));
    struct gr_msg m = appending(s, 7, 1);
    assert_int_equal(gr_ledger_apply(l, &m), GR_EINVAL);
    gr_ledger_destroy(l);
}

static void refuse(struct gr_ledger *l, struct gr_msg m)
{
    const struct gr_ledger_session *s = gr_ledger_find(l, ID);
    const uint32_t len = s->text.len, turn = s->turn;
    const uint64_t hash = s->text.hash;
    assert_int_equal(gr_ledger_apply(l, &m), GR_EINVAL);
    assert_true(gr_ledger_find(l, ID) == s && s->text.len == len && s->text.hash == hash && s->turn == turn);
}

/* In a turn: 10 prompt tokens, 3 generated ones. */
static void refuse_in_a_turn(struct gr_ledger *l, const struct gr_ledger_session *s)
{
    struct gr_msg m = committing(s, 2);
    m.commit.keep_len--; /* a record between is missing */
    refuse(l, m);
    m = committing(s, 2);
    m.commit.hash ^= 1;
    refuse(l, m);
    m = committing(s, 2);
    m.commit.final_len--; /* not all are final */
    refuse(l, m);
    refuse(l, appending(s, 5, 1));
    refuse(l, opening(ID, 3, true));
    refuse(l, finishing(s, 14, GR_FINISH_STOP));
    refuse(l, finishing(s, 0, GR_FINISH_STOP));
    refuse(l, finishing(s, 13, GR_FINISH_NONE));
    m = keeping(s, 0); /* an epoch that is over */
    refuse(l, m);
    m = keeping(s, 1);
    m.kept.turn_len = 14;
    refuse(l, m);
    refuse(l, (struct gr_msg){.type = GR_MSG_CLOSE, .session = ID}); /* no message of a journal */
}

static void refuse_between_turns(struct gr_ledger *l, const struct gr_ledger_session *s)
{
    refuse(l, committing(s, 1));
    refuse(l, appending(s, 5, 0));
    struct gr_msg m = appending(s, 5, 1);
    m.append.hash ^= 1;
    refuse(l, m);
    m = appending(s, 5, 1);
    m.append.keep_len = 0;
    refuse(l, m);
    m = appending(s, 5, 1);
    m.append.wishes.max_tokens = 0;
    refuse(l, m);
}

static void test_misfits(void **state)
{
    (void)state;
    struct gr_ledger *l = make();
    struct gr_msg m = opening(ID, 10, true);
    pair[1] = 9;
    assert_int_equal(gr_ledger_apply(l, &m), GR_EINVAL);
    pair[1] = 10;
    pair[0] = 3;
    assert_int_equal(gr_ledger_apply(l, &m), GR_EINVAL);
    m = opening(0, 10, true);
    assert_int_equal(gr_ledger_apply(l, &m), GR_EINVAL);
    m = (struct gr_msg){.type = GR_MSG_CLOSED, .session = ID};
    assert_int_equal(gr_ledger_apply(l, &m), GR_EINVAL);
    assert_int_equal(gr_ledger_n(l), 0);
    apply(l, opening(ID, 10, true));
    const struct gr_ledger_session *s = gr_ledger_find(l, ID);
    apply(l, committing(s, 3));
    refuse_in_a_turn(l, s);
    apply(l, finishing(s, 13, GR_FINISH_STOP));
    refuse_between_turns(l, s);
    gr_ledger_destroy(l);
}

static void test_lossy(void **state)
{
    (void)state;
    struct gr_ledger *l = make();
    struct gr_msg m = opening(ID, 10, false);
    m.open.wishes.specpv = GR_SPECPV_LOSSY;
    apply(l, m);
    apply(l, opening(ID + 1, 10, false));
    assert_false(gr_ledger_goes_on(gr_ledger_find(l, ID)));
    assert_true(gr_ledger_goes_on(gr_ledger_find(l, ID + 1)));
    gr_ledger_destroy(l);
}

/* ---- records ---- */

struct record_of {
    uint8_t body[8192];
    struct gr_record r;
};

static void write_record(const struct gr_msg *m, uint64_t number, struct record_of *out)
{
    size_t n = 0;
    assert_int_equal(gr_msg_encode(m, out->body, sizeof(out->body), &n), GR_OK);
    out->r = (struct gr_record){
        .session = m->session, .number = number, .kind = GR_LEDGER_KIND, .n_body = (uint32_t)n, .body = out->body};
}

static void take(struct gr_ledger *l, const struct gr_msg m, uint64_t number)
{
    struct record_of x;
    write_record(&m, number, &x);
    assert_int_equal(gr_ledger_take(l, &x.r), GR_OK);
}

static void test_damage(void **state)
{
    (void)state;
    struct gr_ledger *l = make();
    struct record_of x;
    take(l, opening(ID, 10, true), 1);
    take(l, opening(ID + 1, 10, true), 1);
    const struct gr_ledger_session *s = gr_ledger_find(l, ID), *other = gr_ledger_find(l, ID + 1);
    struct gr_msg m = committing(s, 3);
    m.commit.hash++;
    take(l, m, 2);
    assert_true(s->state == GR_LEDGER_DAMAGED && s->text.len == 0 && s->n_record == 1);
    take(l, opening(ID, 10, true), 3); /* nothing mends it */
    assert_int_equal(gr_ledger_find(l, ID)->state, GR_LEDGER_DAMAGED);
    take(l, committing(other, 3), 2);
    assert_true(other->state == GR_LEDGER_TURN && other->text.len == 13 && other->n_record == 2);
    m = finishing(other, 13, GR_FINISH_STOP);
    write_record(&m, 3, &x);
    x.body[0] ^= 0xff; /* no message at all */
    assert_int_equal(gr_ledger_take(l, &x.r), GR_OK);
    assert_int_equal(other->state, GR_LEDGER_DAMAGED);
    gr_ledger_destroy(l);
}

static void test_whose(void **state)
{
    (void)state;
    struct gr_ledger *l = make();
    struct record_of x;
    take(l, opening(ID, 10, true), 1);
    take(l, opening(ID + 1, 10, true), 1);
    const struct gr_msg m = finishing(gr_ledger_find(l, ID), 10, GR_FINISH_STOP);
    write_record(&m, 2, &x);
    x.r.session = ID + 1;
    assert_int_equal(gr_ledger_take(l, &x.r), GR_OK);
    assert_int_equal(gr_ledger_find(l, ID)->state, GR_LEDGER_TURN);
    assert_int_equal(gr_ledger_find(l, ID + 1)->state, GR_LEDGER_DAMAGED);
    gr_ledger_destroy(l);
}

static void test_lost(void **state)
{
    (void)state;
    struct gr_ledger *l = make();
    gr_ledger_damage(l, ID); /* even its OPEN is lost */
    assert_int_equal(gr_ledger_find(l, ID)->state, GR_LEDGER_DAMAGED);
    assert_int_equal(gr_ledger_tokens_left(gr_ledger_find(l, ID)), 0);
    gr_ledger_destroy(l);
}

/* ---- told anew ---- */

struct teller {
    struct gr_ledger *ledger;
    uint64_t n;
};

static enum gr_status tell(void *ctx, const struct gr_msg *m)
{
    struct teller *t = ctx;
    take(t->ledger, *m, ++t->n);
    return GR_OK;
}

static void compare(const struct gr_ledger_session *a, const struct gr_ledger_session *b)
{
    assert_true(a->state == b->state && a->epoch == b->epoch && a->finish == b->finish);
    assert_true(a->turn == b->turn && a->turn_base == b->turn_base && a->turn_len == b->turn_len);
    assert_true(a->text.len == b->text.len && a->text.hash == b->text.hash && a->text.n_segment == b->text.n_segment);
    assert_memory_equal(a->text.token, b->text.token, a->text.len * sizeof(int32_t));
    assert_memory_equal(a->text.segment, b->text.segment, 2 * a->text.n_segment * sizeof(int32_t));
    assert_int_equal(a->model_fingerprint, b->model_fingerprint);
    assert_int_equal(a->tokenizer_fingerprint, b->tokenizer_fingerprint);
    assert_string_equal(a->error, b->error);
    assert_string_equal(a->model, b->model);
    assert_string_equal(a->numerics_id, b->numerics_id);
    assert_string_equal(a->answer, b->answer);
    assert_memory_equal(&a->wishes, &b->wishes, offsetof(struct gr_wishes, adjust));
    assert_int_equal(gr_ledger_tokens_left(a), gr_ledger_tokens_left(b));
}

static void go_on(struct gr_ledger *l, const struct gr_ledger_session *s)
{
    if (draw(8) == 0) {
        apply(l, keeping(s, s->epoch + draw(2)));
    } else if (s->state == GR_LEDGER_IDLE) {
        apply(l, appending(s, 1 + draw(s->text.len), 1 + draw(6)));
    } else if (draw(3) > 0) {
        apply(l, committing(s, draw(9)));
    } else {
        apply(l, finishing(s, s->turn_len + draw(s->text.len - s->turn_len + 1), (enum gr_finish)(1 + draw(5))));
    }
}

static void test_retell(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct gr_ledger *l = make();
        apply(l, opening(ID, 1 + draw(30), true));
        const struct gr_ledger_session *s = gr_ledger_find(l, ID);
        for (int k = 0; k < 40; k++) {
            go_on(l, s);
            struct teller t = {.ledger = make()};
            assert_int_equal(gr_ledger_retell(s, &t, tell), GR_OK);
            compare(s, gr_ledger_find(t.ledger, ID));
            gr_ledger_destroy(t.ledger);
        }
        gr_ledger_destroy(l);
    }
}

static void test_many(void **state)
{
    (void)state;
    struct gr_ledger *l = make();
    bool is_there[300] = {false};
    uint32_t n = 0;
    for (int i = 0; i < 3000; i++) {
        const uint64_t session = 1 + draw(299);
        apply(l, is_there[session] ? (struct gr_msg){.type = GR_MSG_CLOSED, .session = session}
                                   : opening(session, 1 + (uint32_t)session % 60, false));
        is_there[session] = !is_there[session];
        n += is_there[session] ? 1 : -1u;
        assert_int_equal(gr_ledger_n(l), n);
    }
    for (uint64_t session = 1; session < 300; session++) {
        const struct gr_ledger_session *s = gr_ledger_find(l, session);
        assert_int_equal(s != NULL, is_there[session]);
        assert_true(s == NULL || (s->id == session && s->text.len == 1 + session % 60));
    }
    gr_ledger_destroy(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns), cmocka_unit_test(test_over),   cmocka_unit_test(test_misfits),
        cmocka_unit_test(test_lossy), cmocka_unit_test(test_damage), cmocka_unit_test(test_whose),
        cmocka_unit_test(test_lost),  cmocka_unit_test(test_retell), cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
