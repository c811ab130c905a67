/* graft-draft: the draft worker. */
#include "common/process/joined.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "draft_worker/worker.h"
#include "common/base/device.h"
#include "common/process/supervise.h"
#include "transport/worker/worker_options.h"
#include "transport/worker/worker_io.h"

static struct gr_draft_options draft_options(const struct gr_options *o)
{
    return (struct gr_draft_options){.model = o->model,
                                     .served_as = o->served_model_name,
                                     .target = o->target,
                                     .ship_raw = o->ship_features == GR_FEATURES_RAW,
                                     .capture_layers = o->capture_layers,
                                     .join = o->join,
                                     .device = o->device.device[0],
                                     .spin_ms = (int)o->spin_ms,
                                     .pass_limit_ns = (uint64_t)o->pass_timeout,
                                     .geometry = o->geometry,
                                     .dtype = o->dtype,
                                     .isa = gr_option_choice(o, GR_OPTION_isa),
                                     .n_thread = (int)o->threads,
                                     .n_ctx_max = (int)o->max_model_len,
                                     .draft_context = (int)o->draft_context,
                                     .n_session_max = (int)o->n_session,
                                     .kv_blocks = o->kv_blocks == GR_AUTO ? 0 : (int)o->kv_blocks,
                                     .forced_transport = gr_worker_forced_transport(o),
                                     .require_gpudirect = o->require_gpudirect,
                                     .disable_gpudirect = o->disable_gpudirect,
                                     .test_flip_round = (int)o->test_flip_round,
                                     .test_delay_us = (int)o->test_delay_us,
                                     .test_fail_job = (int)o->test_fail_job};
}

int main(int argc, char **argv)
{
    struct gr_options options;
    struct gr_tuned tuned;
    gr_log_init("draft");
    gr_program_begin();
    gr_joined_inherit();
    if (gr_supervise_wanted(argc, argv)) {
        return gr_supervise_run(&(struct gr_supervised){.program = "graft-draft", .name = "draft worker"}, argc, argv);
    }
    const int status = gr_worker_options_read(&options, GR_CMD_DRAFT, argc, argv);
    if (status >= 0) {
        return status;
    }
    struct gr_draft_options o = draft_options(&options);
    const enum gr_status st = gr_tuned_open(options.tuned, options.require_tuned, o.device != GR_DEVICE_CPU, &tuned);
    if (st != GR_OK) {
        return gr_program_refused(st);
    }
    o.tuned = tuned.file != NULL ? &tuned : NULL;
    return gr_supervise_exit_status(gr_draft_worker_run(&o));
}
