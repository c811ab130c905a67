/* Where the endpoint listens, and whether it may: whoever reaches it can have it work, so without keys only this host
 * does, unless the operator says that he means it. */
#ifndef GR_ORCHESTRATOR_HTTP_LISTENER_H
#define GR_ORCHESTRATOR_HTTP_LISTENER_H

#include "common/base/status.h"

#include <stdbool.h>

struct gr_http_listener {
    int fd;           /* -1: there is none */
    char address[64]; /* numeric HOST:PORT */
    bool on_loopback;
};

/* is_open: it asks for keys, or was said to be insecure. GR_EIO, GR_EINVAL (logged): it cannot listen there, or may
 * not. */
GR_NODISCARD enum gr_status gr_http_listener_open(const char *listen, bool is_open, struct gr_http_listener *out);
/* Lets this process have descriptors for n connections beside its others. Returns for how many there are. */
int gr_http_have_descriptors(int n);

#endif
