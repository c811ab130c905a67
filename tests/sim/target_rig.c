#include "tests/sim/target_rig.h"

struct gr_specpv_params rig_specpv;
enum gr_specpv_mode rig_specpv_mode;
uint32_t rig_corrupt;
int rig_partial_blur;
int rig_odd, rig_odd_partial; /* toy_lm.h */
bool rig_odd_hidden;
struct gr_stop_ids rig_stop_ids;
uint64_t rig_fork_of;
bool rig_prefix_cache;
const char *rig_salt = "";
uint8_t frame[GR_WIRE_SMALL_BYTES_MAX];
size_t frame_len;

void add(struct text *t, int32_t token)
{
    t->hash[t->len + 1] = gr_hash_extend(t->hash[t->len], token);
    t->token[t->len++] = token;
}

static void on_msg(void *ctx, const struct gr_msg *m)
{
    struct world *w = ctx;
    if (m->type == GR_MSG_OPENED) {
        w->opened_at[w->n_msg[m->type] % 8] = w->n_all;
    } else if (m->type == GR_MSG_ERROR) {
        w->error_at[w->n_msg[m->type] % 16] = w->n_all;
    }
    w->n_all++;
    w->n_msg[m->type]++;
    w->last[m->type] = *m;
    if (m->type == GR_MSG_COMMIT) {
        struct text *t = &w->text[m->session];
        assert_true(m->commit.keep_len == (uint32_t)t->len ||
                    (rig_specpv.n_buffer > 0 && m->commit.keep_len < (uint32_t)t->len &&
                     m->commit.keep_len >= (uint32_t)t->final_len));
        t->n_back += m->commit.keep_len < (uint32_t)t->len;
        t->len = (int32_t)m->commit.keep_len;
        t->final_len = (int32_t)m->commit.final_len;
        for (uint32_t i = 0; i < m->commit.ids.n; i++) {
            add(t, m->commit.ids.p[i]);
        }
        assert_true(m->commit.hash == t->hash[t->len]);
        w->finish[m->session] = m->commit.finish;
    }
}

static bool commit_room(void *ctx, int n)
{
    const struct world *w = ctx;
    return w->room < 0 || n <= w->room;
}

static void start_pass(void *ctx, struct gr_pass *pass)
{
    struct world *w = ctx;
    gr_verifier_run(w->verifier, pass);
    w->n_row += (uint64_t)pass->n_row;
    w->pass = pass;
}

static uint8_t *frame_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t n)
{
    (void)ctx;
    (void)peer;
    (void)class;
    assert_true(n <= sizeof(frame));
    return frame;
}

static void frame_end(void *ctx, uint32_t peer, uint32_t n)
{
    (void)ctx;
    (void)peer;
    frame_len = n;
}

void create_with(struct world *w, int32_t n_block, int32_t n_row_max, int32_t n_out_max)
{
    memset(w, 0, sizeof(*w));
    struct toy_config c = toy;
    c.n_pool_block = n_block;
    c.n_row_max = n_row_max;
    c.n_out_max = n_out_max;
    c.partial_blur = rig_partial_blur;
    c.odd = rig_odd;
    c.odd_partial = rig_odd_partial;
    c.odd_hidden = rig_odd_hidden;
    w->room = -1;
    w->lm = toy_lm_create(&c);
    const struct gr_target_config tc = {.n_session_max = N_SLOT,
                                        .n_ctx_max = N_CTX,
                                        .n_vocab = N_VOCAB,
                                        .model = "toy",
                                        .n_row_max = n_row_max,
                                        .n_out_max = n_out_max,
                                        .prefill_chunk = 16,
                                        .n_pool_block = n_block,
                                        .round_deadline_ns = DEADLINE,
                                        .admit_tokens = 8,
                                        .specpv = rig_specpv,
                                        .prefix_cache = rig_prefix_cache,
                                        .kv_identity = {.numerics_id = "toy"},
                                        .test_corrupt = rig_corrupt};
    const struct gr_target_io io = {.ctx = w,
                                    .frame_begin = frame_begin,
                                    .frame_end = frame_end,
                                    .send_msg = on_msg,
                                    .commit_room = commit_room,
                                    .start_pass = start_pass};
    assert_int_equal(gr_target_create(&tc, &io, &w->target), GR_OK);
    if (rig_specpv.n_buffer > 0) {
        const struct gr_kv_budget most = {.n_sink = (int32_t)rig_specpv.n_sink,
                                          .n_retrieval = (int32_t)rig_specpv.n_retrieval,
                                          .n_window = (int32_t)rig_specpv.n_window};
        assert_int_equal(gr_lm_view_create(w->lm, &most, N_SLOT), GR_OK);
    }
    assert_int_equal(gr_verifier_create(w->lm, N_SLOT, &w->verifier), GR_OK);
}

void create(struct world *w, int32_t n_block)
{
    create_with(w, n_block, 700, 640);
}

void destroy(struct world *w)
{
    assert_true(gr_target_check(w->target));
    gr_verifier_destroy(w->verifier);
    gr_target_destroy(w->target);
    gr_lm_destroy(w->lm);
}

bool one_pass(struct world *w, uint64_t now_ns)
{
    if (w->pass == NULL) {
        (void)gr_target_step(w->target, now_ns);
    }
    struct gr_pass *pass = w->pass;
    if (pass == NULL) {
        return false;
    }
    w->pass = NULL;
    if (w->spoil != NULL) {
        w->spoil(pass);
    }
    gr_target_on_pass_done(w->target, pass, now_ns);
    assert_true(gr_target_check(w->target));
    return true;
}

void run(struct world *w)
{
    while (one_pass(w, 1000)) {
    }
}

void open_with(struct world *w, uint64_t id, uint32_t epoch, const int32_t *segments, uint32_t n_segment,
               uint32_t max_tokens)
{
    struct text *t = &w->text[id];
    struct gr_msg m = {.type = GR_MSG_OPEN,
                       .session = id,
                       .open = {.epoch = epoch,
                                .ids = {t->token, (uint32_t)t->len},
                                .segments = {(int32_t *)(uintptr_t)segments, n_segment},
                                .wishes = {.turn = {.max_tokens = max_tokens, .stop_ids = rig_stop_ids},
                                           .sampling = {.top_p = 1.0},
                                           .fork_of = rig_fork_of,
                                           .specpv = rig_specpv_mode}}};
    snprintf(m.open.wishes.salt, sizeof(m.open.wishes.salt), "%s", rig_salt);
    gr_target_on_msg(w->target, &m, 0);
}

void open_prompt(struct world *w, uint64_t id, int32_t n, uint32_t max_tokens)
{
    struct text *t = &w->text[id];
    t->len = t->final_len = t->n_back = 0;
    for (int32_t i = 0; i < n; i++) {
        add(t, (int32_t)((7 * id + (uint64_t)(i * i)) % N_VOCAB));
    }
    t->final_len = t->len;
    open_with(w, id, 1, (int32_t[]){0, n}, 2, max_tokens);
    assert_int_equal(w->n_msg[GR_MSG_ERROR], 0);
}

void append_to(struct world *w, uint64_t id, uint32_t epoch, int32_t keep_len, int32_t n, uint32_t max_tokens)
{
    struct text *t = &w->text[id];
    int32_t ids[N_CTX];
    const uint64_t hash = t->hash[keep_len];
    const int n_error = w->n_msg[GR_MSG_ERROR];
    for (int32_t i = 0; i < n; i++) {
        ids[i] = (3 * i + 1) % N_VOCAB;
    }
    const struct gr_msg m = {.type = GR_MSG_APPEND,
                             .session = id,
                             .append = {.epoch = epoch,
                                        .keep_len = (uint32_t)keep_len,
                                        .hash = hash,
                                        .ids = {ids, (uint32_t)n},
                                        .wishes = {.max_tokens = max_tokens}}};
    gr_target_on_msg(w->target, &m, 0);
    if (w->n_msg[GR_MSG_ERROR] == n_error) {
        t->len = keep_len;
        for (int32_t i = 0; i < n; i++) {
            add(t, ids[i]);
        }
    }
}

int32_t first_odd(const struct text *t, int32_t from)
{
    struct toy_config c = toy;
    float logits[N_VOCAB];
    c.odd = rig_odd;
    for (int32_t i = from; i < t->len; i++) {
        toy_lm_logits(&c, t->token, i + 1, logits);
        if (!gr_sampler_is_finite(logits, N_VOCAB)) {
            return i;
        }
    }
    return t->len;
}

void assert_plain(const struct text *t, int32_t from)
{
    float logits[N_VOCAB], scratch[N_VOCAB];
    int32_t work[N_VOCAB];
    const struct gr_sampling greedy = {.top_p = 1.0f};
    for (int32_t i = from; i < t->len; i++) {
        toy_lm_logits(&toy, t->token, i, logits);
        assert_int_equal(t->token[i], gr_sampler_pick(&greedy, logits, N_VOCAB, (uint32_t)i, scratch, work));
    }
}

void truncate_to(struct world *w, uint64_t id, int32_t keep_len)
{
    gr_target_on_msg(w->target,
                     &(struct gr_msg){.type = GR_MSG_TRUNCATE,
                                      .session = id,
                                      .truncate = {.epoch = 1, .keep_len = (uint32_t)keep_len}},
                     0);
}

void send_tree(struct world *w, uint32_t round, uint64_t now_ns)
{
    uint8_t f[256];
    const struct text *t = &w->text[1];
    const struct gr_frame_header h = {.session = 1,
                                      .epoch = 1,
                                      .round = round,
                                      .flags = w->tree_flags,
                                      .base_len = (uint32_t)t->len,
                                      .prefix_hash = t->hash[t->len]};
    const struct gr_token_tree tree = {.n = 3, .token = {1, 2, 3}, .parent = {-1, 0, -1}};
    const size_t n = gr_wire_encode_draft(&h, &tree, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w->target, 7, f, n, now_ns), GR_OK);
}

void open_with_drafter(struct world *w)
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
                                      .wishes = {.turn = {.max_tokens = 100},
                                                 .want_draft = 1,
                                                 .n_node = rig_specpv.n_buffer > 0 ? 7 : 63,
                                                 .sampling = {.top_p = 1.0},
                                                 .specpv = rig_specpv_mode}}};
    gr_target_on_msg(w->target, &m, 0);
    const struct gr_frame_header h = {.session = 1, .epoch = 1};
    const size_t n = gr_wire_encode_resync(&h, &(struct gr_resync){.feature_len = GR_FEATURES_NONE}, f, sizeof(f));
    assert_int_equal(gr_target_on_frame(w->target, 7, f, n, 0), GR_OK);
    run(w);
    assert_int_equal(t->len, 21);
}

uint64_t run_too_many(int32_t n_block)
{
    struct world w;
    create(&w, n_block);
    for (uint64_t id = 1; id <= N_SLOT; id++) {
        open_prompt(&w, id, 25 + (int32_t)id, 80);
    }
    run(&w);
    for (uint64_t id = 1; id <= N_SLOT; id++) {
        assert_int_equal(w.text[id].len, 105 + (int32_t)id);
        assert_plain(&w.text[id], 25 + (int32_t)id);
    }
    const struct gr_target_counters *c = gr_target_counters(w.target);
    const uint64_t n_yield = c->n_preempted + c->n_evicted;
    destroy(&w);
    return n_yield;
}

void expect_error(struct world *w, int *n, const char *what)
{
    assert_int_equal(w->n_msg[GR_MSG_ERROR], ++*n);
    assert_non_null(strstr(w->last[GR_MSG_ERROR].error.text, what));
}
