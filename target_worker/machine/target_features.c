/* Features for drafters that run a head: what passes bring is kept in a ring per session, and shipped in FEATURES
 * frames.
 *
 * The feature of a position exists once its token has run, and depends on the tokens up to it, itself included. A
 * session keeps those of [feature_first, feature_end), at most feature_keep of them; in K = 0 the n_kept positions
 * after them are captured states that have not been fused (pass.h). The drafter has those before feature_sent. It is
 * never sent one that its tokens do not need (position peer_len - 1 and beyond), so a session in which no tree is
 * wanted ships none: its drafter is not told the tokens either. Nor is it sent more than feature_window rows of which
 * it has not said TAKEN, so it can keep all it is sent. Where the ring has moved on past feature_sent, or the drafter's
 * head does not look back so far (feature_context), START tells the drafter to begin later.
 * Decisions D-019, D-074, D-076. */
#include "target_worker/machine/target_internal.h"

#define ROUND_FRAMES 32  /* of one session's rounds, in one step */
#define PREFILL_FRAMES 4 /* of all prompts, in one step: verdicts go out between steps */

static uint16_t *row_of(const struct gr_target *t, const struct session *s, int32_t pos)
{
    const size_t slot = (size_t)(s - t->session);
    const size_t keep = (size_t)t->config.feature_keep;
    return t->feature + (slot * keep + (size_t)pos % keep) * (size_t)t->config.feature_width;
}

/* How many rows from position pos on, before end, lie one after the other in the ring. */
static int32_t run_of(const struct gr_target *t, int32_t pos, int32_t end)
{
    return GR_MIN(end - pos, t->config.feature_keep - pos % t->config.feature_keep);
}

/* The same, of rows that a pass brought, which lie where row[0], row[1] ... say. */
static int32_t run_of_pass(const struct gr_target *t, int32_t pos, int32_t end, const uint16_t *const *row)
{
    const int32_t most = run_of(t, pos, end);
    int32_t n = 1;
    while (n < most && row[n] == row[n - 1] + t->config.feature_width) {
        n++;
    }
    return n;
}

bool target_wants_features(const struct gr_target *t, const struct session *s)
{
    return t->config.feature_width > 0 && (s->with_draft || s->link.attached);
}

/* The first position that the drafter's head looks at. */
static int32_t first_wanted(const struct session *s)
{
    const int32_t end = GR_MAX(s->turn.prefill_end, s->prefix.len);
    return s->link.attached && s->features.context > 0 ? GR_MAX(end - s->features.context, 0) : 0;
}

void target_plan_features(struct gr_target *t, struct session *s, struct gr_pass_seq *q, bool can_wait)
{
    const int32_t kept_end = s->features.end + s->features.n_kept;
    const int32_t pos0 = q->pos0 - q->n_chain; /* of the first row */
    q->want_features =
        target_wants_features(t, s) && q->pos0 + q->n_row > first_wanted(s) && !(t->pass_rests && s->wishes.auto_tree);
    q->keep_capture = false;
    q->n_kept = q->n_feature = 0;
    if (!q->want_features) {
        return;
    }
    if (pos0 > kept_end) { /* rows before it ran when nobody wanted them */
        s->features.first = s->features.end = pos0;
        s->features.n_kept = 0;
    }
    s->features.n_kept =
        GR_MAX(GR_MIN(pos0 - s->features.end, s->features.n_kept), 0); /* rows that run again bring theirs again */
    q->n_kept = s->features.n_kept;
    q->keep_capture = can_wait && q->n_chain == 0 && t->config.feature_later && pos0 >= s->features.end &&
                      s->features.n_kept < GR_CAPTURE_KEEP;
}

/* Positions from `pos` on have features that they did not have: the drafter, as far as it has them, gets them again. */
static void send_again_from(struct session *s, int32_t pos)
{
    s->features.end = GR_MIN(s->features.end, pos);
    s->features.first = GR_MIN(s->features.first, pos);
    if (s->features.sent > pos) {
        s->features.again = GR_MAX(s->features.again, s->features.sent);
        s->features.sent = pos;
        s->features.taken = GR_MIN(s->features.taken, pos);
    }
}

void target_keep_features(struct gr_target *t, struct session *s, const struct gr_pass_seq *q)
{
    const int32_t first = q->pos0 - q->n_chain - q->n_kept;
    const int32_t end = first + q->n_feature;
    if (q->want_features && q->keep_capture) {
        s->features.n_kept = q->n_kept + 1;
        return;
    }
    if (q->n_feature > 0 && q->n_chain > 0) {
        send_again_from(s, q->pos0 - q->n_chain);
    }
    if (q->n_feature == 0 || end <= s->features.end) {
        return; /* a row that ran again: its feature is what it was */
    }
    for (int32_t p = s->features.end, n = 0; p < end; p += n) {
        n = run_of_pass(t, p, end, q->feature + (p - first));
        target_rows_copy(t, row_of(t, s, p), q->feature[p - first], n);
    }
    s->features.n_kept = 0;
    s->features.end = end;
    s->features.first = GR_MAX(s->features.first, end - t->config.feature_keep);
}

/* The drafter has been told tokens whose features are not fused. */
static bool wants_kept(const struct session *s)
{
    return s->state == SESSION_DECODE && s->link.attached && s->features.taken_by_drafter && s->features.n_kept > 0 &&
           s->link.told_len - 1 > s->features.end;
}

bool target_start_fuse_pass(struct gr_target *t)
{
    const int n = t->config.feature_width > 0 ? t->config.n_session_max : 0;
    t->pass.n_seq = t->pass.n_row = 0;
    for (int i = 0; i < n; i++) {
        struct session *s = &t->session[i];
        if (!wants_kept(s)) {
            continue;
        }
        struct gr_pass_seq *q = &t->pass.seq[t->pass.n_seq++];
        *q = (struct gr_pass_seq){.session = i,
                                  .kind = GR_PASS_FUSE,
                                  .pos0 = s->features.end + s->features.n_kept,
                                  .want_features = true,
                                  .n_kept = s->features.n_kept};
        s->features.fusing = true; /* not in_pass: its round goes on */
    }
    if (t->pass.n_seq == 0) {
        return false;
    }
    t->counters.n_fuse_pass++;
    target_flight_start(t);
    return true;
}

void target_finish_fuse_pass(struct gr_target *t)
{
    for (int i = 0; i < t->pass.n_seq; i++) {
        const struct gr_pass_seq *q = &t->pass.seq[i];
        struct session *s = &t->session[q->session];
        if (s->features.fusing) { /* else the session was cut, or is another one */
            s->features.fusing = false;
            target_keep_features(t, s, q);
        }
    }
}

void target_fork_features(struct gr_target *t, struct session *s, const struct session *from, int32_t len)
{
    const int32_t end = GR_MIN(from->features.end, len);
    if (!target_wants_features(t, s) || s->features.end > 0 || end <= from->features.first) {
        return;
    }
    for (int32_t p = from->features.first, n = 0; p < end; p += n) {
        n = run_of(t, p, end);
        target_rows_copy(t, row_of(t, s, p), row_of(t, from, p), n);
    }
    s->features.first = from->features.first;
    s->features.end = end;
}

/* Where the features of a block of the prefix cache lie. */
static uint16_t *rows_of_block(const struct gr_target *t, int32_t block)
{
    return t->block_feature + (size_t)block * GR_KV_BLOCK_TOKENS * (size_t)t->config.feature_width;
}

/* The n tokens of the ring from pos on, and rows, one after the other. */
static void copy_ring(struct gr_target *t, const struct session *s, int32_t pos, uint16_t *rows, bool to_ring)
{
    const int32_t end = pos + GR_KV_BLOCK_TOKENS;
    for (int32_t p = pos, n = 0; p < end; p += n) {
        uint16_t *at = rows + (size_t)(p - pos) * (size_t)t->config.feature_width;
        n = run_of(t, p, end);
        target_rows_copy(t, to_ring ? row_of(t, s, p) : at, to_ring ? at : row_of(t, s, p), n);
    }
}

void target_store_features(struct gr_target *t, struct session *s, int32_t n_block)
{
    const int32_t n = t->block_feature != NULL ? GR_MIN(n_block, s->features.end / GR_KV_BLOCK_TOKENS) : 0;
    for (int32_t i = s->features.stored; i < n; i++) {
        const int32_t block = s->kv.table.block[i];
        struct gr_kv_entry *e = &t->prefix_cache.entry[block];
        if (!e->marked && i * GR_KV_BLOCK_TOKENS >= s->features.first) {
            copy_ring(t, s, i * GR_KV_BLOCK_TOKENS, rows_of_block(t, block), false);
            e->marked = true;
        }
    }
    s->features.stored = GR_MAX(s->features.stored, n);
}

/* From which block on the last ones up to n_block have features, those that there is room for. */
static int32_t first_marked(const struct gr_target *t, const struct session *s, int32_t n_block)
{
    const int32_t least = GR_MAX(n_block - t->config.feature_keep / GR_KV_BLOCK_TOKENS, 0);
    int32_t i = n_block;
    while (i > least && t->prefix_cache.entry[s->kv.table.block[i - 1]].marked) {
        i--;
    }
    return i;
}

void target_take_features(struct gr_target *t, struct session *s)
{
    const int32_t n_block = s->kv.len / GR_KV_BLOCK_TOKENS;
    if (t->block_feature == NULL || !target_wants_features(t, s) || s->features.end >= s->kv.len) {
        return;
    }
    const int32_t first = first_marked(t, s, n_block);
    for (int32_t i = first; i < n_block; i++) {
        copy_ring(t, s, i * GR_KV_BLOCK_TOKENS, rows_of_block(t, s->kv.table.block[i]), true);
    }
    if (first < n_block) {
        const bool joins = first * GR_KV_BLOCK_TOKENS <= s->features.end;
        s->features.first = joins ? s->features.first : first * GR_KV_BLOCK_TOKENS;
        s->features.end = s->kv.len;
        s->features.first = GR_MAX(s->features.first, s->features.end - t->config.feature_keep);
        s->features.n_kept = 0;
        t->counters.n_prefix_feature += (uint64_t)((n_block - first) * GR_KV_BLOCK_TOKENS);
    }
}

struct feature_state target_kept_features(const struct session *s)
{
    return (struct feature_state){.first = s->features.first, .end = s->features.end, .n_kept = s->features.n_kept};
}

void target_cut_features(struct session *s, int32_t len)
{
    s->features.fusing = false;
    s->features.n_kept = GR_MAX(GR_MIN(len - s->features.end, s->features.n_kept), 0);
    s->features.end = GR_MIN(s->features.end, len);
    s->features.first = GR_MIN(s->features.first, s->features.end);
    s->features.stored = GR_MIN(s->features.stored, len / GR_KV_BLOCK_TOKENS);
    /* Frames on their way are lost when the drafter hears of the cut before them, and the row of a new token takes the
     * feature of the one before it, which the drafter may have let go: those it has no use for it drops. */
    s->features.taken = GR_MIN(s->features.taken, GR_MAX(len - 2, 0));
    s->features.sent = GR_MIN(s->features.sent, s->features.taken);
}

void target_restart_features(struct session *s, uint32_t feature_len, uint32_t feature_context)
{
    const bool again = s->features.sent < s->features.again; /* what it has is still to be replaced */
    s->features.taken_by_drafter = feature_len != GR_FEATURES_NONE;
    const uint32_t least = feature_context > 0 ? GR_FEATURE_CONTEXT_MIN : 0;
    s->features.context = (int32_t)GR_MIN(GR_MAX(feature_context, least), (uint32_t)INT32_MAX);
    const uint32_t from = GR_MIN(feature_len, (uint32_t)GR_MAX(s->link.told_len - 2, 0));
    s->features.again = again ? s->features.again : 0;
    s->features.sent = s->features.taken = again ? GR_MIN((int32_t)from, s->features.sent) : (int32_t)from;
}

void target_features_taken(struct session *s, const struct gr_frame_header *h)
{
    if (h->base_len <= (uint32_t)s->features.sent && h->prefix_hash == s->prefix.hash[h->base_len]) {
        s->features.taken = GR_MAX(s->features.taken, (int32_t)h->base_len);
    }
}

bool target_lacks_features(const struct session *s)
{
    const int32_t last = s->prefix.len - 2; /* the tail's row takes it */
    return s->features.taken_by_drafter &&
           (last < 0 || last < s->features.first || last >= s->features.end + s->features.n_kept);
}

/* One frame. False: there is nothing to send, or no credit. */
static bool send_frame(struct gr_target *t, struct session *s)
{
    const int32_t least = GR_MAX(s->features.first, first_wanted(s));
    const bool start = s->features.sent < least;
    const int32_t first = start ? least : s->features.sent;
    const int32_t taken = start ? first : s->features.taken;
    const bool again = first < s->features.again; /* a frame of its own: what follows is new */
    const int32_t known = again && !start ? GR_MIN(s->features.end, s->features.again) : s->features.end;
    const int32_t end = GR_MIN(GR_MIN(known, s->link.told_len - 1), taken + t->config.feature_window);
    const size_t row_bytes = (size_t)t->config.feature_width * sizeof(uint16_t);
    const int32_t n = GR_MIN(end - first, gr_features_frame_rows(row_bytes));
    if (n <= 0) {
        return false;
    }
    const uint32_t base_len = (uint32_t)(first + n);
    const struct gr_frame_header h = {
        .session = s->id,
        .epoch = s->epoch,
        .round = s->next.round,
        .base_len = base_len,
        .prefix_hash = s->prefix.hash[base_len],
        .flags = (uint16_t)((start ? GR_FEATURES_START : 0) | (again ? GR_FEATURES_AGAIN : 0))};
    const struct gr_features f = {.first_pos = (uint32_t)first,
                                  .n_row = (uint32_t)n,
                                  .width = (uint32_t)t->config.feature_width,
                                  .dtype = GR_FEATURES_BF16,
                                  .raw = t->config.feature_raw};
    const size_t bytes = GR_WIRE_HEADER_BYTES + GR_WIRE_FEATURES_BYTES(n, row_bytes);
    uint8_t *rows = NULL;
    uint8_t *out = t->io.frame_begin(t->io.ctx, s->link.peer, GR_FRAME_BULK, (uint32_t)bytes);
    if (out == NULL) {
        return false;
    }
    const size_t n_bytes = gr_wire_encode_features(&h, &f, row_bytes, out, bytes, &rows);
    uint8_t *body = t->io.frame_body != NULL ? t->io.frame_body(t->io.ctx, s->link.peer) : NULL;
    rows = body != NULL ? body : rows;
    for (int32_t i = 0, n_run = 0; i < n; i += n_run) {
        n_run = run_of(t, first + i, first + n);
        target_rows_copy(t, rows + (size_t)i * row_bytes, row_of(t, s, first + i), n_run);
    }
    t->io.frame_end(t->io.ctx, s->link.peer, (uint32_t)n_bytes);
    s->features.sent = (int32_t)base_len;
    s->features.taken = taken;
    t->counters.n_feature_frame++;
    t->counters.n_feature_row += (uint64_t)n;
    t->counters.feature_bytes += n_bytes;
    t->counters.n_feature_start += start;
    return true;
}

/* False: more could be sent, but it is others' turn. */
static bool send_some(struct gr_target *t, struct session *s, int *n_left)
{
    while (*n_left > 0) {
        if (!send_frame(t, s)) {
            return true;
        }
        --*n_left;
    }
    return false;
}

bool target_send_features(struct gr_target *t)
{
    int n_prefill = PREFILL_FRAMES;
    bool all = true;
    const int n = t->config.feature_width > 0 ? t->config.n_session_max : 0;
    for (int i = 0; i < n; i++) {
        struct session *s = &t->session[i];
        int n_left = ROUND_FRAMES;
        if (s->state == SESSION_DECODE && s->link.attached && s->features.taken_by_drafter) {
            all = send_some(t, s, &n_left) && all;
        }
    }
    for (int i = 0; i < n; i++) {
        struct session *s = &t->session[(t->next_slot + i) % n];
        const bool prefill = s->state == SESSION_PREFILL || s->state == SESSION_QUEUED;
        if (prefill && s->link.attached && s->features.taken_by_drafter) {
            all = send_some(t, s, &n_prefill) && all;
        }
    }
    return all;
}
