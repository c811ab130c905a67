/* A record's header: in the 32 bits that the device carries beside the payload, or, where nothing is carried beside it
 * (two-sided mode), in front of it. What is read here was written by the peer. Decision D-089. */
#include "transport/verbs/verbs_conn.h"

#include "common/base/bytes.h"

#include <assert.h>

#define RECORD_MAGIC 0x31565247u /* "GRV1" */
#define FLAG_MORE 1u

/* ---- in front of the payload ---- */

void gr_verbs_header_encode(const struct gr_verbs_header *h, uint8_t out[GR_VERBS_HEADER_BYTES])
{
    struct gr_writer w = {.p = out, .cap = GR_VERBS_HEADER_BYTES};
    gr_write_u32(&w, RECORD_MAGIC);
    gr_write_u8(&w, h->class);
    gr_write_u8(&w, h->more ? FLAG_MORE : 0);
    gr_write_u16(&w, h->n_credit[GR_FRAME_SMALL]);
    gr_write_u16(&w, h->n_credit[GR_FRAME_BULK]);
    gr_write_u16(&w, h->n_credit_record);
    gr_write_u32(&w, h->sequence);
    gr_write_u32(&w, h->bytes);
}

bool gr_verbs_header_decode(const uint8_t in[GR_VERBS_HEADER_BYTES], struct gr_verbs_header *out)
{
    struct gr_reader r = {.p = in, .len = GR_VERBS_HEADER_BYTES};
    const uint32_t magic = gr_read_u32(&r);
    out->class = gr_read_u8(&r);
    const uint32_t flags = gr_read_u8(&r);
    out->more = (flags & FLAG_MORE) != 0;
    out->n_credit[GR_FRAME_SMALL] = gr_read_u16(&r);
    out->n_credit[GR_FRAME_BULK] = gr_read_u16(&r);
    out->n_credit_record = gr_read_u16(&r);
    out->sequence = gr_read_u32(&r);
    out->bytes = gr_read_u32(&r);
    return magic == RECORD_MAGIC && out->class <= GR_VERBS_CREDIT && flags <= FLAG_MORE &&
           (!out->more || out->class == GR_FRAME_BULK);
}

/* ---- in the immediate data ---- */

enum { CLASS_BITS = 2, SEQUENCE_BITS = 11, RECORD_BITS = 3, BULK_BITS = 7, SMALL_BITS = 9 };
static_assert(CLASS_BITS + SEQUENCE_BITS + RECORD_BITS + BULK_BITS + SMALL_BITS == 32, "immediate data");
static_assert(GR_VERBS_IMM_SEQUENCE_MASK == (1u << SEQUENCE_BITS) - 1, "sequence");
static_assert(GR_VERBS_CREDIT < 1 << CLASS_BITS && GR_VERBS_N_CREDIT < 1 << RECORD_BITS &&
                  GR_N_BULK_SLOT_MAX < 1 << BULK_BITS && GR_N_SMALL_SLOT_MAX < 1 << SMALL_BITS,
              "the most that is ever owed fits");

/* The lowest bits of *imm, which moves on. */
static uint32_t take_bits(uint32_t *imm, int n)
{
    const uint32_t v = *imm & ((1u << n) - 1);
    *imm >>= n;
    return v;
}

uint32_t gr_verbs_imm_encode(const struct gr_verbs_header *h)
{
    uint32_t imm = h->n_credit[GR_FRAME_SMALL];
    imm = imm << BULK_BITS | h->n_credit[GR_FRAME_BULK];
    imm = imm << RECORD_BITS | h->n_credit_record;
    imm = imm << SEQUENCE_BITS | (h->sequence & GR_VERBS_IMM_SEQUENCE_MASK);
    return imm << CLASS_BITS | h->class;
}

bool gr_verbs_imm_decode(uint32_t imm, uint32_t bytes, struct gr_verbs_header *out)
{
    *out = (struct gr_verbs_header){.class = take_bits(&imm, CLASS_BITS), .bytes = bytes};
    out->sequence = take_bits(&imm, SEQUENCE_BITS);
    out->n_credit_record = take_bits(&imm, RECORD_BITS);
    out->n_credit[GR_FRAME_BULK] = take_bits(&imm, BULK_BITS);
    out->n_credit[GR_FRAME_SMALL] = take_bits(&imm, SMALL_BITS);
    return out->class <= GR_VERBS_CREDIT;
}
