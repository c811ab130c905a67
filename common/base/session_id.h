/* A session's id: 64 random bits, never 0. People and files see it as 16 hexadecimal digits; this is the only reader.
 * Any thread. */
#ifndef GR_COMMON_BASE_SESSION_ID_H
#define GR_COMMON_BASE_SESSION_ID_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GR_SESSION_ID_DIGITS 16
#define GR_SESSION_ID_WORDS "the id of a session, 16 hexadecimal digits that are not all 0"
#define GR_SESSION_ID_PRI "016" PRIx64 /* after a % */

static inline void gr_session_id_spell(uint64_t id, char out[static GR_SESSION_ID_DIGITS + 1])
{
    snprintf(out, GR_SESSION_ID_DIGITS + 1, "%" GR_SESSION_ID_PRI, id);
}

/* False: it is not 16 digits, or it is 0. */
static inline bool gr_session_id_read(const char *text, uint64_t *out)
{
    if (strspn(text, "0123456789abcdefABCDEF") != GR_SESSION_ID_DIGITS || text[GR_SESSION_ID_DIGITS] != '\0') {
        return false;
    }
    const uint64_t id = strtoull(text, NULL, 16);
    if (id != 0) {
        *out = id;
    }
    return id != 0;
}

#endif
