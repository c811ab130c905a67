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

uint16_t *drafter_feature_row(const struct gr_drafter *d, const struct follow *f, int32_t pos)
{
    const size_t slot = (size_t)(f - d->follow);
    const size_t window = (size_t)d->config.feature_window;
    return d->feature + (slot * window + (size_t)pos % window) * (size_t)d->config.feature_width;
}

/* The first feature that a row may still take. */
static int32_t first_needed(const struct follow *f)
{
    return GR_MAX(drafter_row_from(f) - 2, f->kv.shift - 1);
}

/* Room for what comes: the peer counts what it may send from what was used, told or not. */
void drafter_let_go(struct follow *f)
{
    f->features.first = GR_MAX(f->features.first, GR_MIN(first_needed(f), f->features.end));
}

void drafter_cut_features(struct gr_drafter *d, struct follow *f, int32_t len)
{
    if (f->kv.shift == 0) {
        return;
    }
    if (len <= f->kv.shift && f->kv.shift > 1) { /* not even a tail's row is left */
        draft_kv_begin_at(d, f, 1);
        f->features.end = 0;
    }
    f->features.end = GR_MIN(f->features.end, len);
    const int32_t first = GR_MIN(first_needed(f), f->features.end);
    if (f->features.first > first) { /* let go already: the target sends them again */
        f->features.first = f->features.end = first;
    }
    f->features.told = GR_MIN(f->features.told, f->features.first);
}

/* The target keeps nothing before `first`: the session's KV begins there. */
void drafter_begin_features(struct gr_drafter *d, struct follow *f, int32_t first)
{
    log_info("session %" PRIu64 ": its features begin at position %d of %d", f->id, first, f->prefix.len);
    d->counters.n_feature_start++;
    draft_kv_begin_at(d, f, first + 1);
    f->features.first = f->features.end = f->features.told = first;
    drafter_candidates_drop(f);
    drafter_flight_outdated_from(f, 0);
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
    const int32_t n_cell = drafter_n_cell(f, f->kv.len);
    if (f->kv.shift == 0 || context == 0 || f->job.in_flight || n_cell < slides_at(context)) {
        return;
    }
    const int32_t n_drop = (n_cell - context) / GR_KV_BLOCK_TOKENS;
    draft_kv_drop_front(d, f, n_drop);
    d->counters.n_slide++;
}

/* The features from `first` on are others by now: so are the rows that took them. Candidates may stay: they are guesses
 * anyway. */
void drafter_take_features_again(struct gr_drafter *d, struct follow *f, int32_t first)
{
    first = GR_MAX(first, f->kv.shift - 1);
    d->counters.n_feature_again++;
    drafter_flight_outdated_from(f, first + 1);
    draft_kv_cut(d, f, GR_MAX(first + 1, f->kv.shift));
    f->features.end = GR_MIN(f->features.end, first);
    f->features.first = GR_MIN(f->features.first, f->features.end);
    f->features.told = GR_MIN(f->features.told, f->features.first);
}

void drafter_reach_features(struct follow *f, int32_t end)
{
    f->features.end = end;
}

void drafter_features_told(struct follow *f)
{
    f->features.told = f->features.first;
}

void drafter_copy_features(const struct gr_drafter *d, const struct follow *f, int32_t pos0, int32_t n_row,
                           uint16_t *out)
{
    const size_t width = (size_t)d->config.feature_width;
    GR_ASSERT(n_row == 0 || (pos0 > f->features.first && pos0 + n_row - 1 <= f->features.end));
    for (int32_t r = 0; r < n_row; r++) {
        memcpy(out + (size_t)r * width, drafter_feature_row(d, f, pos0 + r - 1), width * sizeof(*out));
    }
}
