/* Do trees pay, for one session and for those that decode together? Running sums of what they have won and lost.
 *
 * Why sums, and not a comparison of averages: tokens and times of rounds vary by more than what trees win or lose, so
 * averages would switch trees on and off by luck. A sum that must pass a bound before anything is switched makes each
 * error cost at most that bound, and a pause that doubles after each failure makes the errors rare.
 *
 * Why root rounds as the unit: the machine's speed changes while sessions run (other processes, heat, cold caches).
 * What a round without a tree would have taken in the place of this very round is known from the cost table's ratios,
 * so a slow minute weighs no more than a fast one. */
#include "target_worker/policy/spec_mode.h"

#include <stddef.h>

/* Shares by which a moving average follows a new value. */
#define LEARN_ROUND 0.15 /* tokens and times of tree rounds */
#define LEARN_ROOT 0.2   /* times of root rounds */
#define LEARN_PROBE 0.4  /* what probes promise: they are few */
#define LEARN_FASTER 0.5 /* a latency that is shorter than before: it can be believed at once */
#define LEARN_SPEED 0.3  /* the machine's speed: it may be half of that ten rounds later */
#define LEARN_GROUP 0.1  /* the price of a group's passes */
/* A tree round's time counts at most this many times its average: the machine did something else meanwhile, which says
 * nothing about trees. Root rounds vary less. */
#define HELD_UP 3.0
#define ROOT_HELD_UP 1.5
/* The last pass of a run of root rounds may take this many times the first; and the first this many times the last,
 * while caches warm. Outside of that the machine has changed its speed, and the run says nothing. */
#define SLOWER 1.1
#define WARMER 1.6
#define PATIENCE_ROOT 1.5 /* root rounds that a tree may be waited for, whatever the averages say */
#define FIXED_TIMES 16.0  /* latencies that a tree of a fixed size is waited for: over a link it varies */
#define FIXED_LEAST 80e6  /* ns; a busy machine keeps a process waiting for tens of ms */
#define FAULT_MAX 1       /* broken invariants after which a session goes on with single tokens */
#define LOST_TURNS 2      /* turns in a row that gave trees up: one may have met a busy machine */
#define LOST_RETRY 4      /* each such session tries trees all the same: what was slow may be fast by now */

static void learn(double *average, double value, double share)
{
    *average += share * (value - *average);
}

static double at_most(double value, double most)
{
    return value < most ? value : most;
}

static double within(double value, double least, double most)
{
    return value < least ? least : at_most(value, most);
}

/* While a drafter reads many prompts the trees of a few come late, and a pass without them takes along all. */
static bool group_wants_trees(const struct gr_spec_input *in)
{
    return in->group->tries_trees && in->n_cold * GR_SPEC_COLD_PART <= in->n_group;
}

bool gr_spec_group_rests(const struct gr_spec_group *g)
{
    return g->failed && g->interval >= GR_SPEC_REST_FROM && !g->tries_trees && g->until_trial > GR_SPEC_LEAD;
}

/* In this order: what nobody wants, what was forbidden, what is impossible, then what does not pay. Only the last part
 * is for trees whose size is chosen by cost: one who asks for a fixed size gets it, pay or not. */
struct gr_spec_decision gr_spec_mode_decide(const struct gr_spec_input *in)
{
    if (!in->want_draft) {
        return (struct gr_spec_decision){.mode = GR_SPEC_PLAIN};
    }
    if (in->single_token) {
        return (struct gr_spec_decision){.mode = GR_SPEC_ROOT}; /* as asked for, so nothing falls back */
    }
    if (in->n_fault >= FAULT_MAX) {
        return (struct gr_spec_decision){.mode = GR_SPEC_ROOT, .reason = GR_FALLBACK_TREE_FAULT};
    }
    if (!in->has_drafter || in->n_node_max < 1) {
        return (struct gr_spec_decision){.mode = GR_SPEC_ROOT};
    }
    if (in->automatic && in->may_rest && in->group != NULL && gr_spec_group_rests(in->group)) {
        return (struct gr_spec_decision){.mode = GR_SPEC_ROOT};
    }
    if (in->automatic && !in->warm) { /* the drafter prepares its prefix: its first tree, which a probe asks for,
                                       * says nothing about the later ones */
        return (struct gr_spec_decision){.mode = in->asked ? GR_SPEC_ROOT : GR_SPEC_PROBE,
                                         .n_want = in->asked ? 0 : in->n_node_max};
    }
    if (in->automatic && (in->group != NULL ? !group_wants_trees(in) : in->econ->until_clean > 0)) {
        return (struct gr_spec_decision){.mode = GR_SPEC_ROOT};
    }
    if (in->automatic && in->group == NULL && in->econ->is_root) {
        const bool probe = !in->econ->probing && in->econ->until_probe == 0;
        return (struct gr_spec_decision){.mode = probe ? GR_SPEC_PROBE : GR_SPEC_ROOT,
                                         .n_want = probe ? in->n_node_max : 0};
    }
    return (struct gr_spec_decision){.mode = GR_SPEC_TREE, .n_want = in->n_node_max};
}

/* The loss that led here is paid: the sum begins anew. The pause to the first probe is the one that earlier failures
 * have grown. */
static void stop_trees(struct gr_spec_econ *e)
{
    e->is_root = true;
    e->n_given_up++;
    e->probing = false;
    e->regret = 0.0;
    e->until_probe = e->probe_interval;
}

/* Other sessions waited longer for a tree than single tokens would have taken for all that it brought, turn after turn.
 * Then the drafter is too slow, whatever the text is, and each new session would lose a few rounds to find that out. */
static bool drafter_is_too_slow(const struct gr_spec_econ *others)
{
    return others->n_lost >= LOST_TURNS && others->n_lost % LOST_RETRY != 0 &&
           others->latency_ns > others->tree_tokens * others->root_ns;
}

void gr_spec_econ_turn_ended(struct gr_spec_econ *all, const struct gr_spec_econ *e)
{
    if (e->is_root) {
        all->n_lost++;
    } else if (e->n_tree >= GR_SPEC_MIN_ROUNDS) {
        all->n_lost = 0;
    }
}

void gr_spec_econ_init(struct gr_spec_econ *e, const struct gr_spec_econ *others, double root_guess_ns)
{
    *e = (struct gr_spec_econ){.root_ns = root_guess_ns,
                               .root_pass_ns = root_guess_ns,
                               .tree_tokens = 3.0,
                               .tree_ns = 2.0 * root_guess_ns,
                               .tree_pass_ns = root_guess_ns,
                               .overhead_ns = 0.1 * root_guess_ns,
                               .probe_interval = GR_SPEC_PROBE_FIRST};
    if (others->n_tree >= GR_SPEC_MIN_ROUNDS) { /* this worker has seen tree rounds of other sessions */
        e->foreseen = true;
        const double scale = others->root_ns > 0.0 ? root_guess_ns / others->root_ns : 1.0;
        e->tree_tokens = others->tree_tokens;
        e->tree_ns = others->tree_ns * scale;
        e->tree_pass_ns = others->tree_pass_ns * scale;
        e->latency_ns = others->latency_ns;
        e->overhead_ns = others->overhead_ns;
        if (drafter_is_too_slow(others)) {
            stop_trees(e);
        }
    }
}

void gr_spec_econ_rescale(struct gr_spec_econ *e, double factor)
{
    e->root_ns *= factor;
    e->root_pass_ns *= factor;
    e->tree_ns *= factor;
    e->tree_pass_ns *= factor;
    e->overhead_ns *= e->n_tree == 0 ? factor : 1.0; /* a guess is a share of the pass; a measured one is host work */
}

/* Tokens a ns with trees, waits included. */
static double tree_rate(const struct gr_spec_econ *e)
{
    return e->tree_tokens / e->tree_ns;
}

/* Trees bring so much, here or in the sessions before, that no comparison would change anything. */
static bool is_sure(const struct gr_spec_econ *e)
{
    return (e->foreseen || e->n_tree >= GR_SPEC_MIN_ROUNDS) && tree_rate(e) * e->root_ns >= GR_SPEC_SURE;
}

void gr_spec_econ_warm(struct gr_spec_econ *e, bool alone)
{
    e->until_clean = alone && is_sure(e) ? 0 : GR_SPEC_CLEAN_FIRST;
}

/* Passes get shorter as the caches warm; one that is longer, or much shorter: the machine has changed its speed. */
static bool is_warming(double first_pass_ns, double last_pass_ns)
{
    return last_pass_ns < SLOWER * first_pass_ns && last_pass_ns * WARMER > first_pass_ns;
}

/* What a root-only round is to the passes of the tree rounds before it. The first comparisons count alike. */
static void compare_to_trees(struct gr_spec_econ *e, double round_ns)
{
    const double alike = 1.0 / (e->n_clean + 1.0);
    learn(&e->root_ns, round_ns, alike > LEARN_ROOT ? alike : LEARN_ROOT);
}

/* Root-only rounds beside a busy drafter say nothing about those without one, nor do those right after a prompt or a
 * tree, which find the caches cold: of the few that are run to learn from, the last one counts. */
static void learn_root(struct gr_spec_econ *e, const struct gr_spec_round *r)
{
    const bool begins = e->until_clean == GR_SPEC_CLEAN_RUN;
    e->n_root++;
    e->until_probe -= e->until_probe > 0;
    e->until_clean -= e->until_clean > 0;
    e->run_pass_ns = begins ? r->pass_ns : e->run_pass_ns;
    if (!r->clean || (!e->is_root && e->until_clean > 0)) {
        return;
    }
    const double before_ns = e->root_ns;
    /* One that is far off tells little: the machine did something else. */
    const double bounded_ns = within(r->round_ns, before_ns / ROOT_HELD_UP, before_ns * ROOT_HELD_UP);
    if (e->n_clean == 0) { /* it replaces the guess, which is the cost table's */
        e->root_ns = bounded_ns;
        e->root_pass_ns = r->root_pass_ns;
    } else if (e->is_root) { /* the machine's speed, which passes with trees will be compared with */
        learn(&e->root_ns, bounded_ns, LEARN_ROOT);
        e->root_pass_ns *= e->root_ns / before_ns;
        return;
    } else if (is_warming(e->run_pass_ns, r->pass_ns)) {
        compare_to_trees(e, bounded_ns);
    }
    e->n_clean++;
}

/* Tree rounds' passes show how fast the machine is at present; what a root-only round takes follows. */
static void follow_speed(struct gr_spec_econ *e, double root_pass_ns)
{
    const double before_ns = e->root_pass_ns;
    learn(&e->root_pass_ns, at_most(root_pass_ns, HELD_UP * before_ns), LEARN_SPEED);
    e->root_ns *= e->root_pass_ns / before_ns;
}

/* After 8 tree rounds, 24, 56, then every 64; but not where the answer is clear. */
static bool clean_is_due(const struct gr_spec_econ *e)
{
    const uint32_t n = e->n_tree + GR_SPEC_CLEAN_SOON;
    const bool early = n > GR_SPEC_CLEAN_SOON && n < GR_SPEC_CLEAN_EVERY && (n & (n - 1)) == 0;
    return (early || n % GR_SPEC_CLEAN_EVERY == 0) && !is_sure(e);
}

/* In root-only rounds of the machine's speed during this very round: a pause or a slow minute counts no more than the
 * tokens that it kept from coming. A running sum, as in a CUSUM test: luck is not saved up, and what a stop can have
 * cost is known. */
static void weigh(struct gr_spec_econ *e, const struct gr_spec_round *r)
{
    const double root_ns = e->root_ns / e->root_pass_ns * r->root_pass_ns;
    const double lost = r->round_ns / root_ns - r->n_token;
    const double waited = r->wait_ns / root_ns;
    e->regret += at_most(waited, GR_SPEC_REGRET_WAIT) + at_most(lost - waited, GR_SPEC_REGRET_ROUND);
    e->regret = e->regret > 0.0 ? e->regret : 0.0;
    e->gain -= lost;
    if (e->regret > GR_SPEC_REGRET_MAX / (1.0 + e->n_given_up)) {
        stop_trees(e);
    } else if (e->gain > GR_SPEC_GAIN_MIN) {
        e->probe_interval = GR_SPEC_PROBE_FIRST;
        e->n_given_up = 0;
    }
}

/* Every value is bounded by its average before it is learnt, since one round that was held up would otherwise speak for
 * dozens. Only a round that was this session's own pass is weighed: about shared ones the group decides. */
void gr_spec_econ_round(struct gr_spec_econ *e, const struct gr_spec_round *r)
{
    if (!r->waited) {
        learn_root(e, r);
        return;
    }
    const double share = e->n_tree == 0 ? 0.3 : LEARN_ROUND;
    learn(&e->tree_tokens, r->n_token, share);
    learn(&e->tree_ns, at_most(r->round_ns, HELD_UP * e->tree_ns), share);
    learn(&e->tree_pass_ns, at_most(r->pass_ns, HELD_UP * e->tree_pass_ns), share);
    const double rest = r->round_ns - r->pass_ns - r->wait_ns;
    const double rest_most = HELD_UP * e->overhead_ns + 0.1 * e->root_ns;
    learn(&e->overhead_ns, at_most(rest > 0.0 ? rest : 0.0, rest_most), share);
    e->n_tree++;
    follow_speed(e, r->root_pass_ns);
    if (!r->shared) {
        e->until_clean = clean_is_due(e) ? GR_SPEC_CLEAN_RUN : 0;
        weigh(e, r);
    }
}

void gr_spec_econ_latency(struct gr_spec_econ *e, double ns, bool arrived)
{
    e->probe_ns = e->is_root && arrived ? ns : e->probe_ns;
    if (arrived && e->is_root && e->latency_ns > 0.0) {
        return; /* a probe's, which is drafted beside a pass and takes longer */
    }
    if (arrived && e->latency_ns > 0.0) { /* a delay of a moment is soon forgotten, a shorter time is believed */
        const double bounded_ns = at_most(ns, HELD_UP * e->latency_ns);
        learn(&e->latency_ns, bounded_ns, ns < e->latency_ns ? LEARN_FASTER : LEARN_ROUND);
    } else if (arrived) {
        e->latency_ns = ns;
    } else if (e->latency_ns < 1.5 * ns) {
        e->latency_ns = 1.5 * ns; /* it takes longer than was waited: else a slow drafter would be late for ever */
    }
}

void gr_spec_econ_probe_sent(struct gr_spec_econ *e)
{
    e->probing = true;
    e->until_probe = e->probe_interval;
}

void gr_spec_econ_forget_probe(struct gr_spec_econ *e)
{
    e->probing = false;
}

void gr_spec_econ_probed(struct gr_spec_econ *e, int n_accepted, double pass_ratio)
{
    const double pass_ns = pass_ratio * e->root_pass_ns;
    e->probing = false;
    if (!e->is_root) {
        return;
    }
    learn(&e->tree_tokens, 1.0 + n_accepted, LEARN_PROBE);
    /* What rounds took before trees were given up is past. Where draft and target share cores a probe takes longer than
     * a tree that is waited for; where the drafter has become slower meanwhile, a trial finds out and loses little. */
    e->tree_ns = at_most(e->probe_ns, e->latency_ns) + pass_ns + e->overhead_ns;
    learn(&e->tree_pass_ns, pass_ns, LEARN_PROBE);
    const double promise = tree_rate(e) * e->root_ns;
    if (promise > GR_SPEC_ENTER) {
        e->is_root = false;
        e->gain = 0.0;
    } else {
        const uint32_t next = e->probe_interval * (promise < GR_SPEC_HOPELESS ? 4 : 2);
        e->probe_interval = next < GR_SPEC_PROBE_LAST ? next : GR_SPEC_PROBE_LAST;
        e->until_probe = e->probe_interval;
    }
}

/* Two bounds stand against each other. Waiting must pay on the average, or trees lose; but averages come from the trees
 * that were waited for, so a bound that is too tight would cut off the slow and good ones and never learn of them. */
double gr_spec_econ_patience_ns(const struct gr_spec_econ *e, double limit_ns)
{
    /* Waiting w pays while tokens / (w + pass + overhead) beats the root rate. */
    const double pays = e->tree_tokens * e->root_ns - e->tree_pass_ns - e->overhead_ns;
    if (e->latency_ns <= 0.0) {
        return at_most(pays > 0.25 * e->root_ns ? pays : 0.25 * e->root_ns, limit_ns);
    }
    /* Trees differ: one that takes three times as long as most was worth it to the drafter, and has more tokens. */
    double most = pays > PATIENCE_ROOT * e->root_ns ? pays : PATIENCE_ROOT * e->root_ns;
    /* An unlucky average must not cut off a tree that is about to come: switching trees off is another decision. */
    most = most > 1.25 * e->latency_ns ? most : 1.25 * e->latency_ns;
    return at_most(within(3.0 * e->latency_ns, 0.25 * e->root_ns, most), limit_ns);
}

double gr_spec_fixed_patience_ns(const struct gr_spec_econ *e, bool warm, bool silent, double limit_ns)
{
    if (silent) {
        return 0.0;
    }
    const double most = FIXED_TIMES * e->latency_ns;
    const bool known = warm && e->latency_ns > 0.0;
    return known ? at_most(most > FIXED_LEAST ? most : FIXED_LEAST, limit_ns) : limit_ns;
}

/* A group cannot compare trees with their absence in one pass, as a session alone can by its cost table: what one
 * session gains others may lose. So it tries: passes with trees for a while, against the price of passes without. */
static void begin_trial(struct gr_spec_group *g)
{
    g->tries_trees = true;
    g->regret = g->gain = g->balance = 0.0;
    g->n_tried = 0;
}

static void end_trial(struct gr_spec_group *g)
{
    g->tries_trees = false;
    g->failed = true;
    g->until_trial = g->interval;
    g->interval = g->interval * 2 < GR_SPEC_PROBE_LAST ? g->interval * 2 : GR_SPEC_PROBE_LAST;
}

static void learn_without_trees(struct gr_spec_group *g, const struct gr_spec_group_pass *p)
{
    if (!p->disturbed) {
        learn(&g->price, within(p->ns / p->price_ns, g->price / ROOT_HELD_UP, g->price * ROOT_HELD_UP), LEARN_GROUP);
    }
    g->until_trial -= g->until_trial > 0;
    if (!g->tries_trees && g->until_trial == 0) {
        begin_trial(g);
    }
}

/* Two sums. While the drafter reads a new session's prompt trees come one by one and lose; it reads each prompt once,
 * and trees win the loss back while the session lasts. So such passes count in `balance` only, which speaks against
 * trees where prompts keep coming; `regret` is of settled passes alone. The margin: sessions that have luck with their
 * trees end early, and the others go on in a smaller group, so trees must win a little more than they cost. */
static void weigh_group(struct gr_spec_group *g, const struct gr_spec_group_pass *p)
{
    const double worth = p->n_token / (GR_SPEC_GROUP_MARGIN * p->n_session);
    const double lost = at_most(p->ns / (g->price * p->price_ns) - worth, GR_SPEC_REGRET_ROUND);
    const bool settled = g->until_settled == 0;
    g->balance = at_most(g->balance * (1.0 - 1.0 / GR_SPEC_BALANCE_PASSES) - lost, GR_SPEC_BALANCE_GROUP);
    g->until_settled -= g->until_settled > 0;
    if (settled) {
        g->regret = g->regret + lost > 0.0 ? g->regret + lost : 0.0;
        g->gain -= lost;
        g->n_tried += g->n_tried < UINT32_MAX;
    }
}

void gr_spec_group_pass(struct gr_spec_group *g, const struct gr_spec_group_pass *p)
{
    if (g->price <= 0.0) {
        *g = (struct gr_spec_group){.price = 1.0, .until_trial = GR_SPEC_TRIAL_FIRST, .interval = GR_SPEC_TRIAL_NEXT};
    }
    g->until_settled = p->cold ? GR_SPEC_SETTLE : g->until_settled;
    if (!p->with_trees) {
        learn_without_trees(g, p);
        return;
    }
    if (!g->tries_trees) {
        return; /* these sessions tried trees before the group came together, or do not know yet that it has given them
                   up */
    }
    weigh_group(g, p);
    const double patience = g->failed ? 0.5 : 1.0;
    const bool in_vain = g->n_tried >= GR_SPEC_TRIAL_LONG && g->gain <= 0.0;
    if (in_vain || g->regret > GR_SPEC_REGRET_GROUP * patience || -g->balance > GR_SPEC_BALANCE_GROUP * patience) {
        end_trial(g);
    } else if (g->gain > GR_SPEC_GAIN_MIN) {
        g->interval = GR_SPEC_TRIAL_NEXT;
        g->failed = false;
    }
}
