/* A round as JSON, for streams that ask for it: what it has brought, the tree that was verified, and where its time
 * went. Fields are those of COMMIT (docs/protocol.md), tokens as text (token_text.h). Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_ROUND_JSON_H
#define GR_ORCHESTRATOR_HTTP_ROUND_JSON_H

#include "common/protocol/msg.h"
#include "model/tokenizer/tokenizer.h"

struct json_t;

/* The caller's. NULL: out of memory. */
struct json_t *gr_round_json(const struct gr_tokenizer *tok, const struct gr_msg_commit *m);

#endif
