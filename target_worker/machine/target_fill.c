/* A pass is filled: whose rows it has, for how many blocks, with which tree.
 *
 * Sessions that decode go before prompts, since somebody reads their text as it comes; a prompt's chunks take what is
 * left of the rows, and of the time what prefill_share allows. What may keep a session out of a pass: it waits for its
 * tree (target_waits), it has no blocks (claim_room), the pass has no rows left, or its COMMITs are not taken
 * (has_commit_room). */
#include "target_worker/machine/target_internal.h"

/* The generated part of a text is what follows its last token of a prompt or an APPEND: this turn's. */
static int32_t generated_from(const struct session *s)
{
    int32_t from = s->prefix.len;
    while (from > 0 && s->kind[from - 1] == TOKEN_GENERATED) {
        from--;
    }
    return from;
}

/* What is asked of picks besides sampling. */
static void fill_adjust(const struct session *s, int32_t n_vocab, struct gr_pass_seq *q)
{
    const struct gr_adjust *a = &s->wishes.adjust;
    q->text = s->prefix.token;
    q->adjust = gr_adjust_is_off(a) ? NULL : a;
    q->generated_from = gr_adjust_penalises(a) ? generated_from(s) : 0;
    q->len_min = s->turn.len_min;
    q->n_logprob = GR_MIN((int32_t)s->wishes.turn.n_logprob, 1 + n_vocab);
    q->n_logprob_token = 0;
}

static struct gr_pass_seq *begin_seq(struct gr_target *t, struct session *s)
{
    struct gr_pass_seq *q = &t->pass.seq[t->pass.n_seq++];
    const int slot = (int)(s - t->session);
    q->session = slot;
    q->table = &s->kv.table;
    q->sampling = s->wishes.sampling;
    gr_stop_ids_copy(&q->stop.ids, &s->wishes.turn.stop_ids);
    q->stop.n_new_max = target_n_new_left(s);
    fill_adjust(s, t->config.n_vocab, q);
    q->want_gap = q->replay = false;
    q->gap = 0.0f;
    q->tree.n = 0;
    q->walk = (struct gr_walk){0};
    target_specpv_fill_none(q);
    q->n_chain_ok = 0;
    q->correction = GR_NO_CORRECTION;
    q->odd_pos = -1;
    q->dense_from = GR_VIEW_NONE;
    q->forked = target_kv_rows_run(s);
    q->n_copy = 0;
    for (int b = 0; b < GR_SCRATCH_BLOCKS; b++) {
        q->scratch_block[b] = t->config.n_pool_block + slot * GR_SCRATCH_BLOCKS + b;
    }
    return q;
}

/* Room in the pool for every row that the pass may commit, in blocks that nobody else has. It was reserved, so it
 * cannot fail. */
static void grow_table(struct gr_target *t, struct session *s, int32_t n_token)
{
    enum gr_status st = gr_kv_table_grow(&t->pool, &s->kv.table, n_token);
    GR_ASSERT(st == GR_OK && gr_kv_table_may_write(&t->pool, &s->kv.table, s->kv.len, n_token));
}

/* The tree that was waited for has not come: the round goes without, and the latency that is learnt from this gives the
 * next one more time. */
static void go_without(struct session *s, uint64_t now_ns)
{
    if (s->link.attached && s->link.asked) {
        gr_spec_econ_latency(target_econ(s), (double)(now_ns - s->link.asked_ns), false);
    } else if (!s->link.attached) {
        target_link_expect_none(&s->link); /* a drafter that never came is not waited for again until it attaches */
    }
}

/* How many nodes deep the next pass's tree may be. */
static int32_t tree_levels_max(const struct session *s)
{
    const struct gr_token_tree *tree = &s->draft.tree;
    uint8_t depth[GR_NODE_MAX];
    int32_t most = 0;
    for (int i = 0; i < (target_tree_rows_max(s) > 0 ? tree->n : 0); i++) {
        depth[i] = (uint8_t)(tree->parent[i] < 0 ? 1 : depth[tree->parent[i]] + 1);
        most = GR_MAX(most, depth[i]);
    }
    return GR_MIN(most, target_tree_rows_max(s));
}

/* Tokens that may have KV after a decode pass of this session. */
static int32_t decode_tokens(const struct session *s)
{
    return s->prefix.len + GR_MAX(GR_MIN(target_tree_rows_max(s), target_n_new_left(s) - 1), 0);
}

/* How long the round has waited for its tree, since the last verdict. */
static uint64_t waited_ns(const struct session *s, uint64_t now_ns)
{
    const uint64_t until_ns = s->draft.valid ? s->draft.arrived_ns : now_ns;
    return until_ns > s->next.verdict_ns ? until_ns - s->next.verdict_ns : 0;
}

/* The tail and, where one came in time, its tree. A tree is used up here, whatever becomes of the pass: the link notes
 * its round, so that a copy of its DRAFT is a replay. */
static void add_decode(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    struct gr_pass_seq *q = begin_seq(t, s);
    q->pos0 = s->prefix.len - 1;
    q->tail = s->prefix.token[q->pos0];
    q->token = &s->prefix.token[q->pos0];
    const bool waited = s->next.mode == GR_SPEC_TREE;
    target_flight_begin(&s->flight, waited, !s->link.asked, waited ? waited_ns(s, now_ns) : 0);
    if (s->specpv.next.round == GR_SPECPV_ROUND_JUDGE) {
        target_walk_forget(&s->draft);
    } else if (waited && s->draft.valid) {
        target_subtree(&s->draft, target_n_new_left(s) - 1, s->next.n_want, &q->tree, s->flight.node_of_row);
        target_link_use(&s->link, s->draft.round);
        if (q->tree.n > 0) {
            target_flight_take_tree(&s->flight, &s->draft);
        }
        target_walk_forget(&s->draft);
    } else if (waited) {
        go_without(s, now_ns);
    }
    q->kind = q->tree.n > 0 ? GR_PASS_TREE : GR_PASS_ROOT;
    q->want_gap = s->wishes.turn.want_trace && q->kind == GR_PASS_ROOT;
    target_specpv_fill(t, s, q);
    q->n_row = q->judge_only ? 0 : q->tree.n + 1;
    target_plan_features(t, s, q, q->kind == GR_PASS_ROOT && !waited);
    grow_table(t, s, q->pos0 + 1 + GR_MAX(GR_MIN(q->tree.n, target_n_new_left(s) - 1), 0));
    t->pass.n_row += q->n_chain + q->n_row;
    gr_pass_load_add(&t->pass_load, q->n_chain + q->n_row, target_specpv_context(s));
}

static bool is_generated(const struct session *s, int32_t pos)
{
    return s->kind[pos] == TOKEN_GENERATED;
}

/* Where the chunk that is next ends: chunks of prompts are aligned to absolute positions, and generated tokens are not
 * mixed with them. */
static int32_t chunk_end(const struct gr_target *t, const struct session *s)
{
    const int32_t chunk = t->config.prefill_chunk;
    const int32_t most = GR_MIN((s->kv.len / chunk + 1) * chunk, s->turn.prefill_end);
    int32_t end = s->kv.len + 1;
    while (end < most && is_generated(s, end) == is_generated(s, s->kv.len)) {
        end++;
    }
    return end;
}

static void add_prefill(struct gr_target *t, struct session *s, int32_t end)
{
    struct gr_pass_seq *q = begin_seq(t, s);
    q->kind = GR_PASS_PREFILL;
    const struct fork_part part = q->forked ? target_fork_part(t, s, end) : (struct fork_part){0};
    q->n_copy = part.n;
    q->copy_from = part.from;
    q->pos0 = s->kv.len + q->n_copy;
    q->n_row = end - q->pos0;
    if (target_turn_read(s, q->pos0)) {
        target_prefix_count(t, s);
    }
    q->token = &s->prefix.token[q->pos0];
    q->replay = is_generated(s, q->pos0);
    q->want_pick = s->turn.pick_due && end == s->turn.prefill_end;
    target_plan_features(t, s, q, false);
    target_flight_begin(&s->flight, false, s->flight.clean, 0);
    grow_table(t, s, end);
    t->pass_prefill_rows += q->n_row;
    t->pass.n_row += q->n_row;
    gr_pass_load_add(&t->pass_load, q->n_row, gr_attends_all(end));
}

#define LOGPROB_BYTES 10 /* of one on the wire, with its id */

/* COMMITs of the usual size that this session's will be as long as, after a pass in which it has n_row rows. */
static int commits_of(const struct session *s, int n_row)
{
    return 1 + (int)s->wishes.turn.n_logprob * n_row * LOGPROB_BYTES / GR_COMMIT_BYTES;
}

/* n_commit: those of the sessions that are in the pass, and this one's. */
static bool has_commit_room(struct gr_target *t, struct session *s, int n_commit)
{
    const bool room = t->io.commit_room == NULL || t->io.commit_room(t->io.ctx, n_commit);
    t->counters.n_paused += !room && !s->paused;
    s->paused = !room;
    return room;
}

/* KV tokens that this pass would give a session; 0: it takes no part. */
static int32_t tokens_wanted(struct gr_target *t, const struct session *s, uint64_t now_ns)
{
    if (s->state == SESSION_DECODE) {
        return target_waits(s, now_ns) ? 0 : decode_tokens(s);
    }
    return s->state == SESSION_PREFILL && !target_fork_waits(t, s) ? chunk_end(t, s) : 0;
}

/* Blocks that could not be had are taken from idle and from younger sessions, for the oldest first. Before the pass is
 * filled: a session that is in it cannot be pre-empted. */
static void press_for_room(struct gr_target *t, int n_short, uint64_t now_ns)
{
    for (; n_short > 0; n_short--) {
        struct session *oldest = NULL;
        for (int i = 0; i < t->config.n_session_max; i++) {
            struct session *s = &t->session[i];
            if (s->lacks_room && tokens_wanted(t, s, now_ns) > 0 && (oldest == NULL || s->arrival < oldest->arrival)) {
                oldest = s;
            }
        }
        if (oldest == NULL) {
            return;
        }
        oldest->lacks_room = false;
        oldest->has_room = target_make_room(t, oldest, tokens_wanted(t, oldest, now_ns));
    }
}

/* How each decoding session's round is verified: under a view, in full, or as a judgement of what is missing.
 * It needs the tree that has come, and blocks are claimed for what it decides. */
static void decide_verification(struct gr_target *t)
{
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *s = &t->session[i];
        target_specpv_decide(t, s, target_tree_rows_max(s) + 1, tree_levels_max(s));
    }
}

static void claim_room(struct gr_target *t, uint64_t now_ns)
{
    int n_short = 0;
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *s = &t->session[i];
        target_fork_blocks(t, s);
        const int32_t n_token = tokens_wanted(t, s, now_ns);
        s->has_room = n_token > 0 && target_reserve(t, s, n_token);
        s->lacks_room = n_token > 0 && !s->has_room;
        n_short += s->lacks_room;
    }
    press_for_room(t, n_short, now_ns);
}

/* Decoding sessions first, with room left for one chunk: so prompts go on, however many sessions decode. Where a pass
 * has not room for all, the next one begins with another slot (next_slot): it is not always the same who are left out.
 */
static void fill_pass(struct gr_target *t, bool with_prefill, uint64_t now_ns)
{
    const struct gr_target_config *c = &t->config;
    int n_pick = 0;
    int n_commit = 0;
    t->pass.n_seq = t->pass.n_row = 0;
    t->pass_load = (struct gr_pass_load){0};
    t->pass_prefill_rows = 0;
    decide_verification(t);
    claim_room(t, now_ns);
    for (int i = 0; i < c->n_session_max; i++) {
        struct session *s = &t->session[(t->next_slot + i) % c->n_session_max];
        const int n_row = target_decode_rows(s);
        const int n_more = commits_of(s, n_row);
        if (s->state == SESSION_DECODE && s->has_room && t->pass.n_row + n_row <= c->n_row_max - c->prefill_chunk &&
            n_pick + n_row <= c->n_out_max - 1 && has_commit_room(t, s, n_commit + n_more)) {
            add_decode(t, s, now_ns);
            n_pick += n_row;
            n_commit += n_more;
        }
    }
    for (int i = 0; with_prefill && i < c->n_session_max; i++) {
        struct session *s = &t->session[(t->next_slot + i) % c->n_session_max];
        if (s->state != SESSION_PREFILL || !s->has_room) {
            continue;
        }
        const int32_t end = chunk_end(t, s);
        const int n_more = commits_of(s, 1);
        if (t->pass.n_row + end - s->kv.len <= c->n_row_max && n_pick + 1 <= c->n_out_max &&
            has_commit_room(t, s, n_commit + n_more)) {
            add_prefill(t, s, end);
            n_pick++;
            n_commit += n_more;
        }
    }
    t->next_slot = (t->next_slot + 1) % c->n_session_max;
}

/* Prompt chunks may take prefill_share of the time while others decode. A chunk is never cut to fit: the credit may go
 * below zero, and no chunk runs until decoding has paid it back (account_pass). */
static bool prefill_allowed(const struct gr_target *t, const struct gathering *g)
{
    return g->prefill && (!g->decoding || t->config.prefill_share <= 0.0 || t->prefill_credit_ns >= 0.0);
}

uint64_t target_start_pass(struct gr_target *t, uint64_t now_ns)
{
    if (target_start_fuse_pass(t)) {
        return UINT64_MAX;
    }
    const struct gathering g = target_gather(t, now_ns);
    const bool prefill = prefill_allowed(t, &g);
    if (!prefill && !g.ready) {
        return g.wake_ns;
    }
    /* A pass starts when every decoding session has its tree, or when waiting for the others costs more than it saves;
     * prompt chunks do not wait, and take along whoever is ready. */
    if (!prefill && g.waiting && now_ns < g.go_ns) {
        return GR_MIN(g.go_ns, g.wake_ns);
    }
    t->pass_rests = target_drafters_rest(t);
    fill_pass(t, prefill, now_ns);
    if (t->pass.n_seq == 0 && g.prefill && !prefill) {
        fill_pass(t, true, now_ns); /* all that decode lack blocks, so a prompt's chunk takes no time from them */
    }
    if (t->pass.n_seq == 0) {
        return g.wake_ns;
    }
    t->pass_beside_draft = target_is_drafting(t);
    target_flight_start(t);
    return UINT64_MAX;
}
