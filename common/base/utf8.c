#include "common/base/utf8.h"

#include "common/base/status.h"

#include <stdio.h>
#include <string.h>

enum gr_utf8_kind gr_utf8_next(const uint8_t *p, size_t n, size_t *len_out)
{
    GR_ASSERT(n > 0);
    const uint8_t lead = p[0];
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    size_t want;
    *len_out = 1;
    if (lead < 0x80) {
        return GR_UTF8_CHAR;
    }
    if (lead < 0xC2 || lead > 0xF4) {
        return GR_UTF8_INVALID;
    }
    if (lead < 0xE0) {
        want = 2;
    } else if (lead < 0xF0) {
        want = 3;
        low = lead == 0xE0 ? 0xA0 : low;   /* shortest form */
        high = lead == 0xED ? 0x9F : high; /* no surrogates */
    } else {
        want = 4;
        low = lead == 0xF0 ? 0x90 : low;
        high = lead == 0xF4 ? 0x8F : high; /* up to U+10FFFF */
    }
    for (size_t i = 1; i < want; i++) {
        if (i == n) {
            *len_out = n;
            return GR_UTF8_PARTIAL;
        }
        if (p[i] < low || p[i] > high) {
            *len_out = i;
            return GR_UTF8_INVALID;
        }
        low = 0x80;
        high = 0xBF;
    }
    *len_out = want;
    return GR_UTF8_CHAR;
}

bool gr_utf8_valid(const char *text, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i += len) {
        if (gr_utf8_next((const uint8_t *)text + i, n - i, &len) != GR_UTF8_CHAR) {
            return false;
        }
    }
    return true;
}

void gr_utf8_mend(char *text, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i += len) {
        if (gr_utf8_next((const uint8_t *)text + i, n - i, &len) != GR_UTF8_CHAR) {
            memset(text + i, '?', len);
        }
    }
}

/* Of a whole character. The second range (U+0080 to U+009F) is obeyed as well. */
static bool is_control(const uint8_t *p)
{
    return p[0] < 0x20 || p[0] == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0);
}

size_t gr_utf8_n_plain(const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t at = 0, len = 0;
    while (at < n && gr_utf8_next(p + at, n - at, &len) == GR_UTF8_CHAR &&
           (!is_control(p + at) || p[at] == '\n' || p[at] == '\t')) {
        at += len;
    }
    return at;
}

/* One byte of what is not shown as it is. */
static size_t spell(uint8_t c, char out[5])
{
    const int n = c == '\n'   ? snprintf(out, 5, "\\n")
                  : c == '\t' ? snprintf(out, 5, "\\t")
                              : snprintf(out, 5, "\\x%02x", c);
    return (size_t)n;
}

size_t gr_utf8_show(const char *text, size_t n, char *out, size_t cap)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t n_out = 0;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        char spelled[5];
        const bool whole = gr_utf8_next(p + i, n - i, &len) == GR_UTF8_CHAR && !is_control(p + i);
        len = whole ? len : 1; /* bytes that are no character one by one */
        const size_t more = whole ? len : spell(p[i], spelled);
        if (n_out + more > cap - 1) {
            break;
        }
        memcpy(out + n_out, whole ? text + i : spelled, more);
        n_out += more;
        i += len;
    }
    out[n_out] = '\0';
    return n_out;
}
