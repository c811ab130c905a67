/* A request that is to be answered once, however often it comes: its Idempotency-Key, and what came with it, as digests
 * (BLAKE2b, 32 bytes), so that neither is kept. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_ONCE_H
#define GR_ORCHESTRATOR_HTTP_ONCE_H

#include "orchestrator/http/api_keys.h"

#define GR_ONCE_BYTES 32
#define GR_ONCE_KEY_MAX 255 /* characters of a key */

struct gr_once {
    bool asked;                  /* else the rest is zero */
    uint8_t key[GR_ONCE_BYTES];  /* of whose request it is, and its key */
    uint8_t body[GR_ONCE_BYTES]; /* of its path and its body */
};

/* 1 to GR_ONCE_KEY_MAX printable characters of ASCII. */
bool gr_once_key_is_good(const char *key);
void gr_once_take_key(struct gr_once *o, const struct gr_api_owner *owner, const char *key);
/* path: which of the endpoint's paths it was sent to. */
void gr_once_take_body(struct gr_once *o, int path, const char *body, size_t len);
/* Do both come from one request, sent twice? Else it is another one under the same key. */
bool gr_once_is_same(const struct gr_once *a, const struct gr_once *b);

#endif
