/* Which worker takes a session: what each would be for it, and the choice (placement.h). */
#include "orchestrator/machine/orch_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TREES_KNOWN 8 /* so many trees of a session tell what they bring */

/* May the worker take the session while `target` has it? */
typedef bool fits_fn(const struct gr_orch *o, const struct session *s, int worker, int target);

static bool has_generated(const struct gr_transcript *t)
{
    bool generated = false;
    for (uint32_t i = 0; i < t->n_segment; i++) {
        generated = generated || t->segment[2 * i] == GR_SEGMENT_GENERATED;
    }
    return generated;
}

bool orch_same_numerics(const struct session *s, const struct gr_worker_info *target)
{
    const bool is_told = has_generated(&s->turn.transcript) || (s->turn.is_restored && s->numerics_id[0] != '\0');
    return strcmp(s->numerics_id, target->numerics_id) == 0 || !is_told;
}

bool orch_is_taking(const struct worker *w)
{
    return w->joined && !w->leaving && !w->drained;
}

static bool is_taking(const struct worker *w, enum gr_worker_role role)
{
    return orch_is_taking(w) && w->info.role == role;
}

static bool is_target(const struct gr_orch *o, const struct session *s, int worker, int target)
{
    (void)target;
    const struct worker *w = &o->worker[worker];
    return is_taking(w, GR_WORKER_TARGET) && orch_model_is(s, &w->info) && !orch_set_has(&s->at.refused, worker);
}

static bool fits_as_target(const struct gr_orch *o, const struct session *s, int worker, int target)
{
    const struct gr_worker_info *info = &o->worker[worker].info;
    return is_target(o, s, worker, target) &&
           !gr_orch_differ(s->request.tokenizer_fingerprint, info->tokenizer_fingerprint) &&
           (info->n_ctx_max == 0 || s->turn.transcript.len < info->n_ctx_max) && orch_same_numerics(s, info);
}

/* A head needs the features of its own target; a draft model goes with any target of its tokenizer. What features are
 * made of is compared where the two meet. */
bool orch_drafts_for(const struct gr_worker_info *drafter, const struct gr_worker_info *target)
{
    const bool is_head = drafter->feature_width > 0;
    return !gr_orch_differ(drafter->tokenizer_fingerprint, target->tokenizer_fingerprint) &&
           !gr_orch_differ(drafter->n_vocab, target->n_vocab) &&
           (!is_head ||
            (target->feature_width > 0 && !gr_orch_differ(drafter->fc_fingerprint, target->fc_fingerprint)));
}

void orch_misfit(const struct gr_worker_info *d, const struct gr_worker_info *t, char why[GR_MISFIT_BYTES])
{
    if (gr_orch_differ(d->tokenizer_fingerprint, t->tokenizer_fingerprint)) {
        snprintf(why, GR_MISFIT_BYTES, "its tokenizer has fingerprint %016" PRIx64 ", the drafter's %016" PRIx64,
                 t->tokenizer_fingerprint, d->tokenizer_fingerprint);
    } else if (gr_orch_differ(d->n_vocab, t->n_vocab)) {
        snprintf(why, GR_MISFIT_BYTES, "its vocabulary has %u ids, the drafter's %u", t->n_vocab, d->n_vocab);
    } else if (t->feature_width == 0) {
        snprintf(why, GR_MISFIT_BYTES, "it serves no head: start it with --head");
    } else {
        snprintf(why, GR_MISFIT_BYTES, "its head's fc has fingerprint %016" PRIx64 ", the drafter's %016" PRIx64,
                 t->fc_fingerprint, d->fc_fingerprint);
    }
}

/* A target that listens nowhere has its drafter in its own process. */
static bool reaches(const struct gr_worker_info *drafter, const struct gr_worker_info *target)
{
    return target->address[0] != '\0' || target->pid == 0 || drafter->pid == target->pid;
}

double orch_tree_gain(const struct session *s)
{
    const struct gr_session_metrics *m = &s->metrics;
    return m->num_drafts > 0 ? (double)m->num_accepted_tokens / (double)m->num_drafts : 0.0;
}

static struct gr_tree_worth worth_of(const struct gr_orch *o, const struct session *s)
{
    const struct worker *w = &o->worker[s->at.target];
    return (struct gr_tree_worth){.pass_ns = gr_forecast_present_ns(&w->forecast, w->load.n_active),
                                  .n_accepted = orch_tree_gain(s)};
}

/* Was it shed to none, and do trees of this drafter not pay yet? */
static bool is_shed_from(const struct gr_orch *o, const struct session *s, const struct worker *drafter)
{
    const struct gr_tree_worth w = worth_of(o, s);
    return s->with.shed && !gr_pays_to_draft(&drafter->forecast, drafter->load.n_active, &w);
}

static bool fits_as_drafter(const struct gr_orch *o, const struct session *s, int worker, int target)
{
    const struct worker *w = &o->worker[worker];
    return is_taking(w, GR_WORKER_DRAFT) && !orch_set_has(&s->with.avoided, worker) &&
           !orch_set_has(&s->with.passed_over, worker) && reaches(&w->info, &o->worker[target].info) &&
           orch_drafts_for(&w->info, &o->worker[target].info) && !is_shed_from(o, s, w);
}

static bool has_room(const struct worker *w)
{
    return w->info.n_slot == 0 || w->load.n_active < w->info.n_slot;
}

bool orch_has_room(const struct gr_orch *o, int worker)
{
    return has_room(&o->worker[worker]);
}

static struct gr_place place_of(const struct gr_orch *o, uint32_t worker, bool fits)
{
    const struct worker *w = &o->worker[worker];
    return (struct gr_place){.fits = fits,
                             .shunned = orch_seat_is_shunned(o, worker),
                             .has_room = has_room(w),
                             .n_active = w->load.n_active,
                             .n_held = w->load.n_held,
                             .n_free_block = w->n_free_block,
                             .round_ns = gr_forecast_round_ns(&w->forecast, w->load.n_active)};
}

/* held: what each holds of the prompt; NULL: not known. */
static int choose(struct gr_orch *o, const struct session *s, fits_fn *fits, int target, const uint32_t *held)
{
    struct gr_place *p = o->place;
    for (int i = 0; i < o->n_worker_max; i++) {
        p[i] = place_of(o, (uint32_t)i, fits(o, s, i, target));
        p[i].n_prompt = held != NULL ? held[i] : 0;
    }
    return gr_place_choose(p, o->n_worker_max, held != NULL ? o->last_target : o->last_drafter);
}

/* Does one fit? but: a worker that is left out, -1: none. Nothing is chosen. */
static bool some_fit(const struct gr_orch *o, const struct session *s, fits_fn *fits, int target, int but)
{
    bool some = false;
    for (int i = 0; i < o->n_worker_max; i++) {
        some = some || (i != but && fits(o, s, i, target));
    }
    return some;
}

void orch_place_begin(struct gr_orch *o)
{
    o->last_target = o->last_drafter = -1;
}

int orch_place_target(struct gr_orch *o, const struct session *s)
{
    orch_prefix_look(o, s);
    int target = choose(o, s, fits_as_target, -1, o->held_prompt);
    if (target < 0) {
        target = choose(o, s, is_target, -1, o->held_prompt);
    }
    o->last_target = target >= 0 ? target : o->last_target;
    return target;
}

bool orch_another_fits(const struct gr_orch *o, const struct session *s)
{
    return some_fit(o, s, fits_as_target, -1, -1);
}

static bool fits_unshunned(const struct gr_orch *o, const struct session *s, int worker, int target)
{
    return fits_as_target(o, s, worker, target) && !orch_seat_is_shunned(o, (uint32_t)worker);
}

bool orch_shuns_home(const struct gr_orch *o, const struct session *s)
{
    return orch_seat_is_shunned(o, (uint32_t)s->at.target) && some_fit(o, s, fits_unshunned, -1, -1);
}

int orch_place_drafter(struct gr_orch *o, const struct session *s, int target)
{
    const int drafter = choose(o, s, fits_as_drafter, target, NULL);
    o->last_drafter = drafter >= 0 ? drafter : o->last_drafter;
    return drafter;
}

bool orch_has_drafter(const struct gr_orch *o, const struct session *s, int target)
{
    return some_fit(o, s, fits_as_drafter, target, -1);
}

int orch_freer_drafter(const struct gr_orch *o, const struct session *s)
{
    const struct worker *from = &o->worker[s->with.drafter];
    int best = -1;
    for (int i = 0; i < o->n_worker_max; i++) {
        const struct worker *to = &o->worker[i];
        const bool fits = i != s->with.drafter && fits_as_drafter(o, s, i, s->at.target) && has_room(to) &&
                          !orch_seat_is_shunned(o, (uint32_t)i);
        if (fits && gr_pays_to_shed(&from->forecast, from->load.n_active, &to->forecast, to->load.n_active) &&
            (best < 0 || to->load.n_active < o->worker[best].load.n_active)) {
            best = i;
        }
    }
    return best;
}

bool orch_is_better_alone(const struct gr_orch *o, const struct session *s)
{
    const struct worker *from = &o->worker[s->with.drafter];
    const struct gr_tree_worth w = worth_of(o, s);
    return s->metrics.num_drafts >= TREES_KNOWN && gr_pays_to_shed_to_none(&from->forecast, from->load.n_active, &w);
}

bool orch_may_take_back(const struct gr_orch *o, const struct session *s, int drafter)
{
    return s->with.shed && s->with.drafter < 0 && s->with.n_stats_owed == 0 &&
           fits_as_drafter(o, s, drafter, s->at.target) && has_room(&o->worker[drafter]) &&
           !orch_seat_is_shunned(o, (uint32_t)drafter);
}

bool orch_another_drafter_fits(const struct gr_orch *o, const struct session *s, uint32_t worker)
{
    return some_fit(o, s, fits_as_drafter, s->at.target, (int)worker);
}

int orch_useless_drafter(const struct gr_orch *o, const struct session *s)
{
    int found = -1;
    for (int i = 0; i < o->n_worker_max; i++) {
        if (!is_taking(&o->worker[i], GR_WORKER_DRAFT)) {
            continue;
        }
        if (orch_drafts_for(&o->worker[i].info, &o->worker[s->at.target].info)) {
            return -1;
        }
        found = found < 0 ? i : found;
    }
    return found;
}

uint32_t orch_longest_context(const struct gr_orch *o, uint64_t model, uint64_t tokenizer)
{
    uint32_t longest = 0;
    for (int i = 0; i < o->n_worker_max; i++) {
        const struct gr_worker_info *info = &o->worker[i].info;
        if (o->worker[i].joined && info->role == GR_WORKER_TARGET && !gr_orch_differ(model, info->model_fingerprint) &&
            !gr_orch_differ(tokenizer, info->tokenizer_fingerprint)) {
            longest = info->n_ctx_max > longest ? info->n_ctx_max : longest;
        }
    }
    return longest;
}
