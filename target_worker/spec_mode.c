#include "target_worker/spec_mode.h"

#include <stddef.h>

#define LEARN_ROUND 0.15
#define LEARN_PROBE 0.4
#define LEARN_FASTER 0.5
#define HELD_UP 3.0 /* times the average: the machine did something else meanwhile, which says nothing about trees */
#define LEARN_ROOT 0.1
#define ROOT_HELD_UP 1.5 /* the same for rounds without trees, which vary less */
#define FAULT_MAX 1 /* a session whose tree round broke an invariant goes on with single tokens */

static void learn(double *average, double value, double share)
{
    *average += share * (value - *average);
}

static double at_most(double value, double most)
{
    return value < most ? value : most;
}

struct gr_spec_decision gr_spec_mode_decide(const struct gr_spec_input *in)
{
    if (!in->want_draft) {
        return (struct gr_spec_decision){.mode = GR_SPEC_PLAIN};
    }
    if (in->single_token) {
        return (struct gr_spec_decision){.mode = GR_SPEC_ROOT, .reason = "force_single_token is set"};
    }
    if (in->n_fault >= FAULT_MAX) {
        return (struct gr_spec_decision){.mode = GR_SPEC_ROOT, .reason = "a tree round broke an invariant"};
    }
    if (!in->has_drafter || in->n_node_max < 1) {
        return (struct gr_spec_decision){.mode = GR_SPEC_ROOT};
    }
    if (in->automatic && !in->warm) { /* it prepares its prefix: the first tree says nothing about the later ones */
        return (struct gr_spec_decision){.mode = in->asked ? GR_SPEC_ROOT : GR_SPEC_PROBE,
                                         .n_want = in->asked ? 0 : in->n_node_max};
    }
    if (in->automatic && (in->group != NULL ? !in->group->tries_trees : in->econ->until_clean > 0)) {
        return (struct gr_spec_decision){.mode = GR_SPEC_ROOT};
    }
    if (in->automatic && in->group == NULL && in->econ->is_root) {
        const bool probe = !in->econ->probing && in->econ->until_probe == 0;
        return (struct gr_spec_decision){.mode = probe ? GR_SPEC_PROBE : GR_SPEC_ROOT,
                                         .n_want = probe ? in->n_node_max : 0};
    }
    return (struct gr_spec_decision){.mode = GR_SPEC_TREE, .n_want = in->n_node_max};
}

void gr_spec_econ_init(struct gr_spec_econ *e, const struct gr_spec_econ *others, double root_guess_ns)
{
    *e = (struct gr_spec_econ){.root_ns = root_guess_ns, .tree_tokens = 3.0, .tree_ns = 2.0 * root_guess_ns,
                               .tree_pass_ns = root_guess_ns, .overhead_ns = 0.1 * root_guess_ns,
                               .probe_interval = GR_SPEC_PROBE_FIRST};
    if (others->n_tree >= GR_SPEC_MIN_ROUNDS) { /* this worker has seen tree rounds of other sessions */
        const double scale = others->root_ns > 0.0 ? root_guess_ns / others->root_ns : 1.0;
        e->tree_tokens = others->tree_tokens;
        e->tree_ns = others->tree_ns * scale;
        e->tree_pass_ns = others->tree_pass_ns * scale;
        e->latency_ns = others->latency_ns;
        e->overhead_ns = others->overhead_ns;
    }
}

void gr_spec_econ_rescale(struct gr_spec_econ *e, double factor)
{
    e->root_ns *= factor;
    e->tree_ns *= factor;
    e->tree_pass_ns *= factor;
    e->overhead_ns *= e->n_tree == 0 ? factor : 1.0; /* a guess is a share of the pass; a measured one is host work */
}

static double tree_rate(const struct gr_spec_econ *e)
{
    return e->tree_tokens / e->tree_ns;
}

static void stop_trees(struct gr_spec_econ *e)
{
    e->is_root = true;
    e->n_given_up++;
    e->probing = false;
    e->regret_ns = 0.0;
    e->until_probe = e->probe_interval;
}

void gr_spec_econ_warm(struct gr_spec_econ *e)
{
    e->until_clean = GR_SPEC_CLEAN_FIRST;
}

/* Root-only rounds beside a busy drafter say nothing about those without one. The first clean ones replace the guess;
 * later a slow one tells little. */
static void learn_root(struct gr_spec_econ *e, bool clean, double round_ns)
{
    e->n_root++;
    e->until_probe -= e->until_probe > 0;
    e->until_clean -= e->until_clean > 0;
    if (!clean) {
        return;
    }
    /* The guess is the cost table's: a first touch of memory is no round's price. */
    const double bounded_ns = at_most(round_ns, ROOT_HELD_UP * e->root_ns);
    if (e->n_clean == 0) {
        e->root_ns = bounded_ns;
    } else if (e->n_clean < GR_SPEC_CLEAN_FIRST) {
        e->root_ns = at_most(round_ns, e->root_ns);
    } else {
        learn(&e->root_ns, bounded_ns, LEARN_ROOT);
    }
    e->n_clean++;
}

void gr_spec_econ_round(struct gr_spec_econ *e, bool waited, bool clean, int n_token, double round_ns, double pass_ns,
                        double wait_ns)
{
    if (!waited) {
        learn_root(e, clean, round_ns);
        return;
    }
    const double share = e->n_tree == 0 ? 0.3 : LEARN_ROUND;
    learn(&e->tree_tokens, n_token, share);
    learn(&e->tree_ns, at_most(round_ns, HELD_UP * e->tree_ns), share);
    learn(&e->tree_pass_ns, at_most(pass_ns, HELD_UP * e->tree_pass_ns), share);
    const double rest = round_ns - pass_ns - wait_ns;
    const double rest_most = HELD_UP * e->overhead_ns + 0.1 * e->root_ns;
    learn(&e->overhead_ns, at_most(rest > 0.0 ? rest : 0.0, rest_most), share);
    e->n_tree++;
    e->until_clean = e->n_tree % GR_SPEC_CLEAN_EVERY == 0 ? 1 : 0;
    /* A running sum, as in a CUSUM test: luck is not saved up, and what a stop can have cost is known. */
    const double lost = round_ns - n_token * e->root_ns;
    const double waited_ns = at_most(wait_ns, GR_SPEC_REGRET_WAIT * e->root_ns);
    e->regret_ns += waited_ns + at_most(lost - wait_ns, GR_SPEC_REGRET_ROUND * e->root_ns);
    e->regret_ns = e->regret_ns > 0.0 ? e->regret_ns : 0.0;
    e->gain_ns -= lost;
    if (e->regret_ns > GR_SPEC_REGRET_MAX / (1.0 + e->n_given_up) * e->root_ns) {
        stop_trees(e);
    } else if (e->gain_ns > GR_SPEC_GAIN_MIN * e->root_ns) {
        e->probe_interval = GR_SPEC_PROBE_FIRST;
        e->n_given_up = 0;
    }
}

void gr_spec_econ_latency(struct gr_spec_econ *e, double ns, bool arrived)
{
    e->probe_ns = e->is_root && arrived ? ns : e->probe_ns;
    if (arrived && e->is_root && e->latency_ns > 0.0) {
        return; /* a probe's: drafted beside a pass */
    }
    if (arrived && e->latency_ns > 0.0) { /* a moment's delay is soon forgotten */
        const double bounded_ns = at_most(ns, HELD_UP * e->latency_ns);
        learn(&e->latency_ns, bounded_ns, ns < e->latency_ns ? LEARN_FASTER : LEARN_ROUND);
    } else if (arrived) {
        e->latency_ns = ns;
    } else if (e->latency_ns < 1.5 * ns) {
        e->latency_ns = 1.5 * ns; /* later than that: a slow drafter must not be late for ever */
    }
}

void gr_spec_econ_probe_sent(struct gr_spec_econ *e)
{
    e->probing = true;
    e->until_probe = e->probe_interval;
}

void gr_spec_econ_probed(struct gr_spec_econ *e, int n_accepted, double pass_ns)
{
    e->probing = false;
    if (!e->is_root) {
        return;
    }
    learn(&e->tree_tokens, 1.0 + n_accepted, LEARN_PROBE);
    /* What rounds took before trees were given up is past. Where draft and target share cores a probe takes longer than
     * a tree that is waited for; where the drafter has become slower meanwhile, a trial finds out and loses little. */
    e->tree_ns = at_most(e->probe_ns, e->latency_ns) + pass_ns + e->overhead_ns;
    learn(&e->tree_pass_ns, pass_ns, LEARN_PROBE);
    if (tree_rate(e) * e->root_ns > GR_SPEC_ENTER) {
        e->is_root = false;
        e->gain_ns = 0.0;
    } else {
        e->probe_interval = e->probe_interval * 2 < GR_SPEC_PROBE_LAST ? e->probe_interval * 2 : GR_SPEC_PROBE_LAST;
        e->until_probe = e->probe_interval;
    }
}

double gr_spec_econ_patience_ns(const struct gr_spec_econ *e, double limit_ns)
{
    /* Waiting w pays while tokens / (w + pass + overhead) beats the root rate. */
    const double pays = e->tree_tokens * e->root_ns - e->tree_pass_ns - e->overhead_ns;
    double wait = 2.0 * e->latency_ns; /* hysteresis: twice what it usually takes */
    wait = e->latency_ns <= 0.0 || wait > pays ? pays : wait;
    /* An unlucky average must not cut off a tree that is about to come: switching trees off is another decision. */
    wait = wait < 1.25 * e->latency_ns ? 1.25 * e->latency_ns : wait;
    wait = wait < 0.25 * e->root_ns ? 0.25 * e->root_ns : wait;
    return wait < limit_ns ? wait : limit_ns;
}

void gr_spec_group_pass(struct gr_spec_group *g, bool with_trees, int n_session, int n_token, double ns)
{
    if (!with_trees) {
        const double token_ns = ns / n_token;
        if (g->root_ns <= 0.0) {
            *g = (struct gr_spec_group){.root_ns = token_ns, .until_trial = GR_SPEC_TRIAL_FIRST,
                                        .interval = GR_SPEC_TRIAL_NEXT};
            return;
        }
        learn(&g->root_ns, at_most(token_ns, ROOT_HELD_UP * g->root_ns), LEARN_ROOT);
        g->until_trial -= g->until_trial > 0;
        if (!g->tries_trees && g->until_trial == 0) {
            g->tries_trees = true;
            g->regret_ns = g->gain_ns = 0.0;
        }
        return;
    }
    if (g->root_ns <= 0.0) {
        return; /* nothing to compare with: they tried before the group came together */
    }
    const double pass_ns = n_session * g->root_ns; /* what these sessions would have taken for a token each */
    const double lost = ns - n_token * g->root_ns;
    g->regret_ns += at_most(lost, GR_SPEC_REGRET_ROUND * pass_ns);
    g->regret_ns = g->regret_ns > 0.0 ? g->regret_ns : 0.0;
    g->gain_ns -= lost;
    if (g->regret_ns > GR_SPEC_REGRET_MAX * pass_ns) {
        g->tries_trees = false;
        g->until_trial = g->interval;
        g->interval = g->interval * 2 < GR_SPEC_PROBE_LAST ? g->interval * 2 : GR_SPEC_PROBE_LAST;
    } else if (g->gain_ns > GR_SPEC_GAIN_MIN * pass_ns) {
        g->interval = GR_SPEC_TRIAL_NEXT;
    }
}
