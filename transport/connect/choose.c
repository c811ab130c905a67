/* Which transport two workers take: the first of one order that both offer and that can connect them. */
#include "transport/connect/bootstrap.h"

#include "common/base/log.h"

#include <stdio.h>
#include <string.h>

/* First that can connect wins. loop is not here: its two ends are made together, without a socket.
 */
static const enum gr_transport_kind order[] = {GR_TRANSPORT_SHM, GR_TRANSPORT_VERBS, GR_TRANSPORT_TCP};

#define NAMES_BYTES (GR_N_TRANSPORT * 16)

/* "shm tcp" for the log. */
static const char *mask_text(uint32_t mask, char out[NAMES_BYTES])
{
    int n = 0;
    out[0] = '\0';
    for (int i = 0; i < GR_N_TRANSPORT; i++) {
        if ((mask & 1u << i) != 0 && n < NAMES_BYTES) {
            n += snprintf(out + n, (size_t)(NAMES_BYTES - n), "%s%s", n == 0 ? "" : " ",
                          gr_transport_name((enum gr_transport_kind)i));
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
    char own[NAMES_BYTES], other[NAMES_BYTES], built[NAMES_BYTES];
    bool same_host = strcmp(self->host_id, peer->host_id) == 0;
    log_error("no common transport%s%s: we offer %s, the peer offers %s, this build has %s, %s",
              forced < 0 ? "" : " for the forced ", forced < 0 ? "" : gr_transport_name((enum gr_transport_kind)forced),
              mask_text(self->transport_mask, own), mask_text(peer->transport_mask, other),
              mask_text(gr_transport_built_mask(), built),
              same_host ? "same host" : "not the same host (shm needs one host, one user)");
    return GR_EMISMATCH;
}
