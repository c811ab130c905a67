#include "orchestrator/http/homes.h"

#include <stdio.h>

void gr_homes_begin(struct gr_homes *h, const struct gr_served *served, int n)
{
    *h = (struct gr_homes){.served = served, .n = n};
    for (int i = 0; i < n; i++) {
        snprintf(h->home[i].name, sizeof(h->home[i].name), "%s", served[i].named ? served[i].name : "");
    }
}

/* The target with the tokenizer that joined before all others; NULL: none has it. */
static const struct gr_worker_info *first_of(const struct gr_orch *orch, uint64_t tokenizer)
{
    const struct gr_worker_info *first = NULL;
    uint64_t number = UINT64_MAX;
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        struct gr_worker_status status;
        const struct gr_worker_info *w = gr_orch_worker(orch, i, &status);
        if (w != NULL && w->role == GR_WORKER_TARGET && !status.leaving &&
            !gr_orch_differ(w->tokenizer_fingerprint, tokenizer) && status.number < number) {
            first = w;
            number = status.number;
        }
    }
    return first;
}

/* Would the machine give a session of the model to this target, were it not for the tokenizer? */
static bool is_taken_for(const struct gr_homes *h, int i, const struct gr_worker_info *target)
{
    const struct gr_home *home = &h->home[i];
    return home->known ? !gr_orch_differ(target->model_fingerprint, home->fingerprint) : !h->served[i].named;
}

static bool has_foreign_alone(const struct gr_homes *h, int i, const struct gr_orch *orch)
{
    bool foreign = false;
    for (uint32_t k = 0; k < GR_ORCH_WORKER_MAX; k++) {
        const struct gr_worker_info *w = gr_orch_worker(orch, k, NULL);
        if (w != NULL && w->role == GR_WORKER_TARGET && is_taken_for(h, i, w)) {
            if (gr_homes_fit(h, i, w)) {
                return false;
            }
            foreign = true;
        }
    }
    return foreign;
}

static void take_name(struct gr_home *home, const struct gr_served *m, const struct gr_orch *orch)
{
    const struct gr_worker_info *w = first_of(orch, m->fingerprint);
    snprintf(home->name, sizeof(home->name), "%s", w != NULL ? w->model : "");
    home->known = w != NULL && gr_orch_model(orch, home->name, &home->fingerprint);
}

void gr_homes_look(struct gr_homes *h, const struct gr_orch *orch)
{
    for (int i = 0; i < h->n; i++) {
        struct gr_home *home = &h->home[i];
        home->known = gr_orch_model(orch, home->name, &home->fingerprint);
        if (!home->known && !h->served[i].named) {
            take_name(home, &h->served[i], orch);
        }
        home->foreign = has_foreign_alone(h, i, orch);
    }
}

bool gr_homes_fit(const struct gr_homes *h, int i, const struct gr_worker_info *target)
{
    const struct gr_home *home = &h->home[i];
    return home->known && !gr_orch_differ(target->tokenizer_fingerprint, h->served[i].fingerprint) &&
           !gr_orch_differ(target->model_fingerprint, home->fingerprint);
}
