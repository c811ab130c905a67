/* Whether this process wants its control links encrypted: what --control-encryption says, carried by the environment to
 * the processes that it starts. */
#ifndef GR_TRANSPORT_CONNECT_SECRECY_H
#define GR_TRANSPORT_CONNECT_SECRECY_H

#include "common/base/status.h"

#include <stdint.h>

/* As in HELLO. A link is encrypted if neither side says off; required refuses a peer that says off. */
enum gr_secrecy { GR_SECRECY_OFF = 0, GR_SECRECY_ON = 1, GR_SECRECY_REQUIRED = 2 };

/* What --control-encryption says, enum gr_secrecy, for this process and its children. */
void gr_secrecy_use(int wanted);
/* GRAFT_CONTROL_ENCRYPTION; on where it is not set. GR_EINVAL (logged): it is another word. Reads the environment. */
GR_NODISCARD enum gr_status gr_secrecy_wanted(uint32_t *out);
const char *gr_secrecy_name(uint32_t secrecy);

#endif
