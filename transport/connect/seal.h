/* Authenticated encryption of one link: the keys, made while HELLO is exchanged, and the records after it. All of the
 * cryptography is libsodium's. Pure: no I/O, no log, nothing allocated.
 *
 * Keys. Both sides make an X25519 pair for this one connection and send the public half in HELLO, which the proof of
 * the shared key covers (bootstrap.h). crypto_kx gives a key each way; each is then made anew by keyed BLAKE2b
 * (crypto_generichash) over
 *
 *   "graft-control-1" | the shared key | HELLO of the smaller role | HELLO of the other, each with its u32 length
 *
 * so that it belongs to this opening alone. Who learns the shared key later cannot read what was recorded: the secret
 * halves are gone by then.
 *
 * Records. Each direction is one stream of crypto_secretstream_xchacha20poly1305: its header of GR_SEAL_HEADER_BYTES,
 * then records that are GR_SEAL_BYTES longer than what is in them. A record that was altered, cut, left out, repeated
 * or moved does not open, nor does any after it. */
#ifndef GR_TRANSPORT_CONNECT_SEAL_H
#define GR_TRANSPORT_CONNECT_SEAL_H

#include "common/base/status.h"

#include <sodium.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_SEAL_HEADER_BYTES 24 /* once, at the beginning of a direction */
#define GR_SEAL_BYTES 17        /* what a record has beside its content */
#define GR_SEAL_CONTENT_AT 1    /* where the content of a record stands: it is sealed and opened in its place */
#define GR_SEAL_PUBLIC_BYTES 32 /* of X25519 */
#define GR_SEAL_KEY_BYTES 32    /* of a direction, and of the shared key */

struct gr_seal_pair {
    uint8_t public[GR_SEAL_PUBLIC_BYTES], secret[32];
};

struct gr_seal_keys {
    bool on; /* false: the link is plain, and there are no keys */
    uint8_t out[GR_SEAL_KEY_BYTES], in[GR_SEAL_KEY_BYTES];
};

/* What both sides have said before there were keys, in an order that both see alike. Borrowed. */
struct gr_seal_opening {
    bool is_first;           /* this side's is the first of the two */
    const uint8_t *hello[2]; /* the smaller role's, then the other's */
    uint32_t bytes[2];
};

struct gr_seal {
    crypto_secretstream_xchacha20poly1305_state out, in;
    bool in_ended; /* a record did not open */
};

/* A fresh pair; wipe it (sodium_memzero) once the keys are made. sodium_init() has been called. */
void gr_seal_pair_make(struct gr_seal_pair *out);
/* GR_EPROTO: the peer's public half is none. shared_key: GR_SEAL_KEY_BYTES. */
GR_NODISCARD enum gr_status gr_seal_keys_make(const struct gr_seal_pair *own,
                                              const uint8_t peer_public[GR_SEAL_PUBLIC_BYTES],
                                              const uint8_t *shared_key, const struct gr_seal_opening *opening,
                                              struct gr_seal_keys *out);

/* Begins the direction that goes out; header_out is sent before its records. */
void gr_seal_begin_out(struct gr_seal *s, const struct gr_seal_keys *keys, uint8_t header_out[GR_SEAL_HEADER_BYTES]);
/* Begins the other one. Any header is taken: with a wrong one no record opens. */
void gr_seal_begin_in(struct gr_seal *s, const struct gr_seal_keys *keys, const uint8_t header[GR_SEAL_HEADER_BYTES]);
/* record: bytes of content at GR_SEAL_CONTENT_AT, and room for bytes + GR_SEAL_BYTES in all. */
void gr_seal_shut(struct gr_seal *s, uint8_t *record, size_t bytes);
/* record: bytes in all; its content is then at GR_SEAL_CONTENT_AT, bytes - GR_SEAL_BYTES of it. GR_EAUTH: it is not
 * the record that the peer sent next; record is as it was, and the direction is at its end. */
GR_NODISCARD enum gr_status gr_seal_open(struct gr_seal *s, uint8_t *record, size_t bytes);

#endif
