#include "transport/connect/reach.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "transport/own.h"

#include <arpa/inet.h>
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
    const char *colon = gr_address_port_of(address);
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
    const char *colon = gr_address_port_of(own);
    if (asked[0] != '\0') {
        snprintf(out, 300, "%s", asked);
    } else if (!gr_own_is_told() && gr_reach_is_loopback(own) && colon != NULL) {
        snprintf(out, 300, "%.*s:0", (int)(colon - own), own);
    } else {
        snprintf(out, 300, ":0");
    }
}

/* ---- the list ---- */

struct list {
    char *out;
    int n;
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
    if (l->n == GR_ADDRESS_LIST_MAX) { /* who reads the list takes no more */
        return;
    }
    gr_sockaddr_host(a, host);
    const bool six = strchr(host, ':') != NULL;
    snprintf(text, sizeof(text), six ? "[%s]%s" : "%s%s", host, l->port);
    if (host[0] != '?' && !(six && l->four_only) && !has(l->out, text) && n + 1 + strlen(text) < GR_REACH_BYTES) {
        snprintf(l->out + n, GR_REACH_BYTES - n, "%s%s", n > 0 ? "," : "", text);
        l->n++;
    }
}

static void add_sockets(struct list *l, const struct gr_listening *at)
{
    for (int i = 0; i < at->n; i++) {
        struct sockaddr_storage own = {0};
        socklen_t len = sizeof(own);
        if (getsockname(at->fd[i], (struct sockaddr *)&own, &len) == 0) {
            add(l, &own);
        }
    }
}

static void add_interfaces(struct list *l)
{
    struct gr_interface_chosen c;
    char text[GR_INTERFACE_LINE];
    if (gr_own_choose(&c) != GR_OK) {
        return; /* logged */
    }
    for (int i = 0; i < c.n; i++) {
        struct sockaddr_storage a;
        (void)gr_ip_sockaddr(&c.at[i].ip, 0, &a);
        add(l, &a);
    }
    gr_interface_text(&c, text);
    log_info("others reach this host at %s",
             c.n > 0 ? text : "no address: it has loopback, bridges and the like alone");
}

/* Of what it listens at, an address that has been reached comes first; a bridge that the link goes through, too. */
static void add_link(struct list *l, const struct gr_listening *at, int link_fd)
{
    struct sockaddr_storage own = {0};
    socklen_t len = sizeof(own);
    struct gr_ip ip;
    char text[64], one[64];
    if (link_fd < 0 || getsockname(link_fd, (struct sockaddr *)&own, &len) != 0) {
        return;
    }
    gr_ip_of((const struct sockaddr *)&own, &ip);
    gr_sockaddr_host(&own, text);
    bool listens = !gr_own_is_told() && !gr_ip_is_link_local(&ip);
    for (int i = 0; i < at->n; i++) {
        gr_sock_own_text(at->fd[i], one);
        const char *colon = gr_address_port_of(one);
        char host[300];
        listens = listens || (colon != NULL && strcmp(host_of(one, host), text) == 0);
    }
    if (listens) {
        add(l, &own);
    }
}

void gr_reach_list(const struct gr_listening *at, int link_fd, char out[GR_REACH_BYTES])
{
    struct list l = {.out = out, .port = gr_address_port_of(at->bound), .four_only = at->n == 1 && at->bound[0] != '['};
    const bool any = gr_reach_is_any(at->bound);
    out[0] = '\0';
    if (any || at->n > 1) {
        add_link(&l, at, link_fd);
    }
    if (any) {
        add_interfaces(&l);
    } else {
        add_sockets(&l, at);
    }
    if (out[0] == '\0') {
        snprintf(out, GR_REACH_BYTES, "127.0.0.1%s", l.port);
    }
}
