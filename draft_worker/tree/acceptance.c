#include "draft_worker/tree/acceptance.h"

#include "common/base/status.h"

#define PRIOR_DRAFTER 8.0f  /* counts that the model's own probability is worth */
#define PRIOR_SESSION 32.0f /* counts that the whole drafter's history is worth */
#define PROB_MIN 0.0001f
#define PROB_MAX 0.999f

/* Upper ends. Finer towards both, where a step changes a chain's length most. */
static const float bucket_end[GR_PROB_BUCKETS - 1] = {0.01f, 0.03f, 0.08f, 0.16f, 0.28f, 0.42f,
                                                      0.58f, 0.72f, 0.84f, 0.92f, 0.97f};

static int bucket_of(float prob)
{
    int b = 0;
    while (b < GR_PROB_BUCKETS - 1 && prob > bucket_end[b]) {
        b++;
    }
    return b;
}

int gr_rank_class(int rank)
{
    return GR_MAX(GR_MIN(rank, GR_RANK_CLASSES), 1) - 1;
}

void gr_acceptance_observe(struct gr_acceptance *a, int rank, float prob, bool accepted, float n_max)
{
    struct gr_acceptance_cell *c = &a->cell[gr_rank_class(rank)][bucket_of(prob)];
    if (c->n >= n_max) {
        c->n *= 0.5f;
        c->n_accepted *= 0.5f;
        c->prob *= 0.5f;
    }
    c->n += 1.0f;
    c->n_accepted += accepted ? 1.0f : 0.0f;
    c->prob += prob;
}

void gr_acceptance_curve(const struct gr_acceptance *drafter, const struct gr_acceptance *session,
                         struct gr_acceptance_curve *out)
{
    for (int r = 0; r < GR_RANK_CLASSES; r++) {
        for (int b = 0; b < GR_PROB_BUCKETS; b++) {
            const struct gr_acceptance_cell *d = &drafter->cell[r][b];
            const struct gr_acceptance_cell *s = &session->cell[r][b];
            const float all = (d->n_accepted - d->prob) / (d->n + PRIOR_DRAFTER);
            out->shift[r][b] = (s->n_accepted - s->prob + PRIOR_SESSION * all) / (s->n + PRIOR_SESSION);
        }
    }
}

float gr_acceptance_prob(const struct gr_acceptance_curve *curve, int rank, float prob)
{
    const float p = prob + curve->shift[gr_rank_class(rank)][bucket_of(prob)];
    return GR_MAX(GR_MIN(p, PROB_MAX), PROB_MIN);
}
