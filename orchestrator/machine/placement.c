#include "orchestrator/machine/placement.h"

/* A round that is longer by less than this factor counts as equally fast: workers that are alike, started on a machine
 * that does other things as well, have been seen to measure themselves 22 % apart. */
#define AS_FAST 1.25

double gr_forecast_round_ns(const struct gr_round_forecast *f, uint32_t n_active)
{
    if (f->round_ns <= 0.0) {
        return 0.0;
    }
    if (n_active < f->n_active && f->first_ns > 0.0) {
        return f->first_ns + (f->round_ns - f->first_ns) * n_active / f->n_active;
    }
    /* Sessions that have ended take away what they added, but no round is shorter than nothing. */
    const double ns = f->round_ns + f->more_ns * ((double)n_active - (double)f->n_active);
    return ns > 1.0 ? ns : 1.0;
}

double gr_forecast_present_ns(const struct gr_round_forecast *f, uint32_t n_active)
{
    return n_active > 0 ? gr_forecast_round_ns(f, n_active - 1) : 0.0;
}

/* What is asked of a candidate, beside that it fits. */
struct demand {
    bool unshunned, with_room;
};

static bool is_candidate(const struct gr_place *p, struct demand d)
{
    return p->fits && (!p->shunned || !d.unshunned) && (p->has_room || !d.with_room);
}

static bool some_meet(const struct gr_place *p, int n, struct demand d)
{
    bool some = false;
    for (int i = 0; i < n; i++) {
        some = some || is_candidate(&p[i], d);
    }
    return some;
}

/* As much as some meet. */
static struct demand demand_of(const struct gr_place *p, int n)
{
    struct demand d = {.unshunned = true};
    d.unshunned = some_meet(p, n, d);
    d.with_room = true;
    d.with_room = some_meet(p, n, d);
    return d;
}

/* The longest round that counts as equally fast as the shortest. 0: a candidate's is not known, so none is compared. */
static double longest_round_ns(const struct gr_place *p, int n, struct demand d)
{
    double least = 0.0;
    for (int i = 0; i < n; i++) {
        if (is_candidate(&p[i], d)) {
            if (p[i].round_ns <= 0.0) {
                return 0.0;
            }
            least = least == 0.0 || p[i].round_ns < least ? p[i].round_ns : least;
        }
    }
    return least * AS_FAST;
}

/* Does a have less to do than b? Alike: neither has. */
static bool is_freer(const struct gr_place *a, const struct gr_place *b)
{
    if (a->n_active != b->n_active) {
        return a->n_active < b->n_active;
    }
    if (a->n_held != b->n_held) {
        return a->n_held < b->n_held;
    }
    return a->n_free_block > b->n_free_block;
}

static bool is_better(const struct gr_place *a, const struct gr_place *b, bool are_compared)
{
    if (are_compared && a->n_prompt != b->n_prompt) {
        return a->n_prompt > b->n_prompt;
    }
    return is_freer(a, b);
}

int gr_place_choose(const struct gr_place *p, int n, int last)
{
    const struct demand d = demand_of(p, n);
    const double longest_ns = longest_round_ns(p, n, d);
    int best = -1;
    for (int k = 1; k <= n; k++) {
        const int i = (last + k) % n;
        const bool is_fast = longest_ns == 0.0 || p[i].round_ns <= longest_ns;
        if (is_candidate(&p[i], d) && is_fast && (best < 0 || is_better(&p[i], &p[best], longest_ns > 0.0))) {
            best = i;
        }
    }
    return best;
}

bool gr_pays_to_shed(const struct gr_round_forecast *from, uint32_t from_active, const struct gr_round_forecast *to,
                     uint32_t to_active)
{
    const double here_ns = gr_forecast_present_ns(from, from_active);
    if (from->round_ns <= 0.0 || from_active < 2) {
        return false;
    }
    /* One that drafts for nobody has said nothing: a session alone there takes what one of many takes here. */
    const double there_ns = to->round_ns > 0.0 ? gr_forecast_round_ns(to, to_active) : from->more_ns * (to_active + 1);
    return there_ns <= here_ns / 2;
}

/* What a token takes with trees for which the session waits so long. */
static double token_ns(const struct gr_tree_worth *w, double wait_ns)
{
    return (w->pass_ns + wait_ns) / (1.0 + w->n_accepted);
}

bool gr_pays_to_shed_to_none(const struct gr_round_forecast *from, uint32_t from_active, const struct gr_tree_worth *w)
{
    const double wait_ns = gr_forecast_present_ns(from, from_active);
    return from->round_ns > 0.0 && from_active >= 2 && w->pass_ns > 0.0 && w->pass_ns <= token_ns(w, wait_ns) / 2;
}

bool gr_pays_to_draft(const struct gr_round_forecast *to, uint32_t to_active, const struct gr_tree_worth *w)
{
    return to->round_ns <= 0.0 || token_ns(w, gr_forecast_round_ns(to, to_active)) <= w->pass_ns;
}
