#include "transport/connect/reach.h"

#include "common/base/address.h"
#include "transport/net.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- kinds of addresses ---- */

bool gr_reach_host_is_loopback(const char *host)
{
    struct in6_addr six;
    struct in_addr four;
    if (inet_pton(AF_INET, host, &four) == 1) {
        return ntohl(four.s_addr) >> 24 == 127;
    }
    return strcmp(host, "localhost") == 0 || (inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six));
}

static bool is_any_host(const char *host)
{
    struct in6_addr six;
    return host[0] == '\0' || strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 ||
           (inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_UNSPECIFIED(&six));
}

/* The host of a text that has been parsed before; "?" where it is none. */
static const char *host_of(const char *address, char out[300])
{
    const char *colon = strrchr(address, ':');
    size_t n = colon != NULL ? (size_t)(colon - address) : 0;
    if (n >= 2 && address[0] == '[') {
        address++;
        n -= 2;
    }
    snprintf(out, 300, "%.*s", (int)n, address);
    return out;
}

bool gr_reach_is_loopback(const char *address)
{
    char host[300];
    return gr_reach_host_is_loopback(host_of(address, host));
}

bool gr_reach_is_any(const char *address)
{
    char host[300];
    return is_any_host(host_of(address, host));
}

bool gr_reach_is_local(const char *list)
{
    char item[300];
    size_t at = 0;
    bool any = false, all = true;
    while (gr_address_next(list, &at, item)) {
        all = all && (gr_reach_is_loopback(item) || gr_reach_is_any(item));
        any = true;
    }
    return any && all;
}

void gr_reach_listen(const char *asked, const char *own, char out[300])
{
    const char *colon = strrchr(own, ':');
    if (asked[0] != '\0') {
        snprintf(out, 300, "%s", asked);
    } else if (gr_reach_is_loopback(own) && colon != NULL) {
        snprintf(out, 300, "%.*s:0", (int)(colon - own), own);
    } else {
        snprintf(out, 300, ":0");
    }
}

/* ---- interfaces ---- */

static bool is_link_local(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 16 == 0xa9fe; /* 169.254 */
    }
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static bool may_be_told(const struct ifaddrs *i)
{
    const bool has_ip =
        i->ifa_addr != NULL && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
    return has_ip && (i->ifa_flags & IFF_UP) != 0 && (i->ifa_flags & IFF_LOOPBACK) == 0 &&
           !is_link_local(i->ifa_addr) && !gr_net_is_bridge(i->ifa_name);
}

/* ---- the list ---- */

struct list {
    char *out;
    const char *port; /* with its colon */
    bool four_only;   /* the socket has no IPv6 */
};

static bool has(const char *list, const char *address)
{
    char item[300];
    size_t at = 0;
    bool found = false;
    while (gr_address_next(list, &at, item)) {
        found = found || strcmp(item, address) == 0;
    }
    return found;
}

static void add(struct list *l, const struct sockaddr_storage *a)
{
    char host[64], text[80];
    const size_t n = strlen(l->out);
    gr_sockaddr_host(a, host);
    const bool six = strchr(host, ':') != NULL;
    snprintf(text, sizeof(text), six ? "[%s]%s" : "%s%s", host, l->port);
    if (host[0] != '?' && !(six && l->four_only) && !has(l->out, text) && n + 1 + strlen(text) < GR_REACH_BYTES) {
        snprintf(l->out + n, GR_REACH_BYTES - n, "%s%s", n > 0 ? "," : "", text);
    }
}

static void add_interfaces(struct list *l, int family)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) == 0) {
        for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
            if (may_be_told(i) && i->ifa_addr->sa_family == family) {
                struct sockaddr_storage a = {0};
                memcpy(&a, i->ifa_addr, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
                add(l, &a);
            }
        }
        freeifaddrs(all);
    }
}

void gr_reach_list(const char *bound, int link_fd, char out[GR_REACH_BYTES])
{
    struct list l = {.out = out, .port = strrchr(bound, ':'), .four_only = bound[0] != '['};
    out[0] = '\0';
    if (!gr_reach_is_any(bound)) {
        snprintf(out, GR_REACH_BYTES, "%s", bound);
        return;
    }
    struct sockaddr_storage own = {0};
    socklen_t len = sizeof(own);
    if (link_fd >= 0 && getsockname(link_fd, (struct sockaddr *)&own, &len) == 0 &&
        !is_link_local((const struct sockaddr *)&own)) {
        add(&l, &own);
    }
    add_interfaces(&l, AF_INET);
    add_interfaces(&l, AF_INET6);
    if (out[0] == '\0') {
        snprintf(out, GR_REACH_BYTES, "127.0.0.1%s", l.port);
    }
}
