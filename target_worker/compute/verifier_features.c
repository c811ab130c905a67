/* Features of chosen rows, for a draft head. */
#include "target_worker/compute/verifier_internal.h"

#include "common/rules/bf16.h"
#include "common/base/clock.h"

#include <string.h>

static float *kept_capture(const struct gr_verifier *v, const struct gr_pass_seq *s, int i)
{
    const size_t width = (size_t)(v->lm->n_capture * v->lm->capture_width);
    GR_ASSERT(v->kept != NULL && i >= 0 && i < GR_CAPTURE_KEEP);
    return v->kept + ((size_t)s->session * GR_CAPTURE_KEEP + (size_t)i) * width;
}

/* The captured states of sequence i's committed rows, after those that were kept; the list goes on at n. */
static int add_captures(struct gr_verifier *v, struct gr_pass_seq *s, int i, int n)
{
    const int n_chain = s->n_chain > 0 ? verifier_chain_rows(s) : 0;
    const bool path = s->kind == GR_PASS_TREE;
    const int n_row = n_chain > 0 && s->correction != GR_NO_CORRECTION ? 0 : path ? 1 + s->walk.n_path : s->n_row;
    s->n_feature = s->n_kept + n_chain + n_row;
    s->feature = v->feature_row + n;
    GR_ASSERT(n + s->n_feature <= v->n_feature_max);
    for (int k = 0; k < s->n_kept; k++) {
        v->capture[n++] = kept_capture(v, s, k);
    }
    for (int r = 0; r < n_chain; r++) {
        v->capture[n++] = gr_lm_capture(v->lm, v->row0[i] + r);
    }
    for (int r = 0; r < n_row; r++) {
        const int row = path && r > 0 ? s->walk.node[r - 1] + 1 : r;
        v->capture[n++] = gr_lm_capture(v->lm, v->row0[i] + s->n_chain + row);
    }
    return n;
}

/* What is shipped of row i is v->capture[i] now; rows that are bf16 stay where they are until the next pass. */
static void ship_rows(struct gr_verifier *v)
{
    for (int i = 0; i < v->n_feature; i++) {
        const float *from = v->capture[i];
        if (v->lm->shipped != NULL) {
            v->feature_row[i] = (const uint16_t *)(const void *)from;
            continue;
        }
        uint16_t *to = v->feature + (size_t)i * (size_t)v->feature_width;
        for (int k = 0; k < v->feature_width; k++) {
            to[k] = gr_bf16_from_f32(from[k]);
        }
        v->feature_row[i] = to;
    }
}

static void fuse_captures(struct gr_verifier *v)
{
    const size_t width = (size_t)v->lm->fused_width;
    for (int at = 0; at < v->n_feature; at += v->lm->n_row_max) {
        const int n = GR_MIN(v->n_feature - at, v->lm->n_row_max);
        gr_lm_fuse(v->lm, n, v->capture + at, v->fused + (size_t)at * width);
        for (int i = at; i < at + n; i++) {
            v->capture[i] = v->fused + (size_t)i * width;
        }
    }
}

void verifier_fuse(struct gr_verifier *v, struct gr_pass *pass)
{
    int n = 0;
    for (int i = 0; i < pass->n_seq; i++) {
        struct gr_pass_seq *s = &pass->seq[i];
        if (s->want_features && s->keep_capture) {
            memcpy(kept_capture(v, s, s->n_kept), gr_lm_capture(v->lm, v->row0[i]), gr_lm_capture_bytes(v->lm));
        } else if (s->want_features) {
            n = add_captures(v, s, i, n);
        }
    }
    v->n_feature = n;
    if (gr_lm_fuses(v->lm)) {
        fuse_captures(v);
    }
    ship_rows(v);
}

bool verifier_wants_capture(const struct gr_pass *pass)
{
    bool wanted = false;
    for (int i = 0; i < pass->n_seq; i++) {
        wanted = wanted || pass->seq[i].want_features;
    }
    return wanted;
}

void verifier_run_fuse_pass(struct gr_verifier *v, struct gr_pass *pass)
{
    const uint64_t t0 = gr_clock_ns();
    verifier_fuse(v, pass);
    pass->status = GR_OK;
    pass->n_row = 0;
    pass->forward_ns = pass->sample_ns = 0;
    pass->commit_ns = gr_clock_ns() - t0;
}
