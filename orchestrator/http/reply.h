/* Answers as JSON, in the forms of OpenAI's API: whole ones, and the chunks of a stream. Log-probabilities travel with
 * the text that they belong to. Pure; texts that are returned are the caller's (free), NULL: out of memory. */
#ifndef GR_ORCHESTRATOR_HTTP_REPLY_H
#define GR_ORCHESTRATOR_HTTP_REPLY_H

#include "common/rules/accept.h"
#include "common/rules/token_tree.h"
#include "orchestrator/answer/turn_text.h"
#include "orchestrator/http/api_request.h"

#define GR_REPLY_ID_MAX 144

/* What all answers to a request have alike. Texts are borrowed. */
struct gr_reply {
    enum gr_api_endpoint endpoint;
    char id[GR_REPLY_ID_MAX];
    int64_t created_s;
    const char *model;
    const struct gr_tokenizer *tok;
    bool include_usage;
};

struct gr_usage {
    uint64_t prompt_tokens, completion_tokens;
    uint64_t cached_tokens; /* of the prompts: not computed for this request */
    uint64_t num_drafts, num_draft_tokens, num_accepted_tokens;
    uint64_t accepted_per_position[GR_NODE_MAX];     /* trees of which more tokens than so many were accepted */
    uint32_t num_spec_tokens;                        /* most tokens of a tree; 0: none is asked for */
    uint64_t draft_ahead_verdicts, draft_ahead_hits; /* as drafters told when they let go */
};

/* One answer, as far as it is there. */
struct gr_reply_answer {
    int index;
    const struct gr_turn_text *turn;
    const char *finish; /* NULL: it goes on */
    bool with_logprobs;
};

/* The name of an end, as the API has it. */
const char *gr_reply_finish(enum gr_finish finish);
char *gr_reply_whole(const struct gr_reply *r, const struct gr_reply_answer *answers, int n, const struct gr_usage *u);
/* A chunk of answer a: text of `len` bytes, and the values of tokens [first, end). begins: it is a chat's first. */
struct gr_reply_piece {
    const char *text;
    size_t len;
    uint32_t first, end;
    bool begins;
};
char *gr_reply_chunk(const struct gr_reply *r, const struct gr_reply_answer *a, const struct gr_reply_piece *p);
/* A chunk without a choice: what a round has brought to answer index (docs/http.md). */
char *gr_reply_round_chunk(const struct gr_reply *r, int index, const struct gr_msg_commit *m);
/* The chunk after the last: no choice, and what was used. */
char *gr_reply_usage_chunk(const struct gr_reply *r, const struct gr_usage *u);

#endif
