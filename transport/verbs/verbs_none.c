/* The verbs transport of a build without libibverbs and librdmacm. */
#include "transport/verbs/verbs.h"

#include "common/base/log.h"

static enum gr_status refuse(void)
{
    log_error("verbs: this build has no RDMA transport (libibverbs-dev and librdmacm-dev were missing)");
    return GR_EUNSUPPORTED;
}

enum gr_status gr_verbs_check(const struct gr_verbs_options *options)
{
    (void)options;
    return refuse();
}

enum gr_status gr_verbs_try_far(const struct gr_verbs_options *options, enum gr_far_path *path_out)
{
    (void)options;
    (void)path_out;
    return refuse();
}

bool gr_verbs_stats(const struct gr_conn *c, struct gr_verbs_stats *out)
{
    (void)c;
    (void)out;
    return false;
}

enum gr_status gr_transport_open_verbs(int fd, bool initiator, const struct gr_verbs_options *options,
                                       const struct gr_conn_limits *limits, uint64_t peer_id, uint32_t generation,
                                       struct gr_conn **conn_out)
{
    (void)fd;
    (void)initiator;
    (void)options;
    (void)limits;
    (void)peer_id;
    (void)generation;
    (void)conn_out;
    return refuse();
}

uint32_t gr_verbs_n_waiting(struct gr_conn *c, bool *out_idle_out)
{
    (void)c;
    *out_idle_out = true;
    return 0;
}

bool gr_verbs_worth_offering(const struct gr_verbs_options *options)
{
    (void)options;
    return false;
}

void gr_verbs_forget_peers(void)
{
}
