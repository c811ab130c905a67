#include "orchestrator/http/salt.h"

#include <sodium.h>
#include <string.h>

#define DIGEST_BYTES ((GR_KV_SALT_MAX - 1) / 2)

/* Keyed by the owner's digest, which nobody knows who has not the key, and of which the salt tells nothing. */
void gr_http_salt(const struct gr_api_owner *owner, const char *cache_salt, char out[GR_KV_SALT_MAX])
{
    static const char about[] = "graft prefix cache";
    crypto_generichash_state h;
    uint8_t digest[DIGEST_BYTES];
    crypto_generichash_init(&h, owner->digest, sizeof(owner->digest), sizeof(digest));
    crypto_generichash_update(&h, (const uint8_t *)about, sizeof(about));
    if (cache_salt != NULL) {
        crypto_generichash_update(&h, (const uint8_t *)cache_salt, strlen(cache_salt));
    }
    crypto_generichash_final(&h, digest, sizeof(digest));
    sodium_bin2hex(out, GR_KV_SALT_MAX, digest, sizeof(digest));
}
