/* Options of a worker that are settled for the whole process, before the first connection and the first thread. */
#include "transport/worker/worker_options.h"

#include "common/base/device.h"
#include "common/base/log.h"
#include "common/process/joined.h"
#include "common/process/program.h"
#include "common/protocol/msg.h"
#include "transport/connect/cluster.h"
#include "transport/connect/secrecy.h"
#include "transport/own.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"
#include "transport/worker/worker_signals.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static void configure_verbs(const struct gr_options *o)
{
    struct gr_verbs_options v = *gr_verbs_configured();
    v.hca = o->ib_hca;
    v.gid_index = (int)o->gid_index;
    v.two_sided = o->verbs_mode == GR_VERBS_TWO_SIDED;
    v.spin_us = (int)o->verbs_spin_us;
    gr_verbs_configure(&v);
}

static long long whole_seconds(int64_t ns)
{
    return (ns + (int64_t)GR_S - 1) / (int64_t)GR_S;
}

/* Of a group whose processes are started one by one. */
static enum gr_status check_group(const struct gr_options *o)
{
    if (o->tp_group == NULL && o->values.source[GR_OPTION_tp_rank] != GR_FROM_DEFAULT) {
        log_error("--tp-rank %lld: where does its group meet? --tp-group HOST:PORT", (long long)o->tp_rank);
        return GR_EINVAL;
    }
    if (o->tp_group != NULL && o->tensor_parallel_size == 1) {
        log_error("--tp-group %s: of how many processes? --tensor-parallel-size N", o->tp_group);
        return GR_EINVAL;
    }
    if (o->tp_group != NULL && o->tp_rank >= o->tensor_parallel_size) {
        log_error("--tp-rank %lld: a group of %lld has ranks 0 to %lld", (long long)o->tp_rank,
                  (long long)o->tensor_parallel_size, (long long)o->tensor_parallel_size - 1);
        return GR_EINVAL;
    }
    if (o->tp_group != NULL && o->tp_transport == GR_CHOICE_TP_PEER) {
        log_error("--tp-transport peer: GPUs see each other's memory on one host, within one group of --device; with "
                  "--tp-group sums go over NCCL");
        return GR_EINVAL;
    }
    return GR_OK;
}

/* It stands in HELLO and in lines of the log. */
static enum gr_status use_seat(const char *name)
{
    size_t n = 0;
    while (name != NULL && name[n] > ' ' && name[n] <= '~') {
        n++;
    }
    if (name != NULL && (n == 0 || n >= GR_SEAT_MAX || name[n] != '\0')) {
        log_error("--seat %s: a name has 1 to %d printable characters of ASCII without spaces", name, GR_SEAT_MAX - 1);
        return GR_EINVAL;
    }
    if (name != NULL) {
        setenv("GRAFT_SEAT", name, 1); /* which joining reads */
    }
    return GR_OK;
}

int gr_worker_options_read(struct gr_options *o, enum gr_command worker, int argc, char **argv)
{
    char patience[24], called[64];
    gr_verbs_prepare();
    gr_options_default(o, worker);
    const int status = gr_options_parse(o, argc, argv);
    if (status >= 0) {
        return status;
    }
    const bool follows = worker == GR_CMD_TARGET && o->tp_group != NULL && o->tp_rank > 0; /* rank 0 joins */
    if (o->model == NULL || (o->join == NULL && !follows)) {
        gr_option_called(o->values.called, called);
        log_error("--model and --join (or GRAFT_MODEL, GRAFT_JOIN) are needed; see %s --help", called);
        return 2;
    }
    const bool is_target = worker == GR_CMD_TARGET;
    const bool started_alone = is_target && o->tp_group != NULL; /* it names its own GPU */
    if (is_target && !started_alone && o->values.source[GR_OPTION_tensor_parallel_size] == GR_FROM_DEFAULT) {
        o->tensor_parallel_size = gr_devices_ranks(&o->device);
    }
    const int64_t n_rank = is_target && !started_alone ? o->tensor_parallel_size : 1;
    if (is_target && check_group(o) != GR_OK) {
        return 2;
    }
    if (gr_devices_check("--device", &o->device, n_rank) != GR_OK ||
        (is_target && gr_devices_check("--draft-device", &o->draft_device, 1) != GR_OK)) {
        return 2;
    }
    if (!gr_joined_is_child() || getenv("GRAFT_SUPERVISED") != NULL) {
        gr_log_place(); /* its lines are read beside those of other hosts */
    }
    const enum gr_status st = gr_own_use(o->interface, true);
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    configure_verbs(o);
    gr_cluster_use(o->cluster);
    if (use_seat(o->seat) != GR_OK) {
        return 2;
    }
    gr_secrecy_use(o->control_encryption);
    gr_worker_signals_catch((uint64_t)o->drain_timeout);
    snprintf(patience, sizeof(patience), "%lld", whole_seconds(o->join_timeout));
    setenv("GRAFT_JOIN_TIMEOUT", patience, 1); /* which joining reads */
    if (o->values.source[GR_OPTION_rejoin_timeout] != GR_FROM_DEFAULT) {
        snprintf(patience, sizeof(patience), "%lld", whole_seconds(o->rejoin_timeout));
        setenv("GRAFT_REJOIN_TIMEOUT", patience, 1);
    }
    snprintf(patience, sizeof(patience), "%lld", whole_seconds(o->orphan_ttl));
    setenv("GRAFT_ORPHAN_TTL", patience, 1);
    return -1;
}

void gr_worker_near_gpu(const char *gpu_pci)
{
    gr_verbs_prefer_near(gpu_pci);
}

int gr_worker_forced_transport(const struct gr_options *o)
{
    static_assert((int)GR_CHOICE_LOOP == (int)GR_TRANSPORT_LOOP && (int)GR_CHOICE_SHM == (int)GR_TRANSPORT_SHM &&
                      (int)GR_CHOICE_TCP == (int)GR_TRANSPORT_TCP && (int)GR_CHOICE_VERBS == (int)GR_TRANSPORT_VERBS,
                  "--transport's choices are enum gr_transport_kind's");
    const bool require_rdma = o->require_gpudirect && o->transport == GR_UNSET;
    return require_rdma ? GR_TRANSPORT_VERBS : o->transport; /* GR_UNSET: -1 */
}
