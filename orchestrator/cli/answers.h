/* The answers to one prompt, 1 to GR_ANSWERS_MAX: generations side by side, which differ in the choice that the noise's
 * counter holds. What they share (tokenizer, prompt, wishes, seed) is prepared once. They are shown in their order: the
 * first that is not over as its text comes, those after it when it is their turn. One thread. */
#ifndef GR_ORCHESTRATOR_CLI_ANSWERS_H
#define GR_ORCHESTRATOR_CLI_ANSWERS_H

#include "orchestrator/cli/generate.h"

struct gr_answers {
    struct gr_generation g[GR_ANSWERS_MAX];
    struct gr_generation *at[GR_ANSWERS_MAX]; /* of each */
    int n;
};

/* On failure (logged) gr_answers_refuse() or, of what has begun, _report() and _destroy() still follow. o, a: stay
 * where they are. */
GR_NODISCARD enum gr_status gr_answers_prepare(struct gr_answers *a, const struct gr_options *o,
                                               const struct gr_plan *plan);
/* Some 200 KiB, too much for a stack. NULL (logged): there is no memory. */
struct gr_answers *gr_answers_create(const struct gr_options *o);
void gr_answers_destroy(struct gr_answers *a);
/* As gr_generation_report(), of each; without --json one line sums up all. Where one has failed none has succeeded. */
int gr_answers_report(struct gr_answers *a);
/* They cannot begin: reports that, and destroys a. Returns the exit status. */
int gr_answers_refuse(struct gr_answers *a, enum gr_status st);

#endif
