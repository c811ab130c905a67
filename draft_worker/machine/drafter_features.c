/* Features of a session whose drafts a head makes. The row of token p takes the feature of position p - 1; token 0 has
 * no row, and where features begin in the middle, neither have the tokens up to there (kv_shift); nor those that a head
 * with a context of its own does not look back at any more.
 *
 * [feature_first, feature_end) are kept in a ring of feature_window rows. They are let go when the rows that take them
 * have run (but the last: a tail may have to run again), and every quarter of a window TAKEN tells the target, which
 * never has more than a window under way: so the ring cannot run over. Where the target keeps nothing before a position
 * it counts the window from there (START), and what is held before gives way. A peer that sends more all the same loses
 * what does not fit, and is asked for it again.
 *
 * A frame is taken when the hash of its base_len is that of the tokens known here: then all its rows are true. What is
 * known already, or belongs to tokens that are gone, changes nothing, unless the frame says AGAIN: the target has
 * computed these positions anew, with full KV. Then what is held from there on gives way, and the rows that took it run
 * again. */
#include "common/base/log.h"
#include "draft_worker/machine/drafter_internal.h"

#include <inttypes.h>
#include <string.h>

#define SLIDE_LEAST 32 /* positions beyond the context, and a quarter of it, before any are given back */

static uint16_t *row_of(const struct gr_drafter *d, const struct follow *f, int32_t pos)
{
    const size_t slot = (size_t)(f - d->follow);
    const size_t window = (size_t)d->config.feature_window;
    return d->feature + (slot * window + (size_t)pos % window) * (size_t)d->config.feature_width;
}

/* The first feature that a row may still take. */
static int32_t first_needed(const struct follow *f)
{
    return GR_MAX(drafter_row_from(f) - 2, f->kv_shift - 1);
}

/* Room for what comes: the peer counts what it may send from what was used, told or not. */
static void let_go(struct follow *f)
{
    f->feature_first = GR_MAX(f->feature_first, GR_MIN(first_needed(f), f->feature_end));
}

void drafter_cut_features(struct follow *f, int32_t len)
{
    if (f->kv_shift == 0) {
        return;
    }
    if (len <= f->kv_shift && f->kv_shift > 1) { /* not even a tail's row is left */
        f->kv_shift = 1;
        f->kv_len = 0;
        f->feature_end = 0;
    }
    f->feature_end = GR_MIN(f->feature_end, len);
    const int32_t first = GR_MIN(first_needed(f), f->feature_end);
    if (f->feature_first > first) { /* let go already: the target sends them again */
        f->feature_first = f->feature_end = first;
    }
    f->feature_told = GR_MIN(f->feature_told, f->feature_first);
}

/* The target keeps nothing before `first`: the session's KV begins there. */
static void begin_at(struct gr_drafter *d, struct follow *f, int32_t first)
{
    log_info("session %" PRIu64 ": its features begin at position %d of %d", f->id, first, f->len);
    d->counters.n_feature_start++;
    f->kv_shift = first + 1;
    f->kv_len = 0;
    f->feature_first = f->feature_end = f->feature_told = first;
    f->root_valid = false;
    f->job_stale = f->in_job;
    if (!f->in_job) {
        gr_kv_table_truncate(&d->pool, &f->table, 0);
    }
}

static int32_t slides_at(int32_t context)
{
    return context + context / 4 + SLIDE_LEAST;
}

int32_t gr_drafter_kv_len_max(int32_t context, int32_t prefill_chunk, int32_t n_ctx)
{
    return context > 0 && context < n_ctx ? GR_MIN(slides_at(context) + prefill_chunk, n_ctx) : n_ctx;
}

/* A head has one layer: what a position left in its KV depends on nothing before it. So the window moves by blocks that
 * are given back. */
void drafter_slide(struct gr_drafter *d, struct follow *f)
{
    const int32_t context = d->config.feature_context;
    const int32_t n_cell = drafter_n_cell(f, f->kv_len);
    if (f->kv_shift == 0 || context == 0 || f->in_job || n_cell < slides_at(context)) {
        return;
    }
    const int32_t n_drop = (n_cell - context) / GR_KV_BLOCK_TOKENS;
    gr_kv_table_drop_front(&d->pool, &f->table, n_drop);
    f->kv_shift += n_drop * GR_KV_BLOCK_TOKENS;
    d->counters.n_slide++;
}

/* The features from `first` on are others by now: so are the rows that took them. Candidates may stay: they are guesses
 * anyway. */
static void take_again(struct gr_drafter *d, struct follow *f, int32_t first)
{
    first = GR_MAX(first, f->kv_shift - 1);
    d->counters.n_feature_again++;
    f->job_stale = f->job_stale || (f->in_job && f->job_len > first + 1);
    f->kv_len = GR_MIN(f->kv_len, GR_MAX(first + 1, f->kv_shift));
    f->feature_end = GR_MIN(f->feature_end, first);
    f->feature_first = GR_MIN(f->feature_first, f->feature_end);
    f->feature_told = GR_MIN(f->feature_told, f->feature_first);
    if (!f->in_job) {
        gr_kv_table_truncate(&d->pool, &f->table, drafter_n_cell(f, f->kv_len));
    }
}

/* What came cannot be put behind what is there: the target is asked where to go on. */
static void ask_again(struct gr_drafter *d, struct follow *f, const struct gr_features *r)
{
    d->counters.n_feature_gap++;
    f->n_feature_gap++;
    if (f->state == DRAFT_FOLLOWING) { /* else it has been asked */
        log_warn("session %" PRIu64 ": features of positions from %u where %d to %d are held; asking the target", f->id,
                 r->first_pos, f->feature_first, f->feature_end);
        drafter_send_resync(d, f);
    }
}

static enum gr_status check_form(const struct gr_drafter *d, const struct gr_frame_header *h,
                                 const struct gr_features *r)
{
    if (r->width != (uint32_t)d->config.feature_width || r->dtype != GR_FEATURES_BF16 ||
        r->raw != d->config.feature_raw) {
        log_error("peer sent FEATURES of width %u, dtype %u, raw %u; this head takes width %d, dtype %d, raw %d",
                  r->width, r->dtype, r->raw, d->config.feature_width, GR_FEATURES_BF16, d->config.feature_raw);
        return GR_EPROTO;
    }
    if ((uint64_t)r->first_pos + r->n_row != h->base_len) {
        log_error("peer sent malformed FEATURES: base_len %u is not %u + %u", h->base_len, r->first_pos, r->n_row);
        return GR_EFORMAT;
    }
    return GR_OK;
}

enum gr_status drafter_on_features(struct gr_drafter *d, struct follow *f, const struct gr_frame_header *h,
                                   const uint8_t *frame, size_t len)
{
    struct gr_features r;
    const size_t row_bytes = (size_t)d->config.feature_width * sizeof(uint16_t);
    GR_TRY(gr_wire_decode_features(frame, len, &r));
    if (d->config.feature_width == 0) {
        return GR_OK; /* a stand-alone draft model has no use for them */
    }
    GR_TRY(check_form(d, h, &r));
    const bool open = f->state == DRAFT_FOLLOWING || f->state == DRAFT_SYNCING;
    if (!open || h->base_len >= (uint32_t)f->len || h->prefix_hash != f->hash[h->base_len]) {
        d->counters.n_stale_features++;
        return GR_OK;
    }
    let_go(f);
    const int32_t end = (int32_t)h->base_len;
    const int32_t first = (int32_t)r.first_pos;
    const bool again = (h->flags & GR_FEATURES_AGAIN) != 0 && end > f->kv_shift - 1;
    if (again && GR_MAX(first, f->kv_shift - 1) < f->feature_end) {
        take_again(d, f, first);
    }
    /* The target counts the window from here on: what is held before has no room beside it. */
    const bool start = (h->flags & GR_FEATURES_START) != 0 && first > f->feature_first;
    if (!start && end <= f->feature_end) {
        d->counters.n_stale_features++;
        return GR_OK;
    }
    if ((first > f->feature_end && !start) || end - (start ? first : f->feature_first) > d->config.feature_window) {
        ask_again(d, f, &r);
        return GR_OK;
    }
    if (start) {
        begin_at(d, f, first);
    }
    for (int32_t p = f->feature_end; p < end; p++) {
        memcpy(row_of(d, f, p), r.row_bytes + (size_t)(p - first) * row_bytes, row_bytes);
    }
    d->counters.n_feature_row += (uint64_t)(end - f->feature_end);
    f->feature_end = end;
    return GR_OK;
}

void drafter_copy_features(const struct gr_drafter *d, const struct follow *f, int32_t pos0, int32_t n_row,
                           uint16_t *out)
{
    const size_t width = (size_t)d->config.feature_width;
    GR_ASSERT(n_row == 0 || (pos0 > f->feature_first && pos0 + n_row - 1 <= f->feature_end));
    for (int32_t r = 0; r < n_row; r++) {
        memcpy(out + (size_t)r * width, row_of(d, f, pos0 + r - 1), width * sizeof(*out));
    }
}

void drafter_let_features_go(struct gr_drafter *d, struct follow *f)
{
    if (f->kv_shift == 0) {
        return;
    }
    let_go(f);
    if (f->feature_first - f->feature_told < d->config.feature_window / 4 || f->state != DRAFT_FOLLOWING) {
        return;
    }
    const uint32_t at = (uint32_t)f->feature_first;
    const struct gr_frame_header h = {.session = f->id, .epoch = f->epoch, .base_len = at, .prefix_hash = f->hash[at]};
    uint8_t *out = d->io.frame_begin(d->io.ctx, f->peer, GR_FRAME_SMALL, GR_WIRE_HEADER_BYTES);
    if (out == NULL) {
        d->counters.n_no_credit++; /* the step tries again */
        return;
    }
    const size_t n = gr_wire_encode_taken(&h, out, GR_WIRE_HEADER_BYTES);
    drafter_end_frame(d, f, n);
    f->feature_told = f->feature_first;
}
