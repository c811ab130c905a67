/* A pass is done: what it brought is judged, appended, told.
 *
 * apply_walk() takes a session through it in a fixed order, since each step rests on the one before: the tokens must
 * stand before their features count and before trees are followed along them; the round must be learnt from before the
 * next one is decided; and the next round must be decided before the VERDICT, which asks for its tree. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>
#include <stdio.h>

static void account_pass(struct gr_target *t)
{
    const struct gr_pass *p = &t->pass;
    const double ns = (double)(p->forward_ns + p->sample_ns + p->commit_ns);
    const double share = t->config.prefill_share;
    /* Beside a drafter on the same device a pass takes longer, which says nothing about rows. */
    if (ns > 0.0 && !(t->config.shares_device && (t->pass_beside_draft || target_is_drafting(t)))) {
        gr_cost_table_observe(&t->cost, &t->pass_load, ns);
    }
    if (share <= 0.0) {
        return;
    }
    const double prefill_ns = p->n_row > 0 ? ns * t->pass_prefill_rows / p->n_row : 0.0;
    t->prefill_credit_ns += (ns - prefill_ns) * share / (1.0 - share) - prefill_ns;
    t->prefill_credit_ns = GR_MIN(t->prefill_credit_ns, 0.0); /* nothing is saved up while there are no prompts */
}

static void count_round(struct gr_target *t, const struct session *s, const struct gr_pass_seq *q)
{
    if (q->kind == GR_PASS_TREE) {
        t->counters.n_tree_round++;
    } else {
        t->counters.n_root_round++;
    }
    gr_log_topic_line(GR_TOPIC_ROUND,
                      "round=%u session=%" GR_SESSION_ID_PRI " sessions=%d draft_tokens=%d accepted_tokens=%d "
                      "committed_len=%d kv_len=%d",
                      s->next.round, s->id, t->pass.n_seq, q->tree.n, q->walk.n_accepted, s->prefix.len, s->kv.len);
    gr_log_topic_line(GR_TOPIC_KV, "session=%" GR_SESSION_ID_PRI " kv_blocks=%d free_blocks=%d of %d", s->id,
                      s->kv.table.n_block, t->pool.n_free, t->pool.n_block);
}

/* What a round came to. */
struct outcome {
    int32_t base_len, keep_len; /* tokens before the round, and those of them that stand after it */
    int32_t n_path;             /* accepted nodes that have KV */
    bool appended;              /* a token without KV, the new tail, follows them */
    enum gr_finish finish;
};

static void send_commit(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, uint32_t round,
                        const struct outcome *o)
{
    const struct judged judged = target_specpv_judged(q);
    const struct gr_pass *p = &t->pass;
    int32_t parents[GR_NODE_MAX];
    int32_t path[GR_NODE_MAX];
    struct gr_msg m = {
        .type = GR_MSG_COMMIT,
        .session = s->id,
        .commit = {.epoch = s->epoch,
                   .round = round,
                   .keep_len = (uint32_t)o->keep_len,
                   .final_len = (uint32_t)s->kv.final_len,
                   .ids = {.p = &s->prefix.token[o->keep_len], .n = (uint32_t)(s->prefix.len - o->keep_len)},
                   .hash = s->prefix.hash[s->prefix.len],
                   .finish = (uint32_t)o->finish,
                   .verdict_kind = target_specpv_kind(q),
                   .n_draft = (uint32_t)q->tree.n,
                   .n_accepted = (uint32_t)(o->keep_len == o->base_len && !q->judge_only ? q->walk.n_accepted : 0),
                   .n_mismatch = (uint32_t)judged.n_mismatch,
                   .n_judged = (uint32_t)judged.n_checked,
                   .gap = (double)q->gap,
                   .wait_ns = s->flight.wait_ns,
                   .draft_ns = s->flight.draft_ns,
                   .verify_ns = p->forward_ns,
                   .host_ns = s->host_ns,
                   .n_row = (uint32_t)p->n_row,
                   .n_cached = (uint32_t)(round == 0 ? GR_MAX(s->turn.n_cached, 0) : 0),
                   .n_late = s->tally.n_late,
                   .n_desync = s->tally.n_desync,
                   .n_fallback = s->fallbacks.n_untold,
                   .n_reroot = s->tally.n_reroot,
                   .ahead = s->flight.ahead},
    };
    if (s->wishes.turn.want_trace && q->kind == GR_PASS_TREE) {
        for (int i = 0; i < q->tree.n; i++) {
            parents[i] = q->tree.parent[i];
        }
        for (int i = 0; i < o->n_path; i++) {
            path[i] = q->walk.node[i];
        }
        m.commit.tree_ids = (struct gr_msg_ids){.p = t->pass.seq[q - p->seq].tree.token, .n = (uint32_t)q->tree.n};
        m.commit.tree_parents = (struct gr_msg_ids){.p = parents, .n = (uint32_t)q->tree.n};
        m.commit.path = (struct gr_msg_ids){.p = path, .n = (uint32_t)o->n_path};
    }
    target_tell_logprobs(q, &m.commit);
    target_tally_told(s);
    t->io.send_msg(t->io.ctx, &m);
}

static void send_round_verdict(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, uint32_t round,
                               const struct outcome *o, bool more_follow, uint64_t now_ns)
{
    const bool back = o->keep_len < o->base_len; /* then the tree was verified in vain */
    const struct gr_frame_header h = {.flags = more_follow ? GR_FRAME_MORE : 0,
                                      .session = s->id,
                                      .epoch = s->epoch,
                                      .round = round,
                                      .base_len = (uint32_t)o->base_len,
                                      .prefix_hash = s->prefix.hash[s->prefix.len]};
    struct gr_verdict v = {.draft_round = back ? GR_WIRE_ROOT_ONLY : s->flight.draft_round,
                           .keep_len = (uint32_t)o->keep_len,
                           .final_len = (uint32_t)s->kv.final_len,
                           .bonus = s->prefix.token[s->prefix.len - 1],
                           .kind = target_specpv_kind(q),
                           .finish = (uint8_t)o->finish,
                           .n_path = (uint8_t)o->n_path,
                           .n_want = (uint8_t)(target_asks(s) ? s->next.n_want : 0)};
    for (int i = 0; i < o->n_path; i++) {
        v.node[i] = s->flight.node_of_row[q->walk.node[i]];
    }
    target_send_verdict(t, s, &h, &v, now_ns);
}

/* Does the verdict hold together: is it a descent in the tree, of which each step is the target's own pick? The
 * verifier is in another thread, and its device may fail without an error: where the two do not agree memory or code is
 * broken, and nothing of the round is used. */
static bool walk_is_sound(const struct session *s, const struct gr_pass_seq *q)
{
    const struct gr_walk *w = &q->walk;
    int parent = -1;
    if (!target_specpv_is_sound(s, q)) {
        return false;
    }
    if (q->judge_only || (q->exact && q->n_chain_ok < q->n_chain)) {
        return true; /* there is no walk */
    }
    if (w->n_path < 0 || w->n_path > q->tree.n || w->n_path + 1 > target_n_new_left(s)) {
        return false;
    }
    for (int i = 0; i < w->n_path; i++) {
        const int node = w->node[i];
        if (node <= parent || node >= q->tree.n || q->tree.parent[node] != parent ||
            q->pick[parent + 1] != q->tree.token[node]) {
            return false;
        }
        parent = node;
    }
    return w->bonus == q->pick[parent + 1];
}

/* The round is begun again on the tokens as they were; after FAULT_MAX of these the session goes on with single tokens
 * (gr_spec_mode_decide). */
static void note_fault(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    s->n_fault++;
    t->counters.n_fault++;
    if (target_n_missing(s) > 0) {
        target_drop_provisional(t, s);
        target_specpv_off(t, s, GR_FALLBACK_SPECPV_FAULT, NULL);
    }
    gr_kv_table_truncate(&t->pool, &s->kv.table, target_held_len(s));
    target_begin_round(t, s, now_ns);
}

/* What the round took and brought goes to the session's averages and to all sessions', which a new session begins with.
 * Refreshes are left out: they cost the same with a tree and without, so they say nothing about trees. */
static void learn_round(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, int n_token,
                        uint64_t now_ns)
{
    const struct gr_pass *p = &t->pass;
    const double pass_ns =
        (double)GR_MAX(p->forward_ns + p->sample_ns + p->commit_ns, 1u); /* not 0: it is divided by */
    double round_ns = (double)(now_ns - s->next.verdict_ns);
    round_ns = GR_MAX(round_ns,
                      pass_ns); /* a drafter that attached during the pass has begun the round anew, but not its pass */
    const struct gr_spec_round r = {.waited = s->flight.waited,
                                    .clean = s->flight.clean && !s->link.asked,
                                    .n_token = n_token,
                                    .round_ns = round_ns,
                                    .pass_ns = pass_ns,
                                    .wait_ns = (double)s->flight.wait_ns,
                                    .shared = s->shares_pass,
                                    .root_pass_ns = pass_ns / target_pass_ratio(t, s, 1 + q->tree.n)};
    struct gr_spec_econ *all = s->shares_pass ? &t->econ.shared : &t->econ.alone;
    if (all->n_tree + all->n_root == 0) {
        *all = *target_econ(s); /* the first session's guesses */
    }
    if (s->specpv.automatic) {
        gr_specpv_trial_round(&s->specpv.trial, s->specpv.next.round, n_token, round_ns);
    }
    if (q->n_chain == 0 && !q->refresh_view) { /* a refresh costs the same with a tree and without */
        gr_spec_econ_round(target_econ(s), &r);
        gr_spec_econ_round(all, &r);
        all->latency_ns = target_econ(s)->latency_ns;
    }
    s->host_ns = now_ns - s->next.verdict_ns - GR_MIN(s->flight.wait_ns + p->forward_ns, now_ns - s->next.verdict_ns);
    count_round(t, s, q);
}

/* A DRAFT that came while the pass ran is for this round, which is over. It is followed along the new tokens: what it
 * holds below the last of them may still serve the next pass. The probe is followed, too. */
static void settle_trees(struct gr_target *t, struct session *s, int32_t base_len)
{
    if (s->draft.valid) {
        const bool in_time = s->draft.at_len == base_len && s->draft.root < 0;
        if (!target_walk_tree(s, &s->draft) || !target_has_children(&s->draft)) {
            target_walk_forget(&s->draft);
        }
        if (in_time) {
            target_note_late(t, s);
        }
    }
    target_judge_probe(t, s);
}

/* The tokens of a verdict: what of the base stands, the path, then one that has no KV: the new tail. A judgement that
 * lets all stand brings none. */
static struct outcome settle(struct gr_target *t, struct session *s, const struct gr_pass_seq *q)
{
    struct outcome o = {.base_len = s->prefix.len};
    o.keep_len = target_specpv_settle(t, s, q);
    o.finish = (enum gr_finish)q->walk.finish;
    if (o.keep_len < o.base_len) {
        target_append_token(s, q->correction, TOKEN_GENERATED);
        o.appended = true;
        o.finish = gr_stop_hits(&s->wishes.turn.stop_ids, q->correction) ? GR_FINISH_STOP
                   : s->prefix.len >= s->turn.len_max                    ? GR_FINISH_LENGTH
                                                                         : GR_FINISH_NONE;
    } else if (q->judge_only) {
        o.finish = s->specpv.end_due;
    } else {
        o.n_path = q->walk.n_path;
        for (int i = 0; i < o.n_path; i++) {
            target_append_token(s, q->tree.token[q->walk.node[i]], TOKEN_GENERATED);
        }
        target_append_token(s, q->walk.bonus, TOKEN_GENERATED);
        o.appended = true;
    }
    o.finish = target_specpv_commit(t, s, q, o.finish);
    return o;
}

/* ---- a verdict, step by step (apply_walk) ---- */

static void commit(struct gr_target *t, struct session *s, const struct gr_pass_seq *q)
{
    target_keep_features(t, s, q);
    gr_kv_table_truncate(&t->pool, &s->kv.table, s->prefix.len - 1);
    if (s->flight.reroot) {
        target_note_reroot(t, s);
    }
}

static void decide(struct gr_target *t, struct session *s, enum gr_finish finish, bool prefill, uint64_t now_ns)
{
    target_next_number(&s->next);
    if (finish != GR_FINISH_NONE && s->wishes.auto_tree) {
        gr_spec_econ_turn_ended(&t->econ.alone, &s->econ.alone);
    }
    if (finish != GR_FINISH_NONE) {
        target_go_idle(t, s, now_ns);
        target_next_want_none(&s->next);
        return;
    }
    target_turn_decode(s);
    if (prefill) {
        target_reprice(t, s);
    }
    target_begin_round(t, s, now_ns);
}

#define PRICES_TREES 4  /* tree rounds between two looks at the prices */
#define PRICES_ROOTS 64 /* rounds without trees between two such looks: prices matter for probes only then */
#define PRICES_FIRST 8  /* the first round without trees that looks: the probe after it is drafted by these prices */

/* Prices are looked at after a prompt, which has taught what its context costs, when more or fewer sessions share the
 * pass, and every few rounds. These are counted by rounds with a tree after a round that had one, else by those
 * without: the other count does not move, and where it happened to stand it would make every round due. */
static bool prices_are_due(const struct gr_target *t, struct session *s, bool prefill)
{
    const struct gr_spec_econ *e = target_econ(s);
    const bool in_turn = s->flight.waited ? e->n_tree % PRICES_TREES == 0 : e->n_root % PRICES_ROOTS == PRICES_FIRST;
    return prefill || in_turn || s->cost_decode != target_decoding(t).n;
}

/* Prices come before the VERDICT that asks for a tree: they are for that tree. */
static void say(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, uint32_t round,
                const struct outcome *o, bool more_follow, uint64_t now_ns)
{
    const bool prefill = q->kind == GR_PASS_PREFILL;
    if (prices_are_due(t, s, prefill)) {
        target_send_cost(t, s);
    }
    if (o->appended) {
        send_round_verdict(t, s, q, round, o, more_follow, now_ns);
    }
    send_commit(t, s, q, prefill ? 0 : round, o);
}

/* The pass's limit is what other rows' lists have left of it. */
static void note_long_list(struct gr_target *t, struct session *s, const struct gr_pass_seq *q)
{
    char detail[96];
    snprintf(detail, sizeof(detail), "more than %d ids, or one of them has two biases", q->list_limit);
    target_fall_back(t, s, GR_FALLBACK_LONG_LIST, detail);
}

static void apply_walk(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, bool more_follow,
                       uint64_t now_ns)
{
    const bool prefill = q->kind == GR_PASS_PREFILL;
    const uint32_t round = s->next.round;
    if (q->list_limit > 0) {
        note_long_list(t, s, q);
    }
    const struct outcome o = settle(t, s, q);
    commit(t, s, q);
    if (!prefill) {
        learn_round(t, s, q, s->prefix.len - o.base_len, now_ns);
    }
    settle_trees(t, s, o.base_len);
    decide(t, s, o.finish, prefill, now_ns);
    say(t, s, q, round, &o, more_follow, now_ns);
}

static void finish_prefill_chunk(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, bool more_follow,
                                 uint64_t now_ns)
{
    target_kv_add(s, q->n_copy + q->n_row);
    if (q->want_pick) {
        s->host_ns = t->pass.sample_ns + t->pass.commit_ns;
        apply_walk(t, s, q, more_follow, now_ns);
        return;
    }
    target_keep_features(t, s, q);
    const struct gr_msg m = {
        .type = GR_MSG_PROGRESS, .session = s->id, .progress = {.usable_len = (uint32_t)s->kv.len}};
    t->io.send_msg(t->io.ctx, &m);
    if (s->kv.len >= s->turn.prefill_end) {
        target_resume(t, s, more_follow, now_ns);
    }
}

/* A pass that failed: a session that brought a tree tries again without; one that did not is given up. */
static void fail_seq(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, enum gr_status status,
                     uint64_t now_ns)
{
    if (q->kind == GR_PASS_TREE) {
        note_fault(t, s, now_ns);
        return;
    }
    target_fail_session(t, s, status, "the pass failed; see the target's log");
}

/* more_follow: the drafter will be told of other sessions of this pass. */
static void finish_seq(struct gr_target *t, struct gr_pass_seq *q, enum gr_status status, bool more_follow,
                       uint64_t now_ns)
{
    struct session *s = &t->session[q->session];
    target_flight_land(&s->flight);
    if (s->closing) {
        target_free_session(t, s);
    } else if (s->turn.cut_at >= 0) {
        if (q->kind == GR_PASS_PREFILL && status == GR_OK) {
            target_kv_add(s, q->n_copy + q->n_row);
            target_keep_features(t, s, q);
        }
        target_end_cut_turn(t, s, more_follow, now_ns);
    } else if (status != GR_OK) {
        fail_seq(t, s, q, status, now_ns);
    } else if (q->walk.finish == GR_FINISH_ERROR) {
        target_not_finite(t, s, q, now_ns);
    } else if (q->kind == GR_PASS_PREFILL) {
        finish_prefill_chunk(t, s, q, more_follow, now_ns);
    } else if (!walk_is_sound(s, q)) {
        note_fault(t, s, now_ns);
    } else {
        apply_walk(t, s, q, more_follow, now_ns);
    }
}

static void log_pass(const struct gr_target *t, const struct gr_spec_group *g, const struct gr_spec_group_pass *p)
{
    gr_log_topic_line(GR_TOPIC_ROUND,
                      "pass sessions=%d decoding=%d with_trees=%d rows=%d prompt_rows=%d tokens=%d "
                      "us=%.0f since_last_us=%.0f without_us=%.0f cold=%d tries=%d price=%.3f regret=%.2f balance=%.2f",
                      t->pass.n_seq, p->n_session, p->with_trees, t->pass.n_row, t->pass_prefill_rows, p->n_token,
                      (double)t->pass.forward_ns / 1e3, p->ns / 1e3, p->price_ns / 1e3, p->cold,
                      g != NULL && g->tries_trees, g != NULL ? g->price : 0.0, g != NULL ? g->regret : 0.0,
                      g != NULL ? g->balance : 0.0);
}

/* What a pass of all that decode would take by the cost table, were there no trees. */
static double root_pass_ns(const struct gr_target *t)
{
    struct gr_pass_load load = {0};
    for (int i = 0; i < t->config.n_session_max; i++) {
        if (t->session[i].state == SESSION_DECODE) {
            gr_pass_load_add(&load, 1, target_specpv_context(&t->session[i]));
        }
    }
    return gr_cost_table_estimate(&t->cost, &load);
}

/* Learns what the decoding sessions of this pass have brought together. A pass with prompts, or after a pause, took its
 * time for other reasons and is left out. */
static void learn_group(struct gr_target *t, uint64_t now_ns)
{
    const struct gr_pass *p = &t->pass;
    const bool whole = p->status == GR_OK && t->pass_prefill_rows == 0;
    /* Counted by all that decode, those included whose trees are still being drafted: without trees they would be in
     * this pass, too. */
    const struct decoding all = target_decoding(t);
    struct gr_spec_group_pass seen = {
        .n_session = GR_MAX(p->n_seq, all.n),
        .cold = all.n_cold > 0,
        .disturbed = p->n_seq < all.n || (t->config.shares_device && (t->pass_beside_draft || target_is_drafting(t)))};
    struct gr_spec_group *g = target_group(t, seen.n_session);
    for (int i = 0; i < p->n_seq; i++) {
        seen.with_trees = seen.with_trees || t->session[p->seq[i].session].flight.waited;
        seen.n_token += p->seq[i].walk.n_path + 1;
    }
    seen.price_ns = seen.with_trees ? root_pass_ns(t) : gr_cost_table_estimate(&t->cost, &t->pass_load);
    seen.ns = t->pass_end_ns != 0 && now_ns > t->pass_end_ns ? (double)(now_ns - t->pass_end_ns) : 0.0;
    if (g != NULL && whole && seen.ns > 0.0) {
        gr_spec_group_pass(g, &seen);
    }
    log_pass(t, g, &seen);
    t->pass_end_ns = whole ? now_ns : 0;
}

/* Will a drafter be told what the pass has brought this session? */
static bool is_told(const struct session *s, const struct gr_pass_seq *q)
{
    return s->link.attached && !s->wishes.single_token && !s->closing && s->turn.cut_at < 0 &&
           q->walk.finish != GR_FINISH_ERROR && (q->kind != GR_PASS_PREFILL || q->want_pick);
}

/* Is one that comes after seq i of the pass told by the same drafter's connection? */
static bool more_follow(const struct gr_target *t, const struct gr_pass *p, int i)
{
    const struct session *s = &t->session[p->seq[i].session];
    for (int k = i + 1; k < p->n_seq; k++) {
        const struct session *o = &t->session[p->seq[k].session];
        if (o->link.peer == s->link.peer && is_told(o, &p->seq[k])) {
            return true;
        }
    }
    return false;
}

void gr_target_on_pass_done(struct gr_target *t, struct gr_pass *pass, uint64_t now_ns)
{
    GR_ASSERT(pass == &t->pass && t->pass_in_flight);
    target_flight_ended(t, now_ns);
    if (pass->n_seq > 0 && pass->seq[0].kind == GR_PASS_FUSE) {
        target_finish_fuse_pass(t);
        target_rows_wait(t);
        return;
    }
    t->counters.n_pass++;
    t->counters.n_row += (uint64_t)pass->n_row;
    account_pass(t);
    target_settle_begin(t);
    learn_group(t, now_ns);
    for (int i = 0; i < pass->n_seq; i++) {
        const struct session *s = &t->session[pass->seq[i].session];
        target_log_about(s);
        target_settle_next(t, s);
        finish_seq(t, &pass->seq[i], pass->status, more_follow(t, pass, i), now_ns);
    }
    target_settle_end(t);
    gr_log_about(NULL);
    target_prefix_publish_pass(t);
    target_rows_wait(t); /* the next pass brings its rows to the same places */
}
