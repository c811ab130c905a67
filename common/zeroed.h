/* Memory for objects that take many pieces at start: ask for all of them, then look once whether all were there. */
#ifndef GR_COMMON_ZEROED_H
#define GR_COMMON_ZEROED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* Zeroed memory for n things of `size` bytes, the caller's to free; at least one. Clears *ok when there is none. */
static inline void *gr_zeroed(size_t n, size_t size, bool *ok)
{
    void *p = calloc(n > 0 ? n : 1, size);
    *ok = *ok && p != NULL;
    return p;
}

#endif
