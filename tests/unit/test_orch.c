/* The orchestrator's machine alone, against a scripted target and drafter: turns, cuts, losses, evictions, limits, time.
 * Messages go through the codec, as they would on a link. */
#include "common/clock.h"
#include "common/hash.h"
#include "orchestrator/orch.h"
#include "orchestrator/transcript.h"
#include "tests/unit/log_count.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TARGET 0
#define DRAFTER 1
#define SENT_MAX 64

/* Everything that the machine said. */
struct world {
    struct gr_orch *orch;
    uint64_t now_ns;
    struct gr_msg sent[SENT_MAX]; /* decoded copies, owned */
    uint32_t to[SENT_MAX];
    int n_sent;
    int32_t token[256];
    uint32_t n_token;
    int n_done, n_closed, n_report, n_dropped, n_pong;
    enum gr_finish finish;
    char text[GR_MSG_TEXT_MAX], why[GR_MSG_TEXT_MAX];
    uint64_t cookie, rtt_ns;
    uint32_t dropped;
    /* the scripted target */
    uint32_t len;
    uint64_t hash;
    uint32_t epoch;
    uint64_t session;
    uint32_t round;
    bool append_from_done; /* the next turn is begun from within on_done */
};

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
    (void)session;
    (void)user;
    (void)m;
    ((struct world *)ctx)->n_report++;
}

static struct gr_turn_request turn_of(const int32_t *ids, uint32_t n)
{
    return (struct gr_turn_request){.keep_len = UINT32_MAX, .ids = ids, .n_ids = n, .max_tokens = 8};
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct world *w = ctx;
    (void)user;
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
    (void)session;
    (void)user;
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

static struct world *make(const struct gr_orch_config *config)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    const struct gr_orch_io io = {.ctx = w, .send = keep_sent, .on_report = on_report, .on_tokens = on_tokens,
                                  .on_done = on_done, .on_closed = on_closed, .drop = on_drop, .on_pong = on_pong};
    assert_int_equal(gr_orch_create(&io, &w->orch), GR_OK);
    if (config != NULL) {
        gr_orch_configure(w->orch, config);
    }
    w->now_ns = 1000 * GR_S;
    return w;
}

static void destroy(struct world *w)
{
    for (int i = 0; i < SENT_MAX; i++) {
        gr_msg_finish(&w->sent[i]);
    }
    gr_orch_destroy(w->orch);
    free(w);
}

static struct gr_worker_info target_info(void)
{
    return (struct gr_worker_info){.role = GR_WORKER_TARGET, .address = "t:1", .model_fingerprint = 11,
                                   .tokenizer_fingerprint = 7, .n_vocab = 100, .n_ctx_max = 64, .host_id = "a",
                                   .numerics_id = "cpu"};
}

static struct gr_worker_info draft_info(void)
{
    return (struct gr_worker_info){.role = GR_WORKER_DRAFT, .model_fingerprint = 22, .tokenizer_fingerprint = 7,
                                   .n_vocab = 100, .host_id = "a", .numerics_id = "cpu"};
}

static void join_target(struct world *w)
{
    const struct gr_worker_info info = target_info();
    assert_int_equal(gr_orch_join(w->orch, TARGET, &info, w->now_ns), GR_OK);
}

static void join_drafter(struct world *w)
{
    const struct gr_worker_info info = draft_info();
    assert_int_equal(gr_orch_join(w->orch, DRAFTER, &info, w->now_ns), GR_OK);
}

/* The only message that was sent since the last look. */
static const struct gr_msg *only(struct world *w, uint32_t to, enum gr_msg_type type)
{
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->to[0], to);
    assert_string_equal(gr_msg_name(w->sent[0].type), gr_msg_name(type));
    w->n_sent = 0; /* it stays in its place until the next one is sent */
    return &w->sent[0];
}

static void expect(struct world *w, uint32_t to, enum gr_msg_type type)
{
    (void)only(w, to, type);
}

static void say(struct world *w, uint32_t from, const struct gr_msg *m)
{
    assert_int_equal(gr_orch_on_msg(w->orch, from, m, w->now_ns), GR_OK);
}

/* ---- the scripted target ---- */

/* Takes OPEN: the transcript's hash and length are the target's from now on. */
static void take_open(struct world *w)
{
    const struct gr_msg *m = only(w, TARGET, GR_MSG_OPEN);
    int64_t n = 0;
    w->session = m->session;
    w->epoch = m->epoch;
    w->len = m->ids.n;
    w->hash = 0;
    w->round = 0;
    for (uint32_t i = 0; i < m->ids.n; i++) {
        w->hash = gr_hash_extend(w->hash, m->ids.p[i]);
    }
    for (uint32_t i = 0; i < m->segments.n; i += 2) {
        n += m->segments.p[i + 1];
    }
    assert_int_equal(n, m->ids.n);
}

static void opened(struct world *w)
{
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_OPENED, .session = w->session, .epoch = w->epoch});
}

static struct gr_msg commit_of(struct world *w, int32_t *id, uint32_t n, enum gr_finish finish)
{
    uint64_t hash = w->hash;
    for (uint32_t i = 0; i < n; i++) {
        hash = gr_hash_extend(hash, id[i]);
    }
    return (struct gr_msg){.type = GR_MSG_COMMIT, .session = w->session, .epoch = w->epoch, .round = w->round,
                           .keep_len = w->len, .final_len = w->len + n, .ids = {.p = id, .n = n}, .hash = hash,
                           .finish = finish, .n_draft = w->round > 0 ? 4 : 0, .n_accepted = w->round > 0 ? n - 1 : 0};
}

static void commit(struct world *w, int32_t first, uint32_t n, enum gr_finish finish)
{
    int32_t id[16];
    for (uint32_t i = 0; i < n; i++) {
        id[i] = first + (int32_t)i;
    }
    const struct gr_msg m = commit_of(w, id, n, finish);
    w->len += n;
    w->hash = m.hash;
    w->round++;
    say(w, TARGET, &m);
}

/* Takes APPEND: checks keep_len and hash as a target would. */
static void take_append(struct world *w, uint32_t keep_len, uint32_t n_ids)
{
    const struct gr_msg *m = only(w, TARGET, GR_MSG_APPEND);
    assert_int_equal(m->keep_len, keep_len);
    assert_int_equal(m->ids.n, n_ids);
    if (keep_len == w->len) {
        assert_int_equal(m->hash, w->hash);
    }
    w->hash = m->hash;
    w->len = keep_len + n_ids;
    for (uint32_t i = 0; i < n_ids; i++) {
        w->hash = gr_hash_extend(w->hash, m->ids.p[i]);
    }
}

static uint64_t submit(struct world *w, bool keep_open, bool want_draft)
{
    static const int32_t prompt[] = {5, 6, 7};
    const struct gr_session_request q = {.prompt = prompt, .n_prompt = 3, .max_tokens = 8, .keep_open = keep_open,
                                         .want_draft = want_draft, .n_node = 7, .draft_depth = 8, .draft_top_k = 10,
                                         .sampling = {.top_p = 1.0f, .seed = 3}, .draft_ahead = GR_AHEAD_AUTO};
    uint64_t id = 0;
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    return id;
}

static enum gr_session_state state_of(const struct world *w, uint64_t id)
{
    struct gr_session_info info;
    return gr_orch_session_info(w->orch, id, w->now_ns, &info) ? info.state : GR_SESSION_FREE;
}

/* An idle session of 3 prompt and 3 generated tokens. */
static uint64_t idle_session(struct world *w)
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

/* ---- turns ---- */

static void test_two_turns(void **state)
{
    (void)state;
    static const int32_t more[] = {50, 51};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->finish, GR_FINISH_STOP);
    const struct gr_turn_request t = turn_of(more, 2);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 2);
    opened(w);
    commit(w, 60, 3, GR_FINISH_LENGTH);
    assert_int_equal(w->n_done, 2);
    assert_int_equal(w->finish, GR_FINISH_LENGTH);
    assert_int_equal(w->n_token, 6);
    const struct gr_session_metrics *s = gr_orch_metrics(w->orch, id);
    assert_int_equal(s->completion_tokens, 6);
    assert_int_equal(s->prompt_tokens, 5);
    assert_int_equal(s->rounds, 2);
    assert_int_equal(s->num_accepted_tokens, 1 + 2);
    assert_int_equal(gr_orch_close(w->orch, id), GR_OK);
    expect(w, TARGET, GR_MSG_CLOSE);
    assert_int_equal(w->n_closed, 0);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(w->n_closed, 1);
    assert_int_equal(gr_orch_n_session(w->orch), 0);
    destroy(w);
}

/* A COMMIT that was on its way when the turn was cut belongs to nobody, also while the next turn is being opened. */
static void test_truncate_and_late_commits(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, true, false);
    take_open(w);
    opened(w);
    commit(w, 40, 4, GR_FINISH_NONE);
    gr_orch_stop(w->orch, id, 2, GR_FINISH_STOP);
    const struct gr_msg *m = only(w, TARGET, GR_MSG_TRUNCATE);
    assert_int_equal(m->keep_len, 5);
    assert_int_equal(w->n_done, 1);
    commit(w, 44, 2, GR_FINISH_NONE); /* late */
    const struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    commit(w, 46, 2, GR_FINISH_STOP); /* later still */
    assert_int_equal(w->n_token, 4);
    assert_int_equal(w->n_done, 1);
    take_append(w, 5, 1);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 2);
    assert_int_equal(gr_orch_metrics(w->orch, id)->completion_tokens, 3);
    destroy(w);
}

/* Stopped before the target answered: its late OPENED is not taken for the next turn's. */
static void test_answers_are_counted(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 1);
    gr_orch_stop(w->orch, id, 0, GR_FINISH_STOP);
    expect(w, TARGET, GR_MSG_TRUNCATE);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 7, 1);
    opened(w); /* to the first */
    assert_int_equal(state_of(w, id), GR_SESSION_OPENING);
    opened(w); /* to the second */
    assert_int_equal(state_of(w, id), GR_SESSION_RUNNING);
    destroy(w);
}

static void test_next_turn_from_on_done(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, true, false);
    take_open(w);
    opened(w);
    w->append_from_done = true;
    commit(w, 40, 2, GR_FINISH_STOP);
    take_append(w, 5, 1);
    assert_int_equal(state_of(w, id), GR_SESSION_OPENING);
    destroy(w);
}

static void test_append_is_refused(void **state)
{
    (void)state;
    static const int32_t more[64] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id + 1, &t, w->now_ns), GR_ENOTFOUND);
    assert_non_null(strstr(gr_orch_why(w->orch), "no session"));
    t.keep_len = 7;
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_EINVAL);
    t.keep_len = 4;
    t.hash = 123;
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_EINVAL);
    assert_non_null(strstr(gr_orch_why(w->orch), "hashes differ"));
    t = turn_of(more, 0);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_EINVAL);
    t = turn_of(more, 58); /* 6 + 58 = the context */
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_ELIMIT);
    assert_non_null(strstr(gr_orch_why(w->orch), "64"));
    assert_int_equal(w->n_sent, 0);
    t = turn_of(more, 57);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_EINVAL); /* in a turn */
    destroy(w);
}

/* The client keeps a part and goes on from there. */
static void test_append_cuts(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    static const int32_t kept[] = {5, 6, 7, 40};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    struct gr_turn_request t = turn_of(more, 1);
    t.keep_len = 4;
    for (int i = 0; i < 4; i++) {
        t.hash = gr_hash_extend(t.hash, kept[i]);
    }
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 4, 1);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 2);
    destroy(w);
}

/* ---- losing the target ---- */

static void check_reopened(struct world *w, uint64_t id, uint32_t epoch, uint32_t n_ids, uint32_t n_segment,
                           uint32_t max_tokens)
{
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->sent[0].session, id);
    assert_int_equal(w->sent[0].epoch, epoch);
    assert_int_equal(w->sent[0].ids.n, n_ids);
    assert_int_equal(w->sent[0].segments.n, 2 * n_segment);
    assert_int_equal(w->sent[0].max_tokens, max_tokens);
    take_open(w);
}

static void test_lost_target_in_a_turn(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, false, false);
    take_open(w);
    opened(w);
    commit(w, 40, 3, GR_FINISH_NONE);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    assert_int_equal(state_of(w, id), GR_SESSION_WAITING);
    join_target(w);
    check_reopened(w, id, 2, 6, 2, 5);
    opened(w);
    commit(w, 43, 5, GR_FINISH_LENGTH);
    expect(w, TARGET, GR_MSG_CLOSE);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->n_token, 8);
    assert_int_equal(gr_orch_n_session(w->orch), 0);
    destroy(w);
}

/* Idle: the loss shows with the next turn, whose transcript has a segment of each kind. */
static void test_lost_target_while_idle(void **state)
{
    (void)state;
    static const int32_t more[] = {50, 51};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    const struct gr_turn_request t = turn_of(more, 2);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    assert_int_equal(w->n_sent, 0);
    join_target(w);
    check_reopened(w, id, 2, 8, 3, 8);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 2);
    destroy(w);
}

static void test_eviction(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 1);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_EVICTED, .session = id});
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    check_reopened(w, id, 2, 7, 3, 8);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    /* EVICTED and APPEND cross: the target refuses what it has forgotten */
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 8, 1);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_EVICTED, .session = id});
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_ERROR, .session = id, .code = 1, .text = "unknown session"});
    check_reopened(w, id, 3, 9, 5, 8);
    opened(w);
    commit(w, 61, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 3);
    assert_int_equal(gr_orch_metrics(w->orch, id)->reopens, 2);
    destroy(w);
}

/* A turn that cannot be served leaves the session as it was. */
static void test_failed_turn_goes_back(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 1);
    struct gr_session_info info;
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 1);
    const struct gr_msg no = {.type = GR_MSG_ERROR, .session = id, .code = 1, .text = "no blocks"};
    say(w, TARGET, &no); /* APPEND refused: opened again, when the target has let go of what it may hold */
    expect(w, TARGET, GR_MSG_CLOSE);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    take_open(w);
    say(w, TARGET, &no); /* that, too */
    assert_int_equal(w->n_done, 2);
    assert_int_equal(w->finish, GR_FINISH_ERROR);
    assert_string_equal(w->text, "no blocks");
    assert_true(gr_orch_session_info(w->orch, id, w->now_ns, &info));
    assert_int_equal(info.state, GR_SESSION_IDLE);
    assert_int_equal(info.n_token, 6);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    check_reopened(w, id, 3, 7, 3, 8);
    destroy(w);
}

/* A TRUNCATE takes effect at the end of a pass; an APPEND that comes before is refused. Then the turn is stopped, and the
 * next one begun, while the CLOSED is still on its way. */
static void test_append_meets_a_pass(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 1);
    const struct gr_msg no = {.type = GR_MSG_ERROR, .session = id, .code = 1, .text = "in a turn"};
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 1);
    say(w, TARGET, &no);
    expect(w, TARGET, GR_MSG_CLOSE);
    gr_orch_stop(w->orch, id, 0, GR_FINISH_STOP);
    expect(w, TARGET, GR_MSG_TRUNCATE);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    assert_int_equal(w->n_sent, 0);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    check_reopened(w, id, 3, 8, 3, 8);
    opened(w);
    commit(w, 60, 1, GR_FINISH_STOP);
    assert_int_equal(w->n_done, 3);
    destroy(w);
}

/* A data connection that breaks again and again: so many new attachments, then none. */
static void test_attach_is_tried_again(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = submit(w, false, true);
    const struct gr_msg broken = {.type = GR_MSG_ERROR, .session = id, .code = (uint32_t)-GR_ECLOSED, .text = "gone"};
    take_open(w);
    opened(w);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    for (int i = 0; i < 8; i++) {
        say(w, DRAFTER, &broken);
        assert_int_equal(w->n_sent, 2);
        assert_int_equal(w->sent[0].type, GR_MSG_DETACH);
        assert_int_equal(w->sent[1].type, GR_MSG_ATTACH);
        w->n_sent = 0;
        say(w, DRAFTER, &(struct gr_msg){.type = GR_MSG_DRAFT_STATS, .session = id});
    }
    say(w, DRAFTER, &broken);
    expect(w, DRAFTER, GR_MSG_DETACH);
    assert_int_equal(gr_orch_metrics(w->orch, id)->fallbacks, 9);
    destroy(w);
}

static void test_first_turn_fails(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = submit(w, true, false);
    take_open(w);
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_ERROR, .session = id, .code = 1, .text = "too long"});
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->n_closed, 1);
    assert_int_equal(gr_orch_n_session(w->orch), 0);
    destroy(w);
}

static void test_wrong_commits(void **state)
{
    (void)state;
    for (int way = 0; way < 6; way++) {
        struct world *w = make(NULL);
        int32_t id[] = {40, 41};
        join_target(w);
        const uint64_t session = submit(w, way % 2 == 0, false);
        take_open(w);
        opened(w);
        struct gr_msg m = commit_of(w, id, 2, GR_FINISH_NONE);
        m.keep_len += way == 0;
        m.hash ^= way == 1;
        m.final_len += way == 2;
        m.ids.n = way == 3 ? 0 : 2;
        m.n_accepted = way == 4 ? 5 : 0;
        m.epoch += way == 5; /* of another life of the session: ignored */
        say(w, TARGET, &m);
        assert_int_equal(w->n_token, 0);
        if (way == 5) {
            assert_int_equal(state_of(w, session), GR_SESSION_RUNNING);
        } else {
            expect(w, TARGET, GR_MSG_CLOSE);
            say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = session});
            assert_int_equal(w->finish, GR_FINISH_ERROR);
            assert_int_equal(gr_orch_n_session(w->orch), 0);
        }
        destroy(w);
    }
}

static void test_context_limit(void **state)
{
    (void)state;
    static const int32_t more[56] = {50};
    struct world *w = make(NULL);
    join_target(w);
    const uint64_t id = idle_session(w);
    const struct gr_turn_request t = turn_of(more, 56);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 6, 56);
    opened(w);
    commit(w, 60, 2, GR_FINISH_NONE); /* 64 tokens: the context is full */
    gr_orch_on_lost(w->orch, TARGET, w->now_ns);
    join_target(w);
    assert_int_equal(w->n_sent, 0);
    assert_int_equal(w->n_done, 2);
    assert_int_equal(w->finish, GR_FINISH_LENGTH);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_ELIMIT);
    destroy(w);
}

/* ---- drafters ---- */

static void test_drafter_stays_between_turns(void **state)
{
    (void)state;
    static const int32_t more[] = {50};
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = submit(w, true, true);
    assert_int_equal(w->sent[0].want_draft, 1);
    take_open(w);
    opened(w);
    const struct gr_msg *m = only(w, DRAFTER, GR_MSG_ATTACH);
    assert_string_equal(m->address, "t:1");
    assert_int_equal(m->draft_ahead, 0); /* auto: both on one host's CPUs */
    say(w, DRAFTER, &(struct gr_msg){.type = GR_MSG_ATTACHED, .session = id, .epoch = 1, .transport = "shm"});
    commit(w, 40, 2, GR_FINISH_STOP);
    assert_int_equal(w->n_sent, 0);
    const struct gr_turn_request t = turn_of(more, 1);
    assert_int_equal(gr_orch_append(w->orch, id, &t, w->now_ns), GR_OK);
    take_append(w, 5, 1);
    opened(w);
    assert_int_equal(w->n_sent, 0); /* still attached */
    gr_orch_on_lost(w->orch, DRAFTER, w->now_ns);
    join_drafter(w);
    expect(w, DRAFTER, GR_MSG_ATTACH);
    commit(w, 60, 2, GR_FINISH_STOP);
    assert_int_equal(gr_orch_metrics(w->orch, id)->fallbacks, 1);
    assert_int_equal(gr_orch_close(w->orch, id), GR_OK);
    assert_int_equal(w->n_sent, 2);
    assert_int_equal(w->sent[0].type, GR_MSG_DETACH);
    assert_int_equal(w->sent[1].type, GR_MSG_CLOSE);
    w->n_sent = 0;
    say(w, TARGET, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = id});
    assert_int_equal(w->n_closed, 0);
    say(w, DRAFTER, &(struct gr_msg){.type = GR_MSG_DRAFT_STATS, .session = id, .n_round = 3, .draft_ns = 30,
                                     .n_hit = 2});
    assert_int_equal(w->n_closed, 1);
    destroy(w);
}

static void test_switches(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.force_single_token = true});
    join_target(w);
    join_drafter(w);
    submit(w, false, true);
    assert_int_equal(w->sent[0].single_token, 1);
    assert_int_equal(w->sent[0].want_draft, 1);
    destroy(w);
    w = make(&(struct gr_orch_config){.disable_multi_token = true});
    join_target(w);
    join_drafter(w);
    submit(w, false, true);
    assert_int_equal(w->sent[0].single_token, 0);
    assert_int_equal(w->sent[0].want_draft, 0);
    take_open(w);
    opened(w);
    assert_int_equal(w->n_sent, 0); /* no ATTACH */
    destroy(w);
}

static void test_draft_ahead_auto(void **state)
{
    (void)state;
    static const struct {
        const char *host, *numerics;
        uint32_t want;
    } rows[] = {{"a", "cpu/x", 0}, {"b", "cpu/x", 1}, {"a", "cuda/sm90", 1}};
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        struct world *w = make(NULL);
        struct gr_worker_info info = draft_info();
        join_target(w);
        snprintf(info.host_id, sizeof(info.host_id), "%s", rows[i].host);
        snprintf(info.numerics_id, sizeof(info.numerics_id), "%s", rows[i].numerics);
        assert_int_equal(gr_orch_join(w->orch, DRAFTER, &info, w->now_ns), GR_OK);
        submit(w, false, true);
        take_open(w);
        opened(w);
        assert_int_equal(only(w, DRAFTER, GR_MSG_ATTACH)->draft_ahead, rows[i].want);
        destroy(w);
    }
}

/* ---- who may join ---- */

static void test_misfits_are_refused(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct world *w = make(NULL);
        struct gr_worker_info info = way < 2 ? draft_info() : target_info();
        join_target(w);
        info.tokenizer_fingerprint += way == 0;
        info.n_vocab += way == 1;
        info.model_fingerprint += way == 2;
        const enum gr_status want = way < 3 ? GR_EMISMATCH : GR_OK; /* 3: a second target like the first */
        assert_int_equal(gr_orch_join(w->orch, 2, &info, w->now_ns), want);
        assert_int_equal(gr_orch_n_refused(w->orch), want != GR_OK);
        if (want != GR_OK) {
            const struct gr_msg *m = only(w, 2, GR_MSG_ERROR);
            assert_non_null(strstr(m->text, way == 0 ? "tokenizer" : way == 1 ? "vocabulary" : "model"));
        }
        submit(w, false, false); /* the others go on */
        expect(w, TARGET, GR_MSG_OPEN);
        destroy(w);
    }
}

static void test_other_tokenizer_of_a_client(void **state)
{
    (void)state;
    static const int32_t prompt[] = {1};
    struct world *w = make(NULL);
    uint64_t id = 0;
    join_target(w);
    const struct gr_session_request q = {.prompt = prompt, .n_prompt = 1, .max_tokens = 1,
                                         .tokenizer_fingerprint = 8};
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    assert_int_equal(w->n_done, 1);
    assert_int_equal(w->finish, GR_FINISH_ERROR);
    assert_non_null(strstr(w->text, "0000000000000008"));
    assert_non_null(strstr(w->text, "0000000000000007"));
    assert_int_equal(w->n_sent, 0);
    destroy(w);
}

/* ---- room and time ---- */

static void test_least_recently_used_goes(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.n_session_max = 2});
    static const int32_t prompt[] = {1};
    const struct gr_session_request q = {.prompt = prompt, .n_prompt = 1, .max_tokens = 1};
    uint64_t id = 0;
    join_target(w);
    const uint64_t first = idle_session(w);
    w->now_ns += GR_S;
    const uint64_t second = idle_session(w);
    w->now_ns += GR_S;
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    assert_int_equal(state_of(w, first), GR_SESSION_FREE);
    assert_int_equal(state_of(w, second), GR_SESSION_IDLE);
    assert_int_equal(w->n_closed, 1);
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_OK);
    assert_int_equal(state_of(w, second), GR_SESSION_FREE);
    assert_int_equal(gr_orch_submit(w->orch, &q, w->now_ns, &id), GR_ELIMIT); /* both are in a turn */
    assert_non_null(strstr(gr_orch_why(w->orch), "all 2 sessions"));
    destroy(w);
}

static void test_session_ttl(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.session_ttl_ns = 10 * GR_S});
    join_target(w);
    const uint64_t id = idle_session(w);
    const uint64_t begin_ns = w->now_ns;
    assert_int_equal(gr_orch_step(w->orch, begin_ns), begin_ns + 10 * GR_S);
    assert_int_equal(gr_orch_step(w->orch, begin_ns + 10 * GR_S - 1), begin_ns + 10 * GR_S);
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    assert_true(gr_orch_step(w->orch, begin_ns + 10 * GR_S) == UINT64_MAX);
    expect(w, TARGET, GR_MSG_CLOSE);
    assert_int_equal(w->n_closed, 1);
    assert_non_null(strstr(w->why, "session_ttl"));
    destroy(w);
}

static void test_purge(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    idle_session(w);
    idle_session(w);
    const uint64_t busy = submit(w, true, false);
    w->n_sent = 0;
    assert_int_equal(gr_orch_purge(w->orch), 2);
    assert_int_equal(w->n_closed, 2);
    assert_int_equal(gr_orch_n_session(w->orch), 1);
    assert_int_equal(state_of(w, busy), GR_SESSION_OPENING);
    assert_int_equal(gr_orch_purge(w->orch), 0);
    destroy(w);
}

static void test_silent_workers(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.ping_interval_ns = GR_S, .ping_timeout_ns = 5 * GR_S});
    const struct gr_msg pong = {.type = GR_MSG_PONG, .n_session = 0, .n_vocab = 100};
    uint64_t rtt_ns = 0;
    uint32_t n_session = 0;
    join_target(w);
    const uint64_t begin_ns = w->now_ns;
    assert_int_equal(gr_orch_step(w->orch, begin_ns), begin_ns + GR_S);
    for (int s = 1; s <= 20; s++) { /* answers each after 300 ms */
        w->now_ns = begin_ns + (uint64_t)s * GR_S;
        gr_orch_step(w->orch, w->now_ns);
        expect(w, TARGET, GR_MSG_PING);
        w->now_ns += 300 * GR_MS;
        say(w, TARGET, &pong);
        gr_orch_step(w->orch, w->now_ns);
    }
    assert_non_null(gr_orch_worker(w->orch, TARGET, &rtt_ns, &n_session));
    assert_int_equal(rtt_ns, 300 * GR_MS);
    for (int s = 21; s <= 25; s++) { /* and then no more */
        w->now_ns = begin_ns + (uint64_t)s * GR_S;
        gr_orch_step(w->orch, w->now_ns);
        expect(w, TARGET, GR_MSG_PING);
        assert_int_equal(w->n_dropped, 0);
    }
    gr_orch_step(w->orch, begin_ns + 26 * GR_S);
    assert_int_equal(w->n_dropped, 1);
    assert_int_equal(w->dropped, TARGET);
    assert_null(gr_orch_worker(w->orch, TARGET, &rtt_ns, &n_session));
    destroy(w);
}

/* The orchestrator itself was stopped for a minute: nobody is taken as lost for that. */
static void test_own_absence(void **state)
{
    (void)state;
    struct world *w = make(&(struct gr_orch_config){.ping_interval_ns = GR_S, .ping_timeout_ns = 5 * GR_S});
    join_target(w);
    gr_orch_step(w->orch, w->now_ns);
    gr_orch_step(w->orch, w->now_ns + GR_S);
    gr_orch_step(w->orch, w->now_ns + 60 * GR_S);
    assert_int_equal(w->n_dropped, 0);
    destroy(w);
}

static void test_pings_of_clients(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    const struct gr_msg pong = {.type = GR_MSG_PONG, .n_session = 0, .n_vocab = 100};
    join_target(w);
    assert_int_equal(gr_orch_ping(w->orch, 5, 1, w->now_ns), GR_ENOTFOUND);
    for (uint64_t i = 1; i <= 16; i++) {
        assert_int_equal(gr_orch_ping(w->orch, TARGET, i, w->now_ns + i), GR_OK);
    }
    assert_int_equal(gr_orch_ping(w->orch, TARGET, 17, w->now_ns), GR_AGAIN);
    w->now_ns += 100;
    for (uint64_t i = 1; i <= 16; i++) {
        say(w, TARGET, &pong);
        assert_int_equal(w->cookie, i);
        assert_int_equal(w->rtt_ns, 100 - i);
    }
    say(w, TARGET, &pong); /* unasked */
    assert_int_equal(w->n_pong, 16);
    destroy(w);
}

static void test_strange_messages(void **state)
{
    (void)state;
    struct world *w = make(NULL);
    join_target(w);
    join_drafter(w);
    const uint64_t id = idle_session(w);
    for (int t = 0; t < GR_N_MSG; t++) { /* about a session that is unknown, idle, or another worker's */
        for (uint64_t s = 0; s < 3; s++) {
            const struct gr_msg m = {.type = (enum gr_msg_type)t, .session = s == 0 ? 99 : id, .text = "x"};
            enum gr_status st = gr_orch_on_msg(w->orch, s == 2 ? DRAFTER : TARGET, &m, w->now_ns);
            assert_true(st == GR_OK || st == GR_EPROTO);
        }
    }
    assert_int_equal(state_of(w, id), GR_SESSION_IDLE);
    assert_int_equal(w->n_done, 1);
    destroy(w);
}

/* ---- transcripts ---- */

static void test_transcript(void **state)
{
    (void)state;
    struct gr_transcript t = {0};
    static const int32_t ids[] = {5, 7, 4088, 9, 10, 11};
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_PROMPT, ids, 3), GR_OK);
    assert_true(t.hash == 0xc6fea194a42df6b1u); /* docs/PROTOCOL.md's example */
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_GENERATED, ids + 3, 1), GR_OK);
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_GENERATED, ids + 4, 1), GR_OK);
    assert_int_equal(t.n_segment, 2);
    assert_int_equal(t.segment[3], 2);
    const uint64_t whole = t.hash;
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_APPENDED, ids + 5, 1), GR_OK);
    assert_int_equal(t.n_segment, 3);
    assert_true(gr_transcript_hash_at(&t, 5) == whole);
    gr_transcript_cut(&t, 4);
    assert_int_equal(t.n_segment, 2);
    assert_int_equal(t.segment[3], 1);
    gr_transcript_cut(&t, 3);
    assert_int_equal(t.n_segment, 1);
    assert_true(t.hash == 0xc6fea194a42df6b1u);
    gr_transcript_cut(&t, 0);
    assert_int_equal(t.n_segment, 0);
    assert_true(t.hash == 0);
    int n = 0; /* segments are bounded: each turn takes two */
    while (gr_transcript_add(&t, n % 2 == 0 ? GR_SEGMENT_APPENDED : GR_SEGMENT_GENERATED, ids, 1) == GR_OK) {
        n++;
    }
    assert_int_equal(n, GR_TRANSCRIPT_SEGMENT_MAX);
    int32_t *many = calloc(GR_TRANSCRIPT_LEN_MAX, sizeof(*many));
    assert_non_null(many);
    assert_int_equal(gr_transcript_add(&t, GR_SEGMENT_GENERATED, many, GR_TRANSCRIPT_LEN_MAX), GR_ELIMIT);
    assert_int_equal(t.len, (uint32_t)n);
    free(many);
    gr_transcript_finish(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_turns),
        cmocka_unit_test(test_truncate_and_late_commits),
        cmocka_unit_test(test_answers_are_counted),
        cmocka_unit_test(test_next_turn_from_on_done),
        cmocka_unit_test(test_append_is_refused),
        cmocka_unit_test(test_append_cuts),
        cmocka_unit_test(test_lost_target_in_a_turn),
        cmocka_unit_test(test_lost_target_while_idle),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_failed_turn_goes_back),
        cmocka_unit_test(test_append_meets_a_pass),
        cmocka_unit_test(test_attach_is_tried_again),
        cmocka_unit_test(test_first_turn_fails),
        cmocka_unit_test(test_wrong_commits),
        cmocka_unit_test(test_context_limit),
        cmocka_unit_test(test_drafter_stays_between_turns),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_draft_ahead_auto),
        cmocka_unit_test(test_misfits_are_refused),
        cmocka_unit_test(test_other_tokenizer_of_a_client),
        cmocka_unit_test(test_least_recently_used_goes),
        cmocka_unit_test(test_session_ttl),
        cmocka_unit_test(test_purge),
        cmocka_unit_test(test_silent_workers),
        cmocka_unit_test(test_own_absence),
        cmocka_unit_test(test_pings_of_clients),
        cmocka_unit_test(test_strange_messages),
        cmocka_unit_test(test_transcript),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
