/* Which addresses of a host a process uses where nobody names one: those of --interface, else all by which other hosts
 * may reach it. What is pure is in interface.c; own.h reads this host's. Any thread. */
#ifndef GR_TRANSPORT_INTERFACE_H
#define GR_TRANSPORT_INTERFACE_H

#include "common/base/address.h"
#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define GR_INTERFACE_NAME 16    /* of an interface or of an alias such as eth0:1, its NUL included */
#define GR_INTERFACE_ITEM_MAX 8 /* of a list */
#define GR_INTERFACE_CHOSEN_MAX GR_ADDRESS_LIST_MAX /* addresses that are used; more are left out */
#define GR_INTERFACE_LINE 600                       /* bytes of a line about them */

enum gr_interface_flag { GR_INTERFACE_UP = 1, GR_INTERFACE_LOOPBACK = 2, GR_INTERFACE_BRIDGE = 4 };

/* An address of an IP, whatever the family. */
struct gr_ip {
    int family;       /* AF_INET, AF_INET6; AF_UNSPEC: none */
    uint8_t byte[16]; /* the first 4 of IPv4 */
};

/* An address that an interface has, or the interface itself where it has none (ip.family AF_UNSPEC). */
struct gr_interface {
    char name[GR_INTERFACE_NAME];
    struct gr_ip ip;
    unsigned n_bit; /* of its subnet */
    unsigned flags; /* set of enum gr_interface_flag */
};

/* What --interface says. n_item 0: nothing. */
struct gr_interface_wish {
    struct {
        char name[GR_INTERFACE_NAME]; /* "": a subnet */
        struct gr_ip subnet;
        unsigned n_bit;
    } item[GR_INTERFACE_ITEM_MAX];
    int n_item;
};

struct gr_interface_chosen {
    struct gr_interface at[GR_INTERFACE_CHOSEN_MAX];
    int n, n_left_out;
};

/* NAME, SUBNET (10.1.0.0/16, fd00::/8) or ADDRESS, several with commas between them. A subnet's bits behind its length
 * do not count, but of length 0 there is only that of all addresses. GR_EINVAL: one line is logged. */
GR_NODISCARD enum gr_status gr_interface_parse(const char *text, struct gr_interface_wish *out);

/* Those of all[n] that are wished for, in the order of the wish's items, of an item IPv4 first. A name takes an
 * interface's addresses, those of its aliases included, whatever it is; a subnet takes no bridge, and loopback only
 * where it lies within that. Without a wish: those by which other hosts may reach this one, IPv4 first: no loopback, no
 * link-local address, no bridge and nothing that containers hang on (docker0, br-*, virbr*, veth* ...), which many
 * hosts have under one address. IPv6 link-local addresses are never chosen: each host has its own number for the link.
 * GR_ENOTFOUND: an item has no address that can be used; one line is logged, with what there is instead. */
GR_NODISCARD enum gr_status gr_interface_choose(const struct gr_interface_wish *wish, const struct gr_interface *all,
                                                int n, struct gr_interface_chosen *out);

/* The address among the chosen ones that a connection to `to` is to come from; NULL: the system's choice is right,
 * since `to` is this host or loopback, or lies in the subnet of another interface. Where it lies in no subnet of this
 * host, the first one of its family: routes that go by the source see it. */
const struct gr_interface *gr_interface_source(const struct gr_interface_chosen *chosen, const struct gr_interface *all,
                                               int n, const struct gr_ip *to);

/* "eth0 10.1.0.2, eth0 fd00::2" */
void gr_interface_text(const struct gr_interface_chosen *chosen, char out[GR_INTERFACE_LINE]);

/* An IPv4 address that an IPv6 one carries is IPv4. */
void gr_ip_of(const struct sockaddr *from, struct gr_ip *out);
/* Its length. */
socklen_t gr_ip_sockaddr(const struct gr_ip *ip, uint16_t port, struct sockaddr_storage *out);
bool gr_ip_is_loopback(const struct gr_ip *ip);
bool gr_ip_is_link_local(const struct gr_ip *ip);

#endif
