#include "transport/connect/seal.h"

#include "common/base/bytes.h"

#include <assert.h>
#include <string.h>

#define LABEL "graft-control-1"

static_assert(GR_SEAL_HEADER_BYTES == crypto_secretstream_xchacha20poly1305_HEADERBYTES, "header");
static_assert(GR_SEAL_BYTES == crypto_secretstream_xchacha20poly1305_ABYTES, "record");
static_assert(GR_SEAL_KEY_BYTES == crypto_secretstream_xchacha20poly1305_KEYBYTES, "key");
static_assert(GR_SEAL_KEY_BYTES == crypto_kx_SESSIONKEYBYTES, "key of the exchange");
static_assert(GR_SEAL_PUBLIC_BYTES == crypto_kx_PUBLICKEYBYTES, "public half");
static_assert(sizeof(((struct gr_seal_pair *)0)->secret) == crypto_kx_SECRETKEYBYTES, "secret half");

void gr_seal_pair_make(struct gr_seal_pair *out)
{
    GR_ASSERT(crypto_kx_keypair(out->public, out->secret) == 0);
}

static void hash_hello(crypto_generichash_state *state, const struct gr_seal_opening *o, int which)
{
    uint8_t length[4];
    struct gr_writer w = {.p = length, .cap = sizeof(length)};
    gr_write_u32(&w, o->bytes[which]);
    crypto_generichash_update(state, length, sizeof(length));
    crypto_generichash_update(state, o->hello[which], o->bytes[which]);
}

/* Makes a key of the exchange one of this opening, in its place. */
static void bind_key(uint8_t key[GR_SEAL_KEY_BYTES], const uint8_t *shared_key, const struct gr_seal_opening *o)
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, GR_SEAL_KEY_BYTES, GR_SEAL_KEY_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)LABEL, strlen(LABEL));
    crypto_generichash_update(&state, shared_key, GR_SEAL_KEY_BYTES);
    hash_hello(&state, o, 0);
    hash_hello(&state, o, 1);
    crypto_generichash_final(&state, key, GR_SEAL_KEY_BYTES);
    sodium_memzero(&state, sizeof(state));
}

enum gr_status gr_seal_keys_make(const struct gr_seal_pair *own, const uint8_t peer_public[GR_SEAL_PUBLIC_BYTES],
                                 const uint8_t *shared_key, const struct gr_seal_opening *opening,
                                 struct gr_seal_keys *out)
{
    *out = (struct gr_seal_keys){0};
    const int failed = opening->is_first
                           ? crypto_kx_server_session_keys(out->in, out->out, own->public, own->secret, peer_public)
                           : crypto_kx_client_session_keys(out->in, out->out, own->public, own->secret, peer_public);
    if (failed != 0) {
        return GR_EPROTO;
    }
    bind_key(out->in, shared_key, opening);
    bind_key(out->out, shared_key, opening);
    out->on = true;
    return GR_OK;
}

void gr_seal_begin_out(struct gr_seal *s, const struct gr_seal_keys *keys, uint8_t header_out[GR_SEAL_HEADER_BYTES])
{
    GR_ASSERT(crypto_secretstream_xchacha20poly1305_init_push(&s->out, header_out, keys->out) == 0);
}

void gr_seal_begin_in(struct gr_seal *s, const struct gr_seal_keys *keys, const uint8_t header[GR_SEAL_HEADER_BYTES])
{
    GR_ASSERT(crypto_secretstream_xchacha20poly1305_init_pull(&s->in, header, keys->in) == 0);
    s->in_ended = false;
}

/* libsodium writes the tag's byte, then the content by a stream cipher, then the MAC: content that stands after the
 * tag's byte is turned in its place (Decision D-241). */
void gr_seal_shut(struct gr_seal *s, uint8_t *record, size_t bytes)
{
    GR_ASSERT(crypto_secretstream_xchacha20poly1305_push(&s->out, record, NULL, record + GR_SEAL_CONTENT_AT, bytes,
                                                         NULL, 0,
                                                         crypto_secretstream_xchacha20poly1305_TAG_MESSAGE) == 0);
}

enum gr_status gr_seal_open(struct gr_seal *s, uint8_t *record, size_t bytes)
{
    uint8_t tag = 0;
    const bool opened = !s->in_ended && bytes >= GR_SEAL_BYTES &&
                        crypto_secretstream_xchacha20poly1305_pull(&s->in, record + GR_SEAL_CONTENT_AT, NULL, &tag,
                                                                   record, bytes, NULL, 0) == 0;
    s->in_ended = !opened || tag != crypto_secretstream_xchacha20poly1305_TAG_MESSAGE;
    return s->in_ended ? GR_EAUTH : GR_OK;
}
