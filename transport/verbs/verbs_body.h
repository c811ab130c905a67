/* The far memory of a verbs connection (common/base/far_memory.h): where the bodies of bulk frames lie, which is all of
 * them but the first GR_BULK_HEAD_BYTES.
 *
 *   | out, a slot a frame | gap | in: remote-writable, a new key per connection | copies, for this side alone |
 *
 * Both registrations are made by the first way that works: ibv_reg_dmabuf_mr, then ibv_reg_mr on the address. What is
 * registered is the memory that is used, before READY, so that a side only asks for bodies apart where it has them.
 * Decision D-130. */
#ifndef GR_TRANSPORT_VERBS_VERBS_BODY_H
#define GR_TRANSPORT_VERBS_VERBS_BODY_H

#include "transport/impl.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_lib.h"

struct gr_verbs_bodies {
    const struct gr_far_memory *far; /* NULL: there is none, all below is 0 */
    uint8_t *base;                   /* owned, of far */
    size_t stride;                   /* of a slot */
    uint32_t n_slot;
    uint8_t *out, *in, *copies;
    struct ibv_mr *out_mr, *in_mr;
    enum gr_far_path path;
};

/* What is left of a bulk frame without its head. */
static inline uint32_t gr_verbs_body_bytes(uint32_t frame_bytes)
{
    return frame_bytes - GR_MIN(frame_bytes, GR_BULK_HEAD_BYTES);
}
static inline size_t gr_verbs_body_stride(uint32_t bulk_bytes_max)
{
    return gr_round_up(GR_MAX(gr_verbs_body_bytes(bulk_bytes_max), 1u), GR_SLOT_ALIGN);
}

/* Takes and registers far memory for n_slot frames each way, each of bulk_bytes_max; what fits from before is kept, but
 * the key of the inbox. GR_OK: path says how it is reached, and the log; where nothing works b->far is NULL and path
 * GR_FAR_STAGING. options: far (not NULL) and require_far. GR_EIO: that is not allowed; one line says what to do. */
GR_NODISCARD enum gr_status gr_verbs_bodies_make(struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib,
                                                 struct ibv_pd *pd, const struct gr_verbs_options *options,
                                                 const struct gr_conn_limits *limits);
/* The peer can write nothing any more. */
void gr_verbs_bodies_forget_inbox(struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib);
void gr_verbs_bodies_release(struct gr_verbs_bodies *b, const struct gr_verbs_lib *lib);

#endif
