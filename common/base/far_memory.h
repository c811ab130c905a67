/* Memory that the host's processor neither reads nor writes: a GPU's (model/cuda/far_memory.h), or what a test puts in
 * its place. A pointer into it is an address for these calls and for devices, never to be followed. Copies
 * and waits of one memory are one thread's; the other calls are any's. Errors but export's are logged by who detects
 * them. */
#ifndef GR_COMMON_BASE_FAR_MEMORY_H
#define GR_COMMON_BASE_FAR_MEMORY_H

#include "common/base/status.h"

#include <stddef.h>
#include <stdint.h>

#define GR_FAR_PAGE_BYTES 65536u /* what is taken begins and ends on: a page of NVIDIA's GPUs */

static inline size_t gr_far_whole_pages(size_t bytes)
{
    return (bytes + GR_FAR_PAGE_BYTES - 1) / GR_FAR_PAGE_BYTES * GR_FAR_PAGE_BYTES;
}

struct gr_far_memory {
    const char *name;  /* "cuda:0" */
    const char *unfit; /* why no other device may be told to use it, static text; NULL: one may */
    void *ctx;
    /* bytes: a multiple of GR_FAR_PAGE_BYTES. Not in a round. */
    enum gr_status (*take)(void *ctx, size_t bytes, uint8_t **out);
    void (*give)(void *ctx, uint8_t *p);
    /* A dma-buf of what take() gave, to be closed by the caller, or -errno. */
    int (*export_fd)(void *ctx, uint8_t *p, size_t bytes);
    /* Either side may be memory of the host: that side is done with when the call returns. Between two places of the
     * far memory the copy is enqueued; copies run in order. */
    enum gr_status (*copy)(void *ctx, void *to, const void *from, size_t bytes);
    /* Every copy has ended, and another device that is told to read now reads what it wrote. */
    enum gr_status (*wait)(void *ctx);
    /* What another device has written, of which the host has been told, is seen by the copies that follow and by what
     * is started after wait(). */
    enum gr_status (*arrived)(void *ctx);
};

#endif
