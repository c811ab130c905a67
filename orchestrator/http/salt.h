/* Whose KV a request may share: that of requests with the same API key and the same cache_salt. Another key cannot be
 * reached by any body, and sessions of the control link, whose salt is empty, not either. The same in every process, so
 * that a target's prefix cache goes on to be of use when the server is started anew. Pure; any thread. */
#ifndef GR_ORCHESTRATOR_HTTP_SALT_H
#define GR_ORCHESTRATOR_HTTP_SALT_H

#include "common/rules/kv_block.h"
#include "orchestrator/http/api_keys.h"

/* cache_salt: of the body; NULL: none. Writes 64 hexadecimal digits. */
void gr_http_salt(const struct gr_api_owner *owner, const char *cache_salt, char out[GR_KV_SALT_MAX]);

#endif
