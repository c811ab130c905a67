#include "orchestrator/launch/table.h"

#include "common/base/address.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "transport/connect/reach.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum gr_status gr_launch_table_create(struct gr_roles *roles, const char *job, uint64_t now_ns,
                                      struct gr_launch_table *out)
{
    *out = (struct gr_launch_table){.roles = roles, .begin_ns = now_ns, .told_ns = now_ns};
    snprintf(out->job, sizeof(out->job), "%s", job);
    out->rank = calloc((size_t)roles->n, sizeof(*out->rank));
    if (out->rank == NULL) {
        log_error("no memory for the table of ranks");
        return GR_ENOMEM;
    }
    return GR_OK;
}

void gr_launch_table_destroy(struct gr_launch_table *t)
{
    for (int i = 0; t->rank != NULL && i < t->roles->n; i++) {
        json_decref(t->rank[i].facts);
    }
    free(t->rank);
    t->rank = NULL;
}

/* ---- hello ---- */

json_t *gr_launch_hello(const struct gr_who *w, const struct gr_launch_entry *self, json_t *facts)
{
    json_t *gpus = json_array();
    for (int i = 0; i < self->n_gpu; i++) {
        (void)json_array_append_new(gpus, json_string(self->gpu[i]));
    }
    return json_pack("{s:s, s:s, s:i, s:i, s:s, s:s, s:I, s:i, s:o, s:o}", "type", "hello", "job", w->job, "rank",
                     w->rank, "size", w->size, "host", w->host, "node", self->node, "incarnation",
                     (json_int_t)(self->incarnation >> 1), "wants_gpu", self->wants_gpu, "gpus", gpus, "facts", facts);
}

struct hello {
    const char *job, *host, *node, *group;
    int rank, size, wants_gpu;
    json_int_t incarnation;
    json_t *gpus, *facts;
};

static enum gr_status unpack(const json_t *j, struct hello *h)
{
    json_t *read_only = (json_t *)(uintptr_t)j; /* jansson's unpack takes no const */
    if (json_unpack(read_only, "{s:s, s:i, s:i, s:s, s:s, s:I, s:i, s:o, s:o}", "job", &h->job, "rank", &h->rank,
                    "size", &h->size, "host", &h->host, "node", &h->node, "incarnation", &h->incarnation, "wants_gpu",
                    &h->wants_gpu, "gpus", &h->gpus, "facts", &h->facts) != 0 ||
        !json_is_object(h->facts) || !json_is_array(h->gpus) || h->rank < 0 || h->wants_gpu < 0 ||
        h->wants_gpu > GR_DEVICES_MAX) {
        return GR_EPROTO;
    }
    h->group = json_string_value(json_object_get(j, "group"));
    return GR_OK;
}

static enum gr_status check_place(const struct gr_launch_table *t, const struct hello *h, char why[512])
{
    if (strcmp(h->job, t->job) != 0) {
        snprintf(why, 512, "this is job %.90s, and rank %d on host %.70s is of job %.90s", t->job, h->rank, h->host,
                 h->job);
        return GR_ENOTFOUND;
    }
    if (h->rank >= t->roles->n || h->size != t->roles->n) {
        snprintf(why, 512, "rank %d of %d on host %.70s: the job has ranks 0 to %d", h->rank, h->size, h->host,
                 t->roles->n - 1);
        return GR_EMISMATCH;
    }
    const struct gr_launch_entry *e = &t->rank[h->rank];
    const bool alive = e->state == GR_LAUNCH_HERE || e->state == GR_LAUNCH_UP;
    if (alive && e->incarnation != (uint64_t)h->incarnation) {
        snprintf(why, 512,
                 "rank %d comes twice: from host %.70s and from host %.70s; does each process have a rank of "
                 "its own (--ranks)?",
                 h->rank, e->host, h->host);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

/* ---- does everybody say the same ---- */

/* Facts that begin so are of files, which not every rank needs to see. */
static bool may_be_missing(const char *name)
{
    return strncmp(name, "files of ", 9) == 0;
}

static const char *shown(const json_t *value)
{
    return value == NULL ? "not set" : json_string_value(value) != NULL ? json_string_value(value) : "?";
}

static int compare_fact(const char *name, const json_t *theirs, const struct gr_launch_entry *other, int other_rank,
                        const struct hello *h, char why[512])
{
    const json_t *ours = json_object_get(other->facts, name);
    const bool missing = ours == NULL || theirs == NULL;
    char line[512];
    if ((missing && may_be_missing(name)) || (!missing && strcmp(shown(ours), shown(theirs)) == 0)) {
        return 0;
    }
    snprintf(line, sizeof(line), "rank %d on host %.70s: %.90s is %.100s, and on rank %d (host %.70s) it is %.100s",
             h->rank, h->host, name, shown(theirs), other_rank, other->host, shown(ours));
    log_error("%s", line);
    if (why[0] == '\0') {
        snprintf(why, 512, "%s", line);
    }
    return 1;
}

/* Against the ranks that have come so far; the first that knows of a fact stands for all. */
static int compare_facts(const struct gr_launch_table *t, const struct hello *h, char why[512])
{
    int n = 0;
    const char *name;
    json_t *value;
    for (int r = 0; r < t->roles->n && n == 0; r++) {
        const struct gr_launch_entry *e = &t->rank[r];
        if (e->facts == NULL || r == h->rank) {
            continue;
        }
        json_object_foreach(h->facts, name, value)
        {
            n += compare_fact(name, value, e, r, h, why);
        }
        json_object_foreach(e->facts, name, value)
        {
            if (json_object_get(h->facts, name) == NULL) {
                n += compare_fact(name, NULL, e, r, h, why);
            }
        }
    }
    return n;
}

static void take(struct gr_launch_entry *e, const struct hello *h)
{
    const bool again = e->incarnation == (uint64_t)h->incarnation && e->state != GR_LAUNCH_ABSENT;
    if (again) {
        return; /* the same process, over another connection */
    }
    json_decref(e->facts);
    *e = (struct gr_launch_entry){.state = GR_LAUNCH_HERE,
                                  .heard = true,
                                  .incarnation = (uint64_t)h->incarnation,
                                  .facts = json_incref(h->facts),
                                  .device = GR_DEVICE_LOCAL,
                                  .wants_gpu = h->wants_gpu};
    snprintf(e->host, sizeof(e->host), "%s", h->host);
    snprintf(e->node, sizeof(e->node), "%s", h->node);
    snprintf(e->group, sizeof(e->group), "%s", h->group != NULL ? h->group : "");
    for (size_t i = 0; i < json_array_size(h->gpus) && e->n_gpu < GR_LAUNCH_GPU_MAX; i++) {
        const char *pci = json_string_value(json_array_get(h->gpus, i));
        snprintf(e->gpu[e->n_gpu++], sizeof(e->gpu[0]), "%s", pci != NULL ? pci : "");
    }
}

enum gr_status gr_launch_table_hello(struct gr_launch_table *t, const json_t *hello, int *rank_out, char why[512])
{
    struct hello h;
    why[0] = '\0';
    *rank_out = -1;
    if (unpack(hello, &h) != GR_OK) {
        snprintf(why, 512, "this is no hello of `graft launch'");
        return GR_EPROTO;
    }
    *rank_out = h.rank;
    const enum gr_status st = check_place(t, &h, why);
    if (st != GR_OK) {
        log_error("refused: %s", why);
        return st;
    }
    t->rank[h.rank].heard = true;
    if (compare_facts(t, &h, why) > 0) {
        return GR_EMISMATCH;
    }
    take(&t->rank[h.rank], &h);
    return GR_OK;
}

/* ---- who is missing ---- */

int gr_launch_table_missing(const struct gr_launch_table *t, enum gr_launch_state wanted)
{
    int n = 0;
    for (int i = 0; i < t->roles->n; i++) {
        n += t->rank[i].state < wanted;
    }
    return n;
}

void gr_launch_table_expect(struct gr_launch_table *t, int rank, const char *host)
{
    snprintf(t->rank[rank].host, sizeof(t->rank[rank].host), "%s", host);
}

/* A plan says where a rank belongs, not where it is. */
static size_t say_absent(const struct gr_launch_table *t, int rank, const char *before, char *text, size_t bytes)
{
    const struct gr_launch_rank *r = &t->roles->rank[rank];
    const bool is_placed = t->rank[rank].host[0] != '\0', is_planned = !is_placed && r->host != NULL;
    const char *host = is_placed ? t->rank[rank].host : is_planned ? r->host : "";
    return (size_t)snprintf(text, bytes, "%srank %d (%s)%s%.48s%s %s", before, rank, gr_launch_role_name(r->role),
                            is_placed    ? " on host "
                            : is_planned ? ", by the plan on host "
                                         : "",
                            host, is_planned ? "," : "",
                            t->rank[rank].heard ? "has said hello and is gone" : "has not said hello");
}

void gr_launch_table_who(const struct gr_launch_table *t, enum gr_launch_state wanted, char text[512])
{
    const int missing = gr_launch_table_missing(t, wanted);
    size_t at = 0;
    int n = 0;
    text[0] = '\0';
    for (int i = 0; i < t->roles->n && n < 4; i++) {
        const struct gr_launch_entry *e = &t->rank[i];
        const char *role = gr_launch_role_name(t->roles->rank[i].role);
        if (e->state >= wanted) {
            continue;
        }
        if (e->state == GR_LAUNCH_ABSENT) {
            at += say_absent(t, i, n++ > 0 ? ", " : "", text + at, 512 - at);
        } else {
            at += (size_t)snprintf(text + at, 512 - at, "%sthe %s of rank %d on host %.48s has not joined",
                                   n++ > 0 ? ", " : "", role, i, e->host);
        }
    }
    if (missing > n) {
        snprintf(text + at, 512 - at, ", and %d more", missing - n);
    }
}

enum gr_launch_wait gr_launch_table_wait(struct gr_launch_table *t, enum gr_launch_state wanted, uint64_t now_ns,
                                         uint64_t within_ns, char text[GR_LAUNCH_WAIT_BYTES])
{
    const uint64_t waited_ns = now_ns - t->begin_ns;
    const bool too_late = waited_ns >= within_ns;
    char who[512];
    if (!too_late && now_ns < t->told_ns + GR_LAUNCH_TELL_NS) {
        return GR_LAUNCH_QUIET;
    }
    t->told_ns = now_ns;
    gr_launch_table_who(t, wanted, who);
    snprintf(text, GR_LAUNCH_WAIT_BYTES, "%s for %d s", who, (int)(waited_ns / GR_S));
    return too_late ? GR_LAUNCH_TOO_LATE : GR_LAUNCH_TELL;
}

/* ---- GPUs ---- */

static bool share_host(const struct gr_launch_table *t, int a, int b)
{
    return strcmp(t->rank[a].node, t->rank[b].node) == 0;
}

int gr_launch_table_elsewhere(const struct gr_launch_table *t)
{
    for (int i = 1; i < t->roles->n; i++) {
        if (!share_host(t, 0, i)) {
            return i;
        }
    }
    return 0;
}

bool gr_launch_table_group(const struct gr_launch_table *t, int rank, char out[256])
{
    const int leader = gr_roles_leader(t->roles, rank);
    const char *list = t->rank[leader].group;
    char item[300];
    size_t at = 0, n = 0;
    out[0] = '\0';
    while (leader != rank && gr_address_next(list, &at, item)) {
        if (share_host(t, rank, leader) || !gr_reach_is_loopback(item)) {
            n += (size_t)snprintf(out + n, 256 - n, "%s%s", n > 0 ? "," : "", item); /* it is no longer than the list */
        }
    }
    return leader != rank;
}

/* GPUs that ranks before `end` of its host want. */
static int count_before(const struct gr_launch_table *t, int rank, int end)
{
    int n = 0;
    for (int i = 0; i < end; i++) {
        n += share_host(t, i, rank) ? t->rank[i].wants_gpu : 0;
    }
    return n;
}

static int count_ranks(const struct gr_launch_table *t, int rank)
{
    int n = 0;
    for (int i = 0; i < t->roles->n; i++) {
        n += t->rank[i].wants_gpu > 0 && share_host(t, i, rank);
    }
    return n;
}

static enum gr_status too_few(const struct gr_launch_table *t, int rank)
{
    const struct gr_launch_entry *e = &t->rank[rank];
    const int wanted = count_before(t, rank, t->roles->n), n_rank = count_ranks(t, rank);
    if (wanted == n_rank) {
        log_error("rank %d on host %s sees %d GPU%s, and %d ranks of that host want one (cuda:local)%s", rank, e->host,
                  e->n_gpu, e->n_gpu == 1 ? "" : "s", n_rank, e->n_gpu > 0 ? "; --share-gpu lets them share" : "");
    } else {
        log_error("rank %d on host %s sees %d GPU%s, and %d rank%s of that host want%s %d (cuda:local), this one %d",
                  rank, e->host, e->n_gpu, e->n_gpu == 1 ? "" : "s", n_rank, n_rank == 1 ? "" : "s",
                  n_rank == 1 ? "s" : "", wanted, e->wants_gpu);
    }
    return GR_EINVAL;
}

/* Sharing is for ranks that want one GPU each: those of a group wait for each other in their kernels. */
static enum gr_status place_one(struct gr_launch_table *t, int rank, bool share)
{
    struct gr_launch_entry *e = &t->rank[rank];
    const int index = count_before(t, rank, rank);
    if (e->n_gpu == e->wants_gpu) {
        e->device = 0;
        return GR_OK;
    }
    if (e->n_gpu < e->wants_gpu || (index + e->wants_gpu > e->n_gpu && (!share || e->wants_gpu > 1))) {
        return too_few(t, rank);
    }
    e->device = index % e->n_gpu;
    return GR_OK;
}

/* A GPU that both have; its PCI address, or NULL. */
static const char *common_gpu(const struct gr_launch_entry *a, const struct gr_launch_entry *b)
{
    for (int i = 0; i < a->wants_gpu; i++) {
        for (int k = 0; k < b->wants_gpu; k++) {
            if (strcmp(a->gpu[a->device + i], b->gpu[b->device + k]) == 0) {
                return a->gpu[a->device + i];
            }
        }
    }
    return NULL;
}

/* Two ranks of a host with one GPU each may see the same one. */
static enum gr_status check_alone(const struct gr_launch_table *t, int rank)
{
    const struct gr_launch_entry *e = &t->rank[rank];
    for (int i = 0; i < rank; i++) {
        const struct gr_launch_entry *other = &t->rank[i];
        const char *both = other->wants_gpu > 0 && share_host(t, i, rank) ? common_gpu(other, e) : NULL;
        if (both != NULL) {
            log_error("rank %d and rank %d on host %s both have the GPU at PCI %s; give each its own (srun "
                      "--gpus-per-task=%d), or --share-gpu",
                      i, rank, e->host, both, e->wants_gpu);
            return GR_EINVAL;
        }
    }
    return GR_OK;
}

/* Ranks of this one's target that are on its host. */
static int count_members(const struct gr_launch_table *t, int rank)
{
    int n = 0;
    for (int i = 0; i < t->roles->n; i++) {
        n += share_host(t, i, rank) && gr_roles_leader(t->roles, i) == gr_roles_leader(t->roles, rank);
    }
    return n;
}

/* NCCL decides some things by host, and groups of which hosts had unequal parts have hung in it. */
static enum gr_status check_even(const struct gr_launch_table *t, int rank)
{
    const int leader = gr_roles_leader(t->roles, rank);
    const int n_here = count_members(t, rank), n_first = count_members(t, leader);
    if (n_here != n_first) {
        log_error(
            "the target of rank %d: host %s has %d of its ranks, and host %s %d; give each host of a target on GPUs "
            "as many (srun -m arbitrary -w, mpirun --rankfile)",
            leader, t->rank[leader].host, n_first, t->rank[rank].host, n_here);
        return GR_EINVAL;
    }
    return GR_OK;
}

enum gr_status gr_launch_table_place(struct gr_launch_table *t, bool share)
{
    for (int i = 0; i < t->roles->n; i++) {
        if (t->rank[i].wants_gpu == 0) {
            continue;
        }
        GR_TRY(check_even(t, i));
        GR_TRY(place_one(t, i, share));
        if (!share) {
            GR_TRY(check_alone(t, i));
        }
    }
    return GR_OK;
}
