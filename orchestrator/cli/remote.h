/* A client's link to a running orchestrator: HELLO as role client, then control messages. Blocking, with a signal that
 * interrupts. One thread. */
#ifndef GR_ORCHESTRATOR_CLI_REMOTE_H
#define GR_ORCHESTRATOR_CLI_REMOTE_H

#include "common/protocol/msg.h"
#include "common/options/options.h"
#include "transport/connect/bootstrap.h"

#include <stdbool.h>

struct gr_control;

struct gr_remote {
    struct gr_control *control;
    const char *address; /* borrowed from the options */
    int signal_number;   /* after GR_ECANCELED: which came */
    int signal_fd;       /* SIGINT, SIGTERM */
    bool gone;           /* the orchestrator is, and that was logged */
    char turns[160]; /* the sessions in which turns are at hand, "1, 2"; empty: none. For the line that it is gone */
};

/* The shared key by --key-file, GRAFT_KEY_FILE, GRAFT_KEY or orchestrator.key_file. What is wrong is logged, with
 * what to do. */
GR_NODISCARD enum gr_status gr_remote_key(const struct gr_options *o, uint8_t key_out[GR_KEY_BYTES]);
struct gr_remote_patience {
    int listen_ms; /* how long an orchestrator may take to listen; 0: it listens by now */
    int within_ms; /* until it has proved the key, all together; 0: as long as it usually may take */
};
/* Connects to o->connect (default: the configuration's orchestrator.control, else GR_SERVE_ADDRESS). GR_EINVAL: a value
 * of this side is wrong. */
GR_NODISCARD enum gr_status gr_remote_open(const struct gr_options *o, struct gr_remote_patience p,
                                           struct gr_remote *out);
void gr_remote_close(struct gr_remote *r);
/* The exit status of a command that ended with `st`; that a signal has cut it short is logged. */
int gr_remote_status(const struct gr_remote *r, enum gr_status st);
GR_NODISCARD enum gr_status gr_remote_send(struct gr_remote *r, const struct gr_msg *m);
/* Next message; gr_msg_finish() it. GR_AGAIN: none within timeout_ms; GR_ECANCELED: a signal came; GR_ECLOSED (logged):
 * the orchestrator is gone. timeout_ms -1: no limit while the orchestrator lives: it is pinged (and its PONGs come,
 * too), and GR_ECLOSED is told when it has not answered for 20 s. */
GR_NODISCARD enum gr_status gr_remote_recv(struct gr_remote *r, int timeout_ms, struct gr_msg *out);
/* The same for who expects the end: GR_ECLOSED is not logged. timeout_ms: 0 or more. */
GR_NODISCARD enum gr_status gr_remote_recv_until_end(struct gr_remote *r, int timeout_ms, struct gr_msg *out);
/* One message and its answer. ERROR is logged: GR_EINVAL. Another answer than `want`: GR_EPROTO. */
GR_NODISCARD enum gr_status gr_remote_ask(struct gr_remote *r, const struct gr_msg *m, enum gr_msg_type want,
                                          struct gr_msg *out);

#endif
