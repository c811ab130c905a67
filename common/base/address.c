#include "common/base/address.h"

#include "common/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_PORT_DIGIT_MAX 5 /* digits of 65535 */

static bool parse_port(const char *text, size_t n, unsigned min, uint16_t *out)
{
    const unsigned long v = n > 0 && n <= N_PORT_DIGIT_MAX ? strtoul(text, NULL, 10) : GR_PORT_MAX + 1ul;
    if (strspn(text, "0123456789") < n || v < min || v > GR_PORT_MAX) {
        return false;
    }
    *out = (uint16_t)v;
    return true;
}

/* A port, or FIRST-LAST where somebody listens. */
static bool parse_ports(const char *text, unsigned min, struct gr_address *out)
{
    const size_t n = strcspn(text, "-");
    if (text[n] == '\0') {
        const bool ok = parse_port(text, n, min, &out->port);
        out->port_last = out->port;
        return ok;
    }
    return min == 0 && parse_port(text, n, 1, &out->port) &&
           parse_port(text + n + 1, strlen(text + n + 1), 1, &out->port_last) && out->port <= out->port_last;
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

const char *gr_address_port_of(const char *text)
{
    return strrchr(text, ':');
}

static bool lacks_brackets(const char *text, const char *colon)
{
    return colon != NULL && colon > text && memchr(text, ':', (size_t)(colon - text)) != NULL &&
           strpbrk(text, "[]") == NULL;
}

static enum gr_status refuse(const char *what, const char *text, unsigned port_min)
{
    const char *colon = gr_address_port_of(text);
    char spelled[300] = "[ADDRESS]:PORT";
    if (lacks_brackets(text, colon)) {
        snprintf(spelled, sizeof(spelled), "[%.*s]%s", (int)(colon - text), text, colon);
    }
    log_error("%s: `%s' is not HOST:PORT with a port from %u to %d%s (an IPv6 address is written %s)", what, text,
              port_min, GR_PORT_MAX, port_min == 0 ? ", or a range of ports as 5080-5090" : "", spelled);
    return GR_EINVAL;
}

enum gr_status gr_address_parse(const char *what, const char *text, unsigned port_min, struct gr_address *out)
{
    struct gr_address a;
    const char *colon = gr_address_port_of(text);
    if (colon == NULL || !parse_ports(colon + 1, port_min, &a) || !parse_host(text, (size_t)(colon - text), &a)) {
        return refuse(what, text, port_min);
    }
    *out = a;
    return GR_OK;
}

bool gr_address_next(const char *list, size_t *at, char item_out[300])
{
    const size_t n = strcspn(list + *at, ",");
    if (list[*at] == '\0') {
        return false;
    }
    snprintf(item_out, 300, "%.*s", (int)GR_MIN(n, (size_t)299), list + *at);
    *at += n + (list[*at + n] == ',');
    return true;
}

enum gr_status gr_address_check_peer(const char *what, const char *text)
{
    struct gr_address unused;
    char item[300];
    size_t at = 0;
    int n = 0;
    if (text[0] == '@' && text[1] != '\0') {
        return GR_OK;
    }
    while (gr_address_next(text, &at, item)) {
        GR_TRY(gr_address_parse(what, item, 1, &unused));
        if (++n > GR_ADDRESS_LIST_MAX) {
            log_error("%s: more than %d addresses", what, GR_ADDRESS_LIST_MAX);
            return GR_EINVAL;
        }
    }
    return n > 0 ? GR_OK : refuse(what, text, 1);
}
