#include "orchestrator/launch/roles.h"

#include "common/base/device.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/suggest.h"
#include "orchestrator/cli/crew.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {"serve", "draft", "target"};

const char *gr_launch_role_name(enum gr_launch_role role)
{
    return names[role];
}

/* ---- reading ---- */

static enum gr_status add(struct gr_roles *r, const struct gr_launch_rank *rank, int64_t count)
{
    if (count > GR_LAUNCH_RANK_MAX - r->n) {
        log_error("%s: more than %d ranks", r->from, GR_LAUNCH_RANK_MAX);
        return GR_EINVAL;
    }
    for (int64_t i = 0; i < count; i++) {
        r->rank[r->n++] = *rank;
    }
    return GR_OK;
}

int gr_roles_leader(const struct gr_roles *r, int rank)
{
    return r->rank[rank].group > 0 ? r->rank[rank].leader : rank;
}

static enum gr_status unknown_role(const char *word, size_t len)
{
    struct gr_suggest near = {.word = word, .len = len};
    char meant[96];
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        gr_suggest_offer(&near, names[i]);
    }
    gr_suggest_text(&near, "", meant, sizeof(meant));
    log_error("--roles: `%.*s' is no role (serve, draft, target)%s", (int)len, word, meant);
    return GR_EINVAL;
}

static bool read_count(const char *text, size_t len, int64_t *out)
{
    char number[16];
    return snprintf(number, sizeof(number), "%.*s", (int)GR_MIN(len, sizeof(number)), text) < (int)sizeof(number) &&
           gr_parse_int(number, 1, GR_LAUNCH_RANK_MAX, out);
}

/* "draft:2", of len bytes. */
static enum gr_status read_one(const char *text, size_t len, struct gr_roles *r)
{
    const char *colon = memchr(text, ':', len);
    const size_t word = colon != NULL ? (size_t)(colon - text) : len;
    int64_t count = 1;
    for (int role = 0; role < (int)GR_ARRAY_LEN(names); role++) {
        if (strlen(names[role]) != word || memcmp(names[role], text, word) != 0) {
            continue;
        }
        if (colon != NULL && !read_count(colon + 1, len - word - 1, &count)) {
            log_error("--roles: %.*s: ROLE:N is wanted, N from 1 to %d", (int)len, text, GR_LAUNCH_RANK_MAX);
            return GR_EINVAL;
        }
        return add(r, &(struct gr_launch_rank){.role = (enum gr_launch_role)role}, count);
    }
    return unknown_role(text, word);
}

static enum gr_status read_text(const char *text, struct gr_roles *r)
{
    for (;;) {
        const size_t len = strcspn(text, ",");
        GR_TRY(read_one(text, len, r));
        if (text[len] == '\0') {
            return GR_OK;
        }
        text += len + 1;
    }
}

/* The targets in the order of ranks, so many each. */
static enum gr_status group_targets(struct gr_roles *r, int n_rank)
{
    int n = 0, leader = 0;
    for (int i = 0; i < r->n; i++) {
        if (r->rank[i].role == GR_LAUNCH_TARGET) {
            leader = n % n_rank == 0 ? i : leader;
            r->rank[i].group = n_rank;
            r->rank[i].member = n++ % n_rank;
            r->rank[i].leader = leader;
        }
    }
    if (n % n_rank != 0) {
        log_error(
            "%s: %d target ranks cannot be groups of %d (--tp-over-hosts, --tensor-parallel-size): give a multiple",
            r->from, n, n_rank);
        return GR_EINVAL;
    }
    return GR_OK;
}

/* ---- a group over several hosts, of a plan ---- */

static int count_hosts(const char *hosts)
{
    int n = 1;
    for (; *hosts != '\0'; hosts++) {
        n += *hosts == ',';
    }
    return n;
}

/* The one of the list. NULL: it is empty, or there is no room for its name. */
static const char *host_at(struct gr_roles *r, const char *hosts, int at)
{
    for (; at > 0; at--) {
        hosts += strcspn(hosts, ",") + 1;
    }
    hosts += strspn(hosts, " ");
    const size_t n = strcspn(hosts, ", ");
    char *name = r->text + r->n_text;
    if (n == 0 || n >= sizeof(r->text) - r->n_text) {
        return NULL;
    }
    memcpy(name, hosts, n);
    name[n] = '\0';
    r->n_text += n + 1;
    return name;
}

/* Neighbours, which exchange first, stand on one host: n1, n1, n2, n2. */
static enum gr_status add_member(struct gr_roles *r, const struct gr_option_worker *w, int tp, int64_t group, int m)
{
    const int n_host = w->hosts != NULL ? count_hosts(w->hosts) : 0;
    const char *host = n_host > 0 ? host_at(r, w->hosts, m * n_host / tp) : w->host;
    if (n_host > tp || (n_host > 0 && (tp % n_host != 0 || host == NULL))) {
        log_error("%s: hosts %s: %d ranks cannot be shared out evenly to them", r->from, w->hosts, tp);
        return GR_EINVAL;
    }
    const struct gr_launch_rank rank = {.role = GR_LAUNCH_TARGET,
                                        .host = host,
                                        .devices = gr_devices_deal(&w->devices, 1, group * tp + m, w->count * tp),
                                        .group = tp,
                                        .member = m,
                                        .leader = r->n - m};
    return add(r, &rank, 1);
}

static enum gr_status add_groups(struct gr_roles *r, const struct gr_option_worker *w, int tp)
{
    if (w->host != NULL && w->hosts != NULL) {
        log_error("%s: host %s and hosts %s: one of them is enough", r->from, w->host, w->hosts);
        return GR_EINVAL;
    }
    if (tp == 1) {
        log_error("%s: a target over several hosts has to be several ranks: give its item tp, or "
                  "--tensor-parallel-size",
                  r->from);
        return GR_EINVAL;
    }
    for (int64_t k = 0; k < w->count; k++) {
        for (int m = 0; m < tp; m++) {
            GR_TRY(add_member(r, w, tp, k, m));
        }
    }
    return GR_OK;
}

/* ---- lists of a plan ---- */

static enum gr_status add_workers(struct gr_roles *r, const struct gr_option_worker *w, enum gr_launch_role role,
                                  int64_t n_rank)
{
    for (int64_t k = 0; k < w->count; k++) {
        const struct gr_launch_rank rank = {.role = role,
                                            .host = w->host,
                                            .devices = gr_devices_deal(&w->devices, n_rank, k, w->count),
                                            .tp = (int)w->tp};
        GR_TRY(add(r, &rank, 1));
    }
    return GR_OK;
}

static enum gr_status read_drafts(const struct gr_option_workers *list, struct gr_roles *r)
{
    for (int i = 0; i < list->n; i++) {
        const struct gr_option_worker *w = &list->item[i];
        if (w->tp > 1 || w->hosts != NULL) {
            log_error("%s: %s %.*s: a drafter is not split", r->from, w->hosts != NULL ? "hosts" : "tp", 64,
                      w->hosts != NULL ? w->hosts : (const char[]){(char)('0' + w->tp), '\0'});
            return GR_EINVAL;
        }
        GR_TRY(add_workers(r, w, GR_LAUNCH_DRAFT, 1));
    }
    return GR_OK;
}

static enum gr_status read_targets(const struct gr_options *o, struct gr_roles *r)
{
    for (int i = 0; i < o->targets.n; i++) {
        const struct gr_option_worker *w = &o->targets.item[i];
        const int64_t tp = w->tp > 0 ? w->tp : o->tensor_parallel_size; /* of an item that does not say */
        const bool spread = w->hosts != NULL || (o->tp_over_hosts && tp > 1);
        GR_TRY(spread ? add_groups(r, w, (int)tp) : add_workers(r, w, GR_LAUNCH_TARGET, tp));
    }
    return GR_OK;
}

/* What no launcher can make good. */
static enum gr_status check_table(const struct gr_roles *r)
{
    int n_target = 0, n_draft = 0; /* one over several ranks is one */
    for (int i = 0; i < r->n; i++) {
        const bool serves = r->rank[i].role == GR_LAUNCH_SERVE;
        n_target += r->rank[i].role == GR_LAUNCH_TARGET && gr_roles_leader(r, i) == i;
        n_draft += r->rank[i].role == GR_LAUNCH_DRAFT;
        if (serves && i > 0) {
            log_error("%s: rank %d is an orchestrator (serve), and rank 0 is one; a job has one, as rank 0", r->from,
                      i);
            return GR_EINVAL;
        }
        if (!serves && i == 0) {
            log_error("%s: rank 0 is a %s; rank 0 is the orchestrator: begin with serve:1", r->from,
                      names[r->rank[0].role]);
            return GR_EINVAL;
        }
    }
    if (n_target == 0) {
        log_error("%s: there is no target; nothing generates without one", r->from);
        return GR_EINVAL;
    }
    return gr_crew_check_size(n_target, n_draft);
}

enum gr_status gr_roles_read(const struct gr_options *o, struct gr_roles *out)
{
    const bool lists = o->targets.n > 0 || o->drafts.n > 0;
    out->n = 0;
    out->n_text = 0;
    out->from = o->roles != NULL ? "--roles" : o->plan != NULL ? o->plan : "--config";
    if (o->roles != NULL && lists) {
        log_error("--roles and the lists targets and drafts of %s both say who does what; one of them is enough",
                  o->plan != NULL ? o->plan : "the YAML file");
        return GR_EINVAL;
    }
    if (o->tp_over_hosts && o->roles != NULL && o->tensor_parallel_size == 1) {
        log_error("--tp-over-hosts: of how many ranks is a target? --tensor-parallel-size N");
        return GR_EINVAL;
    }
    if (o->roles == NULL && !lists) {
        log_error("who does what? --roles serve:1,draft:1,target:1, or --plan F.yaml with lists targets and drafts");
        return GR_EINVAL;
    }
    if (o->roles != NULL) {
        GR_TRY(read_text(o->roles, out));
        if (o->tp_over_hosts) {
            GR_TRY(group_targets(out, (int)o->tensor_parallel_size));
        }
    } else {
        GR_TRY(add(out, &(struct gr_launch_rank){.role = GR_LAUNCH_SERVE}, 1));
        GR_TRY(read_targets(o, out));
        GR_TRY(read_drafts(&o->drafts, out));
    }
    return check_table(out);
}

/* ---- the job that was started ---- */

enum gr_status gr_roles_check_size(const struct gr_roles *r, struct gr_who *w)
{
    const char *source = gr_ranks_name(w->source);
    w->size = w->size == 0 ? r->n : w->size;
    if (w->size == r->n && w->rank < r->n) {
        return GR_OK;
    }
    if (w->source == GR_RANKS_NONE) { /* it has rank 0 of 1, which the plan or the roles are more than */
        log_error("no launcher has started this process (ranks by none), and %s has %d roles, each of which is a rank: "
                  "`mpirun -n %d graft launch ...' or `srun -n %d graft launch ...' starts them",
                  r->from, r->n, r->n, r->n);
    } else if (w->rank >= r->n || w->size > r->n) {
        log_error("rank %d on host %s: there are more ranks than roles: %s has %d roles, %s has started %d ranks",
                  w->rank, w->host, r->from, r->n, source, GR_MAX(w->size, w->rank + 1));
    } else {
        log_error(
            "rank %d on host %s: there are more roles than ranks: %s has %d roles, and %s has started %d; rank %d "
            "(%s) has no process",
            w->rank, w->host, r->from, r->n, source, w->size, w->size, names[r->rank[w->size].role]);
    }
    return GR_EINVAL;
}

enum gr_status gr_roles_check_own(const struct gr_roles *r, const struct gr_who *w, bool with_model, bool with_draft)
{
    const struct gr_launch_rank *own = &r->rank[w->rank];
    if (!with_model && own->role == GR_LAUNCH_TARGET) {
        log_error("rank %d on host %s: a target needs a model: --model DIR, GRAFT_MODEL or target.model", w->rank,
                  w->host);
        return GR_EINVAL;
    }
    if (!with_draft && own->role == GR_LAUNCH_DRAFT) {
        log_error("rank %d on host %s: a drafter needs a model: --draft DIR, GRAFT_DRAFT or draft.model", w->rank,
                  w->host);
        return GR_EINVAL;
    }
    if (own->host != NULL && strcmp(own->host, w->host) != 0) {
        log_error("rank %d on host %s: %s puts this %s on host %s; place the ranks so (srun -m arbitrary -w, mpirun "
                  "--rankfile)",
                  w->rank, w->host, r->from, names[own->role], own->host);
        return GR_EINVAL;
    }
    return GR_OK;
}

/* ---- to compare ---- */

static bool same(const struct gr_launch_rank *a, const struct gr_launch_rank *b)
{
    const bool hosts = a->host == b->host || (a->host != NULL && b->host != NULL && strcmp(a->host, b->host) == 0);
    return a->role == b->role && hosts && a->tp == b->tp && a->group == b->group &&
           memcmp(&a->devices, &b->devices, sizeof(a->devices)) == 0; /* what no item sets is 0 */
}

void gr_roles_text(const struct gr_roles *r, char *text, size_t text_bytes)
{
    size_t at = 0;
    int n = 1;
    text[0] = '\0';
    for (int i = 0; i < r->n; i += n) {
        const struct gr_launch_rank *k = &r->rank[i];
        for (n = 1; i + n < r->n && same(k, &r->rank[i + n]); n++) {
        }
        char device[GR_DEVICES_TEXT] = "", tp[32] = "";
        if (k->devices.n > 0) {
            device[0] = '=';
            gr_devices_text(&k->devices, device + 1, sizeof(device) - 1);
        }
        if (k->group > 0) {
            snprintf(tp, sizeof(tp), "/%d-over-hosts", k->group);
        } else if (k->tp > 0) {
            snprintf(tp, sizeof(tp), "/%d", k->tp);
        }
        at += (size_t)snprintf(text + at, text_bytes - at, "%s%s:%d%s%s%.64s%s", i > 0 ? "," : "", names[k->role], n,
                               tp, k->host != NULL ? "@" : "", k->host != NULL ? k->host : "", device);
        if (at + 192 > text_bytes) {
            snprintf(text + at, text_bytes - at, "... %d ranks", r->n);
            return;
        }
    }
}
