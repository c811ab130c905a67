/* Does the draft model know its target? What a head says of its first child (depth 1, rank 1: the one that every round
 * tries) is held against what the target accepted. A head on the wrong capture layers, or another model's, raises no
 * error anywhere: it is sure of itself and wrong. So the drafter reports both figures once when it has seen enough, and
 * raises an alarm whenever a window of rounds falls far short of what was expected.
 *
 * Pure; plain memory, zeroed by the owner. */
#ifndef GR_DRAFT_WORKER_TREE_ACCEPTANCE_CHECK_H
#define GR_DRAFT_WORKER_TREE_ACCEPTANCE_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#define GR_CHECK_WINDOW 64      /* rounds */
#define GR_CHECK_COLLAPSED 0.25 /* share of what was expected, below which the alarm is raised */
#define GR_CHECK_RECOVERED 0.5  /* share above which the alarm ends */
#define GR_CHECK_SIGMAS 4.0     /* a short fall that luck explains is none */

enum gr_check_event { GR_CHECK_NOTHING, GR_CHECK_REPORT, GR_CHECK_ALARM, GR_CHECK_END };

struct gr_acceptance_check {
    uint32_t n, n_accepted;              /* rounds of this window; first children that were accepted */
    double expected, variance;           /* sum of the model's probabilities, and of p (1 - p) */
    double last_expected, last_accepted; /* shares of the last whole window */
    bool reported, alarm;
    uint64_t n_alarm;
};

/* One round: the model gave its first child prob. An event is for the log; last_* are then of this window. */
enum gr_check_event gr_acceptance_check_observe(struct gr_acceptance_check *c, float prob, bool accepted);

#endif
