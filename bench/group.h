/* Sessions that are asked for in the same moment on a pair of workers (one is a group, too), run to their end: what the
 * benchmarks of the whole engine are made of. The workers stay, so a model is loaded once. One thread. */
#ifndef GR_BENCH_GROUP_H
#define GR_BENCH_GROUP_H

#include "bench/options/options.h"
#include "bench/pair.h"
#include "bench/prompt_set.h"

struct gr_group_tree { /* how a session speculates */
    bool wanted;       /* false: plain decoding */
    bool automatic;    /* the target chooses the size, n_node is the most */
    uint32_t n_node;
};

struct gr_group_session {
    uint64_t id;
    int prompt;
    int32_t *token;    /* owned, (max_tokens) */
    uint64_t *when_ns; /* owned, (max_tokens): when each came */
    uint32_t n_token;
    struct gr_session_metrics metrics; /* when it is over */
};

/* Plain memory of the caller's. */
struct gr_group {
    struct gr_pair pair;
    uint32_t max_tokens;
    double temperature;
    bool prompts_first;
    int n_max;                                     /* sessions at once, at most */
    struct gr_group_session session[GR_GROUP_MAX]; /* of the last run: the first n */
    int n, n_running, n_open;                      /* n_open: kept between their turns */
    bool failed;
    uint64_t first_ns, last_ns; /* of the last run: the first token of any session, the last one */
};

struct gr_group_config {
    struct gr_pair_config pair; /* io, n_session and n_ctx_max are this module's */
    const struct gr_prompt_set *prompts;
    int n_max;
    double temperature;
    /* All prompts are computed in a turn of one token before any session decodes; its time does not count. */
    bool prompts_first;
};

/* Starts the workers. Logged; gr_group_stop() is legal afterwards. */
GR_NODISCARD enum gr_status gr_group_start(struct gr_group *g, const struct gr_group_config *config);
/* n sessions of prompts i_prompt, i_prompt + 1, ... (round the set), until all are over. Tokens are not checked. */
GR_NODISCARD enum gr_status gr_group_run(struct gr_group *g, const struct gr_prompt_set *prompts, int i_prompt, int n,
                                         const struct gr_group_tree *tree);
/* Of the last run: tokens and seconds while all sessions decoded, from the last one's first token to the first one's
 * last token: no prompt is computed meanwhile. Seconds 0: there was no such time. */
void gr_group_decoding(const struct gr_group *g, double *tokens_out, double *seconds_out);
void gr_group_stop(struct gr_group *g);

/* A tree of at most n_node nodes; GR_AUTO: the target chooses. */
struct gr_group_tree gr_group_tree_of(int64_t n_node);

#endif
