#include "transport/own.h"

#include "common/base/log.h"
#include "transport/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Set once, before there are threads. */
static struct gr_interface_wish told;
static const char *told_as;
static bool is_source;

/* ---- what this host has ---- */

static bool has_ip(const struct ifaddrs *a)
{
    return a->ifa_addr != NULL && (a->ifa_addr->sa_family == AF_INET || a->ifa_addr->sa_family == AF_INET6);
}

static unsigned mask_bits(const struct ifaddrs *a)
{
    struct gr_ip mask = {.family = AF_UNSPEC};
    unsigned n = 0;
    if (a->ifa_netmask != NULL) {
        struct sockaddr_storage sa = {0}; /* some kernels leave the mask's family out */
        memcpy(&sa, a->ifa_netmask,
               a->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
        sa.ss_family = a->ifa_addr->sa_family;
        gr_ip_of((const struct sockaddr *)&sa, &mask);
    }
    for (size_t i = 0; i < sizeof(mask.byte); i++) {
        n += (unsigned)__builtin_popcount(mask.byte[i]);
    }
    return n;
}

static void take(const struct ifaddrs *a, struct gr_interface *out)
{
    const unsigned flags = a->ifa_flags;
    char device[GR_INTERFACE_NAME];
    *out = (struct gr_interface){.flags = ((flags & IFF_UP) != 0 ? GR_INTERFACE_UP : 0u) |
                                          ((flags & IFF_LOOPBACK) != 0 ? GR_INTERFACE_LOOPBACK : 0u)};
    snprintf(out->name, sizeof(out->name), "%s", a->ifa_name);
    snprintf(device, sizeof(device), "%.*s", (int)strcspn(out->name, ":"), out->name); /* of an alias */
    out->flags |= gr_net_is_bridge(device) ? GR_INTERFACE_BRIDGE : 0u;
    if (has_ip(a)) {
        gr_ip_of(a->ifa_addr, &out->ip);
        out->n_bit = mask_bits(a);
    }
}

static bool is_listed(const struct gr_interface *list, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* The caller frees *out. -1 (logged): the system does not say. */
static int read_all(struct gr_interface **out)
{
    struct ifaddrs *all = NULL;
    int n = 0;
    if (getifaddrs(&all) != 0) {
        log_error("cannot list this host's interfaces: %s", strerror(errno));
        return -1;
    }
    for (const struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
        n++;
    }
    *out = calloc((size_t)n + 1, sizeof(**out));
    n = 0;
    for (const struct ifaddrs *a = all; *out != NULL && a != NULL; a = a->ifa_next) {
        if (has_ip(a)) {
            take(a, &(*out)[n++]);
        }
    }
    for (const struct ifaddrs *a = all; *out != NULL && a != NULL; a = a->ifa_next) {
        if (!has_ip(a) && !is_listed(*out, n, a->ifa_name)) {
            take(a, &(*out)[n++]);
        }
    }
    freeifaddrs(all);
    if (*out == NULL) {
        log_error("no memory for the list of interfaces");
        return -1;
    }
    return n;
}

/* ---- the choice ---- */

static enum gr_status choose(const struct gr_interface_wish *wish, struct gr_interface_chosen *out)
{
    struct gr_interface *all = NULL;
    const int n = read_all(&all);
    const enum gr_status st = n >= 0 ? gr_interface_choose(wish, all, n, out) : GR_EIO;
    free(all);
    return st;
}

enum gr_status gr_own_use(const char *list, bool as_source)
{
    struct gr_interface_wish wish = {.n_item = 0};
    struct gr_interface_chosen chosen;
    if (list != NULL) {
        GR_TRY(gr_interface_parse(list, &wish));
        GR_TRY(choose(&wish, &chosen));
    }
    told = wish;
    told_as = list;
    is_source = as_source;
    return GR_OK;
}

bool gr_own_is_told(void)
{
    return told.n_item > 0;
}

void gr_own_tell(void)
{
    struct gr_interface_chosen chosen;
    char text[GR_INTERFACE_LINE];
    if (gr_own_is_told() && gr_own_choose(&chosen) == GR_OK) {
        gr_interface_text(&chosen, text);
        gr_log_notice("--interface %s: %s", told_as, text);
    }
}

enum gr_status gr_own_choose(struct gr_interface_chosen *out)
{
    return choose(&told, out);
}

/* ---- where a connection comes from ---- */

static int bind_to(int fd, const struct gr_interface *source)
{
    struct sockaddr_storage sa;
    const int on = 1;
    const socklen_t len = gr_ip_sockaddr(&source->ip, 0, &sa);
    (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on)); /* the port is chosen by connect() */
    return bind(fd, (const struct sockaddr *)&sa, len) == 0 ? 0 : errno;
}

int gr_own_bind(int fd, const struct sockaddr *to)
{
    struct gr_interface_chosen chosen;
    struct gr_interface *all = NULL;
    struct gr_ip ip;
    int err = 0;
    if (!is_source || told.n_item == 0) {
        return 0;
    }
    gr_ip_of(to, &ip);
    const int n = read_all(&all);
    if (n >= 0 && gr_interface_choose(&told, all, n, &chosen) == GR_OK) {
        const struct gr_interface *source = gr_interface_source(&chosen, all, n, &ip);
        err = source != NULL ? bind_to(fd, source) : 0;
    } else {
        err = EADDRNOTAVAIL;
    }
    free(all);
    return err;
}
