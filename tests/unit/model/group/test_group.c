/* The group's operations: sums by the tree and the same bits on every rank, columns side by side, bytes of rank 0; and
 * what a rank that is elsewhere, late or gone leads to. */
#include "tests/unit/model/group/rank_threads.h"

#include "common/base/clock.h"
#include "common/rules/hash.h"
#include "model/group/agree.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/log_capture.h"

#define N_PART 1000
#define N_ROUND 300
#define PATIENT (10 * GR_S)

static enum rank_threads_over over; /* what is tested: each test runs over both */

struct rank {
    struct gr_group *g;
    enum gr_status st;
    int n_wrong; /* cmocka's asserts belong to the main thread */
};

/* Values whose sum depends on the order: of very different size, of either sign. */
static float value_of(int rank, int round, size_t i)
{
    const uint64_t h = gr_mix64((uint64_t)rank * 1000003 + (uint64_t)round * 7919 + i);
    return ldexpf((float)(int32_t)(h & 0xffffff) - 8388608.0f, (int)(h >> 32) % 40 - 20);
}

static float tree_sum(int n_rank, int round, size_t i)
{
    float v[GR_GROUP_RANK_MAX];
    for (int r = 0; r < n_rank; r++) {
        v[r] = value_of(r, round, i);
    }
    for (int apart = 1; apart < n_rank; apart *= 2) {
        for (int r = 0; r + apart < n_rank; r += 2 * apart) {
            v[r] = v[r] + v[r + apart];
        }
    }
    return v[0];
}

static void join_once(struct rank *a, int round)
{
    float out[N_PART];
    const size_t n = 1 + (size_t)(gr_mix64((uint64_t)round) % N_PART);
    for (size_t i = 0; i < n; i++) {
        a->g->part[i] = value_of(a->g->rank, round, i);
    }
    a->st = gr_group_join(a->g, out, n);
    for (size_t i = 0; a->st == GR_OK && i < n; i++) {
        const float want = tree_sum(a->g->n_rank, round, i);
        a->n_wrong += memcmp(&want, &out[i], sizeof(want)) != 0;
    }
}

/* Rank r has r + 1 columns of more rows than fit into one message. */
static void gather_once(struct rank *a, int round)
{
    enum { N_ROW = 700 };
    struct gr_group_rows rows = {.n_row = N_ROW, .stride = 40};
    static float all[N_ROW * 40]; /* rank 0's alone */
    float mine[N_ROW * 8];
    for (int r = 0; r < a->g->n_rank; r++) {
        rows.begin[r + 1] = rows.begin[r] + r + 1;
    }
    const int width = a->g->rank + 1;
    for (int i = 0; i < N_ROW * width; i++) {
        mine[i] = (float)(i / width * 64 + rows.begin[a->g->rank] + i % width + round);
    }
    rows.mine = mine;
    rows.all = a->g->rank == 0 ? all : NULL;
    a->st = gr_group_gather(a->g, &rows);
    for (int i = 0; a->st == GR_OK && a->g->rank == 0 && i < N_ROW; i++) {
        for (int c = 0; c < rows.begin[a->g->n_rank]; c++) {
            a->n_wrong += all[i * 40 + c] != (float)(i * 64 + c + round);
        }
    }
}

static void broadcast_once(struct rank *a, int round)
{
    static const size_t sizes[] = {1, 8, 4000, 4001, 12345};
    uint8_t data[12345];
    const size_t n = sizes[round % 5];
    for (size_t i = 0; i < n; i++) {
        data[i] = a->g->rank == 0 ? (uint8_t)(i + (size_t)round) : 0;
    }
    a->st = gr_group_broadcast(a->g, data, n);
    for (size_t i = 0; a->st == GR_OK && i < n; i++) {
        a->n_wrong += data[i] != (uint8_t)(i + (size_t)round);
    }
}

static void *run_rounds(void *arg)
{
    struct rank *a = arg;
    for (int round = 0; a->st == GR_OK && round < N_ROUND; round++) {
        switch (gr_mix64((uint64_t)round * 31) % 8) {
        case 0:
            gather_once(a, round);
            break;
        case 1:
        case 2:
            broadcast_once(a, round);
            break;
        default:
            join_once(a, round);
        }
    }
    return NULL;
}

static void run_on_all(struct rank_threads *t, struct rank *a, void *(*fn)(void *))
{
    for (int r = 0; r < t->n_rank; r++) {
        a[r] = (struct rank){.g = t->group[r]};
    }
    for (int r = 1; r < t->n_rank; r++) {
        rank_threads_start(t, r, fn, &a[r]);
    }
    fn(&a[0]);
    for (int r = 1; r < t->n_rank; r++) {
        pthread_join(t->thread[r], NULL);
    }
}

static void test_operations(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n *= 2) {
        struct rank_threads t;
        struct rank a[GR_GROUP_RANK_MAX];
        rank_threads_open(&t, over, n, N_PART, PATIENT);
        run_on_all(&t, a, run_rounds);
        for (int r = 0; r < n; r++) {
            assert_int_equal(a[r].st, GR_OK);
            assert_int_equal(a[r].n_wrong, 0);
        }
        rank_threads_close(&t);
    }
}

static void *agree(void *arg)
{
    struct rank *a = arg;
    int n = 1000 - a->g->rank * 7;
    a->st = gr_group_least(a->g, &n);
    a->n_wrong += n != 1000 - (a->g->n_rank - 1) * 7;
    const enum gr_status mine = a->g->rank == 2 ? GR_EFORMAT : GR_OK;
    a->n_wrong += gr_group_all_ok(a->g, GR_OK) != GR_OK;
    a->n_wrong += gr_group_all_ok(a->g, mine) != (a->g->rank == 2 ? GR_EFORMAT : GR_ENOMEM);
    a->n_wrong += gr_group_same(a->g, "size", "abcd", 4) != GR_OK;
    uint8_t own[70], all[GR_GROUP_RANK_MAX * sizeof(own)];
    for (size_t i = 0; i < sizeof(own); i++) {
        own[i] = (uint8_t)(255 - i * (size_t)(a->g->rank + 1));
    }
    a->n_wrong += gr_group_all_give(a->g, own, sizeof(own), all) != GR_OK;
    for (size_t i = 0; i < (size_t)a->g->n_rank * sizeof(own); i++) {
        a->n_wrong += all[i] != (uint8_t)(255 - i % sizeof(own) * (i / sizeof(own) + 1));
    }
    uint32_t word = a->g->rank == 0 ? 4711 : 0;
    a->n_wrong += gr_group_broadcast_patiently(a->g, &word, sizeof(word)) != GR_OK || word != 4711;
    return NULL;
}

static void *disagree(void *arg)
{
    struct rank *a = arg;
    a->st = gr_group_same(a->g, "size", a->g->rank == 1 ? "abce" : "abcd", 4);
    return NULL;
}

static void test_agreement(void **state)
{
    (void)state;
    struct rank_threads t;
    struct rank a[GR_GROUP_RANK_MAX];
    struct log_capture log;
    rank_threads_open(&t, over, 4, N_PART, PATIENT);
    run_on_all(&t, a, agree);
    for (int r = 0; r < 4; r++) {
        assert_true(a[r].st == GR_OK && a[r].n_wrong == 0);
    }
    log_capture_begin(&log);
    run_on_all(&t, a, disagree);
    log_capture_end(&log);
    assert_non_null(strstr(log.text, "rank 1 has another size than rank 0"));
    assert_true(a[0].st == GR_ENOMEM && a[1].st == GR_EMISMATCH && a[2].st == GR_ENOMEM && a[3].st == GR_ENOMEM);
    rank_threads_close(&t);
}

/* ---- what goes wrong ---- */

/* Rank 1 sums one number more, or is elsewhere. */
static void *sum_more(void *arg)
{
    struct rank *a = arg;
    float out[N_PART];
    a->g->step = 17;
    a->st = gr_group_join(a->g, out, a->g->rank == 1 ? 11 : 10);
    return NULL;
}

static void *gather_instead(void *arg)
{
    struct rank *a = arg;
    float out[N_PART] = {0};
    const struct gr_group_rows rows = {.mine = out, .all = out, .n_row = 1, .stride = 2, .begin = {0, 1, 2}};
    a->g->step = 17;
    a->st = a->g->rank == 1 ? gr_group_gather(a->g, &rows) : gr_group_join(a->g, out, 10);
    return NULL;
}

static void *another_step(void *arg)
{
    struct rank *a = arg;
    float out[N_PART];
    a->g->step = a->g->rank == 1 ? 18 : 17;
    a->st = gr_group_join(a->g, out, 10);
    return NULL;
}

static void check_fails(void *(*fn)(void *), uint64_t limit_ns, enum gr_status want, const char *words)
{
    struct rank_threads t;
    struct rank a[GR_GROUP_RANK_MAX];
    struct log_capture log;
    rank_threads_open(&t, over, 2, N_PART, limit_ns);
    const uint64_t begin = gr_clock_ns();
    log_capture_begin(&log);
    run_on_all(&t, a, fn);
    log_capture_end(&log);
    assert_int_equal(a[0].st, want);
    assert_non_null(strstr(log.text, words));
    assert_true(gr_clock_ns() - begin < 5 * GR_S);
    /* It stays so, and costs nothing. */
    float out[1];
    assert_int_equal(gr_group_join(t.group[0], out, 1), want);
    rank_threads_close(&t);
}

static void *not_there(void *arg)
{
    struct rank *a = arg;
    float out[N_PART];
    a->g->step = 17;
    a->st = a->g->rank == 0 ? gr_group_join(a->g, out, 10) : GR_OK;
    return NULL;
}

static void *goes(void *arg)
{
    struct rank *a = arg;
    float out[N_PART];
    a->g->step = 17;
    if (a->g->rank == 1) {
        a->g->ops->abort(a->g);
    } else {
        a->st = gr_group_join(a->g, out, 10);
    }
    return NULL;
}

static void test_failures(void **state)
{
    (void)state;
    check_fails(sum_more, PATIENT, GR_EPROTO, "rank 1 in step 17 at call 1, a sum of 11");
    check_fails(gather_instead, PATIENT, GR_EPROTO, "a gathering of 1");
    check_fails(another_step, PATIENT, GR_EPROTO, "rank 1 in step 18");
    check_fails(not_there, 200 * GR_MS, GR_ETIMEDOUT, "rank 1 has not come to step 17 within 0.2 s");
    check_fails(goes, PATIENT, GR_ECLOSED, "rank 1 is gone in step 17");
}

static void test_sizes(void **state)
{
    (void)state;
    struct rank_threads t;
    struct gr_group *g = NULL;
    struct log_capture log;
    rank_threads_open(&t, OVER_MEMORY, 2, N_PART, PATIENT);
    log_capture_begin(&log);
    const struct gr_group_memory_config c = {.memory = t.memory, .rank = 1, .n_rank = 2, .n_part_max = N_PART + 1};
    assert_int_equal(gr_group_memory_create(&c, &g), GR_EMISMATCH);
    log_capture_end(&log);
    assert_non_null(strstr(log.text, "wants 1001 floats of a sum, another rank 1000"));
    rank_threads_close(&t);
}

static int over_memory(void **state)
{
    (void)state;
    over = OVER_MEMORY;
    return 0;
}

static int over_tcp(void **state)
{
    (void)state;
    over = OVER_TCP;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_operations, over_memory),
        cmocka_unit_test_setup(test_agreement, over_memory),
        cmocka_unit_test_setup(test_failures, over_memory),
        cmocka_unit_test_setup(test_operations, over_tcp),
        cmocka_unit_test_setup(test_agreement, over_tcp),
        cmocka_unit_test_setup(test_failures, over_tcp),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
