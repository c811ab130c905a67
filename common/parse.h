/* Strict number parsing: the whole text, in range, or nothing. */
#ifndef GR_COMMON_PARSE_H
#define GR_COMMON_PARSE_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static inline bool gr_parse_int(const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || v < min || v > max) {
        return false;
    }
    *out = v;
    return true;
}

static inline bool gr_parse_number(const char *text, double min, double max, double *out)
{
    char *end = NULL;
    errno = 0;
    const double v = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(v >= min && v <= max)) {
        return false;
    }
    *out = v;
    return true;
}

#endif
