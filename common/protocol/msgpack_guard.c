#include "common/protocol/msgpack_guard.h"

#define DEPTH_CAP 8 /* levels of lists and maps; no message of graft has more than three */

/* What follows a type byte: body bytes, or n_child objects. */
struct shape {
    size_t n_body;
    uint64_t n_child;
    bool known;
};

static uint64_t big_endian(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        v = v << 8 | p[i];
    }
    return v;
}

/* Types with a length of n_len bytes after the type byte. */
static struct shape sized(const uint8_t *p, size_t left, size_t n_len, size_t extra, int child_per_item)
{
    if (left < n_len) {
        return (struct shape){.known = false};
    }
    const uint64_t n = big_endian(p, n_len);
    if (child_per_item > 0) {
        return (struct shape){.n_body = n_len, .n_child = n * (uint64_t)child_per_item, .known = true};
    }
    return (struct shape){.n_body = n_len + extra + n, .known = true};
}

/* type: the byte at p[-1]; left: bytes from p on. */
static struct shape shape_of(uint8_t type, const uint8_t *p, size_t left)
{
    static const uint8_t fixed[] = {/* 0xca .. 0xd8 */ 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17};
    if (type <= 0x7f || type >= 0xe0 || type == 0xc0 || type == 0xc2 || type == 0xc3) {
        return (struct shape){.known = true};
    }
    if (type <= 0x8f) {
        return (struct shape){.n_child = 2u * (type & 15u), .known = true};
    }
    if (type <= 0x9f) {
        return (struct shape){.n_child = type & 15u, .known = true};
    }
    if (type <= 0xbf) {
        return (struct shape){.n_body = type & 31u, .known = true};
    }
    if (type >= 0xc4 && type <= 0xc6) {
        return sized(p, left, (size_t)1 << (type - 0xc4), 0, 0); /* bin */
    }
    if (type >= 0xc7 && type <= 0xc9) {
        return sized(p, left, (size_t)1 << (type - 0xc7), 1, 0); /* ext */
    }
    if (type >= 0xca && type <= 0xd8) {
        return (struct shape){.n_body = fixed[type - 0xca], .known = true};
    }
    if (type >= 0xd9 && type <= 0xdb) {
        return sized(p, left, (size_t)1 << (type - 0xd9), 0, 0); /* str */
    }
    if (type == 0xdc || type == 0xdd) {
        return sized(p, left, type == 0xdc ? 2 : 4, 0, 1); /* array */
    }
    if (type == 0xde || type == 0xdf) {
        return sized(p, left, type == 0xde ? 2 : 4, 0, 2); /* map */
    }
    return (struct shape){.known = false};
}

bool gr_msgpack_sound(const uint8_t *bytes, size_t len, int depth_max)
{
    uint64_t todo[DEPTH_CAP] = {1}; /* objects still to come at each depth */
    int depth = 0;
    size_t at = 0;
    while (depth >= 0) {
        if (todo[depth] == 0) {
            depth--;
            continue;
        }
        todo[depth]--;
        if (at >= len) {
            return false;
        }
        const uint8_t type = bytes[at++];
        const struct shape s = shape_of(type, bytes + at, len - at);
        /* A child takes at least one byte, so a count beyond the bytes left is a lie. */
        if (!s.known || s.n_body > len - at || s.n_child > len - at - s.n_body) {
            return false;
        }
        at += s.n_body;
        if (s.n_child > 0) {
            if (depth + 1 >= depth_max || depth + 1 >= DEPTH_CAP) {
                return false;
            }
            todo[++depth] = s.n_child;
        }
    }
    return at == len;
}
