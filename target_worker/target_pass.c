/* The target's passes: who takes part, what the rows are, and what the verdicts do to the sessions. */
#include "common/hash.h"
#include "common/log.h"
#include "target_worker/target_internal.h"

#include <inttypes.h>
#include <string.h>

/* Attached, or wanted and not yet given up on. */
static bool expects_drafter(const struct session *s)
{
    return s->want_draft && (s->has_peer || !s->ever_attached);
}

static bool waits_for_draft(const struct session *s, uint64_t now_ns)
{
    return expects_drafter(s) && !s->draft.valid && now_ns < s->deadline_ns;
}

static int32_t n_new_left(const struct session *s)
{
    return s->len_max - s->committed_len;
}

/* Nodes too deep to be committed are left out: neither their KV nor their pick could count. Keeps the order. */
static void trim_tree(const struct gr_token_tree *from, int32_t depth_max, struct gr_token_tree *to,
                      uint8_t node_of_row[GR_NODE_MAX])
{
    int16_t new_index[GR_NODE_MAX];
    to->n = 0;
    for (int i = 0; i < from->n; i++) {
        new_index[i] = -1;
        if (gr_tree_depth(from, i) > depth_max) {
            continue;
        }
        new_index[i] = (int16_t)to->n;
        to->token[to->n] = from->token[i];
        to->parent[to->n] = from->parent[i] < 0 ? (int16_t)-1 : new_index[from->parent[i]];
        node_of_row[to->n] = (uint8_t)i;
        to->n++;
    }
}

static void begin_seq(struct gr_target *t, struct session *s, struct gr_pass_seq *q)
{
    const int slot = (int)(s - t->session);
    q->session = slot;
    q->table = &s->table;
    q->sampling = s->sampling;
    q->stop = s->stop;
    q->stop.n_new_max = n_new_left(s);
    q->want_gap = false;
    q->gap = 0.0f;
    for (int b = 0; b < GR_SCRATCH_BLOCKS; b++) {
        q->scratch_block[b] = t->config.n_pool_block + slot * GR_SCRATCH_BLOCKS + b;
    }
    s->in_pass = true;
}

/* Room in the pool for every row that the pass may commit. Admission reserved it, so it cannot fail. */
static void grow_table(struct gr_target *t, struct session *s, int32_t n_token)
{
    enum gr_status st = gr_kv_table_grow(&t->pool, &s->table, n_token);
    GR_ASSERT(st == GR_OK);
}

/* A deadline passed without a tree. A drafter that never came is not waited for again until it attaches; one that has
 * gone silent is dropped, or every round would wait for it in vain. A late tree is a sign of life. */
static void note_silence(struct gr_target *t, struct session *s)
{
    s->ever_attached = true;
    if (s->has_peer && ++s->n_silent >= GR_SILENT_MAX) {
        target_drop_drafter(t, s, "no tree for three rounds");
    }
}

static void add_decode(struct gr_target *t, struct session *s, uint64_t now_ns)
{
    struct gr_pass_seq *q = &t->pass.seq[t->pass.n_seq++];
    begin_seq(t, s, q);
    q->pos0 = s->committed_len - 1;
    q->tail = s->token[q->pos0];
    q->token = &s->token[q->pos0];
    q->tree.n = 0;
    s->pass_draft_round = GR_WIRE_ROOT_ONLY;
    s->wait_ns = (s->draft.valid ? s->draft.arrived_ns : now_ns) - s->verdict_ns;
    if (s->draft.valid) {
        trim_tree(&s->draft.tree, n_new_left(s) - 1, &q->tree, s->node_of_row);
        s->pass_draft_round = s->draft.round;
        s->draft.valid = false;
    } else if (expects_drafter(s)) {
        note_silence(t, s);
    }
    q->kind = q->tree.n > 0 ? GR_PASS_TREE : GR_PASS_ROOT;
    if (q->kind == GR_PASS_ROOT) {
        s->pass_draft_round = GR_WIRE_ROOT_ONLY;
    }
    q->want_gap = s->want_trace && q->kind == GR_PASS_ROOT;
    q->n_row = q->tree.n + 1;
    grow_table(t, s, q->pos0 + 1 + GR_MIN(q->tree.n, n_new_left(s) - 1));
    t->pass.n_row += q->n_row;
}

/* Where the prompt chunk that is next ends: chunks are aligned to absolute positions. */
static int32_t chunk_end(const struct gr_target *t, const struct session *s)
{
    const int32_t chunk = t->config.prefill_chunk;
    return GR_MIN((s->kv_len / chunk + 1) * chunk, s->n_prompt);
}

static void add_prefill(struct gr_target *t, struct session *s)
{
    struct gr_pass_seq *q = &t->pass.seq[t->pass.n_seq++];
    begin_seq(t, s, q);
    const int32_t end = chunk_end(t, s);
    q->kind = GR_PASS_PREFILL;
    q->pos0 = s->kv_len;
    q->n_row = end - s->kv_len;
    q->token = &s->token[q->pos0];
    q->want_pick = end == s->n_prompt;
    grow_table(t, s, end);
    t->pass.n_row += q->n_row;
}

/* Fills the pass: sessions with trees (or without drafters) first, then prompt chunks in what is left. */
static void fill_pass(struct gr_target *t, uint64_t now_ns)
{
    const struct gr_target_config *c = &t->config;
    int32_t n_pick = 0;
    t->pass.n_seq = 0;
    t->pass.n_row = 0;
    for (int i = 0; i < c->n_session_max; i++) {
        struct session *s = &t->session[(t->next_slot + i) % c->n_session_max];
        if (s->state != SESSION_DECODE || waits_for_draft(s, now_ns)) {
            continue;
        }
        const int32_t n_row = s->draft.valid ? s->draft.tree.n + 1 : 1;
        if (t->pass.n_row + n_row <= c->n_row_max - c->prefill_chunk && n_pick + n_row <= c->n_out_max - 1) {
            add_decode(t, s, now_ns);
            n_pick += n_row;
        }
    }
    for (int i = 0; i < c->n_session_max; i++) {
        struct session *s = &t->session[(t->next_slot + i) % c->n_session_max];
        if (s->state == SESSION_PREFILL && t->pass.n_row + chunk_end(t, s) - s->kv_len <= c->n_row_max &&
            n_pick + 1 <= c->n_out_max) {
            add_prefill(t, s);
            n_pick++;
        }
    }
    t->next_slot = (t->next_slot + 1) % c->n_session_max;
}

uint64_t target_start_pass(struct gr_target *t, uint64_t now_ns)
{
    bool ready = false;
    bool prefill = false;
    uint64_t wake_ns = UINT64_MAX; /* deadline of the first that waits for its tree */
    uint64_t first_ns = UINT64_MAX; /* of the first of all */
    for (int i = 0; i < t->config.n_session_max; i++) {
        struct session *s = &t->session[i];
        if (s->state == SESSION_DECODE) {
            first_ns = GR_MIN(first_ns, s->deadline_ns);
        }
        if (s->state == SESSION_DECODE && waits_for_draft(s, now_ns)) {
            wake_ns = GR_MIN(wake_ns, s->deadline_ns);
        } else {
            ready = ready || s->state == SESSION_DECODE;
        }
        prefill = prefill || s->state == SESSION_PREFILL;
    }
    /* A pass starts when every decoding session has its tree, or at the deadline of the first; prompt chunks do
     * not wait, and take along whoever is ready. */
    if (!prefill && !ready) {
        return wake_ns;
    }
    if (!prefill && wake_ns != UINT64_MAX && now_ns < first_ns) {
        return first_ns;
    }
    fill_pass(t, now_ns);
    if (t->pass.n_seq == 0) {
        return wake_ns;
    }
    t->pass_in_flight = true;
    t->io.start_pass(t->io.ctx, &t->pass);
    return UINT64_MAX;
}

/* ---- what came back ---- */

static void append_token(struct session *s, int32_t token)
{
    s->token[s->committed_len] = token;
    s->hash[s->committed_len + 1] = gr_hash_extend(s->hash[s->committed_len], token);
    s->committed_len++;
}

static void count_round(struct gr_target *t, const struct session *s, const struct gr_pass_seq *q)
{
    if (q->kind == GR_PASS_TREE) {
        t->counters.n_tree_round++;
    } else {
        t->counters.n_root_round++;
    }
    gr_log_topic_line(GR_TOPIC_ROUND, "round=%u session=%" PRIu64 " sessions=%d draft_tokens=%d accepted_tokens=%d "
                      "committed_len=%d kv_len=%d", s->round, s->id, t->pass.n_seq, q->tree.n, q->walk.n_accepted,
                      s->committed_len, s->kv_len);
    gr_log_topic_line(GR_TOPIC_KV, "session=%" PRIu64 " kv_blocks=%d free_blocks=%d of %d", s->id, s->table.n_block,
                      t->pool.n_free, t->pool.n_block);
}

static void send_commit(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, int32_t base_len)
{
    const struct gr_pass *p = &t->pass;
    int32_t parents[GR_NODE_MAX];
    int32_t path[GR_NODE_MAX];
    struct gr_msg m = {
        .type = GR_MSG_COMMIT, .session = s->id, .epoch = s->epoch, .round = s->round,
        .keep_len = (uint32_t)base_len, .final_len = (uint32_t)s->committed_len,
        .ids = {.p = &s->token[base_len], .n = (uint32_t)(s->committed_len - base_len)},
        .hash = s->hash[s->committed_len], .finish = (uint32_t)q->walk.finish,
        .n_draft = (uint32_t)q->tree.n, .n_accepted = (uint32_t)q->walk.n_accepted,
        .gap = (double)q->gap, .wait_ns = s->wait_ns, .verify_ns = p->forward_ns, .host_ns = p->sample_ns + p->commit_ns,
        .n_row = (uint32_t)p->n_row, .n_late = s->n_late, .n_desync = s->n_desync, .n_fallback = s->n_fallback,
    };
    if (s->want_trace && q->kind == GR_PASS_TREE) {
        for (int i = 0; i < q->tree.n; i++) {
            parents[i] = q->tree.parent[i];
        }
        for (int i = 0; i < q->walk.n_path; i++) {
            path[i] = q->walk.node[i];
        }
        m.tree_ids = (struct gr_msg_ids){.p = t->pass.seq[q - p->seq].tree.token, .n = (uint32_t)q->tree.n};
        m.tree_parents = (struct gr_msg_ids){.p = parents, .n = (uint32_t)q->tree.n};
        m.path = (struct gr_msg_ids){.p = path, .n = (uint32_t)q->walk.n_path};
    }
    s->n_late = s->n_desync = s->n_fallback = 0;
    t->io.send_msg(t->io.ctx, &m);
}

static void send_round_verdict(struct gr_target *t, struct session *s, const struct gr_pass_seq *q,
                               int32_t base_len)
{
    const struct gr_frame_header h = {.session = s->id, .epoch = s->epoch, .round = s->round,
                                      .base_len = (uint32_t)base_len, .prefix_hash = s->hash[s->committed_len]};
    struct gr_verdict v = {.draft_round = s->pass_draft_round, .keep_len = (uint32_t)base_len,
                           .final_len = (uint32_t)s->committed_len, .bonus = q->walk.bonus,
                           .kind = GR_VERDICT_PLAIN, .finish = (uint8_t)q->walk.finish,
                           .n_path = (uint8_t)q->walk.n_path,
                           .n_want = q->walk.finish == GR_FINISH_NONE ? GR_NODE_MAX : 0};
    for (int i = 0; i < q->walk.n_path; i++) {
        v.node[i] = s->node_of_row[q->walk.node[i]];
    }
    target_send_verdict(t, s, &h, &v);
}

/* Commits the walk: path, then bonus. KV stands for the tail and the path; the bonus is the new tail. */
static void apply_walk(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, uint64_t now_ns)
{
    const int32_t base_len = s->committed_len;
    for (int i = 0; i < q->walk.n_path; i++) {
        append_token(s, q->tree.token[q->walk.node[i]]);
    }
    append_token(s, q->walk.bonus);
    s->kv_len = s->committed_len - 1;
    gr_kv_table_truncate(&t->pool, &s->table, s->kv_len);
    if (s->round > 0) {
        count_round(t, s, q);
    }
    s->verdict_ns = now_ns;
    s->deadline_ns = now_ns + t->config.round_deadline_ns;
    send_round_verdict(t, s, q, base_len);
    send_commit(t, s, q, base_len);
    s->round++;
    s->state = q->walk.finish != GR_FINISH_NONE ? SESSION_FINISHED : SESSION_DECODE;
    if (s->draft.valid) {
        target_judge_draft(t, s); /* came during the pass: its base may have moved */
    }
}

static void finish_prefill_chunk(struct gr_target *t, struct session *s, const struct gr_pass_seq *q,
                                 uint64_t now_ns)
{
    s->kv_len += q->n_row;
    if (q->want_pick) {
        s->pass_draft_round = GR_WIRE_ROOT_ONLY;
        apply_walk(t, s, q, now_ns);
    } else {
        const struct gr_msg m = {.type = GR_MSG_PROGRESS, .session = s->id, .usable_len = (uint32_t)s->kv_len};
        t->io.send_msg(t->io.ctx, &m);
    }
}

static void finish_seq(struct gr_target *t, struct gr_pass_seq *q, enum gr_status status, uint64_t now_ns)
{
    struct session *s = &t->session[q->session];
    s->in_pass = false;
    if (s->closing) {
        target_free_session(t, s);
    } else if (status != GR_OK) {
        target_send_error(t, s->id, status, "the pass failed; see the target's log");
        target_free_session(t, s);
    } else if (q->kind == GR_PASS_PREFILL) {
        q->tree.n = 0;
        finish_prefill_chunk(t, s, q, now_ns);
    } else {
        apply_walk(t, s, q, now_ns);
    }
}

void gr_target_on_pass_done(struct gr_target *t, struct gr_pass *pass, uint64_t now_ns)
{
    GR_ASSERT(pass == &t->pass && t->pass_in_flight);
    t->pass_in_flight = false;
    t->counters.n_pass++;
    t->counters.n_row += (uint64_t)pass->n_row;
    for (int i = 0; i < pass->n_seq; i++) {
        finish_seq(t, &pass->seq[i], pass->status, now_ns);
    }
#ifdef GR_DEBUG
    GR_ASSERT(gr_target_check(t));
#endif
}
