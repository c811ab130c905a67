#include "orchestrator/journal/record.h"

#include "common/base/bytes.h"

#include <xxhash.h>

static const uint8_t magic[8] = {'g', 'r', 'a', 'f', 't', 'j', 'n', 'l'};

#define SUM_BYTES 8

static uint64_t sum_of(const uint8_t *p, size_t n, uint64_t salt)
{
    return XXH3_64bits_withSeed(p, n, salt);
}

void gr_segment_head_encode(const struct gr_segment_head *h, uint8_t *out)
{
    const size_t n = gr_segment_head_bytes(h) / 2;
    const bool is_compacted = h->from_generation != 0;
    struct gr_writer w = {.p = out, .cap = n};
    memcpy(gr_write_bytes(&w, sizeof(magic)), magic, sizeof(magic));
    gr_write_u32(&w, is_compacted ? GR_JOURNAL_VERSION_COMPACTED : GR_JOURNAL_VERSION);
    gr_write_u32(&w, 0);
    gr_write_u64(&w, h->generation);
    gr_write_u64(&w, h->first_seq);
    gr_write_u64(&w, h->salt);
    if (is_compacted) {
        gr_write_u64(&w, h->from_generation);
        gr_write_u64(&w, h->from_seq);
    }
    gr_write_u64(&w, sum_of(out, w.at, h->salt));
    GR_ASSERT(!w.failed && w.at == n);
    memcpy(out + n, out, n);
}

static enum gr_status decode_copy(const uint8_t *p, size_t n, struct gr_segment_head *out)
{
    struct gr_reader r = {.p = p, .len = n};
    const uint8_t *begin = gr_read_bytes(&r, sizeof(magic));
    const uint32_t version = gr_read_u32(&r);
    (void)gr_read_u32(&r);
    struct gr_segment_head h = {.generation = gr_read_u64(&r), .first_seq = gr_read_u64(&r), .salt = gr_read_u64(&r)};
    if (version == GR_JOURNAL_VERSION_COMPACTED) {
        h.from_generation = gr_read_u64(&r);
        h.from_seq = gr_read_u64(&r);
    }
    const bool stands_for_none = version == GR_JOURNAL_VERSION_COMPACTED && h.from_generation == 0;
    const size_t n_summed = r.at;
    const uint64_t sum = gr_read_u64(&r);
    if (r.failed || memcmp(begin, magic, sizeof(magic)) != 0 || sum != sum_of(p, n_summed, h.salt) || stands_for_none) {
        return GR_EFORMAT;
    }
    if (version != GR_JOURNAL_VERSION && version != GR_JOURNAL_VERSION_COMPACTED) {
        return GR_EUNSUPPORTED;
    }
    *out = h;
    return GR_OK;
}

/* A head says nothing that cannot be. */
static bool is_possible(const struct gr_segment_head *h)
{
    return h->from_generation == 0 ||
           (h->from_generation <= h->generation && h->from_seq >= 1 && h->from_seq <= h->first_seq);
}

enum gr_status gr_segment_head_decode(const uint8_t *p, size_t n, struct gr_segment_head *out)
{
    static const size_t copy_at[] = {0, GR_SEGMENT_HEAD_BYTES / 2, GR_COMPACTED_HEAD_BYTES / 2};
    struct gr_segment_head h;
    enum gr_status st = GR_EFORMAT;
    for (size_t i = 0; n >= GR_SEGMENT_HEAD_BYTES && st == GR_EFORMAT && i < GR_ARRAY_LEN(copy_at); i++) {
        st = decode_copy(p + copy_at[i], n - copy_at[i], &h);
        st = st == GR_OK && !is_possible(&h) ? GR_EFORMAT : st;
    }
    if (st == GR_OK) {
        *out = h;
    }
    return st;
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
