/* What `graft run` says about a finished session: one JSON object, or a summary line; and the drawing of a round's
 * tree. */
#ifndef GR_ORCHESTRATOR_CLI_REPORT_H
#define GR_ORCHESTRATOR_CLI_REPORT_H

#include "model/tokenizer/tokenizer.h"
#include "common/rules/accept.h"
#include "common/options/options.h"
#include "orchestrator/answer/logprobs.h"
#include "orchestrator/machine/session_metrics.h"

#include <stdio.h>

/* A turn as JSON shows it. All borrowed. */
struct gr_turn_report {
    const struct gr_tokenizer *tok; /* NULL: there is none, and tokens are shown as ids */
    const int32_t *token;
    uint32_t n_token;
    const struct gr_logprobs *logprobs;
    const char *text;
    size_t text_len;
    enum gr_finish finish;
    bool at_context;  /* with GR_FINISH_LENGTH: it was the context that was full, not max_tokens reached */
    uint64_t session; /* 0: not shown */
    bool has_seed;    /* the turn opened its session, whose seed is shown */
    uint64_t seed;
    bool has_choice; /* it is one of several answers that the seed gives */
    uint32_t choice;
    bool compared;            /* with plain decoding (--verify-lossless) */
    int64_t first_difference; /* generated token; -1: none */
    const char *error;        /* NULL: all is well */
    const char *undrafted;    /* why a drafter that is there did not work for it; empty: not shown */
    const struct gr_session_metrics *metrics;
};

/* {"token_ids":[...],"text":...,"finish_reason":...,"metrics":{...}} and a newline; where they apply "finish_detail",
 * "logprobs", "session", "seed", "choice", "lossless" with "first_difference", "undrafted" and "error", too. */
GR_NODISCARD enum gr_status gr_report_json(FILE *out, const struct gr_turn_report *r);
/* The line that said what is wrong. */
const char *gr_report_error(void);
/* A command has failed that has no turn to tell of: with --json {"error":...} on standard output. Returns status. */
int gr_report_failure(const struct gr_options *o, int status);
/* One line: tokens, speed, acceptance, and last, after a semicolon, what is to be known of the end ("": nothing). */
void gr_report_summary(FILE *out, const struct gr_session_metrics *m, const char *end);
/* The tree of a COMMIT with trace, one node a line, the accepted path marked. Nothing if it is no tree. */
void gr_report_tree(FILE *out, const struct gr_tokenizer *tok, const struct gr_msg_commit *m);

#endif
