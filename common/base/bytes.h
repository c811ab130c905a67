/* Little-endian cursors over caller's memory. Reading or writing past the end sets `failed` and yields zeros or
 * writes nothing; it is checked once, at the end. No alignment is needed. */
#ifndef GR_COMMON_BASE_BYTES_H
#define GR_COMMON_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct gr_reader {
    const uint8_t *p;
    size_t len, at;
    bool failed;
};

struct gr_writer {
    uint8_t *p;
    size_t cap, at;
    bool failed;
};

static inline const uint8_t *gr_read_bytes(struct gr_reader *r, size_t n)
{
    if (r->failed || n > r->len - r->at) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *p = r->p + r->at;
    r->at += n;
    return p;
}

static inline uint64_t gr_read_le(struct gr_reader *r, size_t n)
{
    const uint8_t *p = gr_read_bytes(r, n);
    uint64_t v = 0;
    for (size_t i = 0; p != NULL && i < n; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

static inline uint8_t *gr_write_bytes(struct gr_writer *w, size_t n)
{
    if (w->failed || n > w->cap - w->at) {
        w->failed = true;
        return NULL;
    }
    uint8_t *p = w->p + w->at;
    w->at += n;
    return p;
}

static inline void gr_write_le(struct gr_writer *w, uint64_t v, size_t n)
{
    uint8_t *p = gr_write_bytes(w, n);
    for (size_t i = 0; p != NULL && i < n; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

#define gr_read_u8(r) ((uint8_t)gr_read_le((r), 1))
#define gr_read_u16(r) ((uint16_t)gr_read_le((r), 2))
#define gr_read_u32(r) ((uint32_t)gr_read_le((r), 4))
#define gr_read_u64(r) gr_read_le((r), 8)
#define gr_write_u8(w, v) gr_write_le((w), (uint64_t)(v), 1)
#define gr_write_u16(w, v) gr_write_le((w), (uint64_t)(v), 2)
#define gr_write_u32(w, v) gr_write_le((w), (uint64_t)(uint32_t)(v), 4)
#define gr_write_u64(w, v) gr_write_le((w), (v), 8)

#endif
