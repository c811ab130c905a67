/* Strict number parsing: the whole text, in range, or nothing. */
#ifndef GR_COMMON_BASE_PARSE_H
#define GR_COMMON_BASE_PARSE_H

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline bool gr_parse_int(const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    if (isspace((unsigned char)text[0]) || end == text || *end != '\0' || errno != 0 || v < min || v > max) {
        return false;
    }
    *out = v;
    return true;
}

/* 0 means something of its own, and what lies between it and min nothing. */
static inline bool gr_parse_int_or_0(const char *text, int64_t min, int64_t max, int64_t *out)
{
    return gr_parse_int(text, 0, 0, out) || gr_parse_int(text, min, max, out);
}

static inline bool gr_parse_number(const char *text, double min, double max, double *out)
{
    char *end = NULL;
    errno = 0;
    const double v = strtod(text, &end);
    const bool too_large = errno == ERANGE && (v > 1.0 || v < -1.0); /* one too small for a double is as good as 0 */
    if (isspace((unsigned char)text[0]) || end == text || *end != '\0' || too_large || !(v >= min && v <= max)) {
        return false;
    }
    *out = v;
    return true;
}

/* A share of something that can be limited: 0 < x < 1; `off' and 0 say no limit and give 0. */
#define GR_SHARE_RANGE "off (no limit) or a number above 0 and below 1"
static inline bool gr_parse_share(const char *text, double *out)
{
    double v = 0.0;
    if (strcmp(text, "off") != 0 && (!gr_parse_number(text, 0.0, 1.0, &v) || v == 1.0)) {
        return false;
    }
    *out = v;
    return true;
}

#endif
