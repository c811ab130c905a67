#include "common/base/address.h"

#include "common/base/log.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define N_PORT_DIGIT_MAX 5 /* digits of 65535 */

static bool parse_port(const char *text, unsigned min, uint16_t *out)
{
    const size_t n = strlen(text);
    const unsigned long v = n > 0 && n <= N_PORT_DIGIT_MAX ? strtoul(text, NULL, 10) : GR_PORT_MAX + 1ul;
    if (strspn(text, "0123456789") != n || v < min || v > GR_PORT_MAX) {
        return false;
    }
    *out = (uint16_t)v;
    return true;
}

/* n bytes before the last colon. The brackets of an IPv6 address are taken off; without them its own colons could not
 * be told from the port's. */
static bool parse_host(const char *text, size_t n, struct gr_address *out)
{
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
        if (n == 0) {
            return false;
        }
    } else if (memchr(text, ':', n) != NULL) {
        return false;
    }
    if (n >= sizeof(out->host) || memchr(text, '[', n) != NULL || memchr(text, ']', n) != NULL) {
        return false;
    }
    memcpy(out->host, text, n);
    out->host[n] = '\0';
    return true;
}

enum gr_status gr_address_parse(const char *what, const char *text, unsigned port_min, struct gr_address *out)
{
    struct gr_address a;
    const char *colon = strrchr(text, ':');
    if (colon == NULL || !parse_port(colon + 1, port_min, &a.port) || !parse_host(text, (size_t)(colon - text), &a)) {
        log_error("%s: `%s' is not HOST:PORT with a port from %u to %d (an IPv6 address is written [ADDRESS]:PORT)",
                  what, text, port_min, GR_PORT_MAX);
        return GR_EINVAL;
    }
    *out = a;
    return GR_OK;
}
