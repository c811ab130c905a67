/* A model's memory: zeroed pages taken from the system while the model is created, given back together by its
 * destroy. One thread. */
#ifndef GR_COMMON_BASE_MEMORY_H
#define GR_COMMON_BASE_MEMORY_H

#include <stddef.h>

struct gr_memory_region {
    void *p;
    size_t bytes;
};

/* All zero: nothing taken. */
struct gr_memory {
    const char *what;                /* the model's name for messages, borrowed; NULL: none */
    struct gr_memory_region *region; /* owned, (n_region_max) */
    size_t n_region, n_region_max;
};

/* Aligned to a page; NULL (one line logged): out of memory. */
void *gr_memory_take(struct gr_memory *m, size_t bytes);
float *gr_memory_take_f32(struct gr_memory *m, size_t n);
/* Of all regions together. */
size_t gr_memory_bytes(const struct gr_memory *m);
void gr_memory_finish(struct gr_memory *m);

#endif
