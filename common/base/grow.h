/* Arrays on the heap that grow by doubling. Header only. */
#ifndef GR_COMMON_BASE_GROW_H
#define GR_COMMON_BASE_GROW_H

#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define GR_GROW_MIN 16 /* elements of the first room */

/* Room for n elements of size bytes each, n and size at least 1: p itself where *cap elements are enough, else what
 * takes its place, and *cap grows. NULL (not logged): no memory; p and *cap are as they were. */
static inline void *gr_grow(void *p, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap) {
        return p;
    }
    const size_t want = GR_MAX(n, GR_MAX(*cap <= SIZE_MAX / 2 ? 2 * *cap : n, (size_t)GR_GROW_MIN));
    void *bigger = want <= SIZE_MAX / size ? realloc(p, want * size) : NULL;
    *cap = bigger != NULL ? want : *cap;
    return bigger;
}

#endif
