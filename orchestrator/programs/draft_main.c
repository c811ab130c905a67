/* graft-draft: the draft worker. */
#include "common/process/joined.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "draft_worker/worker.h"
#include "common/base/device.h"
#include "transport/worker/supervise.h"
#include "transport/worker/worker_args.h"
#include "transport/worker/worker_io.h"

int main(int argc, char **argv)
{
    struct gr_draft_options o = gr_draft_options_default();
    const char *device = "cpu";
    const char *tuned_file = NULL;
    bool require_tuned = false;
    struct gr_tuned tuned;
    gr_log_init("draft");
    gr_joined_inherit();
    const struct gr_arg args[] = {
        {"model", GR_ARG_TEXT, &o.model, 0, 0, "DIR      the draft model, or an EAGLE-3 head (required)"},
        {"target", GR_ARG_TEXT, &o.target, 0, 0, "DIR      the target model (required for a head)"},
        GR_ARG_ROWS_FEATURES(&o.ship_features, &o.capture_layers),
        {"join", GR_ARG_ADDRESS, &o.join, 1, 0, "HOST:PORT of the orchestrator (required)"},
        {"device", GR_ARG_TEXT, &device, 0, 0, "D        cpu | cuda:N (default cpu)"},
        GR_ARG_ROW_SPIN(&o.spin_ms),
        {"cpu-kernels", GR_ARG_TEXT, &o.isa, 0, 0, "ISA      avx512 | avx2 | c | ref (default: the best)"},
        {"geometry", GR_ARG_TEXT, &o.geometry, 0, 0, "NAME     for benchmarks: expand in memory (docs/USAGE.md)"},
        GR_ARG_ROWS_TUNED(&tuned_file, &require_tuned),
        {"threads", GR_ARG_INT, &o.n_thread, 0, 1024, "N        CPU threads (default 0: all)"},
        {"max-model-len", GR_ARG_INT, &o.n_ctx_max, 0, 1 << 24, "N        context (default 0: the model's)"},
        {"draft-context", GR_ARG_INT_OR_0, &o.draft_context, GR_DRAFT_CONTEXT_MIN, GR_DRAFT_CONTEXT_MAX,
         "N        positions that a head looks back (default 2048; 0: all)"},
        {"sessions", GR_ARG_INT, &o.n_session_max, 1, 256, "N        session slots (default 8)"},
        {"kv-blocks", GR_ARG_BLOCKS, &o.kv_blocks, 0, 0, "N|auto   KV blocks of 16 tokens"},
        {"transport", GR_ARG_TRANSPORT, &o.forced_transport, 0, 0, "T        use only this one"},
        {"test-flip-round", GR_ARG_INT, &o.test_flip_round, 0, INT32_MAX,
         "N        for tests: replace a known token in round N"},
        {"test-delay-us", GR_ARG_INT, &o.test_delay_us, 0, 10000000,
         "N        for tests: make each draft job so much longer"},
        GR_ARG_ROWS_RDMA,
        GR_ARG_ROW_JOIN_TIMEOUT,
    };
    if (gr_supervise_wanted(argc, argv)) {
        return gr_supervise_run("draft", argc, argv);
    }
    const int status = gr_args_parse("graft-draft", args, (int)GR_ARRAY_LEN(args), argc, argv);
    if (status >= 0) {
        return status;
    }
    if (o.model == NULL || o.join == NULL) {
        log_error("--model and --join are needed; see graft-draft --help");
        return 2;
    }
    if (gr_device_parse("device", device, &o.device) != GR_OK ||
        gr_tuned_open(tuned_file, require_tuned, o.device != GR_DEVICE_CPU, &tuned) != GR_OK) {
        return 2;
    }
    o.tuned = tuned.file != NULL ? &tuned : NULL;
    gr_program_take_errors();
    return gr_supervise_exit_status(gr_draft_worker_run(&o));
}
