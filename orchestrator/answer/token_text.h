/* A token's bytes as text of its own: what of them is no whole character becomes U+FFFD, byte by byte. Pure. */
#ifndef GR_ORCHESTRATOR_ANSWER_TOKEN_TEXT_H
#define GR_ORCHESTRATOR_ANSWER_TOKEN_TEXT_H

#include "model/tokenizer/tokenizer.h"

#define GR_TOKEN_TEXT_MAX (3 * GR_TOKEN_BYTES_MAX) /* U+FFFD has three bytes */

/* bytes: (n), n at most GR_TOKEN_BYTES_MAX. Returns how many bytes of text there are; they are not NUL-terminated. */
size_t gr_token_text(const char *bytes, size_t n, char text[GR_TOKEN_TEXT_MAX]);

#endif
