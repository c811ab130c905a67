/* The HELLO record's codec, apart from the exchange for tests and the fuzzer. Pure: no I/O but the
 * log. */
#ifndef GR_TRANSPORT_CONNECT_HELLO_H
#define GR_TRANSPORT_CONNECT_HELLO_H

#include "transport/connect/bootstrap.h"

/* Encodes self as one msgpack map. GR_EINVAL (logged): a field is out of its range. */
GR_NODISCARD enum gr_status gr_hello_encode(const struct gr_hello *self, uint8_t *buf, size_t cap, size_t *bytes_out);

/* Strict: every key known, once, typed, bounded; none missing; nothing after the map. GR_EPROTO,
 * or GR_EMISMATCH when the version is another one (nothing after it is looked at). Each with a
 * logged line that names the key. */
GR_NODISCARD enum gr_status gr_hello_decode(const uint8_t *p, size_t bytes, struct gr_hello *hello_out);

/* Do the two fit together? GR_EMISMATCH with a logged line that names the field and both values. */
GR_NODISCARD enum gr_status gr_hello_compare(const struct gr_hello *self, const struct gr_hello *peer);

const char *gr_role_name(uint32_t role);

#endif
