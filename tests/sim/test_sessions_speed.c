/* Many sessions on simulated GPUs, in their time: what automatic trees bring against plain decoding. Prices are those
 * of an H200 with an 8B model (docs/lab/2026-11-26-notebook.md), the models are tables. So this shows what the state
 * machines make of such a device: who is drafted and verified with whom, how large trees are, when they are given up.
 */
#include "common/protocol/wire.h"
#include "tests/sim/pair_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_PROMPT 16
#define N_NEW 192
#define N_AT_ONCE 64
#define PROMPT_LEN 250
#define LEVEL_NS 226000
#define LEVEL_ROW_NS 2000

/* The weights are read once for up to 128 rows, and more than 64 are two tiles; and the sessions' own attention. */
static double pass_ns(int n_seq, int n_row)
{
    const int n_turn = (n_row + 127) / 128;
    const int n_last = n_row - 128 * (n_turn - 1);
    const double last_ns = n_last <= 64 ? 3.83e6 + 12e3 * n_last : 5.5e6 + 6e3 * n_last;
    return 5.3e6 * (n_turn - 1) + GR_MIN(last_ns, n_turn > 1 ? 5.3e6 : last_ns) + 20e3 * n_seq;
}

/* As a target calibrates at start. */
static void calibrate(struct gr_cost_table *cost)
{
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 72, 96, 128, 136, 192, 256};
    double ns[GR_ARRAY_LEN(rows)];
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        ns[i] = pass_ns(1, rows[i]);
    }
    gr_cost_table_init(cost);
    gr_cost_table_calibrate(cost, (int)GR_ARRAY_LEN(rows), rows, ns);
}

struct stage {
    struct gr_cost_table cost;
    struct sim_device device;
    struct gr_lm *target_lm, *draft_lm;
    struct sim *sim;
    enum gr_ahead ahead;
    int n_request;
    struct {
        int n, n_last; /* so many at once, until there were so many requests; 0: not now */
        bool trees;
    } stream;
    /* what was seen */
    bool watched;
    int64_t n_seq, n_decoding;  /* sessions in passes that decode, and that decode then */
    int64_t n_told, n_more;     /* VERDICTs, and of them those after which more follow */
    int64_t n_tree_job, n_tree; /* jobs that grow trees, and those */
};

static struct stage *seen; /* by on_job(), which has no argument */

static void on_job(const struct gr_drafter *d, const struct gr_draft_job *job)
{
    int n = 0;
    (void)d;
    for (int i = 0; i < job->n_seq; i++) {
        n += job->seq[i].task == GR_DRAFT_GROW;
    }
    seen->n_tree += seen->watched ? n : 0;
    seen->n_tree_job += seen->watched && n > 0;
}

static void submit(struct stage *g, bool trees, uint32_t n_new)
{
    struct gr_session_request r = pair_request(g->n_request % N_PROMPT, PROMPT_LEN, n_new);
    r.wishes.want_draft = r.wishes.auto_tree = trees;
    r.wishes.n_node = GR_NODE_MAX;
    r.wishes.draft_depth = 8;
    r.wishes.draft_top_k = 10;
    r.wishes.draft_ahead = g->ahead;
    assert_int_equal(sim_submit(g->sim, &r), g->n_request);
    g->n_request++;
}

static int n_running(const struct stage *g)
{
    int n = 0;
    for (int i = 0; i < g->n_request; i++) {
        n += !sim_result(g->sim, i)->done;
    }
    return n;
}

/* For each session that has ended another one begins; their lengths differ. */
static void keep_streaming(struct stage *g)
{
    for (int n = n_running(g); n < g->stream.n && g->n_request < g->stream.n_last; n++) {
        submit(g, g->stream.trees, 64 + 37 * (uint32_t)(g->n_request % 8));
    }
}

static void on_pass(struct sim *s, void *arg)
{
    struct stage *g = arg;
    const struct gr_pass *p = sim_pass(s);
    keep_streaming(g);
    for (int i = 0; i < p->n_seq; i++) {
        if (p->seq[i].kind == GR_PASS_PREFILL) {
            return;
        }
    }
    g->n_seq += g->watched ? p->n_seq : 0;
    g->n_decoding += g->watched ? GR_MAX(n_running(g), p->n_seq) : 0;
}

static void on_frame(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len)
{
    struct stage *g = arg;
    struct gr_frame_header h;
    (void)s;
    assert_int_equal(gr_wire_decode_header(bytes, *len, &h), GR_OK);
    if (!to_target && g->watched && h.type == GR_FRAME_VERDICT) {
        g->n_told++;
        g->n_more += (h.flags & GR_FRAME_MORE) != 0;
    }
}

/* The drafter is wrong in one context of `blur`; a head waits for its features, too. Where it has a GPU of its own it
 * drafts ahead. */
static void stage_create(struct stage *g, uint64_t seed, int blur, bool head, bool one_gpu)
{
    memset(g, 0, sizeof(*g));
    calibrate(&g->cost);
    g->ahead = one_gpu ? GR_AHEAD_OFF : GR_AHEAD_ON;
    g->device = (struct sim_device){
        .pass_ns = pass_ns, .level_ns = LEVEL_NS, .level_row_ns = LEVEL_ROW_NS, .shared = one_gpu, .cost = &g->cost};
    struct toy_config table = {.n_vocab = PAIR_N_VOCAB,
                               .n_ctx_max = 640,
                               .n_row_max = 4700,
                               .n_out_max = 4400,
                               .n_pool_block = N_AT_ONCE * 41,
                               .n_scratch_block = N_AT_ONCE * 16,
                               .seed = seed,
                               .sharpness = 6.0f,
                               .memory = 12,
                               .features = head};
    g->target_lm = toy_lm_create(&table);
    table.head = head;
    table.blur_seed = seed + 99;
    table.blur = blur;
    g->draft_lm = toy_lm_create(&table);
    seen = g;
    g->sim = sim_create(&(struct sim_config){.device = &g->device,
                                             .seed = seed,
                                             .target_lm = g->target_lm,
                                             .draft_lm = g->draft_lm,
                                             .n_session_max = N_AT_ONCE,
                                             .prefill_chunk = 256,
                                             .round_deadline_ns = 1000000000,
                                             .msg_delay_ns = 30000,
                                             .frame_delay_ns = 5000,
                                             .on_job = on_job,
                                             .prefill_share = 0.5,
                                             .feature_keep = 512,
                                             .feature_window = 448});
    sim_on_pass(g->sim, on_pass, g);
    sim_on_frame(g->sim, on_frame, g);
}

static void stage_destroy(struct stage *g)
{
    assert_true(gr_target_check(sim_target(g->sim)) && gr_drafter_check(sim_drafter(g->sim)));
    sim_destroy(g->sim);
    gr_lm_destroy(g->target_lm);
    gr_lm_destroy(g->draft_lm);
}

/* n sessions at once, all prompts in turn: tokens a second. Every text is checked against its prompt's first. */
static double run(struct stage *g, int n, bool trees)
{
    const int n_session = GR_MAX(n, N_PROMPT);
    const uint64_t begin_ns = sim_now_ns(g->sim);
    for (int i = 0; i < n_session; i++) {
        submit(g, trees, N_NEW);
        if ((i + 1) % n == 0) {
            assert_true(sim_run(g->sim, UINT64_MAX / 2));
        }
    }
    const double seconds = 1e-9 * (double)(sim_now_ns(g->sim) - begin_ns);
    for (int i = g->n_request - n_session; i < g->n_request; i++) {
        assert_true(sim_result(g->sim, i)->done);
        assert_int_equal(sim_result(g->sim, i)->n_token, N_NEW);
        assert_memory_equal(sim_result(g->sim, i)->token, sim_result(g->sim, i % N_PROMPT)->token,
                            N_NEW * sizeof(int32_t));
    }
    return n_session * N_NEW / seconds;
}

static const int sizes[] = {1, 2, 8, 16, 32, 64};
#define N_SIZE ((int)GR_ARRAY_LEN(sizes))

/* Trees against plain decoding with as many sessions, after a run that teaches the machines the device. */
static void measure(uint64_t seed, int blur, bool head, bool one_gpu, double gain[N_SIZE])
{
    static struct stage g;
    stage_create(&g, seed, blur, head, one_gpu);
    (void)run(&g, 1, false);
    for (int i = 0; i < N_SIZE; i++) {
        const double plain = run(&g, sizes[i], false);
        (void)run(&g, sizes[i], true);
        g.watched = sizes[i] == 8;
        gain[i] = run(&g, sizes[i], true) / plain;
        g.watched = false;
    }
    print_message("# %s%s, wrong in one context of %2d: x plain with 1, 2, 8, 16, 32, 64 sessions: %.2f %.2f %.2f %.2f "
                  "%.2f %.2f; of 8, %.2f in a pass, %.2f trees a job\n",
                  one_gpu ? "one GPU" : "two GPUs", head ? ", a head" : "", blur, gain[0], gain[1], gain[2], gain[3],
                  gain[4], gain[5], 8.0 * (double)g.n_seq / (double)GR_MAX(g.n_decoding, 1),
                  (double)g.n_tree / (double)GR_MAX(g.n_tree_job, 1));
    if (blur >= 4) { /* trees pay: sessions stay together */
        assert_true(g.n_seq > 0.9 * (double)g.n_decoding);
        assert_true(g.n_tree > 6 * g.n_tree_job);
        assert_true(g.n_more > 0.7 * (double)g.n_told && g.n_more < g.n_told);
    }
    stage_destroy(&g);
}

/* Whatever the drafter is worth: never below 0.95 of plain decoding. */
static void never_loses(const double gain[N_SIZE])
{
    for (int i = 0; i < N_SIZE; i++) {
        assert_true(gain[i] >= 0.95);
    }
}

static void test_one_gpu(void **state)
{
    (void)state;
    static const struct {
        int blur;
        double least[N_SIZE]; /* about a twentieth below the least of twelve seeds */
    } cases[] = {{1, {0}},
                 {2, {1.5, 1.45, 1.25, 1.2, 1.08, 0.97}},
                 {4, {2.2, 2.1, 1.75, 1.5, 1.2, 1.08}},
                 {8, {3.0, 2.85, 2.25, 1.75, 1.35, 1.15}}};
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        double gain[N_SIZE];
        measure(3, cases[i].blur, false, true, gain);
        never_loses(gain);
        for (int k = 0; k < N_SIZE; k++) {
            assert_true(gain[k] >= cases[i].least[k]);
        }
    }
}

static void test_two_gpus(void **state)
{
    (void)state;
    static const double least[N_SIZE] = {3.2, 2.9, 2.25, 1.75, 1.38, 1.18};
    double gain[N_SIZE];
    measure(3, 1, false, false, gain);
    never_loses(gain);
    measure(3, 8, false, false, gain);
    for (int k = 0; k < N_SIZE; k++) {
        assert_true(gain[k] >= least[k]);
    }
}

/* A head, whose features come after the verdicts: nothing is lost by waiting for them. */
static void test_head(void **state)
{
    (void)state;
    static const struct {
        int blur;
        bool one_gpu;
        double least[N_SIZE];
    } cases[] = {
        {1, true, {0}}, {8, true, {3.0, 2.75, 2.08, 1.65, 1.32, 1.16}}, {8, false, {3.2, 2.85, 2.2, 1.65, 1.33, 1.15}}};
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        /* Trees are late while prompts are read, with some seeds more than with others. */
        for (uint64_t seed = 1; seed <= 3; seed++) {
            double gain[N_SIZE];
            measure(seed, cases[i].blur, true, cases[i].one_gpu, gain);
            never_loses(gain);
            for (int k = 0; k < N_SIZE; k++) {
                assert_true(gain[k] >= cases[i].least[k]);
            }
        }
    }
}

/* A head that is of no use to sessions in company: after a while it is asked for hardly a tree and gets hardly a
 * feature, and yet it is tried again now and then. */
static void test_useless_head_rests(void **state)
{
    (void)state;
    static struct stage g;
    uint64_t n_tree[8], n_row[8], n_tree_later = 0;
    stage_create(&g, 3, 1, true, false);
    (void)run(&g, 1, false);
    for (int i = 0; i < 8; i++) {
        const uint64_t trees = sim_drafter_counters(g.sim)->n_draft_frame;
        const uint64_t rows = sim_target_counters(g.sim)->n_feature_row;
        (void)run(&g, 8, true);
        n_tree[i] = sim_drafter_counters(g.sim)->n_draft_frame - trees;
        n_row[i] = sim_target_counters(g.sim)->n_feature_row - rows;
        n_tree_later += i > 0 ? n_tree[i] : 0;
    }
    print_message("# a useless head: trees of eight sessions' turns %llu %llu %llu .. %llu, features %llu %llu %llu .. "
                  "%llu of %d tokens\n",
                  (unsigned long long)n_tree[0], (unsigned long long)n_tree[1], (unsigned long long)n_tree[2],
                  (unsigned long long)n_tree[7], (unsigned long long)n_row[0], (unsigned long long)n_row[1],
                  (unsigned long long)n_row[2], (unsigned long long)n_row[7], N_PROMPT * (PROMPT_LEN + N_NEW));
    assert_true(n_tree_later > 0); /* it is not forgotten */
    assert_true(n_tree_later < 7 * N_PROMPT * N_NEW / 20);
    assert_true(n_row[7] < N_PROMPT * (PROMPT_LEN + N_NEW) / 5);
    stage_destroy(&g);
}

/* n sessions at a time, each followed by another: tokens a second. */
static double stream(struct stage *g, int n, bool trees)
{
    const uint64_t begin_ns = sim_now_ns(g->sim);
    const int first = g->n_request;
    double n_token = 0.0;
    g->stream.n = n;
    g->stream.n_last = first + 2 * n + 8;
    g->stream.trees = trees;
    do { /* again, where all ended after the last pass */
        keep_streaming(g);
        assert_true(sim_run(g->sim, UINT64_MAX / 2));
    } while (g->n_request < g->stream.n_last);
    g->stream.n = 0;
    for (int i = first; i < g->n_request; i++) {
        n_token += sim_result(g->sim, i)->n_token;
    }
    return n_token / (1e-9 * (double)(sim_now_ns(g->sim) - begin_ns));
}

/* Sessions come and go, so prompts are computed all the time and throw those that decode out of step. */
static void test_stream(void **state)
{
    (void)state;
    static const int n[] = {2, 8, 32};
    static const struct {
        int blur;
        bool one_gpu;
        double least[3];
    } cases[] = {{1, false, {0.95, 0.95, 0.95}},
                 {1, true, {0.95, 0.95, 0.95}},
                 {8, false, {2.95, 2.55, 1.6}},
                 {8, true, {2.8, 2.3, 1.5}}};
    for (size_t k = 0; k < GR_ARRAY_LEN(cases); k++) {
        static struct stage g;
        double gain[3];
        stage_create(&g, 3, cases[k].blur, false, cases[k].one_gpu);
        for (int i = 0; i < 3; i++) {
            const double plain = stream(&g, n[i], false);
            (void)stream(&g, n[i], true);
            gain[i] = stream(&g, n[i], true) / plain;
        }
        stage_destroy(&g);
        print_message("# %s, sessions come and go, wrong in one context of %d: x plain with 2, 8, 32 at a time: %.2f "
                      "%.2f %.2f\n",
                      cases[k].one_gpu ? "one GPU" : "two GPUs", cases[k].blur, gain[0], gain[1], gain[2]);
        for (int i = 0; i < 3; i++) {
            assert_true(gain[i] >= cases[k].least[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_gpu), cmocka_unit_test(test_two_gpus),
                                       cmocka_unit_test(test_head), cmocka_unit_test(test_useless_head_rests),
                                       cmocka_unit_test(test_stream)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
