/* What `graft run` says about a finished session: one JSON object, or a summary line; and the drawing of a round's
 * tree. */
#ifndef GR_ORCHESTRATOR_REPORT_H
#define GR_ORCHESTRATOR_REPORT_H

#include "model/tokenizer.h"
#include "common/accept.h"
#include "orchestrator/session_metrics.h"

#include <stdio.h>

/* {"token_ids":[...],"text":...,"finish_reason":...,"metrics":{...}} and a newline; "session", too, if it is not 0. */
GR_NODISCARD enum gr_status gr_report_json(FILE *out, const int32_t *token, uint32_t n_token, const char *text,
                                           size_t text_len, enum gr_finish finish, uint64_t session,
                                           const struct gr_session_metrics *m);
/* One line: tokens, speed, acceptance. */
void gr_report_summary(FILE *out, const struct gr_session_metrics *m);
/* The tree of a COMMIT with trace, one node a line, the accepted path marked. Nothing if it is no tree. */
void gr_report_tree(FILE *out, const struct gr_tokenizer *tok, const struct gr_msg *commit);

#endif
