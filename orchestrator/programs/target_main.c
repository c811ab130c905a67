/* graft-target: the target worker; with --colocate-draft the draft worker in the same process, over the loop
 * transport. */
#include "common/base/clock.h"
#include "common/base/fallback.h"
#include "common/process/joined.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "common/protocol/specpv.h"
#include "common/protocol/wire.h"
#include "draft_worker/worker.h"
#include "common/base/device.h"
#include "target_worker/worker.h"
#include "transport/worker/supervise.h"
#include "transport/worker/worker_args.h"
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
        _exit(1);
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

int main(int argc, char **argv)
{
    struct gr_target_options o = {.n_session_max = 8,
                                  .forced_transport = -1,
                                  .spin_ms = GR_SPIN_AUTO,
                                  .listen = "127.0.0.1:0",
                                  .prefill_share = GR_PREFILL_SHARE_DEFAULT,
                                  .feature_keep = GR_FEATURE_KEEP_DEFAULT,
                                  .specpv = "off",
                                  .specpv_score_reduce = "mean",
                                  .specpv_n_sink = GR_SPECPV_N_SINK,
                                  .specpv_n_retrieval = GR_SPECPV_N_RETRIEVAL,
                                  .specpv_n_window = GR_SPECPV_N_WINDOW,
                                  .specpv_n_buffer = GR_SPECPV_N_BUFFER};
    struct gr_draft_options draft = gr_draft_options_default();
    const char *device = "cpu";
    const char *draft_device = "cpu";
    const char *tuned_file = NULL;
    bool require_tuned = false;
    struct gr_tuned tuned;
    int deadline_ms = 2000;
    gr_log_init("target");
    gr_joined_inherit();
    const struct gr_arg args[] = {
        {"model", GR_ARG_TEXT, &o.model, 0, 0, "DIR      the target model (required)"},
        {"head", GR_ARG_TEXT, &o.head, 0, 0, "DIR      the EAGLE-3 head that its drafters run"},
        GR_ARG_ROWS_FEATURES(&o.ship_features, &o.capture_layers),
        {"feature-keep", GR_ARG_INT, &o.feature_keep, GR_FEATURE_KEEP_MIN, GR_FEATURE_KEEP_MAX,
         "N        positions of a session whose features are kept for a head that attaches (default 2048)"},
        {"join", GR_ARG_ADDRESS, &o.join, 1, 0, "HOST:PORT of the orchestrator (required)"},
        {"listen", GR_ARG_ADDRESS, &o.listen, 0, 0, "HOST:PORT for drafters (default 127.0.0.1:0)"},
        {"device", GR_ARG_TEXT, &device, 0, 0, "D        cpu | cuda:N (default cpu)"},
        {"draft-device", GR_ARG_TEXT, &draft_device, 0, 0, "D        of the co-located drafter (default cpu)"},
        GR_ARG_ROW_SPIN(&o.spin_ms),
        {"cpu-kernels", GR_ARG_TEXT, &o.isa, 0, 0, "ISA      avx512 | avx2 | c | ref (default: the best)"},
        {"geometry", GR_ARG_TEXT, &o.geometry, 0, 0, "NAME     for benchmarks: expand in memory (docs/USAGE.md)"},
        GR_ARG_ROWS_TUNED(&tuned_file, &require_tuned),
        {"threads", GR_ARG_INT, &o.n_thread, 0, 1024, "N        CPU threads (default 0: all)"},
        {"max-model-len", GR_ARG_INT, &o.n_ctx_max, 0, 1 << 24, "N        context (default 0: the model's)"},
        {"sessions", GR_ARG_INT, &o.n_session_max, 1, 256, "N        session slots (default 8)"},
        {"kv-blocks", GR_ARG_BLOCKS, &o.kv_blocks, 0, 0, "N|auto   KV blocks of 16 tokens"},
        {"round-deadline-ms", GR_ARG_INT, &deadline_ms, 1, 600000, "MS       wait for a tree (default 2000)"},
        {"prefill-share", GR_ARG_SHARE, &o.prefill_share, 0, 0,
         "X|off    share of the time for prompts while other sessions decode (default 0.5)"},
        {"specpv", GR_ARG_TEXT, &o.specpv, 0, 0,
         "on|off   partial views for sessions that ask (default off: no memory)"},
        {"specpv-n-sink-blocks", GR_ARG_INT, &o.specpv_n_sink, 1, GR_SPECPV_BLOCKS_MAX,
         "N        of a view at most, blocks of 16 tokens (default 2)"},
        {"specpv-n-retrieval-blocks", GR_ARG_INT, &o.specpv_n_retrieval, 1, GR_SPECPV_BLOCKS_MAX,
         "N        (default 256)"},
        {"specpv-n-window-blocks", GR_ARG_INT, &o.specpv_n_window, 1, GR_SPECPV_BLOCKS_MAX, "N        (default 8)"},
        {"specpv-n-spec-tokens-buf", GR_ARG_INT, &o.specpv_n_buffer, 1, GR_SPECPV_BUFFER_MAX,
         "N        tokens that may lack full KV (default 128)"},
        {"specpv-score-reduce", GR_ARG_TEXT, &o.specpv_score_reduce, 0, 0,
         "R        blocks are scored by the mean | max over queries (default mean)"},
        {"test-fail-pass", GR_ARG_INT, &o.test_fail_pass, 0, INT32_MAX,
         "N        for tests: pass N ends as if the device had failed (default 0: none)"},
        {"test-specpv-corrupt", GR_ARG_INT, &o.test_corrupt, 0, INT32_MAX,
         "N        for tests: every N-th partial pass of a session has a pick replaced (default 0: none)"},
        {"transport", GR_ARG_TRANSPORT, &o.forced_transport, 0, 0, "T        accept only this one"},
        {"colocate-draft", GR_ARG_TEXT, &draft.model, 0, 0, "DIR      run this draft model or head here, too"},
        {"draft-threads", GR_ARG_INT, &draft.n_thread, 0, 1024, "N        its CPU threads (default 0: all)"},
        {"draft-context", GR_ARG_INT_OR_0, &draft.draft_context, GR_DRAFT_CONTEXT_MIN, GR_DRAFT_CONTEXT_MAX,
         "N        positions that it looks back, if a head (default 2048; 0: all)"},
        GR_ARG_ROWS_RDMA,
        GR_ARG_ROW_JOIN_TIMEOUT,
    };
    if (gr_supervise_wanted(argc, argv)) {
        return gr_supervise_run("target", argc, argv);
    }
    const int status = gr_args_parse("graft-target", args, (int)GR_ARRAY_LEN(args), argc, argv);
    if (status >= 0) {
        return status;
    }
    if (o.model == NULL || o.join == NULL) {
        log_error("--model and --join are needed; see graft-target --help");
        return 2;
    }
    if (gr_device_parse("device", device, &o.device) != GR_OK ||
        gr_device_parse("draft-device", draft_device, &draft.device) != GR_OK) {
        return 2;
    }
    const bool on_gpu = o.device != GR_DEVICE_CPU || (draft.model != NULL && draft.device != GR_DEVICE_CPU);
    if (gr_tuned_open(tuned_file, require_tuned, on_gpu, &tuned) != GR_OK) {
        return 2;
    }
    gr_program_take_errors();
    o.tuned = draft.tuned = tuned.file != NULL ? &tuned : NULL;
    o.round_deadline_ns = (uint64_t)deadline_ms * GR_MS;
    draft.join = o.join;
    draft.target = o.model;
    draft.isa = o.isa;
    draft.spin_ms = o.spin_ms;
    draft.geometry = o.geometry;
    draft.ship_features = o.ship_features;
    draft.capture_layers = o.capture_layers;
    draft.n_ctx_max = o.n_ctx_max;
    draft.n_session_max = o.n_session_max;
    if (draft.model != NULL) {
        o.listen = NULL;
    }
    return gr_supervise_exit_status(draft.model != NULL ? run_pair(&o, &draft) : gr_target_worker_run(&o));
}
