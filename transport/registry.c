#include "transport/bootstrap.h"
#include "transport/impl.h"

#include "common/log.h"

#include <string.h>

static const char *const names[GR_N_TRANSPORT] = {
    [GR_TRANSPORT_LOOP] = "loop",
    [GR_TRANSPORT_SHM] = "shm",
    [GR_TRANSPORT_TCP] = "tcp",
    [GR_TRANSPORT_VERBS] = "verbs",
};

/* First that can connect wins. loop is not here: its two ends are made together, without a socket.
 */
static const enum gr_transport_kind order[] = {GR_TRANSPORT_SHM, GR_TRANSPORT_VERBS, GR_TRANSPORT_TCP};

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

/* "shm tcp" for the log; out holds every name. */
static const char *mask_text(uint32_t mask, char out[32])
{
    char *p = out;
    *p = '\0';
    for (int i = 0; i < GR_N_TRANSPORT; i++) {
        if ((mask & 1u << i) != 0) {
            p = stpcpy(stpcpy(p, p == out ? "" : " "), names[i]);
        }
    }
    return mask == 0 ? "none" : out;
}

static bool can_connect(const struct gr_hello *self, const struct gr_hello *peer, enum gr_transport_kind kind)
{
    if ((self->transport_mask & peer->transport_mask & gr_transport_built_mask() & 1u << kind) == 0) {
        return false;
    }
    return kind != GR_TRANSPORT_SHM || (self->host_id[0] != '\0' && strcmp(self->host_id, peer->host_id) == 0);
}

enum gr_status gr_transport_choose(const struct gr_hello *self, const struct gr_hello *peer, int forced,
                                   enum gr_transport_kind *kind_out)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(order); i++) {
        if ((forced < 0 || forced == (int)order[i]) && can_connect(self, peer, order[i])) {
            *kind_out = order[i];
            return GR_OK;
        }
    }
    char own[32], other[32], built[32];
    bool same_host = strcmp(self->host_id, peer->host_id) == 0;
    log_error("no common transport%s%s: we offer %s, the peer offers %s, this build has %s, %s",
              forced < 0 ? "" : " for the forced ", forced < 0 ? "" : gr_transport_name((enum gr_transport_kind)forced),
              mask_text(self->transport_mask, own), mask_text(peer->transport_mask, other),
              mask_text(gr_transport_built_mask(), built),
              same_host ? "same host" : "not the same host (shm needs one host, one user)");
    return GR_EMISMATCH;
}
