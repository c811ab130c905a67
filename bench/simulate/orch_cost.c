#include "bench/simulate/orch_cost.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rules/hash.h"
#include "orchestrator/machine/orch.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_PROMPT 64
#define COMMIT_BYTES 256 /* of one, encoded */

/* A session as its target knows it. */
struct text {
    uint64_t id, hash;
    uint32_t len, round, target;
};

struct bench {
    struct gr_orch *orch;
    int n_target, n_session, n_open;
    struct text *text;      /* (n_session) */
    uint8_t *bytes;         /* (n_session, COMMIT_BYTES): COMMITs of a round, in this order */
    size_t *len;            /* (n_session) */
    int *order;             /* (n_session): sessions by target */
    double *commit, *round; /* (n_round): ns of a session, with one look a round and with one a batch */
};

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* Sessions are numbered from 1 in the order in which they are submitted. */
static void on_send(void *ctx, uint32_t worker, const struct gr_msg *m)
{
    struct bench *b = ctx;
    if (m->type == GR_MSG_OPEN) {
        b->text[m->session - 1].target = worker;
        b->n_open++;
    }
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    (void)ctx;
    (void)user;
    (void)finish;
    log_error("session %llu of the measurement ended: %s", (unsigned long long)session, text);
}

static void join(struct bench *b)
{
    for (int i = 0; i < b->n_target; i++) {
        const enum gr_status st = gr_orch_on_join(b->orch, (uint32_t)i, GR_WORKER_TARGET, "nowhere", 0);
        GR_ASSERT(st == GR_OK);
    }
}

static void open_all(struct bench *b)
{
    int32_t prompt[N_PROMPT];
    uint64_t hash = 0;
    for (int32_t i = 0; i < N_PROMPT; i++) {
        prompt[i] = i;
        hash = gr_hash_extend(hash, i);
    }
    const struct gr_session_request q = {.prompt = prompt,
                                         .n_prompt = N_PROMPT,
                                         .wishes = {.turn = {.max_tokens = 1u << 20}, .sampling = {.top_p = 1.0f}}};
    for (int i = 0; i < b->n_session; i++) {
        struct text *t = &b->text[i];
        enum gr_status st = gr_orch_submit(b->orch, &q, 0, &t->id);
        GR_ASSERT(st == GR_OK && t->id == (uint64_t)i + 1 && b->n_open == i + 1);
        t->hash = hash;
        t->len = N_PROMPT;
        const struct gr_msg m = {.type = GR_MSG_OPENED, .session = t->id, .opened = {.epoch = 1}};
        st = gr_orch_on_msg(b->orch, t->target, &m, 0);
        GR_ASSERT(st == GR_OK);
    }
}

static void sort_by_target(struct bench *b)
{
    int n = 0;
    for (uint32_t target = 0; target < (uint32_t)b->n_target; target++) {
        for (int i = 0; i < b->n_session; i++) {
            if (b->text[i].target == target) {
                b->order[n++] = i;
            }
        }
    }
    GR_ASSERT(n == b->n_session);
}

/* The session's next token. */
static size_t encode(struct text *t, uint8_t *out)
{
    int32_t id = (int32_t)(t->len % 1000);
    size_t len = 0;
    t->hash = gr_hash_extend(t->hash, id);
    struct gr_msg m = {.type = GR_MSG_COMMIT, .session = t->id};
    m.commit.epoch = 1;
    m.commit.round = t->round++;
    m.commit.ids.p = &id;
    m.commit.ids.n = 1;
    m.commit.keep_len = t->len++;
    m.commit.final_len = t->len;
    m.commit.hash = t->hash;
    m.commit.verify_ns = 5000000;
    m.commit.n_row = 1;
    const enum gr_status st = gr_msg_encode(&m, out, COMMIT_BYTES, &len);
    GR_ASSERT(st == GR_OK);
    return len;
}

static void encode_all(struct bench *b)
{
    for (int i = 0; i < b->n_session; i++) {
        b->len[i] = encode(&b->text[b->order[i]], b->bytes + (size_t)i * COMMIT_BYTES);
    }
}

static void hear(struct bench *b, int i, uint64_t now_ns)
{
    struct gr_msg m;
    enum gr_status st = gr_msg_decode(b->bytes + (size_t)i * COMMIT_BYTES, b->len[i], &m);
    GR_ASSERT(st == GR_OK);
    st = gr_orch_on_msg(b->orch, b->text[b->order[i]].target, &m, now_ns);
    GR_ASSERT(st == GR_OK);
    gr_msg_finish(&m);
}

static bool ends_batch(const struct bench *b, int i)
{
    return i + 1 == b->n_session || b->text[b->order[i]].target != b->text[b->order[i + 1]].target;
}

/* ns of a session. each: a look follows each target's batch, not the last one's alone. */
static double run_round(struct bench *b, uint64_t now_ns, bool each)
{
    encode_all(b);
    const double t0 = cpu_ns(); /* once a round: the clock is a system call, which takes longer than a look */
    for (int i = 0; i < b->n_session; i++) {
        hear(b, i, now_ns);
        if (i + 1 == b->n_session || (each && ends_batch(b, i))) {
            (void)gr_orch_step(b->orch, now_ns);
        }
    }
    return (cpu_ns() - t0) / b->n_session;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), compare);
    return v[n / 2];
}

static bool take_memory(struct bench *b, int n_round)
{
    b->text = calloc((size_t)b->n_session, sizeof(*b->text));
    b->bytes = calloc((size_t)b->n_session, COMMIT_BYTES);
    b->len = calloc((size_t)b->n_session, sizeof(*b->len));
    b->commit = calloc((size_t)n_round, sizeof(*b->commit));
    b->round = calloc((size_t)n_round, sizeof(*b->round));
    b->order = calloc((size_t)b->n_session, sizeof(*b->order));
    return b->text != NULL && b->bytes != NULL && b->len != NULL && b->commit != NULL && b->round != NULL &&
           b->order != NULL;
}

static void give_back(struct bench *b)
{
    gr_orch_destroy(b->orch);
    free(b->text);
    free(b->bytes);
    free(b->len);
    free(b->commit);
    free(b->round);
    free(b->order);
}

enum gr_status gr_orch_cost_measure(int n_target, int n_session, int n_round, struct gr_orch_cost *out)
{
    struct bench b = {.n_target = n_target, .n_session = n_session};
    const struct gr_orch_io io = {.ctx = &b, .send = on_send, .on_done = on_done};
    if (n_target > GR_ORCH_WORKER_CAP || n_session > GR_ORCH_SESSION_CAP) {
        log_error("%d targets and %d sessions: an orchestrator has room for %d workers and %d sessions", n_target,
                  n_session, GR_ORCH_WORKER_CAP, GR_ORCH_SESSION_CAP);
        return GR_ELIMIT;
    }
    enum gr_status st = gr_orch_create_sized(&io, n_target, n_session, &b.orch);
    if (st == GR_OK && !take_memory(&b, n_round)) {
        log_error("out of memory for %d sessions", n_session);
        st = GR_ENOMEM;
    }
    if (st == GR_OK) {
        join(&b);
        open_all(&b);
        sort_by_target(&b);
        for (int i = 0; i < n_round; i++) {
            const uint64_t now_ns = 10 * GR_MS * (uint64_t)(i + 1);
            b.commit[i] = run_round(&b, now_ns, false);
            b.round[i] = run_round(&b, now_ns + 5 * GR_MS, true);
        }
        *out = (struct gr_orch_cost){.commit_ns = median(b.commit, n_round), .round_ns = median(b.round, n_round)};
    }
    give_back(&b);
    return st;
}
