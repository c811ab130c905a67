/* The drafter's jobs: what a session needs next, what of its candidates still serves, what a finished job brought. */
#include "common/base/log.h"
#include "draft_worker/machine/drafter_internal.h"

#include <stdio.h>
#include <string.h>

#define RATE_ROUNDS_MIN 6 /* before that a session's own rate says little */
#define AHEAD_ROWS 4      /* rows of a level ahead of need, and children kept of a row, where top_k is less */

/* ---- what candidates serve ---- */

/* The committed tokens since the root, as far as they are expanded candidates. */
struct reuse {
    int32_t n;    /* candidates on the way: their KV is there */
    int32_t cand; /* the last of them, -1: none */
    bool whole;   /* all tokens are: the last one's children are known */
    int16_t slot[GR_NODE_MAX];
};

static struct reuse find_reuse(const struct follow *f)
{
    struct reuse r = {.cand = -1};
    if (!f->candidates.valid) {
        return r;
    }
    while (f->candidates.len + r.n < f->prefix.len) {
        const int c = gr_tree_builder_child(f->builder, r.cand, f->prefix.token[f->candidates.len + r.n]);
        if (c < 0 || f->builder->cand[c].slot < 0) {
            return r;
        }
        r.slot[r.n++] = f->builder->cand[c].slot;
        r.cand = c;
    }
    r.whole = true;
    return r;
}

static void count_reuse(struct gr_drafter *d, struct follow *f, const struct reuse *r)
{
    if (f->n_ahead_level > 0 && f->candidates.valid && f->prefix.len > f->candidates.len) {
        const bool hit = r->whole && f->builder->cand[r->cand].n_child > 0;
        f->n_ahead++;
        f->n_hit += hit;
        d->counters.n_ahead++;
        d->counters.n_hit += hit;
    }
    d->counters.n_reused += r->whole;
    f->n_ahead_level = 0;
}

/* ---- a job ---- */

/* Committed tokens without a row whose features are there, from drafter_row_from() on. */
static int32_t head_backlog(const struct follow *f)
{
    return GR_MIN(f->prefix.len, f->features.end + 1) - drafter_row_from(f);
}

static bool tail_has_feature(const struct follow *f)
{
    return f->features.end >= f->prefix.len - 1;
}

/* A tree grows when its tail's feature is there. Before that, and in a prompt, rows run by the chunk; what is left of a
 * prompt at its end runs when all of it has come. */
static bool head_wants_job(const struct gr_drafter *d, const struct follow *f)
{
    const int32_t n = head_backlog(f);
    if (f->owed.due && !f->owed.ready && tail_has_feature(f)) {
        return true;
    }
    const bool prompt = drafter_row_from(f) < f->prefill_len && f->features.end + 1 >= f->prefill_len;
    return (f->owed.due ? !f->owed.ready : !f->starved) && n > 0 &&
           (prompt || n >= GR_MIN(d->config.prefill_chunk, d->config.feature_window / 4));
}

static bool wants_job(const struct gr_drafter *d, const struct follow *f)
{
    if (f->state != DRAFT_FOLLOWING || f->job.in_flight || f->closing) {
        return false;
    }
    if (f->kv.shift > 0) {
        return head_wants_job(d, f);
    }
    return f->owed.due ? !f->owed.ready : f->kv.len < f->prefill_len && !f->starved;
}

static bool wants_ahead(const struct follow *f)
{
    return f->state == DRAFT_FOLLOWING && !f->job.in_flight && !f->closing && f->wishes.draft_ahead == GR_AHEAD_ON &&
           !f->owed.due && f->candidates.valid && f->candidates.len == f->prefix.len && !f->ahead_done &&
           (f->kv.shift == 0 || tail_has_feature(f));
}

/* A tree of n nodes has n levels at most, and a row needs a position in the context. */
static struct gr_tree_config tree_config_now(const struct gr_drafter *d, const struct follow *f)
{
    struct gr_tree_config c = f->tree_config;
    c.n_node = GR_MIN(c.n_node, f->owed.n_node);
    c.depth = GR_MIN(c.depth, GR_MIN(c.n_node, d->config.n_ctx_max - f->prefix.len + 1));
    c.depth = GR_MAX(c.depth, 1);
    c.best_first = f->wishes.auto_tree && f->cost.n_point > 0;
    return c;
}

static void fill_common(struct gr_drafter *d, struct follow *f, struct gr_draft_seq *q, enum gr_draft_task task)
{
    const int slot = (int)(f - d->follow);
    q->session = slot;
    q->task = task;
    q->n_copy = q->n_row = 0;
    q->pos0 = q->base_len = f->prefix.len;
    q->feature = NULL;
    q->kv_shift = f->kv.shift;
    q->known = false;
    q->root_slot = -1;
    q->table = &f->kv.table;
    for (int b = 0; b < GR_DRAFT_SCRATCH_BLOCKS; b++) {
        q->scratch_block[b] = d->config.n_pool_block + slot * GR_DRAFT_SCRATCH_BLOCKS + b;
    }
    q->builder = f->builder;
    q->n_child = GR_MIN(f->tree_config.top_k, f->tree_config.n_node); /* no more can enter a tree */
    q->n_child = f->wishes.draft_ahead == GR_AHEAD_ON ? GR_MAX(q->n_child, AHEAD_ROWS) : q->n_child;
    q->depth_max = GR_MIN(GR_NODE_MAX, d->config.n_ctx_max - f->prefix.len + 1);
    q->sampling = f->wishes.sampling;
    q->calibrate = f->wishes.auto_tree;
    if (q->calibrate) {
        gr_acceptance_curve(&d->acceptance, &f->acceptance, &q->curve);
    }
    drafter_flight_begin(f, task);
    d->job.n_seq++;
}

static void starve(struct gr_drafter *d, struct follow *f, uint64_t now_ns)
{
    if (!f->starved) {
        drafter_fall_back(d, f, GR_FALLBACK_DRAFT_POOL, NULL);
    }
    f->starved = true; /* tried again when the next tree is due */
    if (f->owed.due) {
        drafter_answer_empty(d, f, f->owed.round, (uint32_t)f->prefix.len, f->prefix.hash[f->prefix.len], now_ns);
    }
}

/* The committed tokens [pos0, end) that a job runs. */
struct span {
    int32_t pos0, end;
    bool grow;  /* a tree, too */
    bool known; /* the root's children are known: it can begin with a level */
};

static struct span plan_rows(const struct gr_drafter *d, const struct follow *f, const struct reuse *r, int n_row_left)
{
    struct span s = {.pos0 = r->n > 0 ? f->candidates.len + r->n : f->kv.len, .known = r->whole && f->owed.due};
    /* A tree starts below the tail, so its row runs again when only its KV is known. */
    if (f->owed.due && s.pos0 >= f->prefix.len && !r->whole) {
        s.pos0 = f->prefix.len - 1;
    }
    s.end = GR_MIN(f->owed.due ? f->prefix.len : f->prefill_len, s.pos0 + GR_MIN(d->config.prefill_chunk, n_row_left));
    s.grow = f->owed.due && s.end == f->prefix.len;
    return s;
}

/* The same for a head: no candidate's KV is reused, and rows go as far as features do. */
static struct span plan_head_rows(const struct gr_drafter *d, const struct follow *f, const struct reuse *r,
                                  int n_row_left)
{
    const int32_t chunk = d->config.prefill_chunk;
    struct span s = {.pos0 = drafter_row_from(f), .end = GR_MIN(f->prefix.len, f->features.end + 1)};
    const bool tree = f->owed.due && tail_has_feature(f);
    const int32_t n_row = GR_MAX(s.end - s.pos0, 0);
    s.known = tree && r->whole && n_row <= chunk && n_row + f->tree_config.top_k <= d->config.n_row_max;
    if (tree && s.pos0 >= f->prefix.len && !s.known) {
        s.pos0 = f->prefix.len - 1;
    }
    s.end = GR_MAX(GR_MIN(s.end, s.pos0 + GR_MIN(chunk, n_row_left)), s.pos0);
    s.grow = tree && s.end == f->prefix.len;
    return s;
}

/* Copies: a DELTA may replace the session's tokens, and with them its features, while the job runs. */
static void fill_rows(struct gr_drafter *d, struct follow *f, struct gr_draft_seq *q, int32_t pos0, int32_t end)
{
    const size_t at = (size_t)(q - d->job.seq) * (size_t)d->config.prefill_chunk;
    int32_t *token = d->job_token + at;
    q->pos0 = pos0;
    q->n_row = end - pos0;
    memcpy(token, &f->prefix.token[pos0], (size_t)q->n_row * sizeof(*token));
    q->token = token;
    if (f->kv.shift > 0) {
        uint16_t *feature = d->job_feature + at * (size_t)d->config.feature_width;
        drafter_copy_features(d, f, pos0, q->n_row, feature);
        q->feature = feature;
    }
    d->counters.n_row += (uint64_t)q->n_row;
}

/* The candidates become those below the newest token, or none. */
static void reroot(struct follow *f, struct gr_draft_seq *q, const struct reuse *r, bool known)
{
    if (!r->whole || !known) {
        gr_tree_builder_reset(f->builder);
    } else if (r->cand >= 0) {
        q->root_slot = f->builder->cand[r->cand].slot;
        gr_tree_builder_reroot(f->builder, r->cand);
    }
}

/* KV of committed tokens, and a tree when one is due. Returns the rows of the first pass (at most); 0: no job. */
static int add_seq(struct gr_drafter *d, struct follow *f, int n_row_left, uint64_t now_ns)
{
    const bool head = f->kv.shift > 0;
    const bool may_flip = f->owed.due && !f->flipped && (!head || tail_has_feature(f));
    if (may_flip && f->owed.round == d->config.test_flip_round && d->config.test_flip_round > 0) {
        drafter_test_flip(d, f);
    }
    const struct reuse r = find_reuse(f);
    const struct span s = head ? plan_head_rows(d, f, &r, n_row_left) : plan_rows(d, f, &r, n_row_left);
    const int first_rows = (s.known ? f->tree_config.top_k : 0) + (head || !s.known ? s.end - s.pos0 : 0);
    if (s.known ? n_row_left < first_rows || (head && !s.grow) : s.end <= s.pos0) {
        return 0;
    }
    if (gr_kv_table_grow(&d->pool, &f->kv.table, drafter_n_cell(f, s.end)) != GR_OK) {
        starve(d, f, now_ns);
        return 0;
    }
    f->starved = false;
    struct gr_draft_seq *q = &d->job.seq[d->job.n_seq];
    fill_common(d, f, q, s.grow ? GR_DRAFT_GROW : GR_DRAFT_CATCH_UP);
    fill_rows(d, f, q, s.pos0, s.end);
    q->base_len = s.end;
    q->tree_config = tree_config_now(d, f);
    q->cost = f->cost;
    q->rate = f->n_rate >= RATE_ROUNDS_MIN && f->rate_ns > 0.0f ? f->rate_tokens / f->rate_ns : 0.0f;
    drafter_flight_works_on(f, s.end, f->owed.round);
    if (head && !s.grow) { /* the candidates stay as they are */
        return first_rows;
    }
    q->known = s.known;
    if (!head) {
        q->n_copy = r.n;
        q->copy_pos0 = f->candidates.len;
        memcpy(q->copy_slot, r.slot, (size_t)r.n * sizeof(r.slot[0]));
    }
    if (f->owed.due) {
        count_reuse(d, f, &r);
    }
    reroot(f, q, &r, s.known || !head);
    drafter_candidates_drop(f); /* until the job is done */
    return first_rows;
}

/* A level below the candidates there are. Rows that a head still owes to committed tokens go along: their features came
 * before the tree that was sent, or have come again since. */
static int add_ahead(struct gr_drafter *d, struct follow *f, int n_row_left)
{
    const int32_t pos0 = f->kv.shift > 0 ? drafter_row_from(f) : f->prefix.len;
    const int32_t n_owed = GR_MAX(f->prefix.len - pos0, 0);
    if (n_owed > d->config.prefill_chunk || n_owed >= n_row_left ||
        gr_kv_table_grow(&d->pool, &f->kv.table, drafter_n_cell(f, f->prefix.len)) != GR_OK) {
        f->ahead_done = n_owed > 0; /* until the next tree */
        return 0;
    }
    struct gr_draft_seq *q = &d->job.seq[d->job.n_seq];
    fill_common(d, f, q, GR_DRAFT_AHEAD);
    fill_rows(d, f, q, f->prefix.len - n_owed, f->prefix.len);
    q->known = true;
    q->n_ahead = GR_MIN(GR_MAX(f->tree_config.top_k, AHEAD_ROWS), n_row_left - n_owed);
    drafter_flight_works_on(f, f->prefix.len, f->job.round);
    return q->n_ahead + n_owed;
}

/* A tree is due, and only its features have not come yet: they are right after. */
static bool waits_for_features(const struct gr_drafter *d, const struct follow *f)
{
    return f->state == DRAFT_FOLLOWING && f->kv.shift > 0 && f->owed.due && !f->owed.ready && !tail_has_feature(f) &&
           !wants_job(d, f);
}

/* Sessions of one pass are told one after the other, then their features follow. Trees that are grown together take one
 * pass of the draft model a level, not one each. */
static bool expects_more(const struct gr_drafter *d)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (waits_for_features(d, &d->follow[i])) {
            return true;
        }
    }
    return d->more;
}

static bool has_work(const struct gr_drafter *d)
{
    for (int i = 0; i < d->config.n_session_max; i++) {
        if (wants_job(d, &d->follow[i]) || wants_ahead(&d->follow[i])) {
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
        if (wants_job(d, &d->follow[i])) {
            n_row_left -= add_seq(d, &d->follow[i], n_row_left, now_ns);
        }
    }
    const bool idle = d->job.n_seq == 0;
    for (int i = 0; idle && i < d->config.n_session_max && n_row_left > 0; i++) {
        if (wants_ahead(&d->follow[i])) {
            n_row_left -= add_ahead(d, &d->follow[i], n_row_left);
        }
    }
    if (d->job.n_seq > 0) {
        d->job_in_flight = true;
        d->io.start_job(d->io.ctx, &d->job);
    }
    return UINT64_MAX;
}

/* ---- a finished job ---- */

/* The draft model's logits of a row are not finite: broken weights, broken features, or values that overflow. The
 * target needs no tree. */
static void note_not_finite(struct gr_drafter *d, struct follow *f)
{
    char where[48];
    d->counters.n_not_finite++;
    snprintf(where, sizeof(where), "after position %d", f->job.len - 1);
    drafter_fall_back(d, f, GR_FALLBACK_DRAFT_NAN, where);
}

static void finish_ahead(struct gr_drafter *d, struct follow *f, const struct gr_draft_seq *q)
{
    drafter_candidates_stand(f);
    f->ahead_done = q->exhausted;
    f->n_ahead_level += q->n_level;
    d->counters.n_ahead_level += (uint64_t)q->n_level;
}

static void finish_tree(struct gr_drafter *d, struct follow *f, const struct gr_draft_seq *q, uint64_t now_ns)
{
    drafter_candidates_of_job(f);
    f->ahead_done = false;
    d->counters.n_level += (uint64_t)q->n_level;
    if (f->job.len != f->prefix.len || !f->owed.due ||
        q->tree_config.n_node != GR_MIN(f->tree_config.n_node, f->owed.n_node)) {
        d->counters.n_stale_tree++; /* overtaken, or asked for in another size; its candidates serve the next one */
        if (f->owed.due && !f->owed.ready && f->job.len < f->prefix.len && q->drafted.tree.n > 0) {
            drafter_send_late(d, f, &q->drafted);
        }
        return;
    }
    drafter_owed_grown(f, &q->drafted);
    d->counters.n_empty_choice += q->tree_config.best_first && q->drafted.tree.n == 0 && !q->not_finite;
    drafter_send_tree(d, f, now_ns);
}

static void finish_seq(struct gr_drafter *d, const struct gr_draft_seq *q, uint64_t compute_ns, uint64_t now_ns)
{
    struct follow *f = &d->follow[q->session];
    drafter_flight_land(f);
    if (f->closing) {
        drafter_free(d, f);
        return;
    }
    if (f->job.stale) { /* the job worked on tokens that are gone: keep what still stands */
        drafter_candidates_drop(f);
        draft_kv_trim(d, f);
        return;
    }
    if (f->kv.shift > 0 ? q->ran_rows : f->job.task != GR_DRAFT_AHEAD) {
        draft_kv_reach(f, f->job.len);
    }
    if (q->not_finite) {
        note_not_finite(d, f);
    }
    if (f->job.task == GR_DRAFT_AHEAD) {
        finish_ahead(d, f, q);
        return;
    }
    drafter_owed_time(f, compute_ns);
    if (f->job.task == GR_DRAFT_GROW) {
        finish_tree(d, f, q, now_ns);
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
        if (job->status != GR_OK) {
            struct follow *f = &d->follow[job->seq[i].session];
            if (!f->closing) { /* else it was detached, and may be attached anew in another slot */
                drafter_send_error(d, f->id, job->status, "the draft pass failed; see the drafter's log");
            }
            drafter_flight_land(f);
            drafter_free(d, f);
            continue;
        }
        finish_seq(d, &job->seq[i], job->compute_ns, now_ns);
    }
}
