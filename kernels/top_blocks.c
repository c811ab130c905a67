/* The best blocks of a view. Plain code for all implementations: a list must not depend on who made it. */
#include "kernels/kernels.h"

#include <math.h>

static float middle_of(float a, float b, float c)
{
    const float low = a < b ? a : b;
    const float high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/* The n-th largest (from 1) of a[0 .. count), which is reordered. Three parts, so that equal values end it. */
static float nth_largest(float *a, int count, int n)
{
    for (;;) {
        const float pivot = middle_of(a[0], a[count / 2], a[count - 1]);
        int n_above = 0;
        int i = 0;
        int below = count;
        while (i < below) { /* [0, n_above) > pivot, [n_above, i) equal, [below, count) < pivot */
            const float v = a[i];
            if (v > pivot) {
                a[i++] = a[n_above];
                a[n_above++] = v;
            } else if (v < pivot) {
                a[i] = a[--below];
                a[below] = v;
            } else {
                i++;
            }
        }
        if (n <= n_above) {
            count = n_above;
        } else if (n <= below) {
            return pivot;
        } else {
            a += below;
            count -= below;
            n -= below;
        }
    }
}

void gr_top_blocks(const float *score, int begin, int end, int n_top, float *work, int32_t *out)
{
    if (n_top <= 0) {
        return;
    }
    for (int i = begin; i < end; i++) {
        work[i - begin] = isnan(score[i]) ? -INFINITY : score[i];
    }
    const float least = nth_largest(work, end - begin, n_top);
    int n_tie = n_top;
    for (int i = begin; i < end; i++) {
        n_tie -= score[i] > least;
    }
    for (int i = begin; i < end; i++) {
        const float s = isnan(score[i]) ? -INFINITY : score[i];
        if (s > least) {
            *out++ = i;
        } else if (s == least && n_tie > 0) { /* NaN is as good as -INFINITY: the lower block */
            *out++ = i;
            n_tie--;
        }
    }
}
