#include "tests/unit/orch_fleet.h"

#include "common/rules/hash.h"

void answer_later(struct fleet *f, uint32_t worker, struct gr_msg m)
{
    assert_true(f->n_queue < QUEUE);
    f->queue[f->n_queue++] = (struct said){.worker = worker, .m = m};
}

/* True: it is to end. */
static bool sends_elsewhere(struct fleet *f, uint32_t worker, const struct gr_msg *m)
{
    if (f->ending[worker]) {
        answer_later(f, worker,
                     (struct gr_msg){.type = GR_MSG_ERROR,
                                     .session = m->session,
                                     .error = {.code = (uint32_t)-GR_EDRAINING, .text = "it is to end"}});
    }
    return f->ending[worker];
}

static void on_open(struct fleet *f, uint32_t worker, const struct gr_msg *m)
{
    f->n_open[worker]++;
    if (sends_elsewhere(f, worker, m)) {
        return;
    }
    if (f->full[worker] || f->rejects[worker]) {
        const enum gr_status why = f->full[worker] ? GR_ELIMIT : GR_EINVAL;
        answer_later(f, worker,
                     (struct gr_msg){.type = GR_MSG_ERROR,
                                     .session = m->session,
                                     .error = {.code = (uint32_t)-why, .text = "no room, or no such thing"}});
        return;
    }
    f->hash[m->session] = 0;
    for (uint32_t i = 0; i < m->open.ids.n; i++) {
        f->hash[m->session] = gr_hash_extend(f->hash[m->session], m->open.ids.p[i]);
    }
    f->len[m->session] = m->open.ids.n;
    f->epoch[m->session] = m->open.epoch;
    answer_later(f, worker,
                 (struct gr_msg){.type = GR_MSG_OPENED, .session = m->session, .opened = {.epoch = m->open.epoch}});
}

static void on_attach(struct fleet *f, uint32_t worker, const struct gr_msg *m)
{
    f->n_attach[worker]++;
    if (sends_elsewhere(f, worker, m)) {
        return;
    }
    if (f->deaf[worker]) {
        answer_later(f, worker,
                     (struct gr_msg){.type = GR_MSG_ERROR,
                                     .session = m->session,
                                     .error = {.code = (uint32_t)-GR_EMISMATCH, .text = "it does not fit"}});
        return;
    }
    answer_later(f, worker,
                 (struct gr_msg){.type = GR_MSG_ATTACHED,
                                 .session = m->session,
                                 .attached = {.epoch = m->attach.epoch, .transport = "tcp"}});
}

static void on_sent(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    struct fleet *f = ctx;
    if (m->type == GR_MSG_DETACH && f->is_target[worker]) {
        f->n_told_none[worker]++; /* it has no answer */
    } else if (m->type == GR_MSG_OPEN) {
        on_open(f, worker, m);
    } else if (m->type == GR_MSG_ATTACH) {
        on_attach(f, worker, m);
    } else if (m->type == GR_MSG_CLOSE) {
        answer_later(f, worker, (struct gr_msg){.type = GR_MSG_CLOSED, .session = m->session});
    } else if (m->type == GR_MSG_DETACH) {
        answer_later(f, worker, (struct gr_msg){.type = GR_MSG_DRAFT_STATS, .session = m->session});
    } else if (m->type == GR_MSG_APPEND && !sends_elsewhere(f, worker, m)) {
        f->hash[m->session] = m->append.hash;
        for (uint32_t i = 0; i < m->append.ids.n; i++) {
            f->hash[m->session] = gr_hash_extend(f->hash[m->session], m->append.ids.p[i]);
        }
        f->len[m->session] = m->append.keep_len + m->append.ids.n;
        answer_later(
            f, worker,
            (struct gr_msg){.type = GR_MSG_OPENED, .session = m->session, .opened = {.epoch = f->epoch[m->session]}});
    }
}

static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    struct fleet *f = ctx;
    (void)user;
    if (m->type == GR_MSG_QUEUED) {
        f->place[session] = m->queued.place;
    }
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct fleet *f = ctx;
    (void)session;
    (void)user;
    snprintf(f->text, sizeof(f->text), "%s", text);
    f->finish = finish;
    f->n_done++;
    f->n_failed += finish == GR_FINISH_ERROR || finish == GR_FINISH_UNSERVED;
}

void answer(struct fleet *f)
{
    for (int i = 0; i < f->n_queue; i++) {
        assert_int_equal(gr_orch_on_msg(f->orch, f->queue[i].worker, &f->queue[i].m, f->now_ns), GR_OK);
    }
    f->n_queue = 0;
}

/* Numbers of sessions are random in a server: nothing may rest on their order, which some tests turn round. */
static uint64_t next_id(void *ctx)
{
    struct fleet *f = ctx;
    f->n_id++;
    return f->ids_fall ? 32 - f->n_id : f->n_id;
}

struct fleet *make_fleet(void)
{
    struct fleet *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    const struct gr_orch_io io = {
        .ctx = f, .send = on_sent, .on_report = on_report, .on_done = on_done, .new_id = next_id};
    assert_int_equal(gr_orch_create(&io, &f->orch), GR_OK);
    f->now_ns = 1000 * GR_S;
    return f;
}

void destroy_fleet(struct fleet *f)
{
    gr_orch_destroy(f->orch);
    free(f);
}

void join(struct fleet *f, uint32_t worker, enum gr_worker_role role, uint32_t n_slot)
{
    struct gr_worker_info info = {.role = role, .n_vocab = 100, .n_slot = n_slot, .numerics_id = "cpu"};
    f->is_target[worker] = role == GR_WORKER_TARGET;
    snprintf(info.address, sizeof(info.address), "w:%u", worker + 1);
    assert_int_equal(gr_orch_join(f->orch, worker, &info, f->now_ns), GR_OK);
}

struct gr_session_request usual_request(bool keep_open)
{
    static const int32_t prompt[] = {5, 6, 7};
    return (struct gr_session_request){.prompt = prompt,
                                       .n_prompt = 3,
                                       .wishes = {.turn = {.max_tokens = 1000},
                                                  .keep_open = keep_open,
                                                  .want_draft = true,
                                                  .n_node = 7,
                                                  .draft_depth = 8,
                                                  .draft_top_k = 10,
                                                  .sampling = {.top_p = 1.0f}}};
}

uint64_t open_session(struct fleet *f, bool keep_open)
{
    const struct gr_session_request q = usual_request(keep_open);
    uint64_t id = 0;
    assert_int_equal(gr_orch_submit(f->orch, &q, f->now_ns, &id), GR_OK);
    return id;
}

struct gr_session_info info_of(const struct fleet *f, uint64_t id)
{
    struct gr_session_info info = {.target = -1, .drafter = -1};
    assert_true(gr_orch_session_info(f->orch, id, f->now_ns, &info));
    return info;
}

void commit_tree(struct fleet *f, uint64_t id, uint32_t n_draft, uint32_t n_accepted)
{
    int32_t token[16];
    const struct gr_session_info info = info_of(f, id);
    struct gr_msg m = {.type = GR_MSG_COMMIT,
                       .session = id,
                       .commit = {.epoch = info.epoch,
                                  .round = 1,
                                  .keep_len = f->len[id],
                                  .final_len = f->len[id] + n_accepted + 1,
                                  .ids = {.p = token, .n = n_accepted + 1},
                                  .n_draft = n_draft,
                                  .n_accepted = n_accepted}};
    assert_true(n_accepted < 16);
    for (uint32_t i = 0; i <= n_accepted; i++) {
        token[i] = 9;
        f->hash[id] = gr_hash_extend(f->hash[id], token[i]);
    }
    f->len[id] += n_accepted + 1;
    m.commit.hash = f->hash[id];
    assert_int_equal(gr_orch_on_msg(f->orch, (uint32_t)info.target, &m, f->now_ns), GR_OK);
}

static void commit_token(struct fleet *f, uint64_t id, enum gr_finish finish)
{
    int32_t token[1] = {9};
    const struct gr_session_info info = info_of(f, id);
    const struct gr_msg m = {.type = GR_MSG_COMMIT,
                             .session = id,
                             .commit = {.epoch = info.epoch,
                                        .keep_len = f->len[id],
                                        .final_len = f->len[id] + 1,
                                        .ids = {.p = token, .n = 1},
                                        .hash = gr_hash_extend(f->hash[id], token[0]),
                                        .finish = finish}};
    f->len[id]++;
    f->hash[id] = m.commit.hash;
    assert_int_equal(gr_orch_on_msg(f->orch, (uint32_t)info.target, &m, f->now_ns), GR_OK);
}

void first_token(struct fleet *f, uint64_t id)
{
    commit_token(f, id, GR_FINISH_NONE);
}

void end_turn(struct fleet *f, uint64_t id)
{
    commit_token(f, id, GR_FINISH_STOP);
}

void append(struct fleet *f, uint64_t id)
{
    static const int32_t more[] = {4};
    const struct gr_turn_request t = {.keep_len = UINT32_MAX, .ids = more, .n_ids = 1, .wishes = {.max_tokens = 1000}};
    assert_int_equal(gr_orch_append(f->orch, id, &t, f->now_ns), GR_OK);
}

struct gr_worker_status status_of(const struct fleet *f, uint32_t worker)
{
    struct gr_worker_status status = {0};
    (void)gr_orch_worker(f->orch, worker, &status);
    return status;
}

uint32_t held_by(const struct fleet *f, uint32_t worker)
{
    return status_of(f, worker).n_session;
}

void check_counts(const struct fleet *f)
{
    uint32_t n[WORKER_MAX] = {0};
    uint32_t in_state[GR_SESSION_CLOSING + 1] = {0};
    struct gr_session_info info;
    int n_session = 0;
    for (int i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        if (gr_orch_session_at(f->orch, i, f->now_ns, &info)) {
            n_session++;
            in_state[info.state]++;
            if (info.target >= 0) {
                n[info.target]++;
            }
            if (info.drafter >= 0) {
                n[info.drafter]++;
            }
        }
    }
    assert_int_equal(n_session, gr_orch_n_session(f->orch));
    for (int i = GR_SESSION_WAITING; i <= GR_SESSION_CLOSING; i++) {
        assert_int_equal(gr_orch_n_in_state(f->orch, (enum gr_session_state)i), in_state[i]);
    }
    for (uint32_t i = 0; i < WORKER_MAX; i++) {
        assert_int_equal(held_by(f, i), n[i]);
    }
}

void settle(struct fleet *f)
{
    for (int k = 0; k < 4; k++) {
        answer(f);
    }
    check_counts(f);
}

struct fleet *share_out(const struct gr_msg *first, const struct gr_msg *second, int n)
{
    struct fleet *f = make_fleet();
    const struct gr_orch_config c = {.ping_interval_ns = GR_S, .ping_timeout_ns = 5 * GR_S};
    gr_orch_configure(f->orch, &c);
    join(f, 0, GR_WORKER_TARGET, 0);
    join(f, 1, GR_WORKER_TARGET, 0);
    f->now_ns += GR_S;
    (void)gr_orch_step(f->orch, f->now_ns);
    answer_later(f, 0, *first);
    answer_later(f, 1, *second);
    answer(f);
    for (int i = 0; i < n; i++) {
        (void)open_session(f, false);
        answer(f);
    }
    return f;
}
