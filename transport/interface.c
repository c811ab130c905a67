/* Interfaces by name or subnet: what is wished for, and what that chooses of what there is. */
#include "transport/interface.h"

#include "common/base/log.h"
#include "common/base/parse.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define IP_TEXT INET6_ADDRSTRLEN

/* ---- addresses ---- */

void gr_ip_of(const struct sockaddr *from, struct gr_ip *out)
{
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    *out = (struct gr_ip){.family = AF_UNSPEC};
    if (from->sa_family == AF_INET) {
        out->family = AF_INET;
        memcpy(out->byte, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    } else if (from->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(six)) {
        out->family = AF_INET;
        memcpy(out->byte, six->s6_addr + 12, 4);
    } else if (from->sa_family == AF_INET6) {
        out->family = AF_INET6;
        memcpy(out->byte, six->s6_addr, 16);
    }
}

socklen_t gr_ip_sockaddr(const struct gr_ip *ip, uint16_t port, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    if (ip->family == AF_INET) {
        struct sockaddr_in *four = (struct sockaddr_in *)out;
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        memcpy(&four->sin_addr, ip->byte, 4);
        return sizeof(*four);
    }
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    memcpy(&six->sin6_addr, ip->byte, 16);
    return sizeof(*six);
}

static unsigned n_bit_of(int family)
{
    return family == AF_INET ? 32 : 128;
}

static bool is_in(const struct gr_ip *ip, const struct gr_ip *subnet, unsigned n_bit)
{
    const unsigned whole = n_bit / 8, rest = n_bit % 8;
    const uint8_t mask = (uint8_t)(0xff00u >> rest);
    return ip->family == subnet->family && memcmp(ip->byte, subnet->byte, whole) == 0 &&
           (rest == 0 || ((ip->byte[whole] ^ subnet->byte[whole]) & mask) == 0);
}

static bool is_same(const struct gr_ip *a, const struct gr_ip *b)
{
    return a->family != AF_UNSPEC && is_in(a, b, n_bit_of(a->family));
}

bool gr_ip_is_loopback(const struct gr_ip *ip)
{
    static const struct gr_ip four = {AF_INET, {127}}, six = {AF_INET6, {[15] = 1}};
    return is_in(ip, &four, 8) || is_in(ip, &six, 128);
}

bool gr_ip_is_link_local(const struct gr_ip *ip)
{
    static const struct gr_ip four = {AF_INET, {169, 254}}, six = {AF_INET6, {0xfe, 0x80}};
    return is_in(ip, &four, 16) || is_in(ip, &six, 10);
}

static const char *ip_text(const struct gr_ip *ip, char out[IP_TEXT])
{
    return inet_ntop(ip->family, ip->byte, out, IP_TEXT) != NULL ? out : "?";
}

/* ---- the wish ---- */

static bool parse_ip(const char *text, struct gr_ip *out)
{
    *out = (struct gr_ip){.family = strchr(text, ':') != NULL ? AF_INET6 : AF_INET};
    return inet_pton(out->family, text, out->byte) == 1;
}

static bool is_zero(const struct gr_ip *ip)
{
    static const uint8_t zero[16];
    return memcmp(ip->byte, zero, sizeof(zero)) == 0;
}

/* text: the item, cut in two where its slash is. */
static enum gr_status parse_subnet(const char *whole, const char *address, const char *length, struct gr_ip *ip,
                                   unsigned *n_bit_out)
{
    int64_t n = 0;
    if (!parse_ip(address, ip)) {
        log_error("--interface: `%s': `%s' is not an IP address; a subnet is written 10.1.0.0/16 or fd00::/8", whole,
                  address);
        return GR_EINVAL;
    }
    const unsigned most = n_bit_of(ip->family);
    if (!gr_parse_int(length, 0, most, &n)) {
        log_error("--interface: `%s': the length of an %s subnet is 0 .. %u", whole, most == 32 ? "IPv4" : "IPv6",
                  most);
        return GR_EINVAL;
    }
    if (n == 0 && !is_zero(ip)) {
        log_error("--interface: `%s': a subnet of length 0 is %s, all addresses", whole,
                  most == 32 ? "0.0.0.0/0" : "::/0");
        return GR_EINVAL;
    }
    *n_bit_out = (unsigned)n;
    return GR_OK;
}

static enum gr_status parse_item(const char *item, struct gr_interface_wish *out)
{
    char address[64];
    struct gr_ip ip;
    unsigned n_bit = 0;
    const char *slash = strchr(item, '/');
    const size_t n = slash != NULL ? (size_t)(slash - item) : strlen(item);
    snprintf(address, sizeof(address), "%.*s", (int)GR_MIN(n, sizeof(address) - 1), item);
    if (out->n_item == GR_INTERFACE_ITEM_MAX) {
        log_error("--interface: more than %d names and subnets", GR_INTERFACE_ITEM_MAX);
        return GR_EINVAL;
    }
    if (slash != NULL) {
        GR_TRY(parse_subnet(item, address, slash + 1, &ip, &n_bit));
    } else if (parse_ip(address, &ip)) {
        n_bit = n_bit_of(ip.family);
    } else if (n == 0 || n >= GR_INTERFACE_NAME || strpbrk(item, " \t[]") != NULL) {
        log_error("--interface: `%s' is neither the name of an interface nor a subnet such as 10.1.0.0/16", item);
        return GR_EINVAL;
    } else {
        memcpy(out->item[out->n_item].name, address, n + 1);
    }
    out->item[out->n_item].subnet = ip;
    out->item[out->n_item].n_bit = n_bit;
    out->n_item++;
    return GR_OK;
}

enum gr_status gr_interface_parse(const char *text, struct gr_interface_wish *out)
{
    char item[64];
    memset(out, 0, sizeof(*out));
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        snprintf(item, sizeof(item), "%.*s", (int)GR_MIN(n, sizeof(item) - 1), at);
        GR_TRY(parse_item(item, out));
        at += n;
        if (*at == '\0') {
            return GR_OK;
        }
    }
}

/* ---- the choice ---- */

/* What containers and virtual machines hang on, beside what is a bridge by its driver's word. */
static bool is_of_containers(const struct gr_interface *i)
{
    static const char *const starts[] = {"docker", "virbr", "br-", "veth", "cni", "flannel", "lxc"};
    bool is = (i->flags & GR_INTERFACE_BRIDGE) != 0;
    for (size_t k = 0; k < GR_ARRAY_LEN(starts); k++) {
        is = is || strncmp(i->name, starts[k], strlen(starts[k])) == 0;
    }
    return is;
}

static bool is_up(const struct gr_interface *i)
{
    return (i->flags & GR_INTERFACE_UP) != 0;
}

/* An alias is named eth0:1; eth0.7 is another interface. */
static bool has_name(const struct gr_interface *i, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(i->name, name, n) == 0 && (i->name[n] == '\0' || i->name[n] == ':');
}

static bool can_be_told(const struct gr_interface *i)
{
    return is_up(i) && i->ip.family != AF_UNSPEC && !(i->ip.family == AF_INET6 && gr_ip_is_link_local(&i->ip));
}

static bool reaches_others(const struct gr_interface *i)
{
    return can_be_told(i) && (i->flags & GR_INTERFACE_LOOPBACK) == 0 && !gr_ip_is_loopback(&i->ip) &&
           !gr_ip_is_link_local(&i->ip) && !is_of_containers(i);
}

static bool is_wished(const struct gr_interface_wish *w, int item, const struct gr_interface *i)
{
    const struct gr_ip *subnet = &w->item[item].subnet;
    if (w->item[item].name[0] != '\0') {
        return can_be_told(i) && has_name(i, w->item[item].name);
    }
    const bool loopback = (i->flags & GR_INTERFACE_LOOPBACK) != 0 && !gr_ip_is_loopback(subnet);
    return can_be_told(i) && is_in(&i->ip, subnet, w->item[item].n_bit) && !loopback && !is_of_containers(i);
}

static void add(struct gr_interface_chosen *c, const struct gr_interface *i)
{
    for (int k = 0; k < c->n; k++) {
        if (is_same(&c->at[k].ip, &i->ip)) {
            return;
        }
    }
    if (c->n == GR_INTERFACE_CHOSEN_MAX) {
        c->n_left_out++;
    } else {
        c->at[c->n++] = *i;
    }
}

/* item -1: without a wish. False: there is none. */
static bool add_item(const struct gr_interface_wish *w, int item, const struct gr_interface *all, int n,
                     struct gr_interface_chosen *out)
{
    static const int families[] = {AF_INET, AF_INET6};
    bool any = false;
    for (size_t f = 0; f < GR_ARRAY_LEN(families); f++) {
        for (int i = 0; i < n; i++) {
            if (all[i].ip.family == families[f] && (item < 0 ? reaches_others(&all[i]) : is_wished(w, item, &all[i]))) {
                add(out, &all[i]);
                any = true;
            }
        }
    }
    return any;
}

/* ---- what is told ---- */

static void put(char out[GR_INTERFACE_LINE], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(char out[GR_INTERFACE_LINE], const char *fmt, ...)
{
    const size_t n = strlen(out);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + n, GR_INTERFACE_LINE - n, fmt, args);
    va_end(args);
}

static const char *kind_of(const struct gr_interface *i)
{
    return !is_up(i) ? " (down)" : (i->flags & GR_INTERFACE_BRIDGE) != 0 ? " (a bridge)" : "";
}

/* All but link-local addresses, which are never what was meant. */
static void list_all(const struct gr_interface *all, int n, char out[GR_INTERFACE_LINE])
{
    char ip[IP_TEXT];
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        const bool bare = all[i].ip.family == AF_UNSPEC;
        if (bare || !gr_ip_is_link_local(&all[i].ip)) {
            put(out, "%s%s %s%s", out[0] != '\0' ? ", " : "", all[i].name,
                bare ? "without an address" : ip_text(&all[i].ip, ip), kind_of(&all[i]));
        }
    }
}

void gr_interface_text(const struct gr_interface_chosen *chosen, char out[GR_INTERFACE_LINE])
{
    char ip[IP_TEXT];
    out[0] = '\0';
    for (int i = 0; i < chosen->n; i++) {
        put(out, "%s%s %s", i > 0 ? ", " : "", chosen->at[i].name, ip_text(&chosen->at[i].ip, ip));
    }
    if (chosen->n_left_out > 0) {
        put(out, " (%d more are left out)", chosen->n_left_out);
    }
}

/* Why an interface of that name has no address that can be used. */
static const char *why_not_name(const char *name, const struct gr_interface *all, int n)
{
    bool is_there = false, up = false;
    for (int i = 0; i < n; i++) {
        is_there = is_there || has_name(&all[i], name);
        up = up || (has_name(&all[i], name) && is_up(&all[i]));
    }
    return !is_there ? "there is no such interface on this host"
           : !up     ? "the interface is down"
                     : "the interface has no address that other hosts could be told";
}

static const char *why_not_subnet(const struct gr_ip *subnet, unsigned n_bit, const struct gr_interface *all, int n)
{
    bool bridge = false, down = false;
    for (int i = 0; i < n; i++) {
        const bool inside = is_in(&all[i].ip, subnet, n_bit);
        bridge = bridge || (inside && is_of_containers(&all[i]));
        down = down || (inside && !is_up(&all[i]));
    }
    return bridge ? "only a bridge, or what containers hang on, is in it, which is taken by its name alone"
           : down ? "the interface that is in it is down"
                  : "no address of this host is in it";
}

static enum gr_status say_none(const struct gr_interface_wish *w, int item, const struct gr_interface *all, int n)
{
    char has[GR_INTERFACE_LINE], ip[IP_TEXT];
    list_all(all, n, has);
    const char *name = w->item[item].name;
    if (name[0] != '\0') {
        log_error("--interface %s: %s; it has: %s", name, why_not_name(name, all, n), has);
    } else {
        const struct gr_ip *subnet = &w->item[item].subnet;
        log_error("--interface %s/%u: %s; the host has: %s", ip_text(subnet, ip), w->item[item].n_bit,
                  why_not_subnet(subnet, w->item[item].n_bit, all, n), has);
    }
    return GR_ENOTFOUND;
}

enum gr_status gr_interface_choose(const struct gr_interface_wish *wish, const struct gr_interface *all, int n,
                                   struct gr_interface_chosen *out)
{
    memset(out, 0, sizeof(*out));
    if (wish->n_item == 0) {
        (void)add_item(wish, -1, all, n, out);
    }
    for (int i = 0; i < wish->n_item; i++) {
        if (!add_item(wish, i, all, n, out)) {
            return say_none(wish, i, all, n);
        }
    }
    return GR_OK;
}

/* ---- where a connection comes from ---- */

/* The longest subnet of this host that it lies in; -1: in none. */
static int longest(const struct gr_interface *list, int n, const struct gr_ip *to, const struct gr_interface **out)
{
    int best = -1;
    *out = NULL;
    for (int i = 0; i < n; i++) {
        if (is_up(&list[i]) && (int)list[i].n_bit > best && is_in(to, &list[i].ip, list[i].n_bit)) {
            best = (int)list[i].n_bit;
            *out = &list[i];
        }
    }
    return best;
}

static bool is_own(const struct gr_interface *all, int n, const struct gr_ip *ip)
{
    for (int i = 0; i < n; i++) {
        if (is_same(ip, &all[i].ip)) {
            return true;
        }
    }
    return false;
}

const struct gr_interface *gr_interface_source(const struct gr_interface_chosen *chosen, const struct gr_interface *all,
                                               int n, const struct gr_ip *to)
{
    const struct gr_interface *near = NULL, *any = NULL;
    if (to->family == AF_UNSPEC || is_zero(to) || gr_ip_is_link_local(to) || gr_ip_is_loopback(to) ||
        is_own(all, n, to)) {
        return NULL;
    }
    const int of_chosen = longest(chosen->at, chosen->n, to, &near);
    if (longest(all, n, to, &any) >= 0) {
        return of_chosen >= longest(all, n, to, &any) ? near : NULL;
    }
    for (int i = 0; i < chosen->n; i++) {
        if (chosen->at[i].ip.family == to->family && !gr_ip_is_loopback(&chosen->at[i].ip)) {
            return &chosen->at[i];
        }
    }
    return NULL;
}
