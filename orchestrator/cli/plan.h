/* What the options come to: the fixed choices of an engine (method, transport, devices) and of a request (tree). What
 * is known but not part of this build is refused here, by name. */
#ifndef GR_ORCHESTRATOR_CLI_PLAN_H
#define GR_ORCHESTRATOR_CLI_PLAN_H

#include "common/options/options.h"
#include "model/files/hf_config.h"
#include "model/tokenizer/tokenizer.h"
#include "orchestrator/cli/crew.h"
#include "orchestrator/machine/orch.h"

struct gr_plan {
    bool with_head;                 /* the drafter runs an EAGLE-3 head, which the target serves */
    bool require_rdma;              /* a turn with a drafter over anything else is an error */
    bool colocated;                 /* both workers in one process, over loop */
    bool remote;                    /* a running orchestrator is asked, which has workers of its own */
    bool target_tuned, draft_tuned; /* --tuned is for this one, which is on a GPU */
    struct gr_crew crew;            /* who is started on this host, and where */
    struct gr_wishes wishes;        /* of a request, but for the seed and the stop ids, which generate_prepare.c adds */
};

/* For workers of our own (graft run, graft serve --spawn). May set o->method. GR_EINVAL: usage; GR_EUNSUPPORTED: not
 * built; GR_EFORMAT, ...: the draft folder. Logged. */
GR_NODISCARD enum gr_status gr_plan_local(struct gr_options *o, struct gr_plan *plan_out);
/* Of workers that start here: has a draft model the target's tokenizer (one that is in no file differs from none) and
 * as many ids; does a head fit the target? target_tok: NULL where it has none. GR_EMISMATCH, ...: no (logged). */
GR_NODISCARD enum gr_status gr_plan_check_drafter(const struct gr_options *o, const struct gr_plan *plan,
                                                  const struct gr_hf_config *target,
                                                  const struct gr_tokenizer *target_tok);
/* Is --model one that answers, and no head? GR_EFORMAT (logged). */
GR_NODISCARD enum gr_status gr_plan_check_target(const struct gr_options *o, const struct gr_hf_config *target);
/* Both, where nobody else opens the target's files: graft serve --spawn. */
GR_NODISCARD enum gr_status gr_plan_check_models(const struct gr_options *o, const struct gr_plan *plan);
/* For an orchestrator whose workers come by themselves: options about workers on the command line are refused. */
GR_NODISCARD enum gr_status gr_plan_no_workers(const struct gr_options *o);
/* For a request to a running orchestrator, which has workers of its own: options about workers are refused. */
GR_NODISCARD enum gr_status gr_plan_remote(const struct gr_options *o, struct gr_plan *plan_out);

#endif
