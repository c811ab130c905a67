/* The drafter's jobs: what a session needs next, what of its candidates still serves, what a finished job brought. */
#include "common/base/log.h"
#include "draft_worker/machine/drafter_internal.h"

#include <stdio.h>
#include <string.h>

#define RATE_ROUNDS_MIN 6 /* rounds after which a session's own rate is used */
#define AHEAD_ROWS 4      /* the least rows of a level ahead of need, and the least children that a row keeps then */

/* ---- what candidates serve ---- */

/* The committed tokens since the root, as far as they are expanded candidates. */
struct reuse {
    int32_t n;    /* candidates on the way: their KV is there */
    int32_t cand; /* the last of them, -1: none */
    bool whole;   /* all tokens are: the last one's children are known */
    int16_t slot[GR_NODE_MAX];
};

static struct reuse find_reuse(const struct session *s)
{
    struct reuse r = {.cand = -1};
    if (!s->candidates.valid) {
        return r;
    }
    while (s->candidates.len + r.n < s->prefix.len) {
        const int c = gr_tree_builder_child(s->builder, r.cand, s->prefix.token[s->candidates.len + r.n]);
        if (c < 0 || s->builder->cand[c].slot < 0) {
            return r;
        }
        r.slot[r.n++] = s->builder->cand[c].slot;
        r.cand = c;
    }
    r.whole = true;
    return r;
}

static void count_reuse(struct gr_drafter *d, struct session *s, const struct reuse *r)
{
    if (s->n_ahead_level > 0 && s->candidates.valid && s->prefix.len > s->candidates.len) {
        const bool hit = r->whole && s->builder->cand[r->cand].n_child > 0;
        s->n_ahead++;
        s->n_hit += hit;
        d->counters.n_ahead++;
        d->counters.n_hit += hit;
        drafter_owed_met_ahead(s, hit);
    }
    d->counters.n_reused += r->whole;
    s->n_ahead_level = 0;
}

/* ---- a job ---- */

/* Committed tokens without a row whose features are there, from drafter_row_from() on. */
static int32_t head_backlog(const struct session *s)
{
    return GR_MIN(s->prefix.len, s->features.end + 1) - drafter_row_from(s);
}

static bool tail_has_feature(const struct session *s)
{
    return s->features.end >= s->prefix.len - 1;
}

/* A tree grows when its tail's feature is there. Before that, and in a prompt, rows run by the chunk; what is left of a
 * prompt at its end runs when all of it has come. */
static bool head_wants_job(const struct gr_drafter *d, const struct session *s)
{
    const int32_t n = head_backlog(s);
    if (s->owed.due && !s->owed.ready && tail_has_feature(s)) {
        return true;
    }
    const bool prompt = drafter_row_from(s) < s->prefill_len && s->features.end + 1 >= s->prefill_len;
    return (s->owed.due ? !s->owed.ready : !s->starved) && n > 0 &&
           (prompt || n >= GR_MIN(d->config.prefill_chunk, d->config.feature_window / 4));
}

static bool wants_job(const struct gr_drafter *d, const struct session *s)
{
    if (s->state != DRAFT_FOLLOWING || s->job.in_flight || s->closing) {
        return false;
    }
    if (s->kv.shift > 0) {
        return head_wants_job(d, s);
    }
    return s->owed.due ? !s->owed.ready : s->kv.len < s->prefill_len && !s->starved;
}

static bool wants_ahead(const struct session *s)
{
    return s->state == DRAFT_FOLLOWING && !s->job.in_flight && !s->closing && s->wishes.draft_ahead == GR_AHEAD_ON &&
           !s->owed.due && s->candidates.valid && s->candidates.len == s->prefix.len && !s->ahead_done &&
           (s->kv.shift == 0 || tail_has_feature(s));
}

/* A tree of n nodes has n levels at most, and a row needs a position in the context. */
static struct gr_tree_config tree_config_now(const struct gr_drafter *d, const struct session *s)
{
    struct gr_tree_config c = s->tree_config;
    c.n_node = GR_MIN(c.n_node, s->owed.n_node);
    c.depth = GR_MIN(c.depth, GR_MIN(c.n_node, d->config.n_ctx_max - s->prefix.len + 1));
    c.depth = GR_MAX(c.depth, 1);
    c.best_first = s->wishes.auto_tree && s->cost.n_point > 0;
    return c;
}

static void fill_common(struct gr_drafter *d, struct session *s, struct gr_draft_seq *q, enum gr_draft_task task)
{
    const int slot = (int)(s - d->session);
    q->session = slot;
    q->task = task;
    q->n_copy = q->n_row = 0;
    q->pos0 = q->base_len = s->prefix.len;
    q->feature = NULL;
    q->kv_shift = s->kv.shift;
    q->known = false;
    q->root_slot = -1;
    q->table = &s->kv.table;
    for (int b = 0; b < GR_DRAFT_SCRATCH_BLOCKS; b++) {
        q->scratch_block[b] = d->config.n_pool_block + slot * GR_DRAFT_SCRATCH_BLOCKS + b;
    }
    q->builder = s->builder;
    q->n_child = GR_MIN(s->tree_config.top_k, s->tree_config.n_node); /* no more can enter a tree */
    q->n_child = s->wishes.draft_ahead == GR_AHEAD_ON ? GR_MAX(q->n_child, AHEAD_ROWS) : q->n_child;
    q->depth_max = GR_MIN(GR_NODE_MAX, d->config.n_ctx_max - s->prefix.len + 1);
    q->sampling = s->wishes.sampling;
    q->adjust = s->wishes.adjust.banned.n + s->wishes.adjust.biased.n > 0 ? &s->wishes.adjust : NULL;
    q->calibrate = s->wishes.auto_tree;
    if (q->calibrate) {
        gr_acceptance_curve(&d->acceptance, &s->acceptance, &q->curve);
    }
    drafter_flight_begin(s, task);
    d->job.n_seq++;
}

static void starve(struct gr_drafter *d, struct session *s, uint64_t now_ns)
{
    if (!s->starved) {
        drafter_fall_back(d, s, GR_FALLBACK_DRAFT_POOL, NULL);
    }
    s->starved = true; /* tried again when the next tree is due */
    if (s->owed.due) {
        drafter_answer_empty(d, s, s->owed.round, (uint32_t)s->prefix.len, s->prefix.hash[s->prefix.len], now_ns);
    }
}

/* The committed tokens [pos0, end) that a job runs. */
struct span {
    int32_t pos0, end;
    bool grow;  /* a tree, too */
    bool known; /* the root's children are known: it can begin with a level */
};

static struct span plan_rows(const struct gr_drafter *d, const struct session *s, const struct reuse *r, int n_row_left)
{
    struct span span = {.pos0 = r->n > 0 ? s->candidates.len + r->n : s->kv.len, .known = r->whole && s->owed.due};
    /* A tree starts below the tail, so its row runs again when only its KV is known. */
    if (s->owed.due && span.pos0 >= s->prefix.len && !r->whole) {
        span.pos0 = s->prefix.len - 1;
    }
    span.end =
        GR_MIN(s->owed.due ? s->prefix.len : s->prefill_len, span.pos0 + GR_MIN(d->config.prefill_chunk, n_row_left));
    span.grow = s->owed.due && span.end == s->prefix.len;
    return span;
}

/* The same for a head: no candidate's KV is reused, and rows go as far as features do. */
static struct span plan_head_rows(const struct gr_drafter *d, const struct session *s, const struct reuse *r,
                                  int n_row_left)
{
    const int32_t chunk = d->config.prefill_chunk;
    struct span span = {.pos0 = drafter_row_from(s), .end = GR_MIN(s->prefix.len, s->features.end + 1)};
    const bool tree = s->owed.due && tail_has_feature(s);
    const int32_t n_row = GR_MAX(span.end - span.pos0, 0);
    span.known = tree && r->whole && n_row <= chunk && n_row + s->tree_config.top_k <= d->config.n_row_max;
    if (tree && span.pos0 >= s->prefix.len && !span.known) {
        span.pos0 = s->prefix.len - 1;
    }
    span.end = GR_MAX(GR_MIN(span.end, span.pos0 + GR_MIN(chunk, n_row_left)), span.pos0);
    span.grow = tree && span.end == s->prefix.len;
    return span;
}

/* Copies: a DELTA may replace the session's tokens, and with them its features, while the job runs. */
static void fill_rows(struct gr_drafter *d, struct session *s, struct gr_draft_seq *q, int32_t pos0, int32_t end)
{
    const int i_seq = (int)(q - d->job.seq);
    int32_t *token = d->job_token + (size_t)i_seq * (size_t)d->config.prefill_chunk;
    q->pos0 = pos0;
    q->n_row = end - pos0;
    memcpy(token, &s->prefix.token[pos0], (size_t)q->n_row * sizeof(*token));
    q->token = token;
    if (s->kv.shift > 0) {
        q->feature = drafter_features_for_job(d, s, i_seq, pos0, q->n_row);
    }
    d->counters.n_row += (uint64_t)q->n_row;
}

/* The candidates become those below the newest token, or none. */
static void reroot(struct session *s, struct gr_draft_seq *q, const struct reuse *r, bool known)
{
    if (!r->whole || !known) {
        gr_tree_builder_reset(s->builder);
    } else if (r->cand >= 0) {
        q->root_slot = s->builder->cand[r->cand].slot;
        gr_tree_builder_reroot(s->builder, r->cand);
    }
}

/* KV of committed tokens, and a tree when one is due. Returns the rows of the first pass (at most); 0: no job. */
static int add_seq(struct gr_drafter *d, struct session *s, int n_row_left, uint64_t now_ns)
{
    const bool head = s->kv.shift > 0;
    const bool may_flip = s->owed.due && !s->flipped && (!head || tail_has_feature(s));
    if (may_flip && s->owed.round == d->config.test_flip_round && d->config.test_flip_round > 0) {
        drafter_test_flip(d, s);
    }
    const struct reuse r = find_reuse(s);
    const struct span span = head ? plan_head_rows(d, s, &r, n_row_left) : plan_rows(d, s, &r, n_row_left);
    const int first_rows = (span.known ? s->tree_config.top_k : 0) + (head || !span.known ? span.end - span.pos0 : 0);
    if (span.known ? n_row_left < first_rows || (head && !span.grow) : span.end <= span.pos0) {
        return 0;
    }
    if (gr_kv_table_grow(&d->pool, &s->kv.table, drafter_n_cell(s, span.end)) != GR_OK) {
        starve(d, s, now_ns);
        return 0;
    }
    s->starved = false;
    struct gr_draft_seq *q = &d->job.seq[d->job.n_seq];
    fill_common(d, s, q, span.grow ? GR_DRAFT_GROW : GR_DRAFT_CATCH_UP);
    fill_rows(d, s, q, span.pos0, span.end);
    q->base_len = span.end;
    q->tree_config = tree_config_now(d, s);
    q->cost = s->cost;
    q->rate = s->n_rate >= RATE_ROUNDS_MIN && s->rate_ns > 0.0f ? s->rate_tokens / s->rate_ns : 0.0f;
    drafter_flight_works_on(s, span.end, s->owed.round);
    if (head && !span.grow) { /* the candidates stay as they are */
        return first_rows;
    }
    q->known = span.known;
    if (!head) {
        q->n_copy = r.n;
        q->copy_pos0 = s->candidates.len;
        memcpy(q->copy_slot, r.slot, (size_t)r.n * sizeof(r.slot[0]));
    }
    if (s->owed.due) {
        count_reuse(d, s, &r);
    }
    reroot(s, q, &r, span.known || !head);
    drafter_candidates_drop(s); /* until the job is done */
    return first_rows;
}

/* A level below the candidates there are. Rows that a head still owes to committed tokens go along: their features came
 * before the tree that was sent, or have come again since. */
static int add_ahead(struct gr_drafter *d, struct session *s, int n_row_left)
{
    const int32_t pos0 = s->kv.shift > 0 ? drafter_row_from(s) : s->prefix.len;
    const int32_t n_owed = GR_MAX(s->prefix.len - pos0, 0);
    if (n_owed > d->config.prefill_chunk || n_owed >= n_row_left ||
        gr_kv_table_grow(&d->pool, &s->kv.table, drafter_n_cell(s, s->prefix.len)) != GR_OK) {
        s->ahead_done = n_owed > 0; /* until the next tree */
        return 0;
    }
    struct gr_draft_seq *q = &d->job.seq[d->job.n_seq];
    fill_common(d, s, q, GR_DRAFT_AHEAD);
    fill_rows(d, s, q, s->prefix.len - n_owed, s->prefix.len);
    q->known = true;
    q->n_ahead = GR_MIN(GR_MAX(s->tree_config.top_k, AHEAD_ROWS), n_row_left - n_owed);
    drafter_flight_works_on(s, s->prefix.len, s->job.round);
    return q->n_ahead + n_owed;
}

/* A tree is due, and only its features have not come yet: they are right after. */
static bool waits_for_features(const struct gr_drafter *d, const struct session *s)
{
    return s->state == DRAFT_FOLLOWING && s->kv.shift > 0 && s->owed.due && !s->owed.ready && !tail_has_feature(s) &&
           !wants_job(d, s);
}

/* Sessions of one pass are told one after the other, then their features follow. Trees that are grown together take one
 * pass of the draft model a level, not one each. */
static bool expects_more(const struct gr_drafter *d)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (waits_for_features(d, &d->session[i])) {
            return true;
        }
    }
    return d->more;
}

static bool has_work(const struct gr_drafter *d)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (wants_job(d, &d->session[i]) || wants_ahead(&d->session[i])) {
            return true;
        }
    }
    return false;
}

uint64_t drafter_start_job(struct gr_drafter *d, uint64_t now_ns)
{
    int n_row_left = d->config.n_row_max;
    if (!has_work(d)) {
        d->held_ns = 0;
        return UINT64_MAX;
    }
    if (expects_more(d)) {
        d->held_ns = d->held_ns == 0 ? GR_MAX(now_ns, 1u) : d->held_ns;
        const uint64_t until_ns = GR_MIN(d->heard_ns + GR_DRAFT_GATHER_NS, d->held_ns + GR_DRAFT_GATHER_MOST_NS);
        if (now_ns < until_ns) {
            return until_ns;
        }
    }
    d->held_ns = 0;
    d->job.n_seq = 0;
    for (int i = 0; i < d->config.n_session_max && n_row_left > 0; i++) {
        if (wants_job(d, &d->session[i])) {
            n_row_left -= add_seq(d, &d->session[i], n_row_left, now_ns);
        }
    }
    const bool idle = d->job.n_seq == 0;
    for (int i = 0; idle && i < d->config.n_session_max && n_row_left > 0; i++) {
        if (wants_ahead(&d->session[i])) {
            n_row_left -= add_ahead(d, &d->session[i], n_row_left);
        }
    }
    if (d->job.n_seq > 0) {
        d->job_in_flight = true;
        drafter_rows_wait(d);
        d->io.start_job(d->io.ctx, &d->job);
    }
    return UINT64_MAX;
}

/* ---- a finished job ---- */

/* The draft model's logits of a row are not finite: broken weights, broken features, or values that overflow. The
 * target needs no tree. */
static void note_not_finite(struct gr_drafter *d, struct session *s)
{
    char where[48];
    d->counters.n_not_finite++;
    snprintf(where, sizeof(where), "after position %d", s->job.len - 1);
    drafter_fall_back(d, s, GR_FALLBACK_DRAFT_NAN, where);
}

static void finish_ahead(struct gr_drafter *d, struct session *s, const struct gr_draft_seq *q)
{
    drafter_candidates_stand(s);
    s->ahead_done = q->exhausted;
    s->n_ahead_level += q->n_level;
    d->counters.n_ahead_level += (uint64_t)q->n_level;
}

static void finish_tree(struct gr_drafter *d, struct session *s, const struct gr_draft_seq *q, uint64_t now_ns)
{
    drafter_candidates_of_job(s);
    s->ahead_done = false;
    d->counters.n_level += (uint64_t)q->n_level;
    if (s->job.len != s->prefix.len || !s->owed.due ||
        q->tree_config.n_node != GR_MIN(s->tree_config.n_node, s->owed.n_node)) {
        d->counters.n_stale_tree++; /* overtaken, or asked for in another size; its candidates serve the next one */
        if (s->owed.due && !s->owed.ready && s->job.len < s->prefix.len && q->drafted.tree.n > 0) {
            drafter_send_late(d, s, &q->drafted);
        }
        return;
    }
    drafter_owed_grown(s, &q->drafted);
    d->counters.n_empty_choice += q->tree_config.best_first && q->drafted.tree.n == 0 && !q->not_finite;
    drafter_send_tree(d, s, now_ns);
}

static void finish_seq(struct gr_drafter *d, const struct gr_draft_seq *q, uint64_t compute_ns, uint64_t now_ns)
{
    struct session *s = &d->session[q->session];
    drafter_flight_land(s);
    if (s->closing) {
        drafter_free(d, s);
        return;
    }
    if (s->job.stale) { /* the job worked on tokens that are gone: keep what still stands */
        drafter_candidates_drop(s);
        draft_kv_trim(d, s);
        return;
    }
    if (s->kv.shift > 0 ? q->ran_rows : s->job.task != GR_DRAFT_AHEAD) {
        draft_kv_reach(s, s->job.len);
    }
    if (q->not_finite) {
        note_not_finite(d, s);
    }
    if (s->job.task == GR_DRAFT_AHEAD) {
        finish_ahead(d, s, q);
        return;
    }
    drafter_owed_time(s, compute_ns);
    if (s->job.task == GR_DRAFT_GROW) {
        finish_tree(d, s, q, now_ns);
    }
}

static void log_job(const struct gr_draft_job *job)
{
    int n_tree = 0, n_row = 0, n_level = 0;
    for (int i = 0; i < job->n_seq; i++) {
        n_tree += job->seq[i].task == GR_DRAFT_GROW;
        n_row += job->seq[i].n_row;
        n_level = GR_MAX(n_level, job->seq[i].n_level);
    }
    gr_log_topic_line(GR_TOPIC_ROUND, "job sessions=%d trees=%d rows=%d levels=%d us=%.0f", job->n_seq, n_tree, n_row,
                      n_level, (double)job->compute_ns / 1e3);
}

void gr_drafter_on_job_done(struct gr_drafter *d, struct gr_draft_job *job, uint64_t now_ns)
{
    GR_ASSERT(job == &d->job && d->job_in_flight);
    d->job_in_flight = false;
    if (gr_log_topic(GR_TOPIC_ROUND)) {
        log_job(job);
    }
    d->counters.n_job++;
    for (int i = 0; i < job->n_seq; i++) {
        drafter_log_about(&d->session[job->seq[i].session]);
        if (job->status != GR_OK) {
            struct session *s = &d->session[job->seq[i].session];
            if (!s->closing) { /* else it was detached, and may be attached anew in another slot */
                drafter_send_error(d, s->id, job->status, "the draft pass failed; see the drafter's log");
            }
            drafter_flight_land(s);
            drafter_free(d, s);
            continue;
        }
        finish_seq(d, &job->seq[i], job->compute_ns, now_ns);
    }
    gr_log_about(NULL);
}
