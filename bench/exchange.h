/* What flows on an open connection while graft-bench transport measures it. The near end has the clock and says each
 * step in a frame of its own; the far end answers as told until the near end says bye. Payloads are neither written nor
 * read beyond their first eight bytes, as perftest's are not: what is timed is moving them, with the credits,
 * sequence numbers and copies that the transport makes for any frame; and, where the ends have rows on a device
 * (bench/rows.h), the copies between them and the frames. */
#ifndef GR_BENCH_EXCHANGE_H
#define GR_BENCH_EXCHANGE_H

#include "bench/options/options.h"
#include "bench/rows.h"
#include "transport/transport.h"

/* n times: `up` bytes there, `down` bytes back (0: nothing) and a bulk frame of `bulk` bytes after them (0: none).
 * Frames of up and down are small ones as far as small_bytes_max goes, else bulk. */
struct gr_step {
    uint32_t n, up, down, bulk;
    bool each; /* false: one answer, after the last */
    bool busy; /* the far end looks for frames in a loop instead of sleeping */
};

struct gr_end {
    struct gr_conn *conn; /* borrowed */
    struct gr_rows rows;  /* borrowed */
    bool busy;
    bool stuck; /* output is left: flush */
};

/* sample_out: with `each`, (n) microseconds from the first byte there to the last one back. seconds_out: for all. */
GR_NODISCARD enum gr_status gr_near_run(struct gr_end *e, const struct gr_step *s, double *sample_out,
                                        double *seconds_out);
/* more: another connection will follow. Returns when the far end has heard it and closed its own. */
GR_NODISCARD enum gr_status gr_near_bye(struct gr_end *e, bool more);
/* Answers until bye; the connection is then to be closed. */
GR_NODISCARD enum gr_status gr_far_serve(struct gr_conn *c, const struct gr_rows *rows, bool *more_out);

#endif
