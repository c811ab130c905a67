/* Many control links of one process to a running `graft serve', and one loop for all of them. One thread. */
#ifndef GR_BENCH_SERVER_BUS_H
#define GR_BENCH_SERVER_BUS_H

#include "common/protocol/msg.h"
#include "transport/connect/bootstrap.h"
#include "transport/connect/control.h"

#define GR_BUS_END_MAX 640

/* A message has come. Anything but GR_OK (logged) ends the measurement. */
typedef enum gr_status gr_bus_on_msg(void *ctx, const struct gr_msg *m);

struct gr_bus_end {
    struct gr_control *control; /* owned; NULL: it is closed */
    gr_bus_on_msg *on_msg;
    void *ctx;
    bool may_close; /* the server is expected to close it */
};

struct gr_bus {
    const char *address; /* borrowed: of the server */
    const uint8_t *key;  /* borrowed, GR_KEY_BYTES */
    struct gr_bus_end end[GR_BUS_END_MAX];
    int n;
};

/* Connects in this role, the proof of the key included, and becomes end number *end_out. incarnation: another one for
 * each end. GR_ELIMIT and what connecting can meet, logged. */
GR_NODISCARD enum gr_status gr_bus_join(struct gr_bus *b, enum gr_role role, uint64_t incarnation,
                                        gr_bus_on_msg *on_msg, void *ctx, int *end_out);
/* Queues a message; gr_bus_pump() sends it. Logged. */
GR_NODISCARD enum gr_status gr_bus_send(struct gr_bus *b, int end, const struct gr_msg *m);
/* Sends what waits, waits for at most timeout_ns, and hands what has come to those that it is for. GR_ECLOSED (logged):
 * the server has closed an end. */
GR_NODISCARD enum gr_status gr_bus_pump(struct gr_bus *b, uint64_t timeout_ns);
void gr_bus_leave(struct gr_bus *b, int end);
void gr_bus_close(struct gr_bus *b);

#endif
