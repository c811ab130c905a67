#include "tests/unit/orch_world.h"

static void keep_sent(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    struct world *w = ctx;
    static uint8_t bytes[1 << 16];
    size_t n = 0;
    assert_true(w->n_sent < SENT_MAX);
    gr_msg_finish(&w->sent[w->n_sent]); /* of an earlier message in this place */
    assert_int_equal(gr_msg_encode(m, bytes, sizeof(bytes), &n), GR_OK);
    assert_int_equal(gr_msg_decode(bytes, n, &w->sent[w->n_sent]), GR_OK);
    w->to[w->n_sent++] = worker;
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct world *w = ctx;
    (void)session;
    (void)user;
    for (uint32_t i = 0; i < n; i++) {
        w->token[w->n_token++] = id[i];
    }
}

static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    struct world *w = ctx;
    w->n_report++;
    if (w->desk != NULL) {
        gr_desk_on_report(w->desk, session, user, m);
    }
}

struct gr_turn_request turn_of(const int32_t *ids, uint32_t n)
{
    return (struct gr_turn_request){.keep_len = UINT32_MAX, .ids = ids, .n_ids = n, .wishes = {.max_tokens = 8}};
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct world *w = ctx;
    if (w->desk != NULL) {
        gr_desk_on_done(w->desk, session, user, finish, text);
    }
    w->n_done++;
    w->finish = finish;
    snprintf(w->text, sizeof(w->text), "%s", text);
    if (w->append_from_done) {
        static const int32_t ids[] = {70};
        const struct gr_turn_request t = turn_of(ids, 1);
        w->append_from_done = false;
        assert_int_equal(gr_orch_append(w->orch, session, &t, w->now_ns), GR_OK);
    }
}

static void on_closed(void *ctx, uint64_t session, void *user, const char *why)
{
    struct world *w = ctx;
    if (w->desk != NULL) {
        gr_desk_on_closed(w->desk, session, user, why);
    }
    w->n_closed++;
    snprintf(w->why, sizeof(w->why), "%s", why);
}

static void on_drop(void *ctx, uint32_t worker)
{
    struct world *w = ctx;
    w->n_dropped++;
    w->dropped = worker;
}

static void on_pong(void *ctx, uint32_t worker, uint64_t cookie, uint64_t rtt_ns, const struct gr_msg *pong)
{
    struct world *w = ctx;
    (void)worker;
    (void)pong;
    w->n_pong++;
    w->cookie = cookie;
    w->rtt_ns = rtt_ns;
}

struct world *make(const struct gr_orch_config *config)
{
    return make_with(config, NULL);
}

struct world *make_with(const struct gr_orch_config *config, void (*on_placed)(void *ctx, uint64_t session, void *user))
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    const struct gr_orch_io io = {.ctx = w,
                                  .send = keep_sent,
                                  .on_report = on_report,
                                  .on_tokens = on_tokens,
                                  .on_done = on_done,
                                  .on_closed = on_closed,
                                  .drop = on_drop,
                                  .on_placed = on_placed,
                                  .on_pong = on_pong};
    assert_int_equal(gr_orch_create(&io, &w->orch), GR_OK);
    if (config != NULL) {
        gr_orch_configure(w->orch, config);
    }
    w->now_ns = 1000 * GR_S;
    return w;
}

void destroy(struct world *w)
{
    for (int i = 0; i < SENT_MAX; i++) {
        gr_msg_finish(&w->sent[i]);
    }
    gr_desk_destroy(w->desk);
    gr_orch_destroy(w->orch);
    free(w);
}

struct gr_worker_info target_info(void)
{
    return (struct gr_worker_info){.role = GR_WORKER_TARGET,
                                   .address = "t:1",
                                   .model_fingerprint = 11,
                                   .tokenizer_fingerprint = 7,
                                   .n_vocab = 100,
                                   .n_ctx_max = 64,
                                   .host_id = "a",
                                   .numerics_id = "cpu"};
}

struct gr_worker_info draft_info(void)
{
    return (struct gr_worker_info){.role = GR_WORKER_DRAFT,
                                   .model_fingerprint = 22,
                                   .tokenizer_fingerprint = 7,
                                   .n_vocab = 100,
                                   .host_id = "a",
                                   .numerics_id = "cpu"};
}

void join_target(struct world *w)
{
    const struct gr_worker_info info = target_info();
    assert_int_equal(gr_orch_join(w->orch, TARGET, &info, w->now_ns), GR_OK);
}

void join_drafter(struct world *w)
{
    const struct gr_worker_info info = draft_info();
    assert_int_equal(gr_orch_join(w->orch, DRAFTER, &info, w->now_ns), GR_OK);
}

const struct gr_msg *only(struct world *w, uint32_t to, enum gr_msg_type type)
{
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->to[0], to);
    assert_string_equal(gr_msg_name(w->sent[0].type), gr_msg_name(type));
    w->n_sent = 0; /* it stays in its place until the next one is sent */
    return &w->sent[0];
}

void expect(struct world *w, uint32_t to, enum gr_msg_type type)
{
    (void)only(w, to, type);
}

void say(struct world *w, uint32_t from, const struct gr_msg *m)
{
    assert_int_equal(gr_orch_on_msg(w->orch, from, m, w->now_ns), GR_OK);
}

void take_open(struct world *w)
{
    const struct gr_msg *m = only(w, TARGET, GR_MSG_OPEN);
    int64_t n = 0;
    w->session = m->session;
    w->epoch = m->open.epoch;
    w->specpv = m->open.wishes.specpv;
    w->len = m->open.ids.n;
    w->hash = 0;
    w->round = 0;
    for (uint32_t i = 0; i < m->open.ids.n; i++) {
        w->hash = gr_hash_extend(w->hash, m->open.ids.p[i]);
    }
    for (uint32_t i = 0; i < m->open.segments.n; i += 2) {
        n += m->open.segments.p[i + 1];
    }
    assert_int_equal(n, m->open.ids.n);
}

void opened(struct world *w)
{
    say(w, TARGET,
        &(struct gr_msg){
            .type = GR_MSG_OPENED, .session = w->session, .opened = {.epoch = w->epoch, .specpv = w->specpv}});
}

struct gr_msg commit_of(struct world *w, int32_t *id, uint32_t n, enum gr_finish finish)
{
    uint64_t hash = w->hash;
    for (uint32_t i = 0; i < n; i++) {
        hash = gr_hash_extend(hash, id[i]);
    }
    return (struct gr_msg){.type = GR_MSG_COMMIT,
                           .session = w->session,
                           .commit = {.epoch = w->epoch,
                                      .round = w->round,
                                      .keep_len = w->len,
                                      .final_len = w->len + n,
                                      .ids = {.p = id, .n = n},
                                      .hash = hash,
                                      .finish = finish,
                                      .n_draft = w->round > 0 ? 4 : 0,
                                      .n_accepted = w->round > 0 ? n - 1 : 0}};
}

void commit(struct world *w, int32_t first, uint32_t n, enum gr_finish finish)
{
    int32_t id[16];
    for (uint32_t i = 0; i < n; i++) {
        id[i] = first + (int32_t)i;
    }
    const struct gr_msg m = commit_of(w, id, n, finish);
    w->len += n;
    w->hash = m.commit.hash;
    w->round++;
    say(w, TARGET, &m);
}

void take_append(struct world *w, uint32_t keep_len, uint32_t n_ids)
{
    const struct gr_msg *m = only(w, TARGET, GR_MSG_APPEND);
    assert_int_equal(m->append.keep_len, keep_len);
    assert_int_equal(m->append.ids.n, n_ids);
    if (keep_len == w->len) {
        assert_int_equal(m->append.hash, w->hash);
    }
    w->hash = m->append.hash;
    w->len = keep_len + n_ids;
    for (uint32_t i = 0; i < n_ids; i++) {
        w->hash = gr_hash_extend(w->hash, m->append.ids.p[i]);
    }
}

uint64_t submit(struct world *w, bool keep_open, bool want_draft)
{
    static const int32_t prompt[] = {5, 6, 7};
    const struct gr_session_request q = {.prompt = prompt,
                                         .n_prompt = 3,
                                         .wishes = {.turn = {.max_tokens = 8},
                                                    .keep_open = keep_open,
                                                    .want_draft = want_draft,
                                                    .n_node = 7,
                                                    .draft_depth = 8,
                                                    .draft_top_k = 10,
                                                    .sampling = {.top_p = 1.0f, .seed = 3},
                                                    .draft_ahead = GR_AHEAD_AUTO}};
    uint64_t id = 0;
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    return id;
}

enum gr_session_state state_of(const struct world *w, uint64_t id)
{
    struct gr_session_info info;
    return gr_orch_session_info(w->orch, id, w->now_ns, &info) ? info.state : GR_SESSION_FREE;
}

uint64_t idle_session(struct world *w)
{
    const uint64_t id = submit(w, true, false);
    take_open(w);
    opened(w);
    commit(w, 40, 1, GR_FINISH_NONE);
    commit(w, 41, 2, GR_FINISH_STOP);
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    assert_int_equal(w->n_sent, 0); /* the target keeps it: no CLOSE */
    return id;
}

void check_reopened(struct world *w, uint64_t id, uint32_t epoch, uint32_t n_ids, uint32_t n_segment,
                    uint32_t max_tokens)
{
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->sent[0].session, id);
    assert_int_equal(w->sent[0].open.epoch, epoch);
    assert_int_equal(w->sent[0].open.ids.n, n_ids);
    assert_int_equal(w->sent[0].open.segments.n, 2 * n_segment);
    assert_int_equal(w->sent[0].open.wishes.turn.max_tokens, max_tokens);
    take_open(w);
}
