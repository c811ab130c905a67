/* Looks through msgpack bytes without allocating: exactly one object, complete, not deeper than depth_max, every
 * declared count backed by bytes that are there. To be called before msgpack-c's unpacker, which allocates what an
 * array header declares. */
#ifndef GR_COMMON_PROTOCOL_MSGPACK_GUARD_H
#define GR_COMMON_PROTOCOL_MSGPACK_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool gr_msgpack_sound(const uint8_t *bytes, size_t len, int depth_max);

#endif
