/* For tests: a GGUF file put together byte by byte. */
#ifndef GR_TESTS_GGUF_IMAGE_H
#define GR_TESTS_GGUF_IMAGE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/status.h"

#define GGUF_IMAGE_BYTES (1u << 18)

struct gguf_image {
    uint8_t bytes[GGUF_IMAGE_BYTES];
    size_t len;
};

static inline void gguf_number(struct gguf_image *g, uint64_t value, size_t bytes)
{
    GR_ASSERT(g->len + bytes <= sizeof(g->bytes));
    for (size_t i = 0; i < bytes; i++) {
        g->bytes[g->len++] = (uint8_t)(value >> (8 * i));
    }
}

static inline void gguf_bytes(struct gguf_image *g, const void *p, size_t n)
{
    GR_ASSERT(g->len + n <= sizeof(g->bytes));
    memcpy(g->bytes + g->len, p, n);
    g->len += n;
}

static inline void gguf_text(struct gguf_image *g, const char *text)
{
    gguf_number(g, strlen(text), 8);
    gguf_bytes(g, text, strlen(text));
}

static inline void gguf_begin(struct gguf_image *g, uint32_t version, uint64_t n_tensor, uint64_t n_field)
{
    g->len = 0;
    gguf_bytes(g, "GGUF", 4);
    gguf_number(g, version, 4);
    gguf_number(g, n_tensor, 8);
    gguf_number(g, n_field, 8);
}

/* type: the format's own number of an integer type. */
static inline void gguf_field_int(struct gguf_image *g, const char *key, uint32_t type, uint64_t value, size_t bytes)
{
    gguf_text(g, key);
    gguf_number(g, type, 4);
    gguf_number(g, value, bytes);
}

static inline void gguf_field_u32(struct gguf_image *g, const char *key, uint32_t value)
{
    gguf_field_int(g, key, 4, value, 4);
}

static inline void gguf_field_f32(struct gguf_image *g, const char *key, float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    gguf_field_int(g, key, 6, bits, 4);
}

static inline void gguf_field_text(struct gguf_image *g, const char *key, const char *value)
{
    gguf_text(g, key);
    gguf_number(g, 8, 4);
    gguf_text(g, value);
}

static inline void gguf_field_array(struct gguf_image *g, const char *key, uint32_t type, uint64_t n)
{
    gguf_text(g, key);
    gguf_number(g, 9, 4);
    gguf_number(g, type, 4);
    gguf_number(g, n, 8);
}

/* Dimensions as the file has them, the fastest first. */
static inline void gguf_tensor(struct gguf_image *g, const char *name, uint32_t n_dim, const uint64_t *dim,
                               uint32_t type, uint64_t offset)
{
    gguf_text(g, name);
    gguf_number(g, n_dim, 4);
    for (uint32_t i = 0; i < n_dim && i < 16; i++) {
        gguf_number(g, dim[i], 8);
    }
    gguf_number(g, type, 4);
    gguf_number(g, offset, 8);
}

static inline void gguf_pad(struct gguf_image *g, size_t alignment)
{
    while (g->len % alignment != 0) {
        gguf_number(g, 0, 1);
    }
}

#endif
