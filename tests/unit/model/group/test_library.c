/* Ranks that have another NCCL or other RDMA cards than rank 0 are refused with a line that names rank, host and both.
 */
#include "tests/unit/model/group/rank_threads.h"

#include "common/base/clock.h"
#include "model/group/library.h"
#include "tests/unit/log_capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <cmocka.h>

#define N_RANK 4
#define N_PART 1000

struct rank {
    struct gr_group *g;
    struct gr_group_library own;
    enum gr_status st;
};

static void *compare(void *arg)
{
    struct rank *a = arg;
    a->st = gr_group_library_same(a->g, &a->own);
    return NULL;
}

/* Rank 2 is what it is called with, all others have NCCL 2.21.5 and two cards. What was logged. */
static const char *compare_all(const char *version, const char *cards, struct rank rank[static N_RANK])
{
    struct rank_threads t;
    static struct log_capture cap;
    rank_threads_open(&t, OVER_TCP, N_RANK, N_PART, 10 * GR_S);
    log_capture_begin(&cap);
    for (int r = 0; r < N_RANK; r++) {
        rank[r] = (struct rank){.g = t.group[r], .own = {.version = "2.21.5", .cards = "mlx5_0,mlx5_1"}};
        snprintf(rank[r].own.host, sizeof(rank[r].own.host), "n%d", r / 2);
        if (r == 2) {
            memset(rank[r].own.version, 0, sizeof(rank[r].own.version));
            snprintf(rank[r].own.version, sizeof(rank[r].own.version), "%s", version);
            memset(rank[r].own.cards, 0, sizeof(rank[r].own.cards));
            snprintf(rank[r].own.cards, sizeof(rank[r].own.cards), "%s", cards);
        }
        rank_threads_start(&t, r, compare, &rank[r]);
    }
    for (int r = 0; r < N_RANK; r++) {
        pthread_join(t.thread[r], NULL);
    }
    const char *log = log_capture_end(&cap);
    rank_threads_close(&t);
    return log;
}

static void test_alike(void **state)
{
    struct rank rank[N_RANK];
    (void)state;
    assert_string_equal(compare_all("2.21.5", "mlx5_0,mlx5_1", rank), "");
    for (int r = 0; r < N_RANK; r++) {
        assert_int_equal(rank[r].st, GR_OK);
    }
}

static void refused(const char *version, const char *cards, const char *words)
{
    struct rank rank[N_RANK];
    const char *log = compare_all(version, cards, rank);
    if (log_capture_n_line(log) != 1 || strstr(log, words) == NULL) {
        fail_msg("`%s' is wanted, not `%s'", words, log);
    }
    for (int r = 0; r < N_RANK; r++) {
        assert_true(rank[r].st != GR_OK && (rank[r].st == GR_EMISMATCH) == (r == 2));
    }
}

static void test_other_version(void **state)
{
    (void)state;
    refused("2.19.3", "mlx5_0,mlx5_1", "rank 2 on host n1 has NCCL 2.19.3, and rank 0 on host n0 NCCL 2.21.5");
}

static void test_other_cards(void **state)
{
    (void)state;
    refused("2.21.5", "mlx5_0", "rank 2 on host n1 sees the RDMA cards mlx5_0, and rank 0 on host n0 mlx5_0,mlx5_1");
    refused("2.21.5", "", "sees the RDMA cards none");
}

/* ---- what a host has ---- */

static char dir[] = "/tmp/graft-cards-XXXXXX";

static void make(const char *card, const char *state)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", dir, card);
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/ports");
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/1");
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/state");
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fprintf(f, "%s\n", state);
    assert_int_equal(fclose(f), 0);
}

static void take_away(const char *card)
{
    static const char *const below[] = {"/ports/1/state", "/ports/1", "/ports", ""};
    char path[256];
    for (size_t i = 0; i < GR_ARRAY_LEN(below); i++) {
        snprintf(path, sizeof(path), "%s/%s%s", dir, card, below[i]);
        assert_int_equal(remove(path), 0);
    }
}

static void test_fill(void **state)
{
    struct gr_group_library l;
    (void)state;
    assert_non_null(mkdtemp(dir));
    make("mlx5_1", "4: ACTIVE");
    make("mlx5_0", "4: ACTIVE");
    make("mlx5_2", "1: DOWN");
    gr_group_library_fill(dir, "2.21.5", &l);
    assert_string_equal(l.cards, "mlx5_0,mlx5_1");
    assert_string_equal(l.version, "2.21.5");
    assert_true(l.host[0] != '\0');
    setenv("NCCL_IB_HCA", "mlx5_1", 1);
    gr_group_library_fill(dir, "2.21.5", &l);
    assert_string_equal(l.cards, "");
    unsetenv("NCCL_IB_HCA");
    setenv("NCCL_IB_DISABLE", "0", 1);
    gr_group_library_fill(dir, "2.21.5", &l);
    assert_string_equal(l.cards, "mlx5_0,mlx5_1");
    setenv("NCCL_IB_DISABLE", "1", 1);
    gr_group_library_fill(dir, "2.21.5", &l);
    assert_string_equal(l.cards, "");
    take_away("mlx5_0");
    take_away("mlx5_1");
    take_away("mlx5_2");
    gr_group_library_fill("/no/such", "2.21.5", &l);
    assert_string_equal(l.cards, "");
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    unsetenv("NCCL_IB_HCA");
    unsetenv("NCCL_IB_DISABLE");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_other_cards),
        cmocka_unit_test(test_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
