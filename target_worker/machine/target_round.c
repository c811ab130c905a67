/* What a session's next round is: its mode, how long it waits, and the trees that come out of time. */
#include "common/base/log.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- costs ---- */

/* Rows and contexts that other decoding sessions bring into a pass. */
static struct gr_pass_load others_load(const struct gr_target *t, const struct session *s)
{
    struct gr_pass_load load = {0};
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *o = &t->session[i];
        if (o != s && o->state == SESSION_DECODE) {
            const int32_t n_row = o->mode == GR_SPEC_TREE ? 1 + (o->draft.valid ? o->draft.tree.n : 0) : 1;
            gr_pass_load_add(&load, n_row, target_specpv_context(o));
        }
    }
    return load;
}

static double estimate_with(const struct gr_target *t, struct gr_pass_load load, const struct session *s, int32_t n_row)
{
    gr_pass_load_add(&load, n_row, target_specpv_context(s));
    return gr_cost_table_estimate(&t->cost, &load);
}

double target_pass_ns(const struct gr_target *t, const struct session *s, int32_t n_row)
{
    return estimate_with(t, others_load(t, s), s, n_row);
}

double target_pass_ratio(const struct gr_target *t, const struct session *s, int32_t n_row)
{
    if (n_row == 1) { /* most of many sessions, each of which would look at all others */
        return 1.0;
    }
    const struct gr_pass_load others = others_load(t, s);
    return estimate_with(t, others, s, n_row) / estimate_with(t, others, s, 1);
}

double target_alone_ns(const struct gr_target *t, int32_t n_row, struct gr_attended context)
{
    struct gr_pass_load load = {0};
    gr_pass_load_add(&load, n_row, context);
    return gr_cost_table_estimate(&t->cost, &load);
}

/* Its drafter still prepares the prefix. */
static bool is_cold(const struct session *s)
{
    return s->auto_tree && s->has_peer && !s->warm && !s->single_token && s->n_fault == 0;
}

struct decoding target_decoding(const struct gr_target *t)
{
    struct decoding d = {0};
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *s = &t->session[i];
        d.n += s->state == SESSION_DECODE;
        d.n_cold += s->state == SESSION_DECODE && is_cold(s);
    }
    return d;
}

int target_in_turn(const struct gr_target *t)
{
    int n = 0;
    for (int i = 0; i < t->config.n_session_max; i++) {
        n += t->session[i].state != SESSION_FREE && t->session[i].state != SESSION_IDLE;
    }
    return n;
}

struct gr_spec_group *target_group(struct gr_target *t, int n)
{
    int class = 0;
    if (n < 2) {
        return NULL;
    }
    while (class + 1 < GR_GROUP_CLASSES && (2 << class) < n) {
        class ++;
    }
    return &t->group[class];
}

bool target_drafters_rest(struct gr_target *t)
{
    const struct gr_spec_group *g = target_group(t, target_in_turn(t));
    return t->config.feature_width > 0 && g != NULL && gr_spec_group_rests(g);
}

/* Sessions whose trees are sized by cost are told the same prices, and choose alike: a node that pays for one is one
 * that all will have, and each row holds up all. */
struct company {
    struct gr_pass_load others; /* that do not choose */
    struct {
        int n;
        int32_t n_token; /* of all their contexts */
    } alike[2];          /* under full attention, under a view */
};

static void add_company(struct company *c, const struct session *s, bool chooses)
{
    const struct gr_attended context = target_specpv_context(s);
    const bool has_trees = s->has_peer && !s->single_token && s->n_fault == 0;
    if (chooses || (has_trees && s->auto_tree)) {
        c->alike[context.view].n++;
        c->alike[context.view].n_token += context.n_token;
    } else {
        gr_pass_load_add(&c->others, has_trees ? 1 + s->n_node : 1, context);
    }
}

/* A pass in which those that choose have n_row rows each. */
static struct gr_pass_load load_of_all(const struct company *c, int32_t n_row)
{
    struct gr_pass_load load = c->others;
    for (int v = 0; v < 2; v++) {
        if (c->alike[v].n > 0) {
            gr_pass_load_add(&load, n_row, (struct gr_attended){.n_token = c->alike[v].n_token, .view = v});
            load.n_row += (c->alike[v].n - 1) * n_row;
        }
    }
    return load;
}

/* More than an eighth away somewhere: worth telling again. */
static bool moved(const struct gr_cost *a, const struct gr_cost *b)
{
    for (uint32_t i = 0; i < GR_MIN(a->n_point, b->n_point); i++) {
        const int64_t d = (int64_t)a->pass_ns[i] - (int64_t)b->pass_ns[i];
        if (llabs(d) * 8 > (int64_t)b->pass_ns[i]) {
            return true;
        }
    }
    return a->n_point != b->n_point || memcmp(a->n_row, b->n_row, sizeof(a->n_row)) != 0;
}

void target_send_cost(struct gr_target *t, struct session *s)
{
    if (!s->has_peer || !s->auto_tree) {
        return;
    }
    struct gr_pass_load load[GR_COST_POINT_MAX];
    int32_t n_row[GR_COST_POINT_MAX];
    struct company company = {0};
    struct gr_cost cost;
    for (int i = 0; i < t->config.n_session_max; i++) {
        const struct session *o = &t->session[i];
        if (o == s || o->state == SESSION_DECODE) {
            add_company(&company, o, o == s);
        }
    }
    const int n_point = gr_cost_list_rows(company.others.n_row, company.alike[0].n + company.alike[1].n, n_row);
    for (int i = 0; i < n_point; i++) {
        load[i] = load_of_all(&company, n_row[i]);
    }
    gr_cost_table_list(&t->cost, n_point, n_row, load, target_econ(s)->overhead_ns + s->wire_ns, &cost);
    s->cost_decode = target_decoding(t).n;
    if (!moved(&s->cost_told, &cost)) {
        return;
    }
    const struct gr_frame_header h = {.session = s->id, .epoch = s->epoch, .round = s->round};
    const uint32_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_COST_BYTES(cost.n_point);
    uint8_t *out = t->io.frame_begin(t->io.ctx, s->peer, GR_FRAME_SMALL, bytes);
    if (out != NULL) { /* else another round tells */
        const size_t n = gr_wire_encode_cost(&h, &cost, out, bytes);
        t->io.frame_end(t->io.ctx, s->peer, (uint32_t)n);
        s->cost_told = cost;
        log_debug("session %" PRIu64
                  " round %u: COST told: overhead %u us, 1 row %u, 2 rows %u, 3 rows %u, 4 rows %u, 64 rows %u",
                  s->id, s->round, cost.overhead_ns / 1000, cost.pass_ns[0] / 1000, cost.pass_ns[1] / 1000,
                  cost.pass_ns[2] / 1000, cost.pass_ns[3] / 1000, cost.pass_ns[cost.n_point - 1] / 1000);
    }
}

/* ---- the decision ---- */

/* Attached, or wanted and not yet given up on. */
static bool expects_drafter(const struct session *s)
{
    return s->want_draft && (s->has_peer || !s->ever_attached);
}

static void tell_reason(struct gr_target *t, struct session *s, enum gr_fallback reason)
{
    if (reason != GR_FALLBACK_NONE && reason != s->reason) {
        target_fall_back(t, s, reason, NULL);
    }
    s->reason = reason;
}

/* What is left of the limit bounds the path, not the nodes: a tree as wide as ever finds more of it. Levels below are
 * cut when the tree enters its pass (target_subtree). */
static int32_t n_node_max(const struct session *s)
{
    const bool none = target_n_new_left(s) <= 1 || (s->has_peer && target_lacks_features(s));
    return none ? 0 : s->n_node;
}

void target_begin_root(struct session *s, uint64_t now_ns)
{
    s->mode = s->want_draft ? GR_SPEC_ROOT : GR_SPEC_PLAIN;
    s->n_want = 0;
    s->verdict_ns = s->deadline_ns = now_ns;
}

void target_forget_trees(struct session *s)
{
    s->draft.valid = s->probe.valid = s->asked = false;
    s->silent_ns = 0;
    s->econ[0].probing = s->econ[1].probing = false;
}

/* A probe that was sent alone is judged by nobody in company, nor the other way round: the next one is. */
static void note_company(struct session *s, bool crowded)
{
    if (s->crowded != crowded) {
        s->econ[0].probing = s->econ[1].probing = false;
        s->probe.valid = false;
        s->crowded = crowded;
    }
}

/* Alone: of sessions that decode together the group decides. */
static void log_wanted(struct session *s)
{
    const struct gr_spec_econ *e = &s->econ[0];
    if (s->auto_tree && s->was_root != e->is_root) {
        s->was_root = e->is_root;
        log_debug("session %" PRIu64
                  " round %u: trees %s: %.2f tokens in %.0f us, without %.0f us; latency %.0f us, next probe "
                  "in %u rounds",
                  s->id, s->round, e->is_root ? "given up" : "wanted again", e->tree_tokens, e->tree_ns / 1e3,
                  e->root_ns / 1e3, e->latency_ns / 1e3, e->until_probe);
    }
}

void target_begin_round(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    if (s->pv.end_due != GR_FINISH_NONE) {
        target_begin_root(s, now_ns); /* the next pass only judges whether the text ends here */
        return;
    }
    const struct decoding all = target_decoding(t);
    note_company(s, all.n > 1);
    const struct gr_spec_input in = {.want_draft = s->want_draft,
                                     .single_token = s->single_token,
                                     .has_drafter = expects_drafter(s),
                                     .n_fault = s->n_fault,
                                     .n_node_max = n_node_max(s),
                                     .automatic = s->auto_tree,
                                     .may_rest = t->config.feature_width > 0,
                                     .group = target_group(t, all.n),
                                     .n_group = all.n,
                                     .n_cold = all.n_cold,
                                     .warm = s->warm,
                                     .asked = s->asked,
                                     .econ = target_econ(s)};
    const struct gr_spec_decision d = gr_spec_mode_decide(&in);
    const double limit_ns = (double)t->config.round_deadline_ns;
    double wait_ns = 0.0;
    log_wanted(s);
    tell_reason(t, s, d.reason);
    s->mode = d.mode;
    s->n_want = d.n_want;
    if (d.mode == GR_SPEC_TREE) {
        wait_ns = s->auto_tree ? gr_spec_econ_patience_ns(target_econ(s), limit_ns) : limit_ns;
    }
    if (s->begun_round != s->round) {
        s->begun_round = s->round;
        s->give_up_ns = now_ns + GR_SILENT_DEADLINES * t->config.round_deadline_ns;
    }
    s->verdict_ns = now_ns;
    s->deadline_ns = GR_MIN(now_ns + (uint64_t)wait_ns, s->give_up_ns);
}

void target_reprice(struct gr_target *t, struct session *s)
{
    const double now_ns = target_alone_ns(t, 1, gr_attends_all(s->committed_len));
    const double then_ns = target_alone_ns(t, 1, gr_attends_all(s->econ_len));
    /* What was guessed when the session was opened may rest on a table that had not seen any context. */
    const double guess_ns = s->econ[0].n_clean == 0 ? s->econ[0].root_ns : then_ns;
    if (guess_ns > 0.0 && then_ns > 0.0 && now_ns > 0.0) {
        gr_spec_econ_rescale(&s->econ[0], now_ns / guess_ns);
        gr_spec_econ_rescale(&s->econ[1], now_ns / then_ns);
    }
    s->econ_len = s->committed_len;
}

void target_resume(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    s->state = SESSION_DECODE;
    s->round = GR_MAX(s->round, 1u); /* round 0 was a prompt's */
    s->begun_round = 0;
    target_reprice(t, s);
    target_begin_round(t, s, now_ns);
    s->owed = s->owed || (s->has_peer && target_asks(s));
    target_send_deltas(t, s, now_ns);
}

bool target_waits(const struct session *s, uint64_t now_ns)
{
    return s->mode == GR_SPEC_TREE && expects_drafter(s) && !s->draft.valid && now_ns < s->deadline_ns;
}

void target_note_silence(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    if (s->has_peer && s->silent_ns != 0 &&
        now_ns - s->silent_ns >= GR_SILENT_DEADLINES * t->config.round_deadline_ns) {
        target_drop_drafter(t, s, GR_FALLBACK_DRAFTER_SILENT);
    }
}

/* ---- trees out of time ---- */

static int child_with(const struct gr_token_tree *t, int parent, int32_t token)
{
    for (int i = parent + 1; i < t->n; i++) {
        if (t->parent[i] == parent && t->token[i] == token) {
            return i;
        }
    }
    return -1;
}

bool target_walk_tree(const struct session *s, struct walked_tree *w)
{
    while (w->valid && w->at_len < s->committed_len) {
        const int child = child_with(&w->tree, w->root, s->token[w->at_len]);
        w->valid = child >= 0;
        if (w->valid) {
            w->root = (int16_t)child;
            w->at_len++;
        }
    }
    return w->valid;
}

void target_subtree(const struct walked_tree *w, int32_t depth_max, int32_t n_max, struct gr_token_tree *to,
                    uint8_t node_of[GR_NODE_MAX])
{
    const struct gr_token_tree *from = &w->tree;
    int16_t new_index[GR_NODE_MAX];
    int16_t depth[GR_NODE_MAX];
    to->n = 0;
    for (int i = 0; i < from->n; i++) {
        const int parent = from->parent[i];
        const bool child_of_root = parent == w->root;
        new_index[i] = -1;
        if (to->n >= n_max || (!child_of_root && (parent < 0 || new_index[parent] < 0))) {
            continue;
        }
        depth[i] = child_of_root ? 1 : (int16_t)(depth[parent] + 1);
        if (depth[i] > depth_max) {
            continue;
        }
        new_index[i] = (int16_t)to->n;
        to->token[to->n] = from->token[i];
        to->parent[to->n] = child_of_root ? (int16_t)-1 : new_index[parent];
        node_of[to->n++] = (uint8_t)i;
    }
}

bool target_has_children(const struct walked_tree *w)
{
    for (int i = w->root + 1; i < w->tree.n; i++) {
        if (w->tree.parent[i] == w->root) {
            return true;
        }
    }
    return false;
}

/* Nobody waited for this tree: what would it have brought? Its path is followed as tokens are committed. */
void target_judge_probe(struct gr_target *t, struct session *s)
{
    struct walked_tree *w = &s->probe;
    if (!w->valid || (target_walk_tree(s, w) && target_has_children(w))) {
        return;
    }
    w->valid = false;
    gr_spec_econ_probed(target_econ(s), w->at_len - (int32_t)w->base_len, target_pass_ratio(t, s, 1 + w->tree.n));
}
