/* The answer to LIST: read, and shown as tables or JSON. */
#include "orchestrator/cli/listing.h"

#include "common/base/grow.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/machine/quarantine.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- reading ---- */

static enum gr_status add_session(struct gr_listing *l, const struct gr_msg *m)
{
    struct gr_listing_session *more = gr_grow(l->session, &l->session_max, (size_t)l->n_session + 1, sizeof(*more));
    if (more == NULL) {
        log_error("out of memory for a list of %d sessions", l->n_session + 1);
        return GR_ENOMEM;
    }
    l->session = more;
    l->session[l->n_session++] = (struct gr_listing_session){.id = m->session, .is = m->listed_session};
    return GR_OK;
}

static enum gr_status add_worker(struct gr_listing *l, const struct gr_msg *m)
{
    struct gr_msg_listed_worker *more = gr_grow(l->worker, &l->worker_max, (size_t)l->n_worker + 1, sizeof(*more));
    if (more == NULL) {
        log_error("out of memory for a list of %d workers", l->n_worker + 1);
        return GR_ENOMEM;
    }
    l->worker = more;
    l->worker[l->n_worker++] = m->listed_worker;
    return GR_OK;
}

/* What is neither is no part of the answer. */
static enum gr_status add(struct gr_listing *l, const struct gr_msg *m)
{
    if (m->type == GR_MSG_SESSION) {
        return add_session(l, m);
    }
    return m->type == GR_MSG_WORKER ? add_worker(l, m) : GR_OK;
}

enum gr_status gr_listing_read(struct gr_remote *r, int within_ms, struct gr_listing *l)
{
    l->n_session = l->n_worker = 0;
    GR_TRY(gr_remote_send(r, &(struct gr_msg){.type = GR_MSG_LIST}));
    for (;;) {
        struct gr_msg m;
        enum gr_status st = gr_remote_recv(r, within_ms, &m);
        if (st == GR_AGAIN) {
            log_error("the orchestrator at %s has not answered LIST within %.1f s", r->address, within_ms / 1e3);
            return GR_ETIMEDOUT;
        }
        GR_TRY(st);
        st = add(l, &m);
        l->journal_failed = m.type == GR_MSG_LISTED && m.listed.journal_failed;
        gr_msg_finish(&m); /* these have no arrays; others are not asked for */
        if (st != GR_OK || m.type == GR_MSG_LISTED) {
            return st;
        }
    }
}

void gr_listing_finish(struct gr_listing *l)
{
    free(l->session);
    free(l->worker);
    *l = (struct gr_listing){0};
}

/* ---- words ---- */

const char *gr_listing_session_state(const struct gr_msg_listed_session *m)
{
    static const char *const names[] = {"free", "waiting", "opening", "running", "idle", "closing"};
    return m->state < GR_ARRAY_LEN(names) ? names[m->state] : "?";
}

double gr_listing_acceptance(const struct gr_msg_listed_session *m)
{
    return m->n_tree > 0 ? 1.0 + (double)m->n_hit_token / (double)m->n_tree : 1.0;
}

const char *gr_listing_role_name(uint32_t role)
{
    return role == GR_ROLE_TARGET ? "target" : "draft";
}

/* One in quarantine does where no other fits. */
static bool is_taking(const struct gr_msg_listed_worker *m)
{
    return m->draining == 0 && m->leaving == 0;
}

static bool is_serving(const struct gr_msg_listed_worker *m)
{
    return is_taking(m) && m->standing == GR_QUARANTINE_GOOD;
}

const char *gr_listing_worker_state(const struct gr_msg_listed_worker *m)
{
    static const char *const standing[] = {
        [GR_QUARANTINE_GOOD] = "serving", [GR_QUARANTINE_OUT] = "quarantine", [GR_QUARANTINE_TRIAL] = "trial"};
    return m->leaving != 0                       ? "leaving"
           : m->draining != 0 && m->n_active > 0 ? "draining"
           : m->draining != 0                    ? "drained"
                                                 : standing[m->standing];
}

/* ---- printing ---- */

json_t *gr_listing_session_json(const struct gr_listing_session *m)
{
    char id[GR_SESSION_ID_DIGITS + 1];
    gr_session_id_spell(m->id, id);
    return json_pack(
        "{s:s, s:s, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:s, s:I, s:I, s:I, s:I}", "id", id, "state",
        gr_listing_session_state(&m->is), "epoch", (json_int_t)m->is.epoch, "keep_open", m->is.keep_open != 0, "tokens",
        (json_int_t)m->is.n_token, "rounds", (json_int_t)m->is.n_round, "num_drafts", (json_int_t)m->is.n_tree,
        "num_draft_tokens", (json_int_t)m->is.n_drafted, "num_accepted_tokens", (json_int_t)m->is.n_hit_token,
        "mean_acceptance_length", gr_listing_acceptance(&m->is), "idle_s", (double)m->is.idle_ns / 1e9, "target",
        (json_int_t)m->is.target, "drafter", (json_int_t)m->is.drafter, "specpv", gr_specpv_mode_name(m->is.specpv),
        "partial_rounds_since_refresh", (json_int_t)m->is.n_partial, "full_refreshes", (json_int_t)m->is.n_refresh,
        "drift_checked", (json_int_t)m->is.n_checked, "drift_mismatches", (json_int_t)m->is.n_drifted);
}

json_t *gr_listing_worker_json(const struct gr_msg_listed_worker *m)
{
    return json_pack("{s:I, s:s, s:s, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:f, s:s, s:s, s:I}", "worker",
                     (json_int_t)m->worker, "role", gr_listing_role_name(m->role), "model", m->model, "pid",
                     (json_int_t)m->pid, "host", m->host, "peer", m->peer, "address", m->address, "sessions",
                     (json_int_t)m->n_session, "in_turn", (json_int_t)m->n_active, "slots", (json_int_t)m->n_slot,
                     "state", gr_listing_worker_state(m), "n_vocab", (json_int_t)m->n_vocab, "n_ctx_max",
                     (json_int_t)m->n_ctx_max, "rtt_ms", (double)m->rtt_ns / 1e6, "numerics_id", m->numerics_id, "seat",
                     m->seat, "number", (json_int_t)m->number);
}

int gr_listing_dump(json_t *root)
{
    const int bad = json_dumpf(root, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(root);
    putchar('\n');
    return bad == 0 || ferror(stdout) ? 0 : 1; /* main() tells of output that is lost */
}

static void print_worker_number(uint32_t worker)
{
    if (worker > 0) {
        printf("  %6u", worker);
    } else {
        printf("  %6s", "-");
    }
}

static void print_lack(const struct gr_listing *l)
{
    int n_target = 0;
    int n_taking = 0;
    for (int i = 0; i < l->n_worker; i++) {
        const struct gr_msg_listed_worker *m = &l->worker[i];
        const bool is_target = m->role == GR_ROLE_TARGET;
        n_target += is_target;
        n_taking += is_target && is_taking(m);
    }
    if (n_taking == 0) {
        printf("no target: %s, and turns wait for one\n", n_target == 0 ? "none has joined" : "none takes sessions");
    }
}

static void print_table(const struct gr_listing *l)
{
    printf("%-16s  %-8s %5s %8s %8s %10s %8s  %6s  %7s\n", "id", "state", "epoch", "tokens", "rounds", "acceptance",
           "idle s", "target", "drafter");
    for (int i = 0; i < l->n_session; i++) {
        const struct gr_listing_session *m = &l->session[i];
        printf("%" GR_SESSION_ID_PRI "  %-8s %5u %8u %8" PRIu64 " %10.2f %8.1f", m->id,
               gr_listing_session_state(&m->is), m->is.epoch, m->is.n_token, m->is.n_round,
               gr_listing_acceptance(&m->is), (double)m->is.idle_ns / 1e9);
        print_worker_number(m->is.target);
        printf(" ");
        print_worker_number(m->is.drafter);
        printf("\n");
    }
    for (int i = 0; i < l->n_worker; i++) {
        const struct gr_msg_listed_worker *m = &l->worker[i];
        printf("worker %u: %s, host %s, from %s, pid %u%s%s, %u sessions, context %u%s%s\n", m->worker,
               gr_listing_role_name(m->role), m->host, m->peer, m->pid,
               m->address[0] != '\0' ? ", drafters reach it at " : "", m->address, m->n_session, m->n_ctx_max,
               is_serving(m) ? "" : ", ", is_serving(m) ? "" : gr_listing_worker_state(m));
    }
    print_lack(l);
}

int gr_listing_print(const struct gr_listing *l, bool json)
{
    if (!json) {
        print_table(l);
        return 0;
    }
    json_t *sessions = json_array();
    json_t *workers = json_array();
    for (int i = 0; i < l->n_session; i++) {
        json_array_append_new(sessions, gr_listing_session_json(&l->session[i]));
    }
    for (int i = 0; i < l->n_worker; i++) {
        json_array_append_new(workers, gr_listing_worker_json(&l->worker[i]));
    }
    return gr_listing_dump(json_pack("{s:o, s:o}", "sessions", sessions, "workers", workers));
}

int gr_listing_print_session(const struct gr_listing_session *m, bool json)
{
    if (json) {
        return gr_listing_dump(gr_listing_session_json(m));
    }
    printf("session %" GR_SESSION_ID_PRI ": %s, epoch %u, %s\n", m->id, gr_listing_session_state(&m->is), m->is.epoch,
           m->is.keep_open != 0 ? "stays open between turns" : "ends with its turn");
    printf("tokens %u, rounds %" PRIu64 ", %" PRIu64 " of %" PRIu64 " drafted tokens accepted, mean acceptance length "
           "%.2f\n",
           m->is.n_token, m->is.n_round, m->is.n_hit_token, m->is.n_drafted, gr_listing_acceptance(&m->is));
    printf("SpecPV %s: %" PRIu64 " partial rounds since the last of %" PRIu64 " refreshes; %" PRIu64 " of %" PRIu64
           " judged tokens were others\n",
           gr_specpv_mode_name(m->is.specpv), m->is.n_partial, m->is.n_refresh, m->is.n_drifted, m->is.n_checked);
    printf("idle for %.1f s, target %u, drafter %u (0: none)\n", (double)m->is.idle_ns / 1e9, m->is.target,
           m->is.drafter);
    return 0;
}

/* What is not known is a dash: of slots, or before the first ping was answered. */
static void print_worker_row(const struct gr_msg_listed_worker *m)
{
    char slots[16] = "-";
    char rtt[24] = "-";
    if (m->n_slot > 0) {
        snprintf(slots, sizeof(slots), "%u", m->n_slot);
    }
    if (m->rtt_ns > 0) {
        snprintf(rtt, sizeof(rtt), "%.2f", (double)m->rtt_ns / 1e6);
    }
    printf("%6u  %-6s  %-10s %7u %5u %5s %8s %8u  %-16s %-16s %s\n", m->worker, gr_listing_role_name(m->role),
           gr_listing_worker_state(m), m->n_active, m->n_session, slots, rtt, m->pid, m->model, m->host, m->peer);
}

int gr_listing_print_workers(const struct gr_listing *l, bool json)
{
    json_t *rows = json ? json_array() : NULL;
    if (!json) {
        printf("%6s  %-6s  %-10s %7s %5s %5s %8s %8s  %-16s %-16s %s\n", "worker", "role", "state", "in turn", "held",
               "slots", "rtt ms", "pid", "model", "host", "from");
    }
    for (int i = 0; i < l->n_worker; i++) {
        if (json) {
            json_array_append_new(rows, gr_listing_worker_json(&l->worker[i]));
        } else {
            print_worker_row(&l->worker[i]);
        }
    }
    if (json) {
        return gr_listing_dump(json_pack("{s:o}", "workers", rows));
    }
    print_lack(l);
    return 0;
}
