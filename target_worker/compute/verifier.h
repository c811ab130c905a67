/* Executes a target pass on a language model: rows in, picks, walk and KV commit out. Owned by the compute thread.
 * The walk is gr_accept_walk(), the same function the state machine would use: it runs here because the KV of the
 * accepted rows must be in place before the next pass. */
#ifndef GR_TARGET_WORKER_COMPUTE_VERIFIER_H
#define GR_TARGET_WORKER_COMPUTE_VERIFIER_H

#include "model/lm.h"
#include "target_worker/machine/pass.h"

struct gr_verifier;

/* n_seq_max: sequences of a pass. lm is borrowed; with SpecPV it has its views already. Takes all memory. */
GR_NODISCARD enum gr_status gr_verifier_create(struct gr_lm *lm, int n_seq_max, struct gr_verifier **out);
void gr_verifier_destroy(struct gr_verifier *v);
/* Runs the pass; pass->status says how it went. Allocates nothing. */
void gr_verifier_run(struct gr_verifier *v, struct gr_pass *pass);

#endif
