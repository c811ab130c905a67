/* Which targets of the fleet serve which model of the endpoint: those of its tokenizer whose model is the one that the
 * fleet has under its name. Weights are never read here, so that the values of a name are those of the first target
 * that gave it (orch_model.c). A model whose operator has named none takes the name of the first target that has its
 * tokenizer, and keeps it until the targets of that name have left in order. The orchestrator's thread's. */
#ifndef GR_ORCHESTRATOR_HTTP_HOMES_H
#define GR_ORCHESTRATOR_HTTP_HOMES_H

#include "common/options/options.h"
#include "orchestrator/http/served.h"
#include "orchestrator/machine/orch.h"

struct gr_home {
    char name[GR_SERVED_NAME_MAX]; /* what targets call the model; "": not known yet */
    uint64_t fingerprint;          /* of the model's values; 0: not known */
    bool known;                    /* a target has given it, and not all of them have left */
    bool foreign;                  /* targets are there that its sessions would go to, and none has its tokenizer */
};

struct gr_homes {
    const struct gr_served *served; /* borrowed, (n) */
    int n;
    struct gr_home home[GR_SERVED_MODEL_MAX];
};

void gr_homes_begin(struct gr_homes *h, const struct gr_served *served, int n);
/* The fleet may have changed. */
void gr_homes_look(struct gr_homes *h, const struct gr_orch *orch);
/* Does this target serve model i? */
bool gr_homes_fit(const struct gr_homes *h, int i, const struct gr_worker_info *target);

#endif
