/* The acceptance rule. The target picks its own next token at every row of the pass; the walk starts at the tail
 * and descends as long as the pick is a child; the first pick that is none is the bonus token. What is committed is
 * the path and then the bonus: exactly what plain decoding would have picked, one by one.
 *
 * EOS, stop ids and the token limit cut what is committed: nothing past the cut counts. After a cut the last
 * kept token stands in `bonus` and its predecessors in the path, so every verdict has one form: n_path nodes, then one
 * token that has no KV yet.
 *
 * A row whose logits are not finite (GR_PICK_NOT_FINITE) has no pick. What was accepted before it is committed, as
 * plain decoding would have done, and the row is the next pass's tail; where it is the tail already, nothing is
 * committed and the walk ends in GR_FINISH_ERROR. Such rows off the walk are never looked at. Header only; common
 * subset of C and CUDA C++. Decision D-032. */
#ifndef GR_COMMON_RULES_ACCEPT_H
#define GR_COMMON_RULES_ACCEPT_H

#include "common/rules/sampler.h"
#include "common/rules/token_tree.h"

#include <stdbool.h>

#define GR_STOP_ID_MAX 64 /* end-of-sequence ids and stop ids of a turn together */

/* CLOSED: the session was closed during the turn. TIMEOUT: the time that its client gave it is over. UNSERVED: no
 * target has taken it within the time for which the orchestrator lets turns wait. A target says none of these. */
enum gr_finish {
    GR_FINISH_NONE = 0,
    GR_FINISH_STOP = 1,
    GR_FINISH_LENGTH = 2,
    GR_FINISH_ERROR = 3,
    GR_FINISH_CLOSED = 4,
    GR_FINISH_TIMEOUT = 5,
    GR_FINISH_UNSERVED = 6
};

/* Something kept the turn from its end: there is a text that says what. */
static inline bool gr_finish_is_bad(enum gr_finish finish)
{
    return finish == GR_FINISH_ERROR || finish == GR_FINISH_TIMEOUT || finish == GR_FINISH_UNSERVED;
}

/* As people read it. The names of an interface are that interface's own where it has others. */
static inline const char *gr_finish_name(enum gr_finish finish)
{
    static const char *const names[] = {"unknown", "stop", "length", "error", "closed", "timeout", "unserved"};
    return names[(unsigned)finish <= GR_FINISH_UNSERVED ? finish : GR_FINISH_NONE];
}

/* End-of-sequence ids, unless they are ignored, and stop ids. Copied by the size in use: gr_stop_ids_copy(). */
struct gr_stop_ids {
    int32_t n;
    int32_t id[GR_STOP_ID_MAX];
};

struct gr_stop {
    int32_t n_new_max; /* tokens that may still be committed, >= 1 */
    struct gr_stop_ids ids;
};

struct gr_walk {
    int32_t n_path;            /* nodes whose KV is committed, root to leaf */
    uint8_t node[GR_NODE_MAX]; /* in the tree's own numbering */
    int32_t bonus;             /* last committed token */
    int32_t n_accepted;        /* committed tokens that were drafted; n_path, or n_path + 1 after a cut */
    int32_t finish;            /* enum gr_finish */
};

GR_FN int gr_stop_hits(const struct gr_stop_ids *ids, int32_t token)
{
    for (int i = 0; i < ids->n; i++) {
        if (ids->id[i] == token) {
            return 1;
        }
    }
    return 0;
}

GR_FN void gr_stop_ids_copy(struct gr_stop_ids *to, const struct gr_stop_ids *from)
{
    to->n = from->n;
    for (int i = 0; i < from->n; i++) {
        to->id[i] = from->id[i];
    }
}

/* pick[r]: the target's token after row r (row 0 the tail, row i + 1 node i), or GR_PICK_NOT_FINITE; t->n + 1 of
 * them. */
GR_FN void gr_accept_walk(const struct gr_token_tree *t, const int32_t *pick, const struct gr_stop *stop,
                          struct gr_walk *out)
{
    int node = -1;
    int n_new = 0;
    out->n_path = 0;
    out->n_accepted = 0;
    out->finish = GR_FINISH_NONE;
    for (;;) {
        int32_t token = pick[node + 1];
        if (token < 0) {
            if (n_new == 0) {
                out->bonus = token;
                out->finish = GR_FINISH_ERROR;
            } else {
                out->n_path--; /* the last node stands in `bonus` already */
            }
            return;
        }
        int child = gr_tree_child(t, node, token);
        n_new++;
        out->bonus = token;
        if (child >= 0) {
            out->n_accepted++;
        }
        if (gr_stop_hits(&stop->ids, token)) {
            out->finish = GR_FINISH_STOP;
            return;
        }
        if (n_new >= stop->n_new_max) {
            out->finish = GR_FINISH_LENGTH;
            return;
        }
        if (child < 0) {
            return;
        }
        out->node[out->n_path++] = (uint8_t)child;
        node = child;
    }
}

#endif
