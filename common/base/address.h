/* Where something listens, as text: the one reader of every place that takes it (options, environment, YAML, what a
 * worker says of itself). Any thread. */
#ifndef GR_COMMON_BASE_ADDRESS_H
#define GR_COMMON_BASE_ADDRESS_H

#include "common/base/status.h"

#include <stdint.h>

#define GR_PORT_MAX 65535 /* the largest of TCP */

struct gr_address {
    char host[256]; /* without brackets; empty or "*": any */
    uint16_t port;
};

/* "HOST:PORT", "[V6]:PORT", ":PORT" or "*:PORT"; port_min 0: whoever listens may leave the choice to the system, 1: who
 * connects may not. GR_EINVAL: one line says what is wrong with it; what: whose value it is ("--join"). */
GR_NODISCARD enum gr_status gr_address_parse(const char *what, const char *text, unsigned port_min,
                                             struct gr_address *out);

#endif
