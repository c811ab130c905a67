/* `graft session ...`: looks at the sessions of a running orchestrator, goes on with them, and ends them. */
#include "common/base/log.h"
#include "common/process/program.h"
#include "common/base/suggest.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/connect.h"
#include "orchestrator/cli/remote.h"
#include "orchestrator/cli/report.h"
#include "orchestrator/cli/yaml_config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_MAX 512 /* sessions that are listed, at most; an orchestrator has 256 */

/* The answer to LIST. */
struct listing {
    struct gr_msg session[ENTRY_MAX], worker[64];
    int n_session, n_worker;
};

static const char *state_name(uint32_t state)
{
    static const char *const names[] = {"free", "waiting", "opening", "running", "idle", "closing"};
    return state < GR_ARRAY_LEN(names) ? names[state] : "?";
}

static enum gr_status read_listing(struct gr_remote *r, struct listing *l)
{
    GR_TRY(gr_remote_send(r, &(struct gr_msg){.type = GR_MSG_LIST}));
    for (;;) {
        struct gr_msg m;
        const enum gr_status st = gr_remote_recv(r, 30000, &m);
        if (st == GR_AGAIN) {
            log_error("the orchestrator at %s has not answered LIST within 30 s", r->address);
        }
        if (st != GR_OK) {
            return st;
        }
        if (m.type == GR_MSG_SESSION && l->n_session < ENTRY_MAX) {
            l->session[l->n_session++] = m;
        } else if (m.type == GR_MSG_WORKER && l->n_worker < (int)GR_ARRAY_LEN(l->worker)) {
            l->worker[l->n_worker++] = m;
        }
        gr_msg_finish(&m); /* these have no arrays; others are not asked for */
        if (m.type == GR_MSG_LISTED) {
            return GR_OK;
        }
    }
}

static double acceptance(const struct gr_msg_listed_session *m)
{
    return m->n_tree > 0 ? 1.0 + (double)m->n_hit_token / (double)m->n_tree : 1.0;
}

/* ---- printing ---- */

static const char *specpv_name(uint32_t mode)
{
    const char *name = gr_specpv_mode_name(mode);
    return name != NULL ? name : "?";
}

static json_t *session_json(const struct gr_msg *m)
{
    return json_pack(
        "{s:I, s:s, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:s, s:I, s:I, s:I, s:I}", "id",
        (json_int_t)m->session, "state", state_name(m->listed_session.state), "epoch",
        (json_int_t)m->listed_session.epoch, "keep_open", m->listed_session.keep_open != 0, "tokens",
        (json_int_t)m->listed_session.n_token, "rounds", (json_int_t)m->listed_session.n_round, "num_drafts",
        (json_int_t)m->listed_session.n_tree, "num_draft_tokens", (json_int_t)m->listed_session.n_drafted,
        "num_accepted_tokens", (json_int_t)m->listed_session.n_hit_token, "mean_acceptance_length",
        acceptance(&m->listed_session), "idle_s", (double)m->listed_session.idle_ns / 1e9, "target",
        (json_int_t)m->listed_session.target, "drafter", (json_int_t)m->listed_session.drafter, "specpv",
        specpv_name(m->listed_session.specpv), "partial_rounds_since_refresh", (json_int_t)m->listed_session.n_partial,
        "full_refreshes", (json_int_t)m->listed_session.n_refresh, "drift_checked",
        (json_int_t)m->listed_session.n_checked, "drift_mismatches", (json_int_t)m->listed_session.n_drifted);
}

static json_t *worker_json(const struct gr_msg *m)
{
    return json_pack("{s:I, s:s, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:s}", "worker",
                     (json_int_t)m->listed_worker.worker, "role",
                     m->listed_worker.role == GR_ROLE_TARGET ? "target" : "draft", "pid",
                     (json_int_t)m->listed_worker.pid, "host", m->listed_worker.host, "peer", m->listed_worker.peer,
                     "address", m->listed_worker.address, "sessions", (json_int_t)m->listed_worker.n_session, "n_vocab",
                     (json_int_t)m->listed_worker.n_vocab, "n_ctx_max", (json_int_t)m->listed_worker.n_ctx_max,
                     "rtt_ms", (double)m->listed_worker.rtt_ns / 1e6, "numerics_id", m->listed_worker.numerics_id);
}

static int dump(json_t *root)
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

static bool has_target(const struct listing *l)
{
    bool has = false;
    for (int i = 0; i < l->n_worker; i++) {
        has = has || l->worker[i].listed_worker.role == GR_ROLE_TARGET;
    }
    return has;
}

static void print_table(const struct listing *l)
{
    printf("%8s  %-8s %5s %8s %8s %10s %8s  %6s  %7s\n", "id", "state", "epoch", "tokens", "rounds", "acceptance",
           "idle s", "target", "drafter");
    for (int i = 0; i < l->n_session; i++) {
        const struct gr_msg *m = &l->session[i];
        printf("%8" PRIu64 "  %-8s %5u %8u %8" PRIu64 " %10.2f %8.1f", m->session, state_name(m->listed_session.state),
               m->listed_session.epoch, m->listed_session.n_token, m->listed_session.n_round,
               acceptance(&m->listed_session), (double)m->listed_session.idle_ns / 1e9);
        print_worker_number(m->listed_session.target);
        printf(" ");
        print_worker_number(m->listed_session.drafter);
        printf("\n");
    }
    for (int i = 0; i < l->n_worker; i++) {
        const struct gr_msg *m = &l->worker[i];
        printf("worker %u: %s, host %s, from %s, pid %u%s%s, %u sessions, context %u\n", m->listed_worker.worker,
               m->listed_worker.role == GR_ROLE_TARGET ? "target" : "draft", m->listed_worker.host,
               m->listed_worker.peer, m->listed_worker.pid,
               m->listed_worker.address[0] != '\0' ? ", drafters reach it at " : "", m->listed_worker.address,
               m->listed_worker.n_session, m->listed_worker.n_ctx_max);
    }
    if (!has_target(l)) {
        printf("no target: none has joined, and turns wait for one\n");
    }
}

static int print_listing(const struct listing *l, bool json)
{
    if (!json) {
        print_table(l);
        return 0;
    }
    json_t *sessions = json_array();
    json_t *workers = json_array();
    for (int i = 0; i < l->n_session; i++) {
        json_array_append_new(sessions, session_json(&l->session[i]));
    }
    for (int i = 0; i < l->n_worker; i++) {
        json_array_append_new(workers, worker_json(&l->worker[i]));
    }
    return dump(json_pack("{s:o, s:o}", "sessions", sessions, "workers", workers));
}

static int print_session(const struct gr_msg *m, bool json)
{
    if (json) {
        return dump(session_json(m));
    }
    printf("session %" PRIu64 ": %s, epoch %u, %s\n", m->session, state_name(m->listed_session.state),
           m->listed_session.epoch,
           m->listed_session.keep_open != 0 ? "stays open between turns" : "ends with its turn");
    printf("tokens %u, rounds %" PRIu64 ", %" PRIu64 " of %" PRIu64 " drafted tokens accepted, mean acceptance length "
           "%.2f\n",
           m->listed_session.n_token, m->listed_session.n_round, m->listed_session.n_hit_token,
           m->listed_session.n_drafted, acceptance(&m->listed_session));
    printf("SpecPV %s: %" PRIu64 " partial rounds since the last of %" PRIu64 " refreshes; %" PRIu64 " of %" PRIu64
           " judged tokens were others\n",
           specpv_name(m->listed_session.specpv), m->listed_session.n_partial, m->listed_session.n_refresh,
           m->listed_session.n_drifted, m->listed_session.n_checked);
    printf("idle for %.1f s, target %u, drafter %u (0: none)\n", (double)m->listed_session.idle_ns / 1e9,
           m->listed_session.target, m->listed_session.drafter);
    return 0;
}

/* ---- the verbs ---- */

static int list(struct gr_remote *r, const struct gr_options *o, uint64_t id)
{
    struct listing *l = calloc(1, sizeof(*l));
    if (l == NULL) {
        log_error("out of memory");
        return 1;
    }
    int status = gr_remote_status(r, read_listing(r, l));
    if (status == 0 && id == 0) {
        status = print_listing(l, o->json);
    } else if (status == 0) {
        status = 1;
        for (int i = 0; i < l->n_session; i++) {
            status = l->session[i].session == id ? print_session(&l->session[i], o->json) : status;
        }
        if (status != 0) {
            log_error("no session %" PRIu64 " is open there; `graft session list' tells which are", id);
        }
    }
    free(l);
    return status;
}

static int show(struct gr_remote *r, const struct gr_options *o, uint64_t id)
{
    return list(r, o, id);
}

static int close_one(struct gr_remote *r, const struct gr_options *o, uint64_t id)
{
    struct gr_msg reply;
    (void)o;
    const struct gr_msg m = {.type = GR_MSG_CLOSE, .session = id};
    return gr_remote_status(r, gr_remote_ask(r, &m, GR_MSG_CLOSED, &reply));
}

static int refresh(struct gr_remote *r, const struct gr_options *o, uint64_t id)
{
    struct gr_msg reply;
    const struct gr_msg m = {.type = GR_MSG_REFRESH, .session = id};
    const int status = gr_remote_status(r, gr_remote_ask(r, &m, GR_MSG_REFRESHED, &reply));
    if (status != 0) {
        return status;
    }
    if (o->json) {
        return dump(json_pack("{s:I}", "refreshed", (json_int_t)reply.refreshed.n_session));
    }
    printf("a refresh was asked for in %u running session%s\n", reply.refreshed.n_session,
           reply.refreshed.n_session == 1 ? "" : "s");
    return 0;
}

static int purge(struct gr_remote *r, const struct gr_options *o, uint64_t id)
{
    struct gr_msg reply;
    (void)id;
    const struct gr_msg m = {.type = GR_MSG_PURGE};
    const int status = gr_remote_status(r, gr_remote_ask(r, &m, GR_MSG_PURGED, &reply));
    if (status != 0) {
        return status;
    }
    if (o->json) {
        return dump(json_pack("{s:I}", "purged", (json_int_t)reply.purged.n_session));
    }
    printf("%u idle session%s closed\n", reply.purged.n_session, reply.purged.n_session == 1 ? "" : "s");
    return 0;
}

static const struct verb {
    const char *name, *word;                                                  /* word: of its entry in the table */
    int (*ask)(struct gr_remote *r, const struct gr_options *o, uint64_t id); /* NULL: a turn */
    enum gr_command command;
} verbs[] = {
    {"list", "session list", list, GR_CMD_LOOK},         {"show", "session show", show, GR_CMD_CLOSE},
    {"open", "session open", NULL, GR_CMD_OPEN},         {"send", "session send", NULL, GR_CMD_SEND},
    {"close", "session close", close_one, GR_CMD_CLOSE}, {"refresh", "session refresh", refresh, GR_CMD_REFRESH},
    {"purge", "session purge", purge, GR_CMD_LOOK},
};

static int run_verb(const struct verb *v, struct gr_options *o)
{
    struct gr_remote r;
    if (v->ask == NULL) {
        return v->command == GR_CMD_SEND ? gr_connect_run(o) : gr_connect_open(o);
    }
    const enum gr_status st = gr_remote_open(o, 0, &r);
    if (st != GR_OK) {
        return gr_report_failure(o, gr_program_refused(st));
    }
    const int status = v->ask(&r, o, (uint64_t)o->session);
    gr_remote_close(&r);
    return gr_report_failure(o, status);
}

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(verbs); i++) {
        if (strcmp(verbs[i].name, name) == 0) {
            return &verbs[i];
        }
    }
    return NULL;
}

static int unknown_verb(const char *word)
{
    static const char verbs_text[] = "list, show ID, open, send ID, close ID, refresh [ID] or purge";
    struct gr_suggest near = {.word = word, .len = strlen(word)};
    char meant[96];
    if (word[0] == '\0') {
        log_error("graft session: %s is wanted; see graft session --help", verbs_text);
        return 2;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(verbs); i++) {
        gr_suggest_offer(&near, verbs[i].name);
    }
    gr_suggest_text(&near, "", meant, sizeof(meant));
    log_error("graft session: %s is wanted, not `%s'%s; see graft session --help", verbs_text, word, meant);
    return 2;
}

int gr_command_session(int argc, char **argv)
{
    struct gr_options o;
    struct gr_yaml_config *yaml = NULL;
    const struct verb *v = argc > 1 ? find_verb(argv[1]) : NULL;
    if (v == NULL && (argc < 2 || argv[1][0] != '-')) {
        return unknown_verb(argc > 1 ? argv[1] : "");
    }
    gr_options_default(&o, v != NULL ? v->command : GR_CMD_LOOK);
    if (v != NULL) {
        o.values.called = gr_option_command_find(&gr_option_table, "graft", v->word);
    }
    const int skip = v != NULL ? 1 : 0;
    int status = gr_options_load(&o, argc - skip, argv + skip, &yaml);
    if (status < 0) {
        status = v != NULL ? run_verb(v, &o) : unknown_verb(""); /* options alone ask for nothing */
    }
    gr_yaml_config_destroy(yaml);
    return status;
}
