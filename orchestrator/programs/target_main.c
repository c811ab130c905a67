/* graft-target: the target worker; with --colocate-draft the draft worker in the same process, over the loop
 * transport. */
#include "common/base/clock.h"
#include "common/base/fallback.h"
#include "common/process/joined.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "common/process/ranks.h"
#include "common/protocol/specpv.h"
#include "common/protocol/wire.h"
#include "draft_worker/worker.h"
#include "common/base/device.h"
#include "target_worker/worker.h"
#include "common/process/supervise.h"
#include "transport/worker/worker_options.h"
#include "transport/worker/worker_io.h"

#include <pthread.h>
#include <unistd.h>

/* A drafter that cannot start is a mistake of whoever started it, as in a process of its own. */
static void *run_draft(void *arg)
{
    struct gr_draft_options *o = arg;
    bool started = false;
    o->started = &started;
    const enum gr_status st = gr_draft_worker_run(o);
    if (st != GR_OK && !started) {
        _exit(gr_program_refused(st));
    }
    if (st != GR_OK && st != GR_ECLOSED) {    /* closed: the orchestrator is gone, which the target sees as well */
        struct gr_fallbacks of_process = {0}; /* its sessions count the drafter that is gone */
        gr_fall_back(&of_process, GR_FALLBACK_COLOCATED_DRAFTER, 0, 0, NULL);
    }
    return NULL;
}

static enum gr_status run_pair(struct gr_target_options *target, struct gr_draft_options *draft)
{
    const struct gr_conn_limits limits = {
        .small_bytes_max = 8192, .bulk_bytes_max = GR_WIRE_BULK_BYTES_MAX, .n_small_slot = 64, .n_bulk_slot = 8};
    struct gr_conn *ends[2];
    pthread_t thread;
    GR_TRY(gr_devices_beside(&target->devices, "--draft-device", draft->device));
    GR_TRY(gr_device_check(target->device)); /* before both halves find that out, each with a line of its own */
    GR_TRY(gr_transport_open_loop(&limits, 1, ends));
    target->loop_conn = ends[0];
    draft->loop_conn = ends[1];
    target->shares_device = target->device == draft->device;
    if (pthread_create(&thread, NULL, run_draft, draft) != 0) {
        log_error("cannot start the drafter's thread");
        gr_conn_close(ends[0]);
        gr_conn_close(ends[1]);
        return GR_ENOMEM;
    }
    const enum gr_status st = gr_target_worker_run(target);
    if (st != GR_OK && st != GR_ECLOSED) {
        _exit(gr_supervise_exit_status(st)); /* the drafter would serve on without a target */
    }
    pthread_join(thread, NULL);
    return st;
}

static int blocks_or(int64_t asked, int usual)
{
    return asked > 0 ? (int)asked : usual;
}

static struct gr_target_options target_options(const struct gr_options *o, const struct gr_ranks *ranks)
{
    return (struct gr_target_options){.model = o->model,
                                      .served_as = o->served_model_name,
                                      .head = o->head,
                                      .head_optional = gr_joined_before(),
                                      .ship_raw = o->ship_features == GR_FEATURES_RAW,
                                      .capture_layers = o->capture_layers,
                                      .feature_keep = (int)o->feature_keep,
                                      .join = o->join,
                                      .device = gr_devices_of(&o->device, o->tp_group != NULL ? 0 : ranks->rank),
                                      .devices = o->device,
                                      .listen = o->colocate_draft != NULL ? NULL
                                                : o->listen != NULL       ? o->listen
                                                                          : "",
                                      .spin_ms = (int)o->spin_ms,
                                      .pass_limit_ns = (uint64_t)o->pass_timeout,
                                      .geometry = o->geometry,
                                      .dtype = o->dtype,
                                      .isa = gr_option_choice(o, GR_OPTION_isa),
                                      .n_thread = (int)o->threads,
                                      .n_rank = (int)o->tensor_parallel_size,
                                      .rank_group = o->tp_group,
                                      .rank_listen = o->listen,
                                      .rank_transport = o->tp_transport,
                                      .rank_allreduce = o->tp_allreduce == GR_CHOICE_TP_ALLREDUCE_NCCL,
                                      .rank_limit_ns = (uint64_t)o->rank_timeout,
                                      .n_ctx_max = (int)o->max_model_len,
                                      .n_session_max = (int)o->n_session,
                                      .kv_blocks = o->kv_blocks == GR_AUTO ? 0 : (int)o->kv_blocks,
                                      .forced_transport = gr_worker_forced_transport(o),
                                      .require_gpudirect = o->require_gpudirect,
                                      .disable_gpudirect = o->disable_gpudirect,
                                      .round_deadline_ns = (uint64_t)o->round_deadline_ms,
                                      .prefill_share = o->prefill_share,
                                      .prefix_cache = o->prefix_cache == GR_PREFIX_CACHE_ON,
                                      .specpv = o->views == GR_VIEWS_ON,
                                      .specpv_score_max = o->specpv_score_reduce == GR_REDUCE_MAX,
                                      .specpv_n_sink = blocks_or(o->specpv_n_sink, GR_SPECPV_N_SINK),
                                      .specpv_n_retrieval = blocks_or(o->specpv_n_retrieval, GR_SPECPV_N_RETRIEVAL),
                                      .specpv_n_window = blocks_or(o->specpv_n_window, GR_SPECPV_N_WINDOW),
                                      .specpv_n_buffer = blocks_or(o->specpv_n_buffer, GR_SPECPV_N_BUFFER),
                                      .test_corrupt = (int)o->test_specpv_corrupt,
                                      .test_fail_pass = (int)o->test_fail_pass,
                                      .test_hang_pass = (int)o->test_hang_pass};
}

/* The drafter in this process: a model or head of its own, and otherwise what the target was told. */
static struct gr_draft_options draft_options(const struct gr_options *o)
{
    return (struct gr_draft_options){.model = o->colocate_draft,
                                     .target = o->model,
                                     .ship_raw = o->ship_features == GR_FEATURES_RAW,
                                     .capture_layers = o->capture_layers,
                                     .join = o->join,
                                     .device = gr_devices_of(&o->draft_device, 0),
                                     .spin_ms = (int)o->spin_ms,
                                     .pass_limit_ns = (uint64_t)o->pass_timeout,
                                     .geometry = o->geometry,
                                     .dtype = o->dtype,
                                     .isa = gr_option_choice(o, GR_OPTION_isa),
                                     .n_thread = (int)o->draft_threads,
                                     .n_ctx_max = (int)o->max_model_len,
                                     .draft_context = (int)o->draft_context,
                                     .n_session_max = (int)o->n_session,
                                     .forced_transport = -1,
                                     .test_fail_job = (int)o->test_fail_job};
}

int main(int argc, char **argv)
{
    struct gr_options options;
    struct gr_tuned tuned;
    struct gr_ranks ranks;
    gr_log_init("target");
    gr_program_begin();
    gr_joined_inherit();
    bool follows = gr_ranks_inherit(&ranks);
    if (follows) {
        gr_log_init(gr_ranks_role(&ranks, "target"));
    }
    if (!follows && gr_supervise_wanted(argc, argv)) {
        return gr_supervise_run(&(struct gr_supervised){.program = "graft-target", .name = "target worker"}, argc,
                                argv);
    }
    const int status = gr_worker_options_read(&options, GR_CMD_TARGET, argc, argv);
    if (status >= 0) {
        return status;
    }
    if (options.tp_group != NULL) { /* it was started by itself, as one of a group */
        ranks.rank = (int)options.tp_rank;
        follows = ranks.rank > 0;
        gr_log_init(gr_ranks_role(&ranks, "target"));
    }
    struct gr_target_options o = target_options(&options, &ranks);
    struct gr_draft_options draft = draft_options(&options);
    const bool on_gpu = o.device != GR_DEVICE_CPU || (draft.model != NULL && draft.device != GR_DEVICE_CPU);
    const enum gr_status st = gr_tuned_open(options.tuned, options.require_tuned, on_gpu, &tuned);
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    o.tuned = draft.tuned = tuned.file != NULL ? &tuned : NULL;
    o.ranks = &ranks;
    o.argv = argv;
    return gr_supervise_exit_status(draft.model != NULL && !follows ? run_pair(&o, &draft) : gr_target_worker_run(&o));
}
