/* Memory for objects that take many pieces at start: ask for all of them, then look once whether all were there. */
#ifndef GR_COMMON_BASE_ZEROED_H
#define GR_COMMON_BASE_ZEROED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* Zeroed memory for n things of `size` bytes, the caller's to free; at least one. Clears *ok when there is none. Its
 * pages are there: the kernel gives none in a round, and how much a worker takes shows when it starts. */
static inline void *gr_zeroed(size_t n, size_t size, bool *ok)
{
    char *p = calloc(n > 0 ? n : 1, size);
    *ok = *ok && p != NULL;
    for (size_t at = 0; p != NULL && at < n * size; at += 4096) {
        *(volatile char *)(p + at) = 0;
    }
    return p;
}

#endif
