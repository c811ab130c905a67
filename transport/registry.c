/* The transports by name, which of them this build has, and the limits of a connection. */
#include "transport/impl.h"

#include "common/base/log.h"

#include <string.h>

static const char *const names[GR_N_TRANSPORT] = {
    [GR_TRANSPORT_LOOP] = "loop",
    [GR_TRANSPORT_SHM] = "shm",
    [GR_TRANSPORT_TCP] = "tcp",
    [GR_TRANSPORT_VERBS] = "verbs",
};

const char *gr_transport_name(enum gr_transport_kind kind)
{
    return (unsigned)kind < GR_N_TRANSPORT ? names[kind] : "unknown";
}

enum gr_status gr_transport_by_name(const char *name, enum gr_transport_kind *kind_out)
{
    for (int i = 0; i < GR_N_TRANSPORT; i++) {
        if (strcmp(names[i], name) == 0) {
            *kind_out = (enum gr_transport_kind)i;
            return GR_OK;
        }
    }
    log_error("unknown transport `%s'; known: loop, shm, tcp, verbs", name);
    return GR_ENOTFOUND;
}

uint32_t gr_transport_built_mask(void)
{
#ifdef GR_HAVE_VERBS
    const uint32_t verbs = 1u << GR_TRANSPORT_VERBS;
#else
    const uint32_t verbs = 0;
#endif
    return 1u << GR_TRANSPORT_LOOP | 1u << GR_TRANSPORT_SHM | 1u << GR_TRANSPORT_TCP | verbs;
}

static bool in_range(const char *name, uint32_t value, uint32_t min, uint32_t max)
{
    if (value < min || value > max) {
        log_error("connection limit %s: %u is outside %u .. %u", name, value, min, max);
        return false;
    }
    return true;
}

enum gr_status gr_limits_check(const struct gr_conn_limits *l)
{
    bool ok = in_range("small_bytes_max", l->small_bytes_max, GR_SMALL_BYTES_MIN, GR_SMALL_BYTES_MAX) &&
              in_range("n_small_slot", l->n_small_slot, GR_N_SMALL_SLOT_MIN, GR_N_SMALL_SLOT_MAX) &&
              in_range("bulk_bytes_max", l->bulk_bytes_max, 0, GR_BULK_BYTES_MAX) &&
              in_range("n_bulk_slot", l->n_bulk_slot, 0, GR_N_BULK_SLOT_MAX);
    if (ok && (l->bulk_bytes_max == 0) != (l->n_bulk_slot == 0)) {
        log_error("connection limits: bulk_bytes_max %u does not go with n_bulk_slot %u", l->bulk_bytes_max,
                  l->n_bulk_slot);
        ok = false;
    }
    return ok ? GR_OK : GR_EINVAL;
}

void gr_limits_agree(const struct gr_conn_limits *a, const struct gr_conn_limits *b, struct gr_conn_limits *out)
{
    struct gr_conn_limits l = {
        .small_bytes_max = GR_MIN(a->small_bytes_max, b->small_bytes_max),
        .bulk_bytes_max = GR_MIN(a->bulk_bytes_max, b->bulk_bytes_max),
        .n_small_slot = GR_MIN(a->n_small_slot, b->n_small_slot),
        .n_bulk_slot = GR_MIN(a->n_bulk_slot, b->n_bulk_slot),
    };
    if (l.bulk_bytes_max == 0 || l.n_bulk_slot == 0) {
        l.bulk_bytes_max = 0;
        l.n_bulk_slot = 0;
    }
    *out = l;
}

enum gr_status gr_acquire_check(const struct gr_conn *c, enum gr_frame_class class, uint32_t bytes)
{
    GR_ASSERT((unsigned)class < GR_N_FRAME_CLASS);
    uint32_t max = gr_class_bytes_max(&c->limits, class);
    if (bytes > max || gr_class_n_slot(&c->limits, class) == 0) {
        log_error("%s: a %s frame of %u bytes was refused, the agreed limit is %u", c->ops->name,
                  class == GR_FRAME_SMALL ? "small" : "bulk", bytes, max);
        return GR_ELIMIT;
    }
    return GR_OK;
}
