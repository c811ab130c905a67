/* How the sum of a linear layer that a tensor-parallel group cuts along its inputs is ordered (`seg8` in a
 * numerics_id), so that one rank, two, four and eight give equal bits. The inputs are whole units (of o: the query
 * heads of a KV head; of down: GR_SEGMENT_UNIT; the last unit may be shorter), which are halved, the halves halved,
 * down to eight segments; the left half takes the odd unit. A segment is one chain from 0, and segments are joined
 * as they were halved: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). A segment without units takes no part: joined with
 * another it is the other. So nothing has to be divisible by eight, and where a group of 2, 4 or 8 ranks cuts the
 * units the tree is cut, too: rank i of n has the tree over the i-th n-th of the segments.
 *
 * Sums are made from left to right on a stack: after each segment that has inputs its sum is pushed, then the two on
 * top are joined, the older one first, as often as the list says; at the end one is left. At most GR_SEGMENT_PENDING
 * wait while a segment is summed. Header only; common subset of C and CUDA C++. Decision D-099. */
#ifndef GR_COMMON_RULES_SEGMENTS_H
#define GR_COMMON_RULES_SEGMENTS_H

enum {
    GR_SEGMENT_MAX = 8,
    GR_SEGMENT_PENDING = 3,
    GR_SEGMENT_UNIT = 64, /* inputs of a unit of down */
};

/* The segments that have inputs, in order: i has the inputs from where the one before ends up to end[i], and n_join[i]
 * joins follow it. n 0, as in a struct of zeros: the sum is one chain. */
struct gr_segments {
    int n;
    int end[GR_SEGMENT_MAX];
    int n_join[GR_SEGMENT_MAX];
};

/* Units before part i of n_part (1, 2, 4 or 8) of n_unit; i == n_part: all of them. */
static inline int gr_segment_begin(int n_unit, int n_part, int i)
{
    int begin = 0;
    for (; n_part > 1 && i < n_part; n_part /= 2) {
        const int left = (n_unit + 1) / 2;
        if (i >= n_part / 2) {
            i -= n_part / 2;
            begin += left;
            n_unit -= left;
        } else {
            n_unit = left;
        }
    }
    return i < n_part ? begin : n_unit;
}

/* Joins of the tree over n_part parts after part i, which has units. */
static inline int gr_segment_joins(int n_unit, int n_part, int i)
{
    const int end = gr_segment_begin(n_unit, n_part, i + 1);
    int n_join = 0;
    for (int n = 2; n <= n_part && gr_segment_begin(n_unit, n_part, i / n * n + n) == end; n *= 2) {
        n_join += i % n >= n / 2;
    }
    return n_join;
}

/* The n_part segments of n_in inputs in units; n_part: 8, or of a rank of n 8 / n. */
static inline struct gr_segments gr_segments_of(int n_in, int unit, int n_part)
{
    const int n_unit = (n_in + unit - 1) / unit;
    struct gr_segments s = {0, {0}, {0}};
    for (int i = 0; i < n_part; i++) {
        const int end = gr_segment_begin(n_unit, n_part, i + 1);
        if (end > gr_segment_begin(n_unit, n_part, i)) {
            s.end[s.n] = end * unit < n_in ? end * unit : n_in;
            s.n_join[s.n++] = gr_segment_joins(n_unit, n_part, i);
        }
    }
    return s;
}

/* Of o, whose inputs are the outputs of query heads, and of down; on one rank. */
static inline struct gr_segments gr_segments_of_o(int n_in, int n_kv_head)
{
    return gr_segments_of(n_in, n_in / n_kv_head, GR_SEGMENT_MAX);
}

static inline struct gr_segments gr_segments_of_down(int n_in)
{
    return gr_segments_of(n_in, GR_SEGMENT_UNIT, GR_SEGMENT_MAX);
}

/* How many of them are in the left half of the tree: the last join is of these with the others. All: that is empty. */
static inline int gr_segments_left(const struct gr_segments *s)
{
    int left = s->n, waiting = 0;
    for (int i = 0; i + 1 < s->n; i++) {
        waiting += 1 - s->n_join[i];
        left = waiting == 1 ? i + 1 : left;
    }
    return left;
}

#endif
