/* Where an end of graft-bench transport has the rows of its bulk frames: in memory of --device, as a worker's features
 * may be, or nowhere in particular, and then they are neither written nor read. */
#ifndef GR_BENCH_ROWS_H
#define GR_BENCH_ROWS_H

#include "bench/options/options.h"
#include "common/base/far_memory.h"
#include "transport/transport.h"

struct gr_rows {
    const struct gr_far_memory *far; /* NULL: the host's memory, nothing is copied */
    uint8_t *at;                     /* in far, as large as the largest frame's rows */
};

/* What connections over RDMA are opened with; before anything is opened. */
void gr_rows_configure(const struct gr_bench_options *o);
/* In the process that uses them: a GPU does not survive a fork. */
GR_NODISCARD enum gr_status gr_rows_open(const struct gr_bench_options *o, struct gr_rows *out);
void gr_rows_close(struct gr_rows *r);

/* The rows into a bulk frame that is sent next, and out of one before it is released: to where the frame has them, or
 * by way of the host. */
GR_NODISCARD enum gr_status gr_rows_put(const struct gr_rows *r, const struct gr_frame *f, uint32_t bytes);
GR_NODISCARD enum gr_status gr_rows_get(const struct gr_rows *r, const struct gr_frame *f);

/* "host", "cuda:0 by dma-buf", "cuda:0 by staging": how frames of this connection reach the rows. */
void gr_rows_path(const struct gr_rows *r, const struct gr_conn *c, char out[48]);

#endif
