#include "transport/verbs/verbs_device.h"

#include "common/base/log.h"
#include "common/base/parse.h"
#include "transport/net.h"
#include "transport/verbs/nearest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_GID_MAX 256 /* GIDs of a port that are looked at */

/* ---- lists of names ---- */

/* NAME or NAME:PORT. A port that is no number names none. */
static bool port_fits(const char *text, size_t len, unsigned port)
{
    char number[8] = "";
    int64_t v = 0;
    memcpy(number, text, GR_MIN(len, sizeof(number) - 1));
    return gr_parse_int(number, 1, UINT8_MAX, &v) && len < sizeof(number) && (port == 0 || (unsigned)v == port);
}

static bool item_allows(const char *item, size_t len, bool whole, const char *name, unsigned port)
{
    const char *colon = memchr(item, ':', len);
    const size_t n_name = colon != NULL ? (size_t)(colon - item) : len;
    const bool same =
        whole ? strlen(name) == n_name && memcmp(name, item, n_name) == 0 : strncmp(name, item, n_name) == 0;
    return same && n_name > 0 && (colon == NULL || port_fits(colon + 1, len - n_name - 1, port));
}

bool gr_verbs_list_allows(const char *list, const char *name, unsigned port)
{
    if (list == NULL || list[0] == '\0') {
        return true;
    }
    const bool exclude = list[0] == '^';
    list += exclude;
    const bool whole = list[0] == '=';
    list += whole;
    bool found = false;
    while (*list != '\0') {
        const size_t len = strcspn(list, ",");
        found = found || item_allows(list, len, whole, name, port);
        list += len + (list[len] == ',');
    }
    return found != exclude;
}

/* ---- candidates ---- */

struct wish {
    const char *hca; /* the option's, or NULL */
    const char *nccl_hca, *nccl_ifname;
    int gid_index; /* -1: any */
};

static enum gr_status wish_of(const struct gr_verbs_options *o, struct wish *w)
{
    *w = (struct wish){.hca = o->hca, .gid_index = o->gid_index};
    if (o->hca == NULL) {
        w->nccl_hca = getenv("NCCL_IB_HCA");
    }
    w->nccl_ifname = getenv("NCCL_SOCKET_IFNAME");
    const char *index = getenv("NCCL_IB_GID_INDEX");
    int64_t v = 0;
    if (o->gid_index < 0 && index != NULL && index[0] != '\0') {
        if (!gr_parse_int(index, -1, GR_VERBS_GID_INDEX_MAX, &v)) {
            log_error("NCCL_IB_GID_INDEX: `%s' is not a whole number from -1 to %d", index, GR_VERBS_GID_INDEX_MAX);
            return GR_EINVAL;
        }
        w->gid_index = (int)v;
    }
    return GR_OK;
}

static bool device_allowed(const struct wish *w, const char *name, unsigned port)
{
    return w->hca != NULL ? item_allows(w->hca, strlen(w->hca), true, name, port)
                          : gr_verbs_list_allows(w->nccl_hca, name, port);
}

static bool is_mapped_v4(const union ibv_gid *gid)
{
    return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)gid->raw);
}

/* Is the address one of an interface in another network namespace? A container sees its host's devices with these: what
 * binds to such an address connects to nobody. */
static bool is_elsewhere(const struct ibv_gid_entry *e)
{
    char ifname[IF_NAMESIZE];
    return e->ndev_ifindex != 0 && if_indextoname(e->ndev_ifindex, ifname) == NULL && errno == ENXIO;
}

/* The higher the better; 0: of no use. Link-local addresses only where one was asked for: they stay on the wire. */
static int rank_of(const struct ibv_gid_entry *e, const struct wish *w)
{
    char ifname[IF_NAMESIZE] = "";
    const struct in6_addr *a = (const struct in6_addr *)e->gid.raw;
    if (w->gid_index >= 0 && (int)e->gid_index != w->gid_index) {
        return 0;
    }
    const bool named = w->gid_index < 0 && if_indextoname(e->ndev_ifindex, ifname) != NULL;
    if (named && (w->nccl_ifname != NULL ? !gr_verbs_list_allows(w->nccl_ifname, ifname, 0)
                                         : w->hca == NULL && gr_net_is_bridge(ifname))) {
        return 0; /* many hosts have a bridge under one address */
    }
    if (IN6_IS_ADDR_UNSPECIFIED(a)) {
        return 0;
    }
    const int v2 = e->gid_type == IBV_GID_TYPE_ROCE_V2 ? 4 : 0;
    if (is_mapped_v4(&e->gid)) {
        return v2 + 3;
    }
    return IN6_IS_ADDR_LINKLOCAL(a) ? (w->gid_index >= 0 ? v2 + 1 : 0) : v2 + 2;
}

static void address_of(const struct ibv_gid_entry *e, struct gr_verbs_device *d)
{
    memset(&d->addr, 0, sizeof(d->addr));
    if (is_mapped_v4(&e->gid)) {
        struct sockaddr_in sa = {.sin_family = AF_INET};
        memcpy(&sa.sin_addr, e->gid.raw + 12, 4);
        memcpy(&d->addr, &sa, sizeof(sa));
        inet_ntop(AF_INET, &sa.sin_addr, d->addr_text, sizeof(d->addr_text));
    } else {
        struct sockaddr_in6 sa = {.sin6_family = AF_INET6};
        memcpy(&sa.sin6_addr, e->gid.raw, 16);
        sa.sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&sa.sin6_addr) ? e->ndev_ifindex : 0;
        memcpy(&d->addr, &sa, sizeof(sa));
        inet_ntop(AF_INET6, &sa.sin6_addr, d->addr_text, sizeof(d->addr_text));
    }
    inet_ntop(AF_INET6, e->gid.raw, d->gid_text, sizeof(d->gid_text));
    d->gid_index = (int)e->gid_index;
}

static int mtu_bytes(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0;
}

/* What was seen, for the line that says why nothing fitted. */
struct seen {
    char names[200];
    int n_device, n_allowed, n_active;
    int n_elsewhere; /* devices whose addresses are all of another network namespace */
};

/* The GID's rank, 0 if it is of another network namespace; *ifindex is then that of its interface. */
static int rank_here(const struct ibv_gid_entry *e, const struct wish *w, uint32_t *ifindex)
{
    const int rank = rank_of(e, w);
    if (rank > 0 && is_elsewhere(e)) {
        *ifindex = e->ndev_ifindex;
        return 0;
    }
    return rank;
}

/* The best address of one open device; its rank, 0: none. */
static int look_at(const struct gr_verbs_lib *lib, struct ibv_device *device, struct ibv_context *context,
                   const struct wish *w, struct seen *seen, struct gr_verbs_device *out)
{
    struct ibv_device_attr attr;
    const char *name = lib->get_device_name(device);
    static const size_t n_max = N_GID_MAX;
    struct ibv_gid_entry *gids = calloc(n_max, sizeof(*gids));
    const ssize_t n_gid = gids == NULL ? -1 : lib->query_gid_table(context, gids, n_max);
    uint32_t elsewhere = 0; /* an interface of another network namespace */
    int best = 0;
    if (lib->query_device(context, &attr) != 0 || n_gid < 0) {
        log_warn("RDMA device %s cannot be asked for its ports and addresses: %s", name, strerror(errno));
        free(gids);
        return 0;
    }
    for (unsigned port = 1; port <= attr.phys_port_cnt; port++) {
        struct ibv_port_attr pa;
        if (!device_allowed(w, name, port)) {
            continue;
        }
        seen->n_allowed++;
        if (lib->query_port(context, (uint8_t)port, &pa) != 0 || pa.state != IBV_PORT_ACTIVE) {
            continue;
        }
        seen->n_active++;
        for (ssize_t i = 0; i < n_gid; i++) {
            const int rank = gids[i].port_num == port ? rank_here(&gids[i], w, &elsewhere) : 0;
            if (rank > best) {
                best = rank;
                *out = (struct gr_verbs_device){.port = (uint8_t)port,
                                                .mtu_bytes = mtu_bytes(pa.active_mtu),
                                                .n_wr_max = (uint32_t)GR_MAX(attr.max_qp_wr, 0),
                                                .n_cqe_max = (uint32_t)GR_MAX(attr.max_cqe, 0),
                                                .iwarp = device->transport_type == IBV_TRANSPORT_IWARP};
                snprintf(out->name, sizeof(out->name), "%s", name);
                address_of(&gids[i], out);
            }
        }
    }
    free(gids);
    if (best == 0 && elsewhere != 0) {
        seen->n_elsewhere++;
        log_warn("RDMA device %s is passed over: its addresses are those of interface %u, which is in another network "
                 "namespace; move the interface into this one, or start the process in that one",
                 name, elsewhere);
    }
    return best;
}

static void say_none(const struct wish *w, const struct seen *s)
{
    const char *asked = w->hca != NULL ? w->hca : w->nccl_hca != NULL ? w->nccl_hca : "any";
    if (s->n_device == 0) {
        log_error("verbs: this machine has no RDMA device (`ibv_devices' lists them), or no permission to use it");
    } else if (s->n_allowed == 0) {
        log_error("verbs: no RDMA device `%s'; there is%s", asked, s->names);
    } else if (s->n_active == 0) {
        log_error("verbs: no port of the RDMA device `%s' is up; there is%s", asked, s->names);
    } else if (s->n_elsewhere >= s->n_active) {
        log_error("verbs: no address of the RDMA device `%s' is one of this network namespace; there is%s", asked,
                  s->names);
    } else if (w->gid_index >= 0) {
        log_error("verbs: the RDMA device `%s' has no address at GID index %d; there is%s", asked, w->gid_index,
                  s->names);
    } else {
        log_error("verbs: the RDMA device `%s' has no address that can be routed; there is%s", asked, s->names);
    }
}

/* ---- one of them ---- */

struct candidates {
    struct gr_verbs_device device[GR_NEAR_CARD_MAX];
    int n, rank; /* all have the best rank that was seen */
};

static void add_candidate(struct candidates *c, const struct gr_verbs_device *d, int rank)
{
    if (rank > c->rank) {
        c->n = 0;
        c->rank = rank;
    }
    if (rank > 0 && rank == c->rank && c->n < GR_NEAR_CARD_MAX) {
        c->device[c->n++] = *d;
    }
}

/* The number of the candidate that is nearest to the GPU; the first where nothing is known. */
static int choose_near(const struct candidates *c, const struct gr_verbs_options *o)
{
    const char *names[GR_NEAR_CARD_MAX];
    struct gr_pci_address gpu;
    if (o->gpu_pci == NULL || o->map == NULL || c->n == 0 || !gr_pci_parse(o->gpu_pci, &gpu)) {
        return 0;
    }
    for (int i = 0; i < c->n; i++) {
        names[i] = c->device[i].name;
    }
    const struct gr_near_choice near = gr_near_choose(o->map, &gpu, names, c->n);
    if (near.i_name < 0) {
        log_info("verbs: %s, the first of %d devices: where they and the GPU at %s are is not known", names[0], c->n,
                 o->gpu_pci);
        return 0;
    }
    log_info("verbs: %s is %s with the GPU at %s; of %d devices %d %s as near", names[near.i_name],
             gr_near_words(near.kind), o->gpu_pci, c->n, near.n_as_near, near.n_as_near == 1 ? "is" : "are");
    return near.i_name;
}

static void look_at_all(const struct gr_verbs_lib *lib, const struct wish *w, struct seen *seen, struct candidates *c)
{
    int n = 0;
    struct ibv_device **list = lib->get_device_list(&n);
    for (int i = 0; list != NULL && i < n; i++) {
        struct gr_verbs_device d = {.port = 0};
        const char *name = lib->get_device_name(list[i]);
        const size_t at = strlen(seen->names);
        snprintf(seen->names + at, sizeof(seen->names) - at, " %s", name);
        seen->n_device++;
        struct ibv_context *context = lib->open_device(list[i]);
        if (context == NULL) {
            log_warn("RDMA device %s cannot be opened: %s", name, strerror(errno));
            continue;
        }
        add_candidate(c, &d, look_at(lib, list[i], context, w, seen, &d));
        lib->close_device(context);
    }
    if (list != NULL) {
        lib->free_device_list(list);
    }
}

enum gr_status gr_verbs_device_choose(const struct gr_verbs_lib *lib, const struct gr_verbs_options *options,
                                      struct gr_verbs_device *out)
{
    struct wish w;
    struct seen seen = {0};
    struct candidates c = {.n = 0};
    GR_TRY(wish_of(options, &w));
    look_at_all(lib, &w, &seen, &c);
    if (c.n == 0) {
        say_none(&w, &seen);
        return GR_ENOTFOUND;
    }
    *out = c.device[choose_near(&c, options)];
    return GR_OK;
}
