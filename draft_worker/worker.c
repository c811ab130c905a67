#include "draft_worker/far_features.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "draft_worker/machine/drafter.h"
#include "draft_worker/compute/grower.h"
#include "model/files/capture.h"
#include "model/cuda/eagle3.h"
#include "model/cuda/llama.h"
#include "common/base/device.h"
#include "model/eagle3.h"
#include "model/kv/kv_size.h"
#include "model/llama.h"
#include "model/tokenizer/tokenizer_of_model.h"
#include "model/files/model_path.h"
#include "transport/worker/worker_options.h"
#include "transport/worker/worker_io.h"
#include "transport/worker/worker_signals.h"

#include <stdlib.h>
#include <time.h>

#define PREFILL_CHUNK 256 /* rows */
#define TOUCH_ROWS 32     /* rows of the pass that touches memory at the start; more would delay a restarted worker */
#define ROWS_LEAST 512    /* rows of a draft pass, at least: a level of all sessions' trees */
#define ROWS_A_SESSION 16 /* rows of a level for each session; the default of --draft-top-k is 10 */

struct worker {
    struct gr_lm *lm;
    struct gr_grower *grower;
    struct gr_drafter *drafter;
    struct gr_worker_io *io;
    struct gr_draft_job *job; /* in flight */
    bool is_head;
    const struct gr_far_memory *far; /* owned: where features come to; NULL: the host's memory */
    uint64_t test_delay_ns;
    int test_fail_job, n_job;
};

/* ---- the machine's outputs ---- */

static uint8_t *frame_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t bytes)
{
    return gr_worker_io_frame_begin(((struct worker *)ctx)->io, peer, class, bytes);
}

static void frame_end(void *ctx, uint32_t peer, uint32_t bytes)
{
    gr_worker_io_frame_end(((struct worker *)ctx)->io, peer, bytes);
}

static const uint8_t *frame_body(void *ctx)
{
    return gr_worker_io_came_body(((struct worker *)ctx)->io);
}

static void send_msg(void *ctx, const struct gr_msg *m)
{
    gr_worker_io_send_msg(((struct worker *)ctx)->io, m);
}

static void compute_job(void *arg)
{
    struct worker *w = arg;
    gr_grower_run(w->grower, w->job);
    if (w->test_delay_ns > 0) { /* as a slower machine would be: without taking this one's cores */
        const struct timespec delay = gr_clock_timespec(w->test_delay_ns);
        nanosleep(&delay, NULL);
        w->job->compute_ns += w->test_delay_ns;
    }
}

/* Those that are told, and a tree for each session. */
static int rows_of(const struct gr_draft_job *job)
{
    int n = 0;
    for (int i = 0; i < job->n_seq; i++) {
        n += job->seq[i].n_row + GR_TREE_MAX;
    }
    return n;
}

static void start_job(void *ctx, struct gr_draft_job *job)
{
    struct worker *w = ctx;
    w->job = job;
    if (++w->n_job == w->test_fail_job) {
        gr_worker_io_fail(w->io, GR_ECUDA);
    }
    gr_worker_io_compute(w->io, compute_job, w, rows_of(job), false); /* a verdict is much later */
}

static enum gr_status connect_target(void *ctx, const char *address, uint64_t incarnation, const char *transport,
                                     uint32_t *peer_out)
{
    return gr_worker_io_connect(((struct worker *)ctx)->io, address, incarnation, transport, peer_out);
}

static uint32_t take_fallbacks(void *ctx, uint32_t peer)
{
    return gr_worker_io_take_fallbacks(((struct worker *)ctx)->io, peer);
}

/* ---- its inputs ---- */

static void on_msg(void *ctx, const struct gr_msg *m, uint64_t now_ns)
{
    gr_drafter_on_msg(((struct worker *)ctx)->drafter, m, now_ns);
}

static enum gr_status on_frame(void *ctx, uint32_t peer, const uint8_t *frame, size_t len, uint64_t now_ns)
{
    return gr_drafter_on_frame(((struct worker *)ctx)->drafter, peer, frame, len, now_ns);
}

static void on_peer_ready(void *ctx, uint32_t peer, const char *transport, uint64_t now_ns)
{
    gr_drafter_on_peer_ready(((struct worker *)ctx)->drafter, peer, transport, now_ns);
}

static void on_peer_lost(void *ctx, uint32_t peer, enum gr_status why, const char *text, uint64_t now_ns)
{
    (void)now_ns;
    gr_drafter_on_peer_lost(((struct worker *)ctx)->drafter, peer, why, text);
}

static void on_compute_done(void *ctx, uint64_t now_ns)
{
    struct worker *w = ctx;
    if (w->job->status == GR_ECUDA) { /* nothing runs on that device in this process any more */
        log_error("the device failed in a draft pass; this worker ends, its sessions go on without it");
        gr_worker_io_fail(w->io, GR_ECUDA);
        return;
    }
    gr_drafter_on_job_done(w->drafter, w->job, now_ns);
}

static uint64_t step(void *ctx, uint64_t now_ns)
{
    return gr_drafter_step(((struct worker *)ctx)->drafter, now_ns);
}

static void on_orchestrator_lost(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    gr_drafter_on_orchestrator_lost(((struct worker *)ctx)->drafter);
}

static void on_leave(void *ctx)
{
    gr_drafter_drain(((struct worker *)ctx)->drafter);
}

static void on_orchestrator_changed(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    gr_drafter_forget_all(((struct worker *)ctx)->drafter);
}

static uint32_t on_orphaned(void *ctx)
{
    return gr_drafter_let_orphans_go(((struct worker *)ctx)->drafter);
}

/* ---- start ---- */

static int n_row_max(const struct gr_draft_options *o)
{
    return GR_MAX(ROWS_LEAST, ROWS_A_SESSION * o->n_session_max);
}

/* As drafter.h says. */
static uint64_t feature_bytes(const struct gr_draft_options *o, const struct gr_hf_config *hf)
{
    return (uint64_t)o->n_session_max * (GR_FEATURES_WINDOW + PREFILL_CHUNK) * (uint64_t)hf->hidden * sizeof(uint16_t);
}

static enum gr_status create_head(struct worker *w, const struct gr_draft_options *o, struct gr_hf_config *hf,
                                  int32_t n_token, uint64_t *fingerprint)
{
    struct gr_hf_config target;
    GR_TRY(gr_model_path_config(o->target, &target));
    const struct gr_geometry *geometry = NULL;
    GR_TRY(gr_geometry_find(o->geometry, &geometry));
    GR_TRY(gr_expand_config(geometry, o->model, hf));
    const int n_ctx = o->n_ctx_max > 0 ? GR_MIN(o->n_ctx_max, target.max_pos) : target.max_pos;
    const int32_t n_kept = gr_drafter_kv_len_max(o->draft_context, PREFILL_CHUNK, n_ctx);
    struct gr_kv_blocks kv = {.n =
                                  o->kv_blocks}; /* on a GPU 0 leaves the choice to the model, which knows the memory */
    if (o->device == GR_DEVICE_CPU) {
        GR_TRY(gr_kv_blocks_choose(o->kv_blocks, gr_eagle3_kv_bytes_per_token(hf), o->n_session_max, n_kept, &kv));
    }
    struct gr_eagle3_config c = {.dir = o->model,
                                 .as = (enum gr_weights_as)o->dtype,
                                 .target_dir = o->target,
                                 .geometry = geometry,
                                 .tuned = o->tuned,
                                 .isa = o->isa,
                                 .n_thread = o->n_thread,
                                 .n_ctx_max = n_ctx,
                                 .n_row_max = n_row_max(o),
                                 .n_out_max = n_row_max(o),
                                 .n_pool_block = kv.n,
                                 .n_pool_block_least = kv.least,
                                 .n_scratch_block = o->n_session_max * GR_DRAFT_SCRATCH_BLOCKS,
                                 .n_seq_max = o->n_session_max,
                                 .n_ctx_kept = n_kept,
                                 .n_state = GR_GROWER_STATES * o->n_session_max,
                                 .n_token = n_token};
    c.raw_features = o->ship_raw;
    c.far_feature_bytes = w->far != NULL ? feature_bytes(o, hf) : 0;
    if (o->capture_layers != NULL) {
        GR_TRY(gr_capture_parse(o->capture_layers, &c.n_capture, c.capture_layer));
    }
    return gr_eagle3_create_on(o->device, &c, hf, fingerprint, &w->lm);
}

static enum gr_status create_model(struct worker *w, const struct gr_draft_options *o, struct gr_hf_config *hf,
                                   int32_t n_token, uint64_t *fingerprint)
{
    struct gr_kv_blocks kv = {.n = o->kv_blocks};
    if (w->is_head) {
        return create_head(w, o, hf, n_token, fingerprint);
    }
    if (o->geometry != NULL) {
        log_error("--geometry %s: %s is a stand-alone draft model, only an EAGLE-3 head has a form there", o->geometry,
                  o->model);
        return GR_EINVAL;
    }
    const int n_ctx = o->n_ctx_max > 0 ? GR_MIN(o->n_ctx_max, hf->max_pos) : hf->max_pos;
    if (o->device == GR_DEVICE_CPU) {
        GR_TRY(gr_kv_blocks_choose(o->kv_blocks, gr_llama_kv_bytes_per_token(hf), o->n_session_max, n_ctx, &kv));
    }
    const struct gr_llama_config c = {.dir = o->model,
                                      .as = (enum gr_weights_as)o->dtype,
                                      .tuned = o->tuned,
                                      .isa = o->isa,
                                      .n_thread = o->n_thread,
                                      .n_ctx_max = n_ctx,
                                      .n_row_max = n_row_max(o),
                                      .n_out_max = n_row_max(o),
                                      .n_pool_block = kv.n,
                                      .n_pool_block_least = kv.least,
                                      .n_scratch_block = o->n_session_max * GR_DRAFT_SCRATCH_BLOCKS,
                                      .n_seq_max = o->n_session_max,
                                      .n_token = n_token,
                                      .ranks = true};
    return gr_llama_create_on(o->device, &c, hf, fingerprint, &w->lm);
}

static enum gr_status create_machine(struct worker *w, const struct gr_draft_options *o, int32_t n_vocab)
{
    const struct gr_drafter_config c = {.n_session_max = o->n_session_max,
                                        .n_ctx_max = w->lm->n_ctx_max,
                                        .n_vocab = n_vocab,
                                        .feature_width = gr_lm_ship_width(w->lm),
                                        .feature_raw = w->lm->raw_features,
                                        .feature_window = GR_FEATURES_WINDOW,
                                        .feature_context = o->draft_context,
                                        .far = w->far,
                                        .n_row_max = w->lm->n_row_max,
                                        .prefill_chunk = PREFILL_CHUNK,
                                        .n_pool_block = w->lm->n_pool_block,
                                        .test_flip_round = (uint32_t)o->test_flip_round};
    const struct gr_drafter_io io = {.ctx = w,
                                     .frame_begin = frame_begin,
                                     .frame_end = frame_end,
                                     .frame_body = frame_body,
                                     .send_msg = send_msg,
                                     .start_job = start_job,
                                     .connect = connect_target,
                                     .take_fallbacks = take_fallbacks};
    GR_TRY(gr_grower_create(w->lm, o->n_session_max, &w->grower));
    GR_TRY(gr_grower_touch_memory(w->grower, w->lm->feature_width > 0 ? PREFILL_CHUNK : TOUCH_ROWS));
    return gr_drafter_create(&c, &io, &w->drafter);
}

static enum gr_status create_io(struct worker *w, const struct gr_draft_options *o, uint64_t fingerprint,
                                uint64_t tokenizer_fingerprint, int32_t n_vocab)
{
    struct gr_worker_config c = {.join = o->join,
                                 .forced_transport = o->forced_transport,
                                 .spin_ns = gr_worker_spin_ns(o->spin_ms, o->device != GR_DEVICE_CPU, gr_cpu_count()),
                                 .pass_limit_ns = o->pass_limit_ns,
                                 .loop_conn = o->loop_conn};
    char name[GR_MODEL_NAME_MAX];
    gr_model_path_name(o->model, name, sizeof(name));
    GR_TRY(
        gr_worker_config_describe(&c, &(struct gr_worker_identity){.role = GR_ROLE_DRAFT,
                                                                   .n_vocab = n_vocab,
                                                                   .n_ctx_max = w->lm->n_ctx_max,
                                                                   .n_block = w->lm->n_pool_block,
                                                                   .n_session_max = o->n_session_max,
                                                                   .model_fingerprint = fingerprint,
                                                                   .tokenizer_fingerprint = tokenizer_fingerprint,
                                                                   .numerics_id = w->lm->numerics_id,
                                                                   .model = o->served_as != NULL ? o->served_as : name,
                                                                   .feature_width = (uint32_t)gr_lm_ship_width(w->lm),
                                                                   .feature_raw = w->lm->raw_features,
                                                                   .fc_fingerprint = w->lm->fc_fingerprint,
                                                                   .captures = w->lm->captures}));
    const struct gr_worker_machine machine = {.ctx = w,
                                              .on_msg = on_msg,
                                              .on_frame = on_frame,
                                              .on_peer_ready = on_peer_ready,
                                              .on_peer_lost = on_peer_lost,
                                              .on_compute_done = on_compute_done,
                                              .step = step,
                                              .on_orchestrator_lost = on_orchestrator_lost,
                                              .on_orchestrator_changed = on_orchestrator_changed,
                                              .on_orphaned = on_orphaned,
                                              .on_leave = on_leave};
    return gr_worker_io_create(&c, &machine, &w->io);
}

static enum gr_status create(struct worker *w, const struct gr_draft_options *o)
{
    struct gr_hf_config hf;
    uint64_t fingerprint = 0;
    uint64_t tokenizer_fingerprint = 0;
    int32_t n_token = 0;
    GR_TRY(gr_model_path_config(o->model, &hf));
    w->is_head = gr_hf_is_eagle3(&hf);
    if (w->is_head && o->target == NULL) {
        log_error("%s is an EAGLE-3 head: --target DIR is needed, the folder or GGUF file of the model it drafts for",
                  o->model);
        return GR_EINVAL;
    }
    GR_TRY(gr_tokenizer_of_worker(w->is_head ? o->target : o->model, &tokenizer_fingerprint, &n_token));
    GR_TRY(gr_draft_far_open(o, w->is_head, &w->far));
    GR_TRY(create_model(w, o, &hf, n_token, &fingerprint));
    const int32_t n_vocab = gr_lm_without_padding(w->lm, n_token);
    GR_TRY(create_machine(w, o, n_vocab));
    log_info("%s: %d layers, %d KV blocks, context %d, %s%s kernels, %d threads", o->model, hf.n_layer,
             w->lm->n_pool_block, w->lm->n_ctx_max, o->device == GR_DEVICE_CPU ? "" : "CUDA and ", w->lm->kernels->name,
             gr_team_size(w->lm->team));
    return create_io(w, o, fingerprint, tokenizer_fingerprint, n_vocab);
}

enum gr_status gr_draft_worker_run(const struct gr_draft_options *options)
{
    struct worker w = {.test_delay_ns = (uint64_t)options->test_delay_us * 1000,
                       .test_fail_job = options->test_fail_job};
    enum gr_status st = create(&w, options);
    if (options->started != NULL) {
        *options->started = st == GR_OK;
    }
    if (st == GR_OK) {
        st = gr_worker_signals_run(w.io);
    } else if (st == GR_ECUDA) {
        st = GR_EUNSUPPORTED; /* before it ran: not worth another try */
    }
    gr_worker_io_destroy(w.io);
    gr_drafter_destroy(w.drafter);
    gr_grower_destroy(w.grower);
    gr_lm_destroy(w.lm);
    gr_draft_far_close(w.far);
    return st;
}
