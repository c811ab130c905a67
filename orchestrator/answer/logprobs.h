/* Log-probabilities of a turn's tokens, as COMMITs bring them. Owned by its generation; one thread. */
#ifndef GR_ORCHESTRATOR_ANSWER_LOGPROBS_H
#define GR_ORCHESTRATOR_ANSWER_LOGPROBS_H

#include "common/protocol/msg.h"

struct gr_logprobs {
    uint32_t n_each;  /* of a token, its own and the likeliest; 0: none are wanted */
    uint32_t n_token; /* that there is room for */
    uint32_t n_known; /* tokens before the first whose values have not come */
    uint32_t n_lost;  /* tokens at the beginning that have no values: they came from elsewhere */
    float *value;     /* owned, (n_token, n_each): a token's own, then those of its ids, best first */
    int32_t *id;      /* owned, (n_token, n_each - 1) */
};

/* GR_ENOMEM: logged. gr_logprobs_finish() in either case. */
GR_NODISCARD enum gr_status gr_logprobs_init(struct gr_logprobs *l, uint32_t n_each, uint32_t n_token);
void gr_logprobs_finish(struct gr_logprobs *l);
/* turn_len: tokens before the turn's first. False: they do not go on where the last ones ended, or are not as many as
 * were asked for. */
bool gr_logprobs_take(struct gr_logprobs *l, const struct gr_msg_commit *m, uint32_t turn_len);
/* The values of the first n tokens will not come. Before any others have. */
void gr_logprobs_lose(struct gr_logprobs *l, uint32_t n);
bool gr_logprobs_has(const struct gr_logprobs *l, uint32_t token);
/* Room for tokens that will not come is given back. */
void gr_logprobs_trim(struct gr_logprobs *l);

#endif
