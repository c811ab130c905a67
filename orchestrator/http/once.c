#include "orchestrator/http/once.h"

#include <sodium.h>
#include <string.h>

bool gr_once_key_is_good(const char *key)
{
    size_t n = 0;
    while (key[n] >= 0x20 && key[n] <= 0x7e && n <= GR_ONCE_KEY_MAX) {
        n++;
    }
    return n >= 1 && n <= GR_ONCE_KEY_MAX && key[n] == '\0';
}

static void digest(uint8_t out[GR_ONCE_BYTES], const void *what, size_t n_what, const void *of, size_t n_of)
{
    crypto_generichash_state s;
    (void)crypto_generichash_init(&s, NULL, 0, GR_ONCE_BYTES);
    (void)crypto_generichash_update(&s, what, n_what);
    (void)crypto_generichash_update(&s, of, n_of);
    (void)crypto_generichash_final(&s, out, GR_ONCE_BYTES);
}

void gr_once_take_key(struct gr_once *o, const struct gr_api_owner *owner, const char *key)
{
    o->asked = true;
    digest(o->key, owner->digest, sizeof(owner->digest), key, strlen(key));
}

void gr_once_take_body(struct gr_once *o, int path, const char *body, size_t len)
{
    const uint8_t where = (uint8_t)path;
    digest(o->body, &where, 1, body, len);
}

bool gr_once_is_same(const struct gr_once *a, const struct gr_once *b)
{
    return sodium_memcmp(a->key, b->key, sizeof(a->key)) == 0 && sodium_memcmp(a->body, b->body, sizeof(a->body)) == 0;
}
