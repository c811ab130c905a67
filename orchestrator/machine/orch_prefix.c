/* Where beginnings of texts have been computed (prefix_places.h), as targets tell of it: a prompt when its first token
 * comes, a whole text when its turn ends. Targets that share no KV among sessions are left out. */
#include "orchestrator/machine/orch_internal.h"

#include <stdlib.h>
#include <string.h>

bool orch_prefix_create(struct gr_orch *o)
{
    o->held_prompt = calloc((size_t)o->n_worker_max, sizeof(*o->held_prompt));
    return gr_prefix_places_create(&o->prefixes, GR_PREFIX_PLACES) && o->held_prompt != NULL;
}

void orch_prefix_destroy(struct gr_orch *o)
{
    gr_prefix_places_destroy(&o->prefixes);
    free(o->held_prompt);
}

static uint64_t root_of(const struct session *s)
{
    return gr_prefix_root(s->model.fingerprint, s->request.wishes.salt);
}

void orch_prefix_computed(struct gr_orch *o, const struct session *s, uint32_t n_token)
{
    if (s->at.target >= 0 && o->worker[s->at.target].shares_prefixes) {
        gr_prefix_places_put(&o->prefixes, root_of(s), s->turn.transcript.token, n_token, (uint32_t)s->at.target);
    }
}

void orch_prefix_look(struct gr_orch *o, const struct session *s)
{
    const struct gr_transcript *t = &s->turn.transcript;
    gr_prefix_places_look(&o->prefixes, root_of(s), t->token, t->len, o->held_prompt, (uint32_t)o->n_worker_max);
}

void orch_prefix_forget(struct gr_orch *o, uint32_t worker)
{
    gr_prefix_places_forget(&o->prefixes, worker);
}
