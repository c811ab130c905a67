/* Every fall-back that a worker's machine knows is met here once: one line in the log, one count in the next message to
 * the orchestrator ("every fall-back is one log line and a counter", README), and not a second of either. */
#include "common/base/fallback.h"
#include "tests/quiet_log.h"
#include "tests/sim/drafter_rig.h"
#include "tests/sim/target_rig.h"

static uint32_t n_counted;

/* ---- target ---- */

static const struct gr_specpv_params views = {
    .n_sink = 1, .n_retrieval = 2, .n_window = 1, .n_buffer = 40, .threshold = 10, .interval = 4};

static void open_session(struct world *w, bool single_token)
{
    uint8_t f[64];
    struct text *t = &w->text[1];
    for (int i = 0; i < 20; i++) {
        add(t, i);
    }
    const struct gr_msg m = {.type = GR_MSG_OPEN,
                             .session = 1,
                             .open = {.epoch = 1,
                                      .ids = {t->token, 20},
                                      .segments = {(int32_t[]){0, 20}, 2},
                                      .wishes = {.turn = {.max_tokens = 12},
                                                 .want_draft = 1,
                                                 .n_node = 7,
                                                 .sampling = {.top_p = 1.0},
                                                 .single_token = single_token,
                                                 .specpv = rig_specpv_mode}}};
    gr_target_on_msg(w->target, &m, 0);
    const struct gr_frame_header h = {.session = 1, .epoch = 1};
    const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w->target, 7, f, n, 0), GR_OK);
}

/* To the turn's end; all that its COMMITs count. */
static void run_out(struct world *w, uint64_t now_ns)
{
    for (int i = 0; i < 200 && w->finish[1] == GR_FINISH_NONE; i++) {
        const int before = w->n_msg[GR_MSG_COMMIT];
        (void)one_pass(w, now_ns);
        n_counted += w->n_msg[GR_MSG_COMMIT] > before ? w->last[GR_MSG_COMMIT].commit.n_fallback : 0;
        now_ns += DEADLINE;
    }
    assert_int_not_equal(w->finish[1], GR_FINISH_NONE);
    assert_int_equal(gr_target_counters(w->target)->n_fallback, n_counted);
    destroy(w);
}

static void drafter_silent(void)
{
    struct world w;
    create(&w, 24);
    open_session(&w, false);
    run_out(&w, 1000);
}

static void head_unfed(void)
{
    struct world w;
    uint8_t f[64];
    create(&w, 24);
    open_session(&w, false);
    const struct gr_frame_header h = {.session = 1, .epoch = 1};
    const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){.feature_len = 0}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w.target, 7, f, n, 0), GR_OK);
    run_out(&w, 1000);
}

static void spoil_bonus(struct gr_pass *pass)
{
    for (int i = 0; i < pass->n_seq; i++) {
        if (pass->seq[i].kind != GR_PASS_PREFILL) {
            pass->seq[i].walk.bonus = (pass->seq[i].walk.bonus + 1) % N_VOCAB;
        }
    }
}

static void tree_fault(void)
{
    struct world w;
    create(&w, 24);
    open_session(&w, false);
    (void)one_pass(&w, 1000);
    (void)one_pass(&w, 1000);
    w.spoil = spoil_bonus;
    send_tree(&w, 1, 2000);
    (void)one_pass(&w, 2000);
    w.spoil = NULL;
    run_out(&w, 2000);
}

/* Of one round. */
static void say_long_list(struct gr_pass *pass)
{
    pass->seq[0].list_limit = pass->seq[0].kind != GR_PASS_PREFILL && pass->seq[0].pos0 == 22 ? 1024 : 0;
}

static void long_list(void)
{
    struct world w;
    create(&w, 24);
    open_session(&w, true);
    w.spoil = say_long_list;
    run_out(&w, 1000);
}

static void specpv_absent(void)
{
    struct world w;
    create(&w, 24);
    rig_specpv_mode = GR_SPECPV_EXACT;
    open_prompt(&w, 1, 40, 20);
    run_out(&w, 1000);
}

static void specpv_unfit(void)
{
    struct world w;
    rig_specpv = views;
    rig_specpv.n_buffer = 4;
    create(&w, 24);
    rig_specpv_mode = GR_SPECPV_EXACT;
    open_session(&w, false);
    gr_target_on_peer_lost(w.target, 9); /* another one's */
    for (int i = 0; i < 8; i++) {        /* its trees come */
        (void)one_pass(&w, 1000);
        send_tree(&w, (uint32_t)i, 1000);
    }
    n_counted += 1; /* the first COMMIT has told it */
    assert_int_equal(gr_target_counters(w.target)->n_fallback, 1);
    destroy(&w);
}

static void specpv_fault(void)
{
    struct world w;
    rig_specpv = views;
    create(&w, 24);
    rig_specpv_mode = GR_SPECPV_EXACT;
    open_prompt(&w, 1, 40, 40);
    while (w.text[1].len - w.text[1].final_len < 2) {
        assert_true(one_pass(&w, 1000));
    }
    w.spoil = spoil_bonus;
    assert_true(one_pass(&w, 1000));
    w.spoil = NULL;
    run_out(&w, 1000);
}

/* ---- drafter ---- */

static const struct rig_config small = {.n_node = 15, .depth = 4, .top_k = 4};

static void finish_rig(struct rig *r)
{
    (void)rig_job_once(r); /* it tells with its next step */
    assert_int_equal(gr_drafter_counters(r->drafter)->n_fallback, r->trouble.draft_trouble.n_fallback);
    n_counted += r->trouble.draft_trouble.n_fallback;
    rig_destroy(r);
}

static void draft_context(void)
{
    struct rig_config c = small;
    c.n_ctx = 64;
    struct rig *r = rig_create(&c);
    rig_start(r, 60, 15);
    while (r->len < 80) {
        const int n = r->n_frame[GR_FRAME_DRAFT];
        (void)rig_verify(r, &r->tree, r->draft_header.round, -1, 15);
        if (r->len <= c.n_ctx) {
            rig_await_draft(r);
        }
        assert_int_equal(r->n_frame[GR_FRAME_DRAFT], n + 1);
        assert_true(r->len <= c.n_ctx || r->tree.n == 0);
    }
    finish_rig(r);
}

static void draft_pool(void)
{
    struct rig_config c = small;
    c.one_fits = c.twin = true;
    struct rig *r = rig_create(&c);
    for (int i = 0; i < 300; i++) {
        rig_commit(r, i % RIG_N_VOCAB);
    }
    rig_attach(r);
    rig_send_delta(r, 0, RIG_WANT(15));
    rig_run(r, 50);
    finish_rig(r);
}

static void draft_nan(void)
{
    struct rig_config c = small;
    c.odd = 1;
    struct rig *r = rig_create(&c);
    rig_start(r, 20, 15);
    assert_int_equal(r->tree.n, 0);
    finish_rig(r);
}

/* Two sessions share 64 rows; both draft all the same, and one line is for both. */
static void draft_rows(void)
{
    struct rig_config c = small;
    c.top_k = 64;
    struct rig *r = rig_create(&c);
    rig_start(r, 20, 15);
    assert_true(r->tree.n > 0);
    finish_rig(r);
}

/* ---- all of them ---- */

static const struct {
    enum gr_fallback reason;
    void (*meet)(void);
    const char *words;
    uint32_t n; /* sessions that meet it */
} cases[] = {
    {GR_FALLBACK_DRAFTER_SILENT, drafter_silent, "three round deadlines", 1},
    {GR_FALLBACK_HEAD_UNFED, head_unfed, "started without one", 1},
    {GR_FALLBACK_TREE_FAULT, tree_fault, "a tree round broke an invariant", 1},
    {GR_FALLBACK_LONG_LIST, long_list, "[logits][fallback] session 0000000000000001", 1},
    {GR_FALLBACK_SPECPV_ABSENT, specpv_absent, "started without SpecPV", 1},
    {GR_FALLBACK_SPECPV_UNFIT, specpv_unfit, "buffer is too small", 1},
    {GR_FALLBACK_SPECPV_FAULT, specpv_fault, "[specpv][fallback] session 0000000000000001", 1},
    {GR_FALLBACK_DRAFT_CONTEXT, draft_context, "longer than the drafter's context: 64 tokens", 1},
    {GR_FALLBACK_DRAFT_ROWS, draft_rows, "64 are asked for; a pass has 64 rows for 2 sessions", 1},
    {GR_FALLBACK_DRAFT_NAN, draft_nan, "NaN or infinity: after position 19", 1},
    {GR_FALLBACK_DRAFT_POOL, draft_pool, "KV pool is full", 2},
};

static void test_each_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        rig_specpv = (struct gr_specpv_params){0};
        rig_specpv_mode = GR_SPECPV_OFF;
        n_counted = 0;
        log_fallback_n = 0;
        cases[i].meet();
        if (n_counted != cases[i].n || log_fallback_n != (int)cases[i].n ||
            strstr(log_fallback_last, cases[i].words) == NULL) {
            print_error("%s: %u counted, %d lines, the last one is %s\n", gr_fallback_name(cases[i].reason), n_counted,
                        log_fallback_n, log_fallback_last);
        }
        assert_int_equal(n_counted, cases[i].n);
        assert_int_equal(log_fallback_n, cases[i].n);
        assert_non_null(strstr(log_fallback_last, cases[i].words));
    }
}

/* ---- none of them ---- */

static void drafter_gone(void)
{
    struct world w;
    create(&w, 24);
    open_session(&w, false);
    (void)one_pass(&w, 1000);
    (void)one_pass(&w, 1000);
    gr_target_on_peer_lost(w.target, 7);
    run_out(&w, 2000);
}

static void single_token(void)
{
    struct world w;
    create(&w, 24);
    open_session(&w, true);
    run_out(&w, 1000);
}

/* The orchestrator counts a drafter that is lost, once; single tokens were asked for. */
static void test_no_reason(void **state)
{
    (void)state;
    n_counted = 0;
    log_fallback_n = 0;
    drafter_gone();
    single_token();
    assert_int_equal(n_counted, 0);
    assert_int_equal(log_fallback_n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_reason), cmocka_unit_test(test_no_reason)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
