/* Log-probabilities of the tokens that a pass commits. */
#include "target_worker/compute/verifier_internal.h"

#include <string.h>

/* Of `token` after out row i_out. */
static void add_logprob(struct gr_verifier *v, struct gr_pass_seq *s, int i_out, int32_t token)
{
    const int32_t n_top = s->n_logprob - 1;
    float *to = s->logprob + (size_t)s->n_logprob_token * (size_t)s->n_logprob;
    struct gr_logprob_row row;
    gr_logprob_row(gr_lm_logits(v->lm, i_out), v->lm->n_vocab, token, n_top, &row);
    GR_ASSERT(row.n == n_top);
    to[0] = row.chosen;
    memcpy(to + 1, row.value, (size_t)n_top * sizeof(*to));
    memcpy(s->logprob_id + (size_t)s->n_logprob_token * (size_t)n_top, row.id, (size_t)n_top * sizeof(*row.id));
    s->n_logprob_token++;
}

/* Tokens that chain rows have judged, and what stands in place of one. */
static void add_judged_logprobs(struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    s->logprob_from = s->pos0 - s->n_chain + 1;
    for (int r = 0; r < s->n_chain_ok; r++) {
        add_logprob(v, s, v->chain_out[i] + r, verifier_judged_token(s, r));
    }
    if (s->correction >= 0) {
        add_logprob(v, s, v->chain_out[i] + s->n_chain_ok, s->correction);
    }
}

/* The walk's: out row k is the row's of the same number. */
static void add_walked_logprobs(struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    int row = 0;
    for (int k = 0; k < s->walk.n_path; k++) {
        const int node = s->walk.node[k];
        add_logprob(v, s, v->tree_out[i] + row, s->tree.token[node]);
        row = node + 1;
    }
    if (s->walk.bonus >= 0) {
        add_logprob(v, s, v->tree_out[i] + row, s->walk.bonus);
    }
}

void verifier_add_logprobs(struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    const bool picked = s->kind != GR_PASS_PREFILL || s->want_pick;
    s->n_logprob_token = 0;
    if (s->n_logprob == 0 || !picked) {
        return;
    }
    s->logprob = v->logprob + (size_t)v->n_logprob * GR_LOGPROB_ROW;
    s->logprob_id = v->logprob_id + (size_t)v->n_logprob * GR_LOGPROB_MAX;
    s->logprob_from = s->kind == GR_PASS_PREFILL ? s->pos0 + s->n_row : s->pos0 + 1;
    if (s->n_chain > 0 && s->exact) {
        add_judged_logprobs(v, s, i);
    }
    if (s->correction == GR_NO_CORRECTION && !s->judge_only) {
        add_walked_logprobs(v, s, i);
    }
    v->n_logprob += s->n_logprob_token;
}
