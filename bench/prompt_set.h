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
    const char *model;    /* folder of the tokenizer */
    const char *prompts;  /* file as graft_run.h's; NULL: four short ones */
    const char *kind;     /* NULL: all */
    const char *n_prompt; /* how many of them; NULL: all; with prompt_tokens 4 */
    const char
        *prompt_tokens;  /* each prompt is so many tokens, cut out of all texts joined; NULL: they are as they are */
    const char *text;    /* files (glob) that they are cut from where there is no `prompts` */
    uint32_t max_tokens; /* new tokens of a run */
};

/* Rows of a benchmark's option table, for its struct gr_prompt_set_options. */
/* clang-format off */
#define GR_BENCH_PROMPT_OPTIONS(o) \
    {"prompts", &(o).prompts, "JSON array of texts, or JSON lines with \"text\" (default: four short ones)"}, \
    {"prompt-kind", &(o).kind, "of JSON lines only those with this \"kind\""}, \
    {"num-prompts", &(o).n_prompt, "so many of them (default: all, at most 64)"}, \
    {"prompt-tokens", &(o).prompt_tokens, \
     "prompts of so many tokens (4k: 4096), cut out of all texts joined; --num-prompts of them (default 4)"}, \
    {"text", &(o).text, "without --prompts: files that they are cut from (default tests/*/*.py)"}
/* clang-format on */

/* GR_EINVAL: an option is wrong. Logged. On failure, too, gr_prompt_set_free() frees what there is. */
GR_NODISCARD enum gr_status gr_prompt_set_load(const struct gr_prompt_set_options *o, struct gr_prompt_set *out);
void gr_prompt_set_free(struct gr_prompt_set *s);
/* The first text of a prompt is its reference. GR_EMISMATCH: a later one is another (logged with `what`, the run). */
GR_NODISCARD enum gr_status gr_prompt_set_check(struct gr_prompt_set *s, int i, const int32_t *token, uint32_t n_token,
                                                const char *what);

#endif
