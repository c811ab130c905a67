#include "tests/sim/sim.h"

#include "common/hash.h"
#include "draft_worker/grower.h"
#include "target_worker/verifier.h"

#include <stdlib.h>
#include <string.h>

#define FRAME_MAX 8192
#define N_SESSION_SIM 64

enum place { AT_TARGET, AT_DRAFT, AT_ORCH_FROM_TARGET, AT_ORCH_FROM_DRAFT, N_PLACE };
enum what { EVENT_FRAME, EVENT_MSG, EVENT_PASS_DONE, EVENT_JOB_DONE, EVENT_PEER_READY, EVENT_WAKE };

struct event {
    uint64_t at_ns, seq;
    enum what what;
    enum place place;
    uint8_t *bytes; /* owned */
    size_t len;
};

struct sim {
    struct sim_config config;
    uint64_t now_ns, rng, seq;
    uint64_t last_ns[2][N_PLACE]; /* connections keep their order: frames and messages apart */
    struct event *heap;
    size_t n_event, cap_event;
    struct gr_target *target;
    struct gr_drafter *drafter;
    struct gr_orch *orch;
    struct gr_verifier *verifier;
    struct gr_grower *grower;
    struct gr_pass *pass;
    struct gr_draft_job *job;
    uint8_t frame[FRAME_MAX];
    struct sim_result result[N_SESSION_SIM];
    uint64_t session[N_SESSION_SIM];
    uint32_t stop_after[N_SESSION_SIM];
    int n_request, n_done;
    void (*on_pass)(struct sim *s, void *arg);
    void *on_pass_arg;
    void (*on_frame)(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len);
    void *on_frame_arg;
    int n_error, n_lost;
};

static uint64_t draw(struct sim *s, uint64_t max)
{
    s->rng = gr_mix64(s->rng + GR_HASH_GOLDEN);
    return max == 0 ? 0 : s->rng % (max + 1);
}

/* ---- the event heap ---- */

static bool earlier(const struct event *a, const struct event *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->seq < b->seq);
}

static void push(struct sim *s, struct event e)
{
    if (s->n_event == s->cap_event) {
        s->cap_event = s->cap_event * 2 + 64;
        s->heap = realloc(s->heap, s->cap_event * sizeof(*s->heap));
        GR_ASSERT(s->heap != NULL);
    }
    e.seq = s->seq++;
    size_t i = s->n_event++;
    while (i > 0 && earlier(&e, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = e;
}

static struct event pop(struct sim *s)
{
    const struct event top = s->heap[0];
    const struct event last = s->heap[--s->n_event];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_event) {
            break;
        }
        child += child + 1 < s->n_event && earlier(&s->heap[child + 1], &s->heap[child]);
        if (!earlier(&s->heap[child], &last)) {
            break;
        }
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Bytes on a connection: delayed, never reordered. */
static void push_bytes(struct sim *s, enum what what, enum place to, const uint8_t *bytes, size_t len,
                       uint64_t delay_max)
{
    uint64_t *last = &s->last_ns[what == EVENT_MSG][to];
    const uint64_t drawn = s->now_ns + draw(s, delay_max);
    const uint64_t at = GR_MAX(*last, drawn);
    *last = at;
    uint8_t *copy = malloc(len);
    GR_ASSERT(copy != NULL);
    memcpy(copy, bytes, len);
    push(s, (struct event){.at_ns = at, .what = what, .place = to, .bytes = copy, .len = len});
}

static void push_msg(struct sim *s, enum place to, const struct gr_msg *m)
{
    static uint8_t buffer[GR_MSG_BYTES_MAX];
    size_t len = 0;
    enum gr_status st = gr_msg_encode(m, buffer, sizeof(buffer), &len);
    GR_ASSERT(st == GR_OK);
    push_bytes(s, EVENT_MSG, to, buffer, len, s->config.msg_delay_ns);
}

/* ---- the machines' edges ---- */

static uint8_t *frame_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t bytes)
{
    struct sim *s = ctx;
    (void)peer;
    (void)class;
    GR_ASSERT(bytes <= FRAME_MAX);
    if (s->config.no_credit_one_in > 0 && draw(s, (uint64_t)s->config.no_credit_one_in - 1) == 0) {
        push(s, (struct event){.at_ns = s->now_ns + 1 + draw(s, s->config.frame_delay_ns), .what = EVENT_WAKE});
        return NULL;
    }
    return s->frame;
}

static void frame_to_draft(void *ctx, uint32_t peer, uint32_t bytes)
{
    struct sim *s = ctx;
    (void)peer;
    push_bytes(s, EVENT_FRAME, AT_DRAFT, s->frame, bytes, s->config.frame_delay_ns);
}

static void frame_to_target(void *ctx, uint32_t peer, uint32_t bytes)
{
    struct sim *s = ctx;
    (void)peer;
    push_bytes(s, EVENT_FRAME, AT_TARGET, s->frame, bytes, s->config.frame_delay_ns);
}

static void msg_from_target(void *ctx, const struct gr_msg *m)
{
    push_msg(ctx, AT_ORCH_FROM_TARGET, m);
}

static void msg_from_draft(void *ctx, const struct gr_msg *m)
{
    push_msg(ctx, AT_ORCH_FROM_DRAFT, m);
}

static void msg_from_orch(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    push_msg(ctx, worker == 0 ? AT_TARGET : AT_DRAFT, m);
}

static void start_pass(void *ctx, struct gr_pass *pass)
{
    struct sim *s = ctx;
    gr_verifier_run(s->verifier, pass);
    s->pass = pass;
    push(s, (struct event){.at_ns = s->now_ns + draw(s, s->config.pass_ns), .what = EVENT_PASS_DONE});
}

static void start_job(void *ctx, struct gr_draft_job *job)
{
    struct sim *s = ctx;
    gr_grower_run(s->grower, job);
    s->job = job;
    push(s, (struct event){.at_ns = s->now_ns + draw(s, s->config.job_ns), .what = EVENT_JOB_DONE});
}

static enum gr_status connect_peer(void *ctx, const char *address, const char *transport, uint32_t *peer_out)
{
    struct sim *s = ctx;
    (void)address;
    (void)transport;
    *peer_out = 0;
    push(s, (struct event){.at_ns = s->now_ns + draw(s, s->config.msg_delay_ns), .what = EVENT_PEER_READY});
    return GR_OK;
}

static int request_of(const struct sim *s, uint64_t session)
{
    for (int i = 0; i < s->n_request; i++) {
        if (s->session[i] == session) {
            return i;
        }
    }
    GR_ASSERT(false);
    return -1;
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct sim *s = ctx;
    (void)user;
    const int i = request_of(s, session);
    struct sim_result *r = &s->result[i];
    r->token = realloc(r->token, (r->n_token + n) * sizeof(*r->token));
    GR_ASSERT(r->token != NULL);
    memcpy(r->token + r->n_token, id, n * sizeof(*id));
    r->n_token += n;
    if (s->stop_after[i] > 0 && r->n_token >= s->stop_after[i]) {
        r->n_token = s->stop_after[i];
        gr_orch_stop(s->orch, session, r->n_token, GR_FINISH_STOP);
    }
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct sim *s = ctx;
    (void)user;
    struct sim_result *r = &s->result[request_of(s, session)];
    r->done = true;
    r->finish = finish;
    r->metrics = *gr_orch_metrics(s->orch, session);
    strncpy(r->text, text, sizeof(r->text) - 1);
    s->n_done++;
}

/* ---- life ---- */

static void create_target(struct sim *s)
{
    const struct gr_lm *lm = s->config.target_lm;
    const struct gr_target_config c = {
        .n_session_max = s->config.n_session_max, .n_ctx_max = lm->n_ctx_max, .n_vocab = lm->n_vocab,
        .n_row_max = lm->n_row_max, .n_out_max = lm->n_out_max, .prefill_chunk = s->config.prefill_chunk,
        .n_pool_block = lm->n_pool_block, .round_deadline_ns = s->config.round_deadline_ns};
    const struct gr_target_io io = {.ctx = s, .frame_begin = frame_begin, .frame_end = frame_to_draft,
                                    .send_msg = msg_from_target, .start_pass = start_pass};
    enum gr_status st = gr_target_create(&c, &io, &s->target);
    GR_ASSERT(st == GR_OK);
    st = gr_verifier_create(s->config.target_lm, c.n_session_max, &s->verifier);
    GR_ASSERT(st == GR_OK);
    st = gr_orch_on_join(s->orch, 0, GR_WORKER_TARGET, "sim", 0);
    GR_ASSERT(st == GR_OK);
}

static void create_drafter(struct sim *s)
{
    const struct gr_lm *lm = s->config.draft_lm;
    if (lm == NULL) {
        return;
    }
    const struct gr_drafter_config c = {.n_session_max = s->config.n_session_max, .n_ctx_max = lm->n_ctx_max,
                                        .n_vocab = lm->n_vocab, .n_row_max = lm->n_row_max,
                                        .prefill_chunk = s->config.prefill_chunk, .n_pool_block = lm->n_pool_block};
    const struct gr_drafter_io io = {.ctx = s, .frame_begin = frame_begin, .frame_end = frame_to_target,
                                     .send_msg = msg_from_draft, .start_job = start_job, .connect = connect_peer};
    enum gr_status st = gr_drafter_create(&c, &io, &s->drafter);
    GR_ASSERT(st == GR_OK);
    st = gr_grower_create(s->config.draft_lm, c.n_session_max, &s->grower);
    GR_ASSERT(st == GR_OK);
    st = gr_orch_on_join(s->orch, 1, GR_WORKER_DRAFT, "", 0);
    GR_ASSERT(st == GR_OK);
}

struct sim *sim_create(const struct sim_config *config)
{
    struct sim *s = calloc(1, sizeof(*s));
    GR_ASSERT(s != NULL);
    s->config = *config;
    s->rng = config->seed;
    const struct gr_orch_io io = {.ctx = s, .send = msg_from_orch, .on_tokens = on_tokens, .on_done = on_done};
    enum gr_status st = gr_orch_create(&io, &s->orch);
    GR_ASSERT(st == GR_OK);
    create_target(s);
    create_drafter(s);
    return s;
}

void sim_destroy(struct sim *s)
{
    while (s->n_event > 0) {
        free(pop(s).bytes);
    }
    for (int i = 0; i < s->n_request; i++) {
        free(s->result[i].token);
    }
    gr_verifier_destroy(s->verifier);
    gr_grower_destroy(s->grower);
    gr_target_destroy(s->target);
    gr_drafter_destroy(s->drafter);
    gr_orch_destroy(s->orch);
    free(s->heap);
    free(s);
}

int sim_submit(struct sim *s, const struct gr_session_request *request)
{
    GR_ASSERT(s->n_request < N_SESSION_SIM);
    enum gr_status st = gr_orch_submit(s->orch, request, s->now_ns, &s->session[s->n_request]);
    GR_ASSERT(st == GR_OK);
    return s->n_request++;
}

void sim_stop_after(struct sim *s, int i, uint32_t n)
{
    s->stop_after[i] = n;
}

void sim_on_pass(struct sim *s, void (*fn)(struct sim *s, void *arg), void *arg)
{
    s->on_pass = fn;
    s->on_pass_arg = arg;
}

/* ---- running ---- */

static void deliver_msg(struct sim *s, const struct event *e)
{
    struct gr_msg m;
    enum gr_status st = gr_msg_decode(e->bytes, e->len, &m);
    GR_ASSERT(st == GR_OK);
    s->n_error += e->place == AT_ORCH_FROM_TARGET && m.type == GR_MSG_ERROR;
    if (e->place == AT_TARGET) {
        gr_target_on_msg(s->target, &m, s->now_ns);
    } else if (e->place == AT_DRAFT) {
        gr_drafter_on_msg(s->drafter, &m, s->now_ns);
    } else {
        st = gr_orch_on_msg(s->orch, e->place == AT_ORCH_FROM_TARGET ? 0 : 1, &m, s->now_ns);
        GR_ASSERT(st == GR_OK);
    }
    gr_msg_finish(&m);
}

static void deliver_frame(struct sim *s, const struct event *e)
{
    size_t len = e->len;
    if (s->on_frame != NULL) {
        s->on_frame(s, s->on_frame_arg, e->place == AT_TARGET, e->bytes, &len);
    }
    const enum gr_status st = e->place == AT_TARGET
                                  ? gr_target_on_frame(s->target, 0, e->bytes, len, s->now_ns)
                                  : gr_drafter_on_frame(s->drafter, 0, e->bytes, len, s->now_ns);
    if (st != GR_OK) {
        GR_ASSERT(s->on_frame != NULL);
        s->n_lost++;
        gr_target_on_peer_lost(s->target, 0);
        gr_drafter_on_peer_lost(s->drafter, 0);
    }
}

static void deliver(struct sim *s, const struct event *e)
{
    switch (e->what) {
    case EVENT_FRAME:
        deliver_frame(s, e);
        break;
    case EVENT_MSG:
        deliver_msg(s, e);
        break;
    case EVENT_PASS_DONE:
        gr_target_on_pass_done(s->target, s->pass, s->now_ns);
        if (s->on_pass != NULL) {
            s->on_pass(s, s->on_pass_arg);
        }
        break;
    case EVENT_JOB_DONE:
        gr_drafter_on_job_done(s->drafter, s->job, s->now_ns);
        break;
    case EVENT_PEER_READY:
        gr_drafter_on_peer_ready(s->drafter, 0, "sim", s->now_ns);
        break;
    case EVENT_WAKE:
        break;
    }
}

bool sim_run(struct sim *s, uint64_t limit_ns)
{
    while (s->n_done < s->n_request || s->n_event > 0) {
        const uint64_t wake_ns = gr_target_step(s->target, s->now_ns);
        if (s->drafter != NULL) {
            (void)gr_drafter_step(s->drafter, s->now_ns);
        }
        if (s->n_event == 0 && wake_ns == UINT64_MAX) {
            return false;
        }
        if (s->n_event == 0 || (wake_ns != UINT64_MAX && wake_ns < s->heap[0].at_ns)) {
            s->now_ns = GR_MAX(wake_ns, s->now_ns);
            continue;
        }
        struct event e = pop(s);
        s->now_ns = GR_MAX(e.at_ns, s->now_ns);
        if (s->now_ns > limit_ns) {
            free(e.bytes);
            return false;
        }
        deliver(s, &e);
        free(e.bytes);
        if (s->config.check_every_event) {
            GR_ASSERT(gr_target_check(s->target));
            GR_ASSERT(s->drafter == NULL || gr_drafter_check(s->drafter));
        }
    }
    return true;
}

const struct sim_result *sim_result(const struct sim *s, int i)
{
    return &s->result[i];
}

const struct gr_target_counters *sim_target_counters(const struct sim *s)
{
    return gr_target_counters(s->target);
}

const struct gr_drafter_counters *sim_drafter_counters(const struct sim *s)
{
    return gr_drafter_counters(s->drafter);
}

struct gr_target *sim_target(struct sim *s)
{
    return s->target;
}

struct gr_drafter *sim_drafter(struct sim *s)
{
    return s->drafter;
}

void sim_on_frame(struct sim *s, void (*fn)(struct sim *s, void *arg, bool to_target, uint8_t *bytes, size_t *len),
                  void *arg)
{
    s->on_frame = fn;
    s->on_frame_arg = arg;
}

const struct gr_pass *sim_pass(const struct sim *s)
{
    return s->pass;
}

uint64_t sim_session(const struct sim *s, int i)
{
    return s->session[i];
}

uint64_t sim_now_ns(const struct sim *s)
{
    return s->now_ns;
}

int sim_n_error(const struct sim *s)
{
    return s->n_error;
}

int sim_n_lost(const struct sim *s)
{
    return s->n_lost;
}
