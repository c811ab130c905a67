#include "draft_worker/tree/tree_times.h"

#include "common/base/status.h"

#include <stddef.h>

#define WEIGHT (1.0 / 16) /* of the latest tree in the moving averages */

static int class_of(int n)
{
    int k = 0;
    for (; n > 1 && k < GR_TREE_TIMES_CLASS_MAX - 1; n /= 2) {
        k++;
    }
    return k;
}

void gr_tree_times_note(struct gr_tree_times *t, int n, uint64_t ns)
{
    struct gr_tree_time *of = &t->of[class_of(n)];
    of->n_seen += of->n_seen < UINT32_MAX;
    const double weight = GR_MAX(1.0 / of->n_seen, WEIGHT);
    of->n_mean += weight * (n - of->n_mean);
    of->ns += weight * ((double)ns - of->ns);
}

/* The class with fewest, or with most sessions. NULL: none is known. */
static const struct gr_tree_time *fewest(const struct gr_tree_times *t)
{
    for (int k = 0; k < GR_TREE_TIMES_CLASS_MAX; k++) {
        if (t->of[k].n_seen > 0) {
            return &t->of[k];
        }
    }
    return NULL;
}

static const struct gr_tree_time *most(const struct gr_tree_times *t)
{
    const struct gr_tree_time *found = NULL;
    for (int k = 0; k < GR_TREE_TIMES_CLASS_MAX; k++) {
        found = t->of[k].n_seen > 0 ? &t->of[k] : found;
    }
    return found;
}

static double share_of(const struct gr_tree_time *of)
{
    return of->ns / of->n_mean;
}

/* A line from the fewest sessions to the most. Trees of several sessions are grown in one pass, so one session more
 * adds at most the tree's time divided by the sessions: its share. Where only one class is known the whole share is
 * taken. Where the line says less than a quarter of the share, that quarter is: many sessions may come until the next
 * PONG, and a line without a slope would send all of them to one drafter. */
static double more_ns(const struct gr_tree_time *few, const struct gr_tree_time *many)
{
    const double slope = many == few ? share_of(few) : (many->ns - few->ns) / (many->n_mean - few->n_mean);
    return GR_MAX(slope, share_of(many) / 4);
}

struct gr_tree_outlook gr_tree_outlook_of(const struct gr_tree_times *t, int n)
{
    const struct gr_tree_time *few = fewest(t), *many = most(t);
    if (few == NULL) {
        return (struct gr_tree_outlook){0};
    }
    struct gr_tree_outlook o = {.more_ns = more_ns(few, many)};
    o.first_ns = few == &t->of[0] ? few->ns : GR_MAX(few->ns - o.more_ns * (few->n_mean - 1), share_of(few));
    o.round_ns = o.first_ns + o.more_ns * n;
    /* What trees take now counts more than the line, which may be of another time. */
    const struct gr_tree_time *now = &t->of[class_of(n)];
    if (n > 0 && now->n_seen > 0) {
        o.round_ns = GR_MAX(now->ns + o.more_ns * (n + 1 - now->n_mean), o.first_ns);
    }
    return o;
}
