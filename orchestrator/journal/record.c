#include "orchestrator/journal/record.h"

#include "common/base/bytes.h"

#include <xxhash.h>

static const uint8_t magic[8] = {'g', 'r', 'a', 'f', 't', 'j', 'n', 'l'};

#define SUM_BYTES 8

static uint64_t sum_of(const uint8_t *p, size_t n, uint64_t salt)
{
    return XXH3_64bits_withSeed(p, n, salt);
}

#define COPY_BYTES ((size_t)GR_SEGMENT_HEAD_BYTES / 2)

void gr_segment_head_encode(const struct gr_segment_head *h, uint8_t out[static GR_SEGMENT_HEAD_BYTES])
{
    struct gr_writer w = {.p = out, .cap = COPY_BYTES};
    memcpy(gr_write_bytes(&w, sizeof(magic)), magic, sizeof(magic));
    gr_write_u32(&w, GR_JOURNAL_VERSION);
    gr_write_u32(&w, 0);
    gr_write_u64(&w, h->generation);
    gr_write_u64(&w, h->first_seq);
    gr_write_u64(&w, h->salt);
    gr_write_u64(&w, sum_of(out, w.at, h->salt));
    GR_ASSERT(!w.failed && w.at == COPY_BYTES);
    memcpy(out + COPY_BYTES, out, COPY_BYTES);
}

static enum gr_status decode_copy(const uint8_t *p, size_t n, struct gr_segment_head *out)
{
    struct gr_reader r = {.p = p, .len = n};
    const uint8_t *begin = gr_read_bytes(&r, sizeof(magic));
    const uint32_t version = gr_read_u32(&r);
    (void)gr_read_u32(&r);
    const struct gr_segment_head h = {
        .generation = gr_read_u64(&r), .first_seq = gr_read_u64(&r), .salt = gr_read_u64(&r)};
    const uint64_t sum = gr_read_u64(&r);
    if (r.failed || memcmp(begin, magic, sizeof(magic)) != 0) {
        return GR_EFORMAT;
    }
    if (sum != sum_of(p, COPY_BYTES - SUM_BYTES, h.salt)) {
        return GR_EFORMAT;
    }
    if (version != GR_JOURNAL_VERSION) {
        return GR_EUNSUPPORTED;
    }
    *out = h;
    return GR_OK;
}

enum gr_status gr_segment_head_decode(const uint8_t *p, size_t n, struct gr_segment_head *out)
{
    if (n < GR_SEGMENT_HEAD_BYTES) {
        return GR_EFORMAT;
    }
    const enum gr_status st = decode_copy(p, COPY_BYTES, out);
    return st == GR_EFORMAT ? decode_copy(p + COPY_BYTES, COPY_BYTES, out) : st;
}

void gr_record_encode(const struct gr_record *r, uint64_t salt, uint8_t *out)
{
    GR_ASSERT(r->n_body <= GR_RECORD_BODY_MAX);
    struct gr_writer w = {.p = out, .cap = gr_record_bytes(r->n_body)};
    gr_write_u32(&w, r->n_body);
    gr_write_u32(&w, r->kind);
    gr_write_u64(&w, r->seq);
    gr_write_u64(&w, r->session);
    gr_write_u64(&w, r->number);
    gr_write_u64(&w, r->before);
    gr_write_u64(&w, sum_of(out, w.at, salt));
    uint8_t *body = gr_write_bytes(&w, r->n_body);
    if (r->n_body > 0) {
        memcpy(body, r->body, r->n_body);
    }
    gr_write_u64(&w, sum_of(body, r->n_body, salt ^ r->seq));
    GR_ASSERT(!w.failed);
}

enum gr_record_state gr_record_decode(const uint8_t *p, size_t n, uint64_t salt, struct gr_record *out)
{
    struct gr_reader r = {.p = p, .len = n};
    struct gr_record d = {.n_body = gr_read_u32(&r)};
    d.kind = gr_read_u32(&r);
    d.seq = gr_read_u64(&r);
    d.session = gr_read_u64(&r);
    d.number = gr_read_u64(&r);
    d.before = gr_read_u64(&r);
    const uint64_t sum = gr_read_u64(&r);
    if (r.failed || d.n_body > GR_RECORD_BODY_MAX || sum != sum_of(p, GR_RECORD_HEAD_BYTES - SUM_BYTES, salt)) {
        return GR_RECORD_NO_HEAD;
    }
    d.body = gr_read_bytes(&r, d.n_body);
    const uint64_t body_sum = gr_read_u64(&r);
    *out = d;
    return !r.failed && body_sum == sum_of(d.body, d.n_body, salt ^ d.seq) ? GR_RECORD_WHOLE : GR_RECORD_NO_BODY;
}
