/* A turn's answer as it comes: COMMITs in, tokens and text out. Text is made of final tokens alone, and stop strings
 * are looked for there: nothing that was handed out is taken back, and a stop string in provisional tokens (exact
 * SpecPV) is found when they are judged. One count holds for text, tokens and log-probabilities. Pure; one thread. */
#ifndef GR_ORCHESTRATOR_ANSWER_TURN_TEXT_H
#define GR_ORCHESTRATOR_ANSWER_TURN_TEXT_H

#include "orchestrator/answer/logprobs.h"
#include "orchestrator/answer/text_stream.h"

struct gr_turn_text {
    struct gr_text_stream stream;
    struct gr_logprobs logprobs; /* of the tokens, as far as they are final */
    int32_t *token;              /* owned, (cap) */
    uint32_t *text_end;          /* owned, (cap): bytes of text up to the end of each final token's own */
    uint32_t n_token, cap;
    uint32_t n_final;  /* of the tokens: those after it are provisional */
    uint32_t n_whole;  /* the most of them that end with a whole character */
    uint32_t turn_len; /* of the transcript before the first token; known with it (n_commit > 0) */
    uint32_t n_commit;
};

/* Strings are borrowed. */
struct gr_turn_text_config {
    const struct gr_tokenizer *tok; /* NULL: there is none, and the text is the ids */
    const char *const *stop;
    int n_stop;
    uint32_t max_tokens, min_tokens;
    uint32_t n_logprob; /* values of a token: gr_turn_wishes.n_logprob */
};

/* Failures are logged; gr_turn_text_finish() in either case. */
GR_NODISCARD enum gr_status gr_turn_text_init(struct gr_turn_text *t, const struct gr_turn_text_config *c);
void gr_turn_text_finish(struct gr_turn_text *t); /* zeroed is legal */
/* stops: ids that end the turn; the text ends before one. *stopped_out: a stop string ended the text, n_final tokens of
 * the turn are its own. GR_EPROTO: the COMMIT does not continue what came before. */
GR_NODISCARD enum gr_status gr_turn_text_take(struct gr_turn_text *t, const struct gr_msg_commit *m,
                                              const struct gr_stop_ids *stops, bool *stopped_out);
/* Text of whole tokens and whole characters from token `first' on, as far as it may be shown: *len_out bytes, borrowed;
 * *end_out: the token after its last. Tokens up to a given one have the same text whenever they are asked for. */
const char *gr_turn_text_piece(const struct gr_turn_text *t, uint32_t first, uint32_t *end_out, size_t *len_out);
/* What is not needed of a turn that is over is given back. */
void gr_turn_text_trim(struct gr_turn_text *t);
size_t gr_turn_text_bytes(const struct gr_turn_text *t); /* of memory */
/* The turn is over: what was not judged in time is no text, and what the stream held back is released. */
GR_NODISCARD enum gr_status gr_turn_text_end(struct gr_turn_text *t);

#endif
