/* Sessions that are asked for in the same moment on a pair of workers (one is a group, too), run to their end: what the
 * benchmarks of the whole engine are made of. The workers stay, so a model is loaded once. One thread. */
#ifndef GR_BENCH_GROUP_H
#define GR_BENCH_GROUP_H

#include "bench/pair.h"
#include "bench/prompt_set.h"

#define GR_GROUP_MAX 64
#define GR_GROUP_NEW_TOKENS_MAX 16384
#define GR_GROUP_REP_MAX 50

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

/* What both benchmarks are asked of their runs, as it was given. */
struct gr_group_args {
    const char *max_tokens, *reps, *temperature;
};

/* Rows of a benchmark's option table, for its struct gr_pair_config and struct gr_group_args. */
/* clang-format off */
#define GR_BENCH_PAIR_OPTIONS(pair) \
    {"model", &(pair).target, "target folder (default models/demo/target)"}, \
    {"draft", &(pair).draft, "draft folder (default models/demo/draft; with --geometry models/demo/eagle3)"}, \
    {"geometry", &(pair).geometry, "expand target and head in memory: llama-3.2-1b, llama-3.1-8b (docs/bench.md)"}, \
    {"tuned", &(pair).tuned, "shapes that graft-bench tune measured, for models on a GPU"}, \
    {"require-tuned", NULL, "no value: an error if a shape of theirs is not in it, or the GPU is another"}, \
    {"draft-context", &(pair).draft_context, "positions that an EAGLE-3 head looks back (default 2048; 0: all)"}, \
    {"target-device", &(pair).target_device, "cpu | cuda:N (default cpu)"}
#define GR_BENCH_GROUP_OPTIONS(args, max_tokens_default, reps_default) \
    {"max-tokens", &(args).max_tokens, "tokens a prompt (default " max_tokens_default ")"}, \
    {"reps", &(args).reps, "repetitions after the warm-up (default " reps_default ")"}, \
    {"temperature", &(args).temperature, "default 0"}
/* clang-format on */

/* false: one is not what it must be (logged). */
bool gr_group_args_parse(const struct gr_group_args *a, int *n_rep_out, uint32_t *max_tokens_out,
                         double *temperature_out);

/* Starts the workers. Logged; gr_group_stop() is legal afterwards. */
GR_NODISCARD enum gr_status gr_group_start(struct gr_group *g, const struct gr_group_config *config);
/* n sessions of prompts i_prompt, i_prompt + 1, ... (round the set), until all are over. Tokens are not checked. */
GR_NODISCARD enum gr_status gr_group_run(struct gr_group *g, const struct gr_prompt_set *prompts, int i_prompt, int n,
                                         const struct gr_group_tree *tree);
/* Of the last run: tokens and seconds while all sessions decoded, from the last one's first token to the first one's
 * last token: no prompt is computed meanwhile. Seconds 0: there was no such time. */
void gr_group_decoding(const struct gr_group *g, double *tokens_out, double *seconds_out);
void gr_group_stop(struct gr_group *g);

/* `auto` or a number of nodes; false: it is neither (logged as of --num-speculative-tokens). */
bool gr_group_tree_parse(const char *text, struct gr_group_tree *out);

#endif
