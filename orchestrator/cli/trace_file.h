/* --trace-file: the rounds of a turn as a Chrome trace (chrome://tracing, Perfetto). One track each for draft, wire,
 * verify, walk and commit. The workers' durations, measured on their own clocks, are laid end to end so that the walk
 * ends when the COMMIT arrived here, or later where COMMITs came in a bunch: the time base is this process's clock,
 * and nothing is subtracted across processes.
 *
 * `wait` is what the target measured from VERDICT to DRAFT. With each tree the drafter tells its own time; that span
 * stands in the middle of `wait`, and what is left on both sides is wire. A tree that was there before its round
 * waited, and one that came late and still held below one of its nodes, has no draft span: draft_tokens tells of it. */
#ifndef GR_ORCHESTRATOR_CLI_TRACE_FILE_H
#define GR_ORCHESTRATOR_CLI_TRACE_FILE_H

#include "common/protocol/msg.h"

#define GR_TRACE_ROUND_MAX (1u << 20) /* rounds of a trace; later ones are left out */

struct gr_trace_file;

/* Opens the file at once, so that a bad path is told before the work. path: borrowed. */
GR_NODISCARD enum gr_status gr_trace_file_create(const char *path, struct gr_trace_file **out);
void gr_trace_file_destroy(struct gr_trace_file *t);
/* A COMMIT that arrived at arrived_ns and whose text was out at shown_ns. */
void gr_trace_file_round(struct gr_trace_file *t, const struct gr_msg *commit, uint64_t arrived_ns, uint64_t shown_ns);
GR_NODISCARD enum gr_status gr_trace_file_write(struct gr_trace_file *t);

#endif
