/* What a client wishes of a session: one struct. It is filled once (orchestrator/cli/plan.c and generate.c), and
 * carried whole from there: by the request, by OPEN and ATTACH, and by the session on both workers. Its members have
 * the names of their keys in these messages. A new wish is a member here, its rows in messages.inc, and the line that
 * acts on it. Zero: not wished for, unless the member says otherwise. Header only. */
#ifndef GR_COMMON_PROTOCOL_WISHES_H
#define GR_COMMON_PROTOCOL_WISHES_H

#include "common/protocol/specpv.h"
#include "common/rules/accept.h"
#include "common/rules/adjust.h"
#include "common/rules/kv_block.h"
#include "common/rules/logprob.h"
#include "common/rules/sampler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GR_TRANSPORT_NAME_MAX 16 /* bytes of a transport's name, its NUL included */
#define GR_DRAFT_DEPTH 8         /* levels of a tree for a client that does not say; also the option's default */
#define GR_DRAFT_TOP_K 10        /* children of a node for such a client; also the option's default */

#define GR_PRIORITY_USUAL (1u << 31)

enum gr_tree_shape { GR_SHAPE_DYNAMIC = 0, GR_SHAPE_CHAIN = 1 };
#define GR_SHAPE_MAX 1 /* the last of them */

/* May a drafter grow its next tree while the target verifies the last one? In a message two booleans say so. */
enum gr_ahead {
    GR_AHEAD_OFF,
    GR_AHEAD_ON,
    GR_AHEAD_AUTO, /* the orchestrator decides: off where both share CPUs or a GPU */
};

/* What a turn wishes; every turn of a session says it anew. */
struct gr_turn_wishes {
    uint32_t max_tokens; /* generated tokens, 1 or more */
    uint32_t min_tokens; /* of them none of the first so many is one of stop_ids */
    uint32_t n_logprob;  /* how many log-probabilities COMMITs carry of a token, its own and the likeliest; 0: none */
    uint64_t timeout_ns; /* from its beginning, waiting included, until it ends with GR_FINISH_TIMEOUT; 0: no limit. A
                            target is not told */
    bool want_trace;     /* COMMITs carry trees, and gaps of picks without one */
    struct gr_stop_ids stop_ids; /* the last member, see gr_turn_wishes_copy() */
};

struct gr_wishes {
    struct gr_sampling sampling; /* the seed is always set: the client draws one */
    bool want_draft;             /* a drafter, where one is there */
    bool single_token;           /* force_single_token: the target verifies no trees */
    uint64_t fork_of;            /* a session whose KV is shared as far as both begin alike; 0: none */
    bool keep_open;              /* the session outlives its turns; a target is not told */
    bool queues;                 /* for want of a slot it waits, and is not refused; a target is not told */
    uint32_t priority;           /* of those that wait: lower ones first; 0: GR_PRIORITY_USUAL */
    char salt[GR_KV_SALT_MAX];   /* KV is shared only with sessions of an equal one. The server says it; empty: of the
                                    control link's */
    uint64_t owner; /* of those that wait with equal priority owners take turns. In no message: the server says it */
    bool auto_tree; /* the drafter chooses a tree's size by its cost; n_node is the most */
    uint32_t tree_shape;                   /* enum gr_tree_shape */
    uint32_t draft_depth;                  /* levels of a tree */
    uint32_t draft_top_k;                  /* children of a node, and nodes that are expanded a level */
    uint32_t n_node;                       /* nodes of a tree, without its root */
    enum gr_ahead draft_ahead;             /* an ATTACH says on or off */
    char transport[GR_TRANSPORT_NAME_MAX]; /* of the data path, by name; empty: the best that both ends have */
    enum gr_specpv_mode specpv;            /* how rounds are verified */
    struct gr_specpv_params specpv_params; /* zeroes: the target's */
    struct gr_adjust adjust;               /* bans, biases, penalties */
    struct gr_turn_wishes turn;            /* the turn that goes on, or was last; the last member */
};

/* Levels of a tree: a chain has one for each node. */
static inline uint32_t gr_wishes_depth(const struct gr_wishes *w)
{
    return w->tree_shape == GR_SHAPE_CHAIN ? w->n_node : w->draft_depth;
}

/* Copies by the size in use: entries of lists past their n are not looked at. */
static inline void gr_turn_wishes_copy(struct gr_turn_wishes *to, const struct gr_turn_wishes *from)
{
    memcpy(to, from, offsetof(struct gr_turn_wishes, stop_ids));
    gr_stop_ids_copy(&to->stop_ids, &from->stop_ids);
}

static inline void gr_wishes_copy(struct gr_wishes *to, const struct gr_wishes *from)
{
    memcpy(to, from, offsetof(struct gr_wishes, adjust));
    gr_adjust_copy(&to->adjust, &from->adjust);
    gr_turn_wishes_copy(&to->turn, &from->turn);
}

/* What is wrong with a turn's, NULL: nothing. */
static inline const char *gr_turn_wishes_wrong(const struct gr_turn_wishes *w)
{
    return w->max_tokens < 1               ? "max_tokens must be at least 1"
           : w->min_tokens > w->max_tokens ? "min_tokens is above max_tokens"
                                           : NULL;
}

/* What is wrong with them, NULL: nothing. A message that is decoded may hold any finite sampling parameters. n_vocab:
 * ids are below. */
static inline const char *gr_wishes_wrong(const struct gr_wishes *w, int32_t n_vocab)
{
    const struct gr_sampling *s = &w->sampling;
    const bool fits = s->temperature >= 0.0f && s->temperature <= 100.0f && s->top_p > 0.0f && s->top_p <= 1.0f &&
                      s->min_p >= 0.0f && s->min_p <= 1.0f; /* false of NaN */
    return fits ? gr_adjust_wrong(&w->adjust, w->turn.min_tokens > 0 ? w->turn.stop_ids.n : 0, n_vocab)
                : "sampling out of range: temperature 0 to 100, top_p above 0 to 1, min_p 0 to 1";
}

#endif
