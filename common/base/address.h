/* Where something listens, as text: the one reader of every place that takes it (options, environment, YAML, what a
 * worker says of itself). Any thread. */
#ifndef GR_COMMON_BASE_ADDRESS_H
#define GR_COMMON_BASE_ADDRESS_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_PORT_MAX 65535     /* the largest of TCP */
#define GR_ADDRESS_LIST_MAX 8 /* addresses of a list */

struct gr_address {
    char host[256]; /* without brackets; empty or "*": any */
    uint16_t port;
    uint16_t port_last; /* of who listens: the last of a range; else port */
};

/* "HOST:PORT", "[V6]:PORT", ":PORT" or "*:PORT"; port_min 0, of who listens: port 0 leaves the choice to the system,
 * and a range (HOST:5080-5090) is allowed. port_min 1, of who connects: neither is. what: the option that has this
 * value ("--join"), for the line of GR_EINVAL. */
GR_NODISCARD enum gr_status gr_address_parse(const char *what, const char *text, unsigned port_min,
                                             struct gr_address *out);

/* ":PORT" of such a text, so that what stands before it is the host, with its brackets; of a list that of the last.
 * NULL: it has none, and was not parsed. */
const char *gr_address_port_of(const char *text);

/* Whom to connect to: "@FILE", a file that holds what follows, or one or more HOST:PORT with commas between them. The
 * same errors. */
GR_NODISCARD enum gr_status gr_address_check_peer(const char *what, const char *text);
/* The next of a list, or false; *at begins with 0. An item that does not fit is cut off, and so no address. */
bool gr_address_next(const char *list, size_t *at, char item_out[300]);

#endif
