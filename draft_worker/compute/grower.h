/* Executes a draft job on a language model. Owned by the compute thread. Edge scores are
 * log_softmax(processed log-probability + shared noise) over the vocabulary; at a greedy temperature
 * log_softmax(logits). */
#ifndef GR_DRAFT_WORKER_COMPUTE_GROWER_H
#define GR_DRAFT_WORKER_COMPUTE_GROWER_H

#include "draft_worker/machine/job.h"
#include "model/lm.h"

struct gr_grower;

/* States of a head that a session keeps: of each scratch slot's candidate, and of the root. */
#define GR_GROWER_STATES (GR_DRAFT_SLOT_MAX + 1)

/* lm is borrowed; its n_row_max and n_out_max must hold n_seq_max * GR_DRAFT_TOP_K_MAX rows, its n_state, if it is a
 * head, n_seq_max * GR_GROWER_STATES. */
GR_NODISCARD enum gr_status gr_grower_create(struct gr_lm *lm, int n_seq_max, struct gr_grower **out);
void gr_grower_destroy(struct gr_grower *g);
/* Runs made-up passes, n_row rows at most (at least 1) in the first pool blocks, before any session has them: memory
 * that is touched for the first time costs its first session several rounds. GR_ENOMEM, or what a pass returned. */
GR_NODISCARD enum gr_status gr_grower_touch_memory(struct gr_grower *g, int32_t n_row);
/* Runs the job; job->status says how it went. Allocates nothing. */
void gr_grower_run(struct gr_grower *g, struct gr_draft_job *job);
/* Passes are timed by this clock from now on, not by the machine's: for simulations, whose model says what a pass would
 * take. What is learnt of levels is learnt from it. */
void gr_grower_use_clock(struct gr_grower *g, uint64_t (*clock_ns)(void *ctx), void *ctx);
/* Levels take level_ns + n_row * row_ns from now on, whatever the clock says: for simulations, whose decisions must
 * replay. */
void gr_grower_fix_level_ns(struct gr_grower *g, uint32_t level_ns, uint32_t row_ns);

#endif
