#include "bench/simulate/surmise.h"

#include "common/base/status.h"
#include "common/rules/hash.h"

#include <math.h>

#define PROB_MIN 1e-6
#define FALL_OFF 0.6 /* of further children of a text, each against the one before: that of the 4th, on the mean */

/* Within [0, 1). */
static double unit(uint64_t noise)
{
    return (double)(noise >> 11) * 0x1p-53;
}

static const struct gr_surmise_class *class_of(const struct gr_surmise_level *l, double u)
{
    int i = 0;
    for (; i + 1 < l->n_class && u >= l->class[i].share; i++) {
        u -= l->class[i].share;
    }
    return &l->class[i];
}

/* Where the first child is not the target's pick. */
static int rank_of_other(const struct gr_surmise_level *l, double u)
{
    for (int i = 0; i < l->n_other; i++) {
        if (u < l->other[i].hit) {
            return i + 2;
        }
        u -= l->other[i].hit;
    }
    return 0;
}

struct gr_surmised gr_surmise(const struct gr_surmise *s, int level, uint64_t noise)
{
    const struct gr_surmise_level *l = &s->level[GR_MIN(level, s->n_level) - 1];
    const struct gr_surmise_class *c = class_of(l, unit(gr_mix64(noise ^ 0x5e1)));
    const bool first = unit(gr_mix64(noise ^ 0x5e2)) < c->hit;
    return (struct gr_surmised){
        .level = l, .sure = c->sure, .rank = first ? 1 : rank_of_other(l, unit(gr_mix64(noise ^ 0x5e3)))};
}

struct gr_surmised gr_surmise_recall(const struct gr_surmise_texts *t, int text, int pos, int level)
{
    const int at = (text % t->n_text * t->n_pos + pos % t->n_pos) * t->n_level + GR_MIN(level, t->n_level) - 1;
    return (struct gr_surmised){.row = &t->row[at], .rank = t->row[at].rank};
}

int gr_surmised_n(const struct gr_surmised *s)
{
    return s->row != NULL ? GR_SURMISE_RANK_MAX : s->level->n_other + 1;
}

static double prob_of_text(const struct gr_surmise_row *row, int rank)
{
    const int n = GR_SURMISE_PROB_MAX;
    return rank <= n ? row->prob[rank - 1] : row->prob[n - 1] * pow(FALL_OFF, rank - n);
}

static double prob_of_class(const struct gr_surmised *s, int rank)
{
    return rank == 1 ? s->sure : (1.0 - s->sure) * s->level->other[rank - 2].sure;
}

float gr_surmised_edge(const struct gr_surmised *s, int rank)
{
    const double p = s->row != NULL ? prob_of_text(s->row, rank) : prob_of_class(s, rank);
    return (float)log(GR_MAX(p, PROB_MIN));
}
