/* The prompts of a benchmark as ids, and the text that each gives when it is run alone and plainly: what all other runs
 * of it are held against. */
#ifndef GR_BENCH_PROMPT_SET_H
#define GR_BENCH_PROMPT_SET_H

#include "bench/graft_run.h"
#include "common/base/status.h"

#include <stdint.h>

struct gr_prompt {
    int32_t *id; /* owned, (n) */
    uint32_t n;
    int32_t *reference; /* owned, (max_tokens); NULL: not known yet */
};

/* Zeroes: empty. */
struct gr_prompt_set {
    struct gr_prompt prompt[GR_BENCH_PROMPT_MAX];
    int n;
    uint32_t n_id_max; /* of the longest prompt */
    uint32_t max_tokens;
};

struct gr_prompt_set_options {
    const char *model;     /* folder of the tokenizer */
    const char *prompts;   /* file as graft_run.h's; NULL: four short ones */
    const char *kind;      /* NULL: all */
    int n_prompt;          /* how many of them; 0: all; with prompt_tokens 4 */
    int32_t prompt_tokens; /* length of each, cut out of all texts joined; 0: they are as they are */
    const char *text;      /* files (glob) that they are cut from where there is no `prompts` */
    uint32_t max_tokens;   /* new tokens of a run */
};

/* Of the benchmarks that run prompts of this set; model and max_tokens are to be set. */
struct gr_prompt_set_options gr_prompt_set_options_of(const struct gr_bench_options *o);
/* GR_EINVAL: an option is wrong. Logged. On failure, too, gr_prompt_set_free() frees what there is. */
GR_NODISCARD enum gr_status gr_prompt_set_load(const struct gr_prompt_set_options *o, struct gr_prompt_set *out);
void gr_prompt_set_free(struct gr_prompt_set *s);
/* The first text of a prompt is its reference. GR_EMISMATCH: a later one is another (logged with `what`, the run). */
GR_NODISCARD enum gr_status gr_prompt_set_check(struct gr_prompt_set *s, int i, const int32_t *token, uint32_t n_token,
                                                const char *what);

#endif
