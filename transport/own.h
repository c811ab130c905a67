/* The interfaces of this host, and which of them this process was told to use (--interface). */
#ifndef GR_TRANSPORT_OWN_H
#define GR_TRANSPORT_OWN_H

#include "transport/interface.h"

/* What --interface says, for this process (borrowed); NULL: nothing. as_source: connections come from there as well
 * (gr_own_bind). GR_EINVAL, GR_ENOTFOUND as of interface.h (logged), GR_EIO. Before the
 * first connection and the first thread. */
GR_NODISCARD enum gr_status gr_own_use(const char *list, bool as_source);
/* Was anything told? */
bool gr_own_is_told(void);
/* If so: one line, at every level, says what that chooses. For whoever listens or connects itself. */
void gr_own_tell(void);

/* What is told, or else what reaches others, as the interfaces are at this moment. Any thread, as what follows. The
 * same errors. */
GR_NODISCARD enum gr_status gr_own_choose(struct gr_interface_chosen *out);
/* A socket that is about to connect to `to` gets the source that was told; nothing where the system's choice is right.
 * 0, or the errno of bind. */
int gr_own_bind(int fd, const struct sockaddr *to);

#endif
