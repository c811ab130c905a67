#include "common/base/memory.h"

#include "common/base/log.h"
#include "common/base/status.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

static bool reserve_region(struct gr_memory *m)
{
    if (m->n_region < m->n_region_max) {
        return true;
    }
    const size_t n_max = GR_MAX(2 * m->n_region_max, (size_t)64);
    struct gr_memory_region *region = realloc(m->region, n_max * sizeof(*region));
    if (region == NULL) {
        return false;
    }
    m->region = region;
    m->n_region_max = n_max;
    return true;
}

void *gr_memory_take(struct gr_memory *m, size_t bytes)
{
    bytes = GR_MAX(bytes, (size_t)1);
    void *p =
        reserve_region(m) ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        log_error("%s: out of memory: the model needs another %zu KiB; lower --kv-blocks or --max-model-len",
                  m->what != NULL ? m->what : "model", (bytes + 1023) >> 10);
        return NULL;
    }
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    m->region[m->n_region++] = (struct gr_memory_region){.p = p, .bytes = bytes};
    return p;
}

float *gr_memory_take_f32(struct gr_memory *m, size_t n)
{
    return gr_memory_take(m, n * sizeof(float));
}

size_t gr_memory_bytes(const struct gr_memory *m)
{
    size_t bytes = 0;
    for (size_t i = 0; i < m->n_region; i++) {
        bytes += m->region[i].bytes;
    }
    return bytes;
}

void gr_memory_finish(struct gr_memory *m)
{
    for (size_t i = 0; i < m->n_region; i++) {
        munmap(m->region[i].p, m->region[i].bytes);
    }
    free(m->region);
    *m = (struct gr_memory){0};
}
