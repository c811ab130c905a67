#include "orchestrator/http/listener.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "transport/connect/reach.h"
#include "transport/net.h"

#include <sys/resource.h>
#include <unistd.h>

#define OTHER_DESCRIPTORS 1024 /* of workers, control clients, files */

enum gr_status gr_http_listener_open(const char *listen, bool is_open, struct gr_http_listener *out)
{
    struct gr_address a;
    *out = (struct gr_http_listener){.fd = -1};
    GR_TRY(gr_address_parse("--http", listen, 0, &a));
    if (gr_tcp_listen(listen, &out->fd, out->address) != GR_OK) {
        log_error("--http %s: the endpoint cannot listen there; give another address, or --http off", listen);
        return GR_EIO;
    }
    out->on_loopback = gr_reach_is_loopback(out->address);
    if (!out->on_loopback && !is_open) {
        log_error("--http %s: without keys anybody who reaches this address can use the model; give --api-key-file F, "
                  "listen on 127.0.0.1, or say --insecure",
                  listen);
        close(out->fd);
        out->fd = -1;
        return GR_EINVAL;
    }
    return GR_OK;
}

int gr_http_have_descriptors(int n)
{
    struct rlimit r;
    const rlim_t wanted = (rlim_t)n + OTHER_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) {
        return n;
    }
    if (r.rlim_cur < wanted) {
        r.rlim_cur = r.rlim_max == RLIM_INFINITY ? wanted : GR_MIN(wanted, r.rlim_max);
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
    const rlim_t left = r.rlim_cur > OTHER_DESCRIPTORS ? r.rlim_cur - OTHER_DESCRIPTORS : r.rlim_cur / 2;
    if (left < (rlim_t)n) {
        log_warn("--http-connections %d: there are descriptors for %llu connections (`ulimit -Hn' is %llu), so that "
                 "many are taken",
                 n, (unsigned long long)left, (unsigned long long)r.rlim_cur);
        return (int)left;
    }
    return n;
}
