/* Judging tokens that were accepted under a view, by the picks of their chain rows. */
#include "target_worker/compute/verifier_internal.h"

int32_t verifier_judged_token(const struct gr_pass_seq *s, int r)
{
    if (r + 1 < s->n_chain) {
        return s->chain_token[r + 1];
    }
    return s->kind == GR_PASS_ROOT && !s->judge_only ? s->token[0] : s->tail;
}

void verifier_judge_chain(const struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    s->n_chain_ok = 0;
    s->correction = GR_NO_CORRECTION;
    for (int r = 0; r < s->n_chain; r++) {
        const int32_t pick = v->chain_pick[v->chain_out[i] + r];
        if (pick == verifier_judged_token(s, r)) {
            s->n_chain_ok++;
        } else if (s->exact || pick == GR_PICK_NOT_FINITE) {
            s->correction = pick;
            s->odd_pos = s->pos0 - s->n_chain + r;
            return;
        }
    }
}

int verifier_chain_rows(const struct gr_pass_seq *s)
{
    return s->correction != GR_NO_CORRECTION ? s->n_chain_ok + 1 : s->n_chain;
}

void verifier_corrupt(const struct gr_verifier *v, struct gr_pass_seq *s)
{
    if (s->partial && s->corrupt_at >= 0 && s->corrupt_at < s->n_row && s->pick[s->corrupt_at] >= 0) {
        s->pick[s->corrupt_at] = (s->pick[s->corrupt_at] + 1) % v->lm->n_vocab;
    }
}
