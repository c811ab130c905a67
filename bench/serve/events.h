/* The events of a stream (text/event-stream), out of bytes as they come: the data of each, without its other fields.
 * Comments and events without data are passed over. Pure. */
#ifndef GR_BENCH_SERVE_EVENTS_H
#define GR_BENCH_SERVE_EVENTS_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define GR_EVENT_BYTES_MAX (16u << 20) /* of one event */

/* Zeroes: at the beginning of a stream. */
struct gr_events {
    char *line; /* owned: what has come of the current line */
    size_t n_line, line_cap;
    char *data; /* owned: of the current event, lines with a line feed between them */
    size_t n_data, data_cap;
    bool has_data;
};

/* data: n bytes and a NUL after them, valid until the call returns. */
typedef void gr_event_fn(void *ctx, const char *data, size_t n);

/* GR_ELIMIT: an event is too long; GR_ENOMEM. */
GR_NODISCARD enum gr_status gr_events_feed(struct gr_events *e, const char *bytes, size_t n, gr_event_fn *on_event,
                                           void *ctx);
/* For the next stream; what it has allocated stays. */
void gr_events_rewind(struct gr_events *e);
void gr_events_finish(struct gr_events *e);

#endif
