/* When a worker that keeps failing gets no sessions for a while. Pure: failures, successes and time in; a state out.
 *
 *   GOOD -> OUT, when enough failures have come within a window
 *        -> TRIAL, when the pause is over: it gets one session at a time
 *        -> GOOD, when a session has gone well; or OUT again for twice as long, after another failure
 *
 * Two kinds of failure count. A loss (a death, a broken link, silence, a breach of the protocol) counts until it has
 * left the window. A turn that failed (wrong numbers, a pass that failed) counts until another one has gone well there,
 * since a text of a client may bring it about. What a busy or full worker answers, and what a request got wrong, is no
 * failure. Decision D-243. */
#ifndef GR_ORCHESTRATOR_MACHINE_QUARANTINE_H
#define GR_ORCHESTRATOR_MACHINE_QUARANTINE_H

#include <stdbool.h>
#include <stdint.h>

#define GR_QUARANTINE_FAILURE_MAX 16

struct gr_quarantine_rule {
    uint32_t n_failure; /* so many within the window are too many; 0: nobody is judged */
    uint64_t window_ns;
    uint64_t pause_min_ns, pause_max_ns; /* the first pause, and where doubling ends */
};

enum gr_quarantine_state { GR_QUARANTINE_GOOD, GR_QUARANTINE_OUT, GR_QUARANTINE_TRIAL };
enum gr_failure { GR_FAILURE_LOSS, GR_FAILURE_TURN };

struct gr_quarantine_mark {
    uint64_t at_ns;
    enum gr_failure kind;
};

/* Of one worker. All zero: GOOD, and nothing has failed. */
struct gr_quarantine {
    enum gr_quarantine_state state;
    struct gr_quarantine_mark mark[GR_QUARANTINE_FAILURE_MAX]; /* those that count, oldest first */
    uint32_t n_mark;
    uint32_t n_pause;  /* in a row */
    uint64_t pause_ns; /* the last one */
    uint64_t until_ns; /* OUT */
};

/* True: it is OUT from now on, or is so anew, for pause_ns. The sessions of one pass fail together: what comes within
 * 100 ms after a failure belongs to it. */
bool gr_quarantine_fail(struct gr_quarantine *q, const struct gr_quarantine_rule *rule, enum gr_failure kind,
                        uint64_t now_ns);
/* A session has gone well. True: it is GOOD again. */
bool gr_quarantine_succeed(struct gr_quarantine *q);
/* True: the pause is over, and it is on TRIAL. */
bool gr_quarantine_step(struct gr_quarantine *q, uint64_t now_ns);
/* When to step; UINT64_MAX: nothing is due. */
uint64_t gr_quarantine_due_ns(const struct gr_quarantine *q);
/* Is it to get no further session, while it has n_active in a turn? */
bool gr_quarantine_shuns(const struct gr_quarantine *q, uint32_t n_active);

#endif
