#include "orchestrator/http/metrics.h"

#include "orchestrator/http/worker_state.h"

#define N_ROLE (GR_WORKER_DRAFT + 1)

/* ---- samples of families with labels ---- */

/* What their functions take. */
struct source {
    FILE *out;
    const struct gr_expo_family *family;
    const struct gr_metrics_from *from;
    const struct gr_http_state *s; /* of it */
};

static void count(const struct source *from, const char *a, const char *b, uint64_t n)
{
    const char *const value[GR_EXPO_LABEL_MAX] = {a, b};
    gr_expo_count(from->out, from->family, value, n);
}

static void write_ends(const struct source *from)
{
    for (int i = GR_FINISH_STOP; i <= GR_FINISH_UNSERVED; i++) {
        const char *reason = i == GR_FINISH_CLOSED ? "abort" : gr_finish_name((enum gr_finish)i); /* vLLM's word */
        count(from, reason, NULL, from->s->totals.turns_ended[i]);
    }
}

static void write_refusals(const struct source *from)
{
    static const char *const reason[] = {
        [GR_REFUSED_FULL] = "full", [GR_REFUSED_LIMIT] = "limit", [GR_REFUSED_INVALID] = "invalid"};
    for (int i = 0; i < GR_N_REFUSED; i++) {
        count(from, reason[i], NULL, from->s->totals.turns_refused[i]);
    }
}

/* Those that have been: there are many pairs, and few come. */
static void write_http(const struct source *from)
{
    for (int p = 0; p < GR_HTTP_PATHS; p++) {
        for (int c = 0; c < GR_HTTP_CODES; c++) {
            if (from->from->http->n[p][c] > 0) {
                count(from, from->from->path(p), gr_http_code_name(c), from->from->http->n[p][c]);
            }
        }
    }
}

static void write_sessions(const struct source *from)
{
    static const char *const state[] = {[GR_SESSION_WAITING] = "waiting",
                                        [GR_SESSION_OPENING] = "opening",
                                        [GR_SESSION_RUNNING] = "running",
                                        [GR_SESSION_IDLE] = "idle",
                                        [GR_SESSION_CLOSING] = "closing"};
    for (int i = GR_SESSION_WAITING; i <= GR_SESSION_CLOSING; i++) {
        count(from, state[i], NULL, from->s->n_session[i]);
    }
}

static void write_workers(const struct source *from)
{
    uint64_t n[N_ROLE][GR_HTTP_N_WORKER_STATE] = {{0}};
    for (uint32_t i = 0; i < from->s->n_worker; i++) {
        n[from->s->worker[i].role][gr_http_worker_state_of(&from->s->worker[i].status)]++;
    }
    for (int r = 0; r < N_ROLE; r++) {
        for (int k = 0; k < GR_HTTP_N_WORKER_STATE; k++) {
            count(from, gr_worker_role_name((enum gr_worker_role)r),
                  gr_http_worker_state_name((enum gr_http_worker_state)k), n[r][k]);
        }
    }
}

/* A sample of each worker that has one. */
static void each_worker(const struct source *from, bool (*read)(const struct gr_worker_status *w, double *out))
{
    for (uint32_t i = 0; i < from->s->n_worker; i++) {
        const struct gr_http_worker *w = &from->s->worker[i];
        char number[16];
        double x = 0.0;
        if (read(&w->status, &x)) {
            snprintf(number, sizeof(number), "%u", w->number);
            gr_expo_number(from->out, from->family,
                           (const char *const[GR_EXPO_LABEL_MAX]){number, gr_worker_role_name(w->role)}, x);
        }
    }
}

static bool read_sessions(const struct gr_worker_status *w, double *out)
{
    *out = w->n_session;
    return true;
}

static bool read_kv(const struct gr_worker_status *w, double *out)
{
    *out = w->n_block > 0 ? (double)(w->n_block - GR_MIN(w->n_block, w->n_free_block)) / (double)w->n_block : 0.0;
    return w->n_block > 0;
}

static bool read_ping(const struct gr_worker_status *w, double *out)
{
    *out = (double)w->rtt_ns / 1e9;
    return w->rtt_ns > 0;
}

static void write_worker_sessions(const struct source *from)
{
    each_worker(from, read_sessions);
}

static void write_kv(const struct source *from)
{
    each_worker(from, read_kv);
}

static void write_pings(const struct source *from)
{
    each_worker(from, read_ping);
}

#define USUAL_POSITIONS 8 /* which always have a sample; trees are rarely deeper */

static void write_positions(const struct source *from)
{
    for (int i = 0; i < GR_NODE_MAX; i++) {
        char position[16];
        const uint64_t n = from->s->totals.accepted_per_position[i];
        snprintf(position, sizeof(position), "%d", i);
        if (i < USUAL_POSITIONS || n > 0) {
            count(from, position, NULL, n);
        }
    }
}

static void write_bytes(const struct source *from)
{
    for (int i = 0; i < GR_TOTALS_TRANSPORTS; i++) {
        count(from, gr_totals_transport_name(i), NULL, from->s->totals.wire_bytes[i]);
    }
}

static void by_role(const struct source *from, const uint64_t n[2])
{
    for (int r = 0; r < N_ROLE; r++) {
        count(from, gr_worker_role_name((enum gr_worker_role)r), NULL, n[r]);
    }
}

static void write_joined(const struct source *from)
{
    by_role(from, from->s->totals.workers_joined);
}

static void write_lost(const struct source *from)
{
    by_role(from, from->s->totals.workers_lost);
}

static void write_quarantine(const struct source *from)
{
    static const char *const event[] = {[GR_QUARANTINE_BEGUN] = "begun",
                                        [GR_QUARANTINE_OVERRULED] = "overruled",
                                        [GR_QUARANTINE_TRIED] = "trial",
                                        [GR_QUARANTINE_ENDED] = "ended"};
    for (int i = 0; i < GR_N_QUARANTINE_EVENT; i++) {
        count(from, event[i], NULL, from->s->totals.quarantine[i]);
    }
}

static void write_desyncs(const struct source *from)
{
    count(from, "target", NULL, from->s->totals.desyncs[GR_TOLD_BY_TARGET]);
    count(from, "draft", NULL, from->s->totals.desyncs[GR_TOLD_BY_DRAFT]);
}

static void write_fallbacks(const struct source *from)
{
    count(from, "target", NULL, from->s->totals.fallbacks[GR_TOLD_BY_TARGET]);
    count(from, "draft", NULL, from->s->totals.fallbacks[GR_TOLD_BY_DRAFT]);
    count(from, "orchestrator", NULL, from->s->totals.fallbacks[GR_TOLD_BY_ORCHESTRATOR]);
}

/* ---- samples of what not every server has ---- */

static void write_journal_failed(const struct source *from)
{
    if (from->s->has_journal) {
        count(from, NULL, NULL, from->s->journal_failed);
    }
}

static void write_journal_age(const struct source *from)
{
    const uint64_t since_ns = from->s->journal_since_ns, now_ns = from->from->now_ns;
    if (from->s->has_journal) {
        gr_expo_number(from->out, from->family, NULL,
                       since_ns > 0 && now_ns > since_ns ? (double)(now_ns - since_ns) / 1e9 : 0.0);
    }
}

static void write_tls_end(const struct source *from)
{
    if (from->from->tls_end_s > 0) {
        count(from, NULL, NULL, (uint64_t)from->from->tls_end_s);
    }
}

/* ---- the table ---- */

static const struct gr_expo_family families[] = {
#define PLAIN(what, label, value, text) {.kind = GR_EXPO_##what, .name = #label, .help = text},
#define SECONDS(label, value, text) {.kind = GR_EXPO_COUNTER, .name = #label, .help = text},
#define TIMES(label, value, text) {.kind = GR_EXPO_HISTOGRAM, .name = #label, .help = text},
#define LABELLED(what, title, a, b, write, text) \
    {.kind = GR_EXPO_##what, .name = #title, .help = text, .label = {a, b}},
#include "orchestrator/http/metrics.inc"
#undef PLAIN
#undef SECONDS
#undef TIMES
#undef LABELLED
};

const struct gr_expo_family *gr_metrics_family(int i)
{
    return i >= 0 && i < (int)GR_ARRAY_LEN(families) ? &families[i] : NULL;
}

static const struct gr_expo_family *begin(struct source *from, int i)
{
    from->family = &families[i];
    gr_expo_begin(from->out, from->family);
    return from->family;
}

void gr_metrics_write(FILE *out, const struct gr_metrics_from *made_from)
{
    const struct gr_http_state *s = made_from->state;
    const struct gr_totals *t = &s->totals;
    struct source from = {.out = out, .from = made_from, .s = s};
    int i = 0;
#define PLAIN(what, label, value, text) gr_expo_count(out, begin(&from, i++), NULL, value);
#define SECONDS(label, value, text) gr_expo_number(out, begin(&from, i++), NULL, (double)(value) / 1e9);
#define TIMES(label, value, text) gr_expo_histogram(out, begin(&from, i++), &(value));
#define LABELLED(what, title, a, b, write, text) \
    (void)begin(&from, i++);                     \
    write(&from);
#include "orchestrator/http/metrics.inc"
#undef PLAIN
#undef SECONDS
#undef TIMES
#undef LABELLED
}
