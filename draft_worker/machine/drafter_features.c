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
#include "common/base/session_id.h"
#include "draft_worker/machine/drafter_internal.h"

#include <inttypes.h>

#define SLIDE_LEAST 32 /* positions beyond the context, and a quarter of it, before any are given back */

/* The first feature that a row may still take. */
static int32_t first_needed(const struct session *s)
{
    return GR_MAX(drafter_row_from(s) - 2, s->kv.shift - 1);
}

/* Room for what comes: the peer counts what it may send from what was used, told or not. */
void drafter_let_go(struct session *s)
{
    s->features.first = GR_MAX(s->features.first, GR_MIN(first_needed(s), s->features.end));
}

void drafter_cut_features(struct gr_drafter *d, struct session *s, int32_t len)
{
    if (s->kv.shift == 0) {
        return;
    }
    if (len <= s->kv.shift && s->kv.shift > 1) { /* not even a tail's row is left */
        draft_kv_begin_at(d, s, 1);
        s->features.end = 0;
    }
    s->features.end = GR_MIN(s->features.end, len);
    const int32_t first = GR_MIN(first_needed(s), s->features.end);
    if (s->features.first > first) { /* let go already: the target sends them again */
        s->features.first = s->features.end = first;
    }
    s->features.told = GR_MIN(s->features.told, s->features.first);
}

/* The target keeps nothing before `first`: the session's KV begins there. */
void drafter_begin_features(struct gr_drafter *d, struct session *s, int32_t first)
{
    log_info("session %" GR_SESSION_ID_PRI ": its features begin at position %d of %d", s->id, first, s->prefix.len);
    d->counters.n_feature_start++;
    draft_kv_begin_at(d, s, first + 1);
    s->features.first = s->features.end = s->features.told = first;
    drafter_candidates_drop(s);
    drafter_flight_outdated_from(s, 0);
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
void drafter_slide(struct gr_drafter *d, struct session *s)
{
    const int32_t context = d->config.feature_context;
    const int32_t n_cell = drafter_n_cell(s, s->kv.len);
    if (s->kv.shift == 0 || context == 0 || s->job.in_flight || n_cell < slides_at(context)) {
        return;
    }
    const int32_t n_drop = (n_cell - context) / GR_KV_BLOCK_TOKENS;
    draft_kv_drop_front(d, s, n_drop);
    d->counters.n_slide++;
}

/* The features from `first` on are others by now: so are the rows that took them. Candidates may stay: they are guesses
 * anyway. */
void drafter_take_features_again(struct gr_drafter *d, struct session *s, int32_t first)
{
    first = GR_MAX(first, s->kv.shift - 1);
    d->counters.n_feature_again++;
    drafter_flight_outdated_from(s, first + 1);
    draft_kv_cut(d, s, GR_MAX(first + 1, s->kv.shift));
    s->features.end = GR_MIN(s->features.end, first);
    s->features.first = GR_MIN(s->features.first, s->features.end);
    s->features.told = GR_MIN(s->features.told, s->features.first);
}

void drafter_keep_features(struct gr_drafter *d, struct session *s, int32_t end, const uint8_t *rows)
{
    drafter_rows_keep(d, (int32_t)(s - d->session), s->features.end, end, rows);
    s->features.end = end;
}

void drafter_features_told(struct session *s)
{
    s->features.told = s->features.first;
}

const uint16_t *drafter_features_for_job(struct gr_drafter *d, const struct session *s, int i_seq, int32_t pos0,
                                         int32_t n_row)
{
    GR_ASSERT(n_row == 0 || (pos0 > s->features.first && pos0 + n_row - 1 <= s->features.end));
    return drafter_rows_for_job(d, i_seq, (int32_t)(s - d->session), pos0 - 1, pos0 + n_row - 1);
}
