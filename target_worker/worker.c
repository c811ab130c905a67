#include "target_worker/far_features.h"

#include "common/base/clock.h"
#include "common/base/fallback.h"
#include "common/base/free_memory.h"
#include "common/base/log.h"
#include "common/process/joined.h"
#include "model/files/capture.h"
#include "model/cuda/llama.h"
#include "common/base/device.h"
#include "model/kv/kv_size.h"
#include "model/llama.h"
#include "model/tokenizer/tokenizer_of_model.h"
#include "model/files/model_path.h"
#include "target_worker/compute/calibrate.h"
#include "target_worker/policy/specpv.h"
#include "target_worker/rank_group.h"
#include "target_worker/machine/target.h"
#include "target_worker/compute/verifier.h"
#include "transport/worker/worker_options.h"
#include "transport/worker/worker_io.h"
#include "transport/worker/worker_signals.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADMIT_TOKENS 320          /* room beyond the prompt that admission reserves */
#define CALIBRATE_NS (40 * GR_MS) /* it delays a restarted worker's first token */
#define OTHER_BYTES_MAX 65536     /* of the other messages that may be queued between two passes */
#define PREFILL_CHUNK 256         /* rows; part of numerics_id where prefill has kernels of its own */

struct worker {
    struct gr_lm *lm;
    struct gr_group *group;          /* NULL: no tensor-parallel group */
    const struct gr_far_memory *far; /* owned: where features lie; NULL: in the host's memory */
    struct gr_verifier *verifier;
    struct gr_target *target;
    struct gr_worker_io *io;
    struct gr_pass *pass; /* in flight */
    uint64_t chunk_ns;    /* what a pass of PREFILL_CHUNK rows was calibrated to take */
    bool lacks_views;     /* SpecPV was asked for, and the memory of its views could not be had */
    /* for tests; 0: none */
    int test_fail_pass; /* passes until one fails as a broken device makes it fail */
    int test_hang_pass; /* passes until one never ends */
};

/* ---- the machine's outputs ---- */

static uint8_t *frame_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t bytes)
{
    return gr_worker_io_frame_begin(((struct worker *)ctx)->io, peer, class, bytes);
}

static uint8_t *frame_body(void *ctx, uint32_t peer)
{
    return gr_worker_io_frame_body(((struct worker *)ctx)->io, peer);
}

static void frame_end(void *ctx, uint32_t peer, uint32_t bytes)
{
    gr_worker_io_frame_end(((struct worker *)ctx)->io, peer, bytes);
}

static void send_msg(void *ctx, const struct gr_msg *m)
{
    gr_worker_io_send_msg(((struct worker *)ctx)->io, m);
}

static bool commit_room(void *ctx, int n)
{
    return gr_worker_io_msg_room(((struct worker *)ctx)->io) >= OTHER_BYTES_MAX + (size_t)n * GR_COMMIT_BYTES;
}

static void compute_pass(void *arg)
{
    struct worker *w = arg;
    gr_verifier_run(w->verifier, w->pass);
    if (w->test_fail_pass > 0 && --w->test_fail_pass == 0) {
        w->pass->status = GR_ECUDA;
    }
    if (w->test_hang_pass > 0 && --w->test_hang_pass == 0) {
        for (;;) {
            pause();
        }
    }
}

static void start_pass(void *ctx, struct gr_pass *pass)
{
    struct worker *w = ctx;
    bool more = true; /* passes without trees follow each other closely; after others the next trees are awaited */
    for (int i = 0; i < pass->n_seq; i++) {
        more = more && pass->seq[i].kind != GR_PASS_TREE;
    }
    w->pass = pass;
    gr_worker_io_compute(w->io, compute_pass, w, pass->n_row, more);
}

/* ---- its inputs ---- */

static void on_msg(void *ctx, const struct gr_msg *m, uint64_t now_ns)
{
    gr_target_on_msg(((struct worker *)ctx)->target, m, now_ns);
}

static enum gr_status on_frame(void *ctx, uint32_t peer, const uint8_t *frame, size_t len, uint64_t now_ns)
{
    return gr_target_on_frame(((struct worker *)ctx)->target, peer, frame, len, now_ns);
}

static void on_peer_ready(void *ctx, uint32_t peer, const char *transport, uint64_t now_ns)
{
    (void)ctx;
    (void)peer;
    (void)transport;
    (void)now_ns; /* a drafter says what it wants with its first RESYNC */
}

static void on_peer_lost(void *ctx, uint32_t peer, enum gr_status why, const char *text, uint64_t now_ns)
{
    (void)text;
    (void)why;
    (void)now_ns;
    gr_target_on_peer_lost(((struct worker *)ctx)->target, peer);
}

static void on_compute_done(void *ctx, uint64_t now_ns)
{
    struct worker *w = ctx;
    if (w->pass->status == GR_ECUDA) { /* nothing runs on that device in this process any more */
        log_error("the device failed in a pass of %d rows; this worker ends, its sessions go on elsewhere",
                  w->pass->n_row);
        gr_worker_io_fail(w->io, GR_ECUDA);
        return;
    }
    if (w->group != NULL && w->group->status != GR_OK) { /* why has been told; another process may do better */
        log_error(
            "the tensor-parallel group failed in a pass of %d rows; this worker ends, its sessions go on elsewhere",
            w->pass->n_row);
        gr_worker_io_fail(w->io, GR_ECUDA);
        return;
    }
    gr_target_on_pass_done(w->target, w->pass, now_ns);
#ifdef GR_DEBUG
    GR_ASSERT(gr_target_check(w->target));
#endif
}

static uint64_t step(void *ctx, uint64_t now_ns)
{
    return gr_target_step(((struct worker *)ctx)->target, now_ns);
}

static void on_orchestrator_lost(void *ctx, uint64_t now_ns)
{
    gr_target_on_orchestrator_lost(((struct worker *)ctx)->target, now_ns);
}

static void on_leave(void *ctx)
{
    gr_target_drain(((struct worker *)ctx)->target);
}

static void on_orchestrator_changed(void *ctx, uint64_t now_ns)
{
    (void)now_ns;
    gr_target_forget_all(((struct worker *)ctx)->target);
}

static uint32_t on_orphaned(void *ctx)
{
    return gr_target_let_orphans_go(((struct worker *)ctx)->target);
}

/* ---- start ---- */

static int specpv_buffer(const struct gr_target_options *o)
{
    return o->specpv ? o->specpv_n_buffer : 0;
}

/* What views are made for. */
static struct gr_kv_budget view_budget(const struct gr_target_options *o)
{
    return (struct gr_kv_budget){.n_sink = o->specpv_n_sink,
                                 .n_retrieval = o->specpv_n_retrieval,
                                 .n_window = o->specpv_n_window,
                                 .score_max = o->specpv_score_max};
}

/* Takes the memory of views. Where that fails the worker goes on without: sessions are verified in full. */
static struct gr_specpv_params create_views(struct worker *w, const struct gr_target_options *o)
{
    const struct gr_specpv_params none = {0};
    const struct gr_specpv_params p = {.n_sink = (uint32_t)o->specpv_n_sink,
                                       .n_retrieval = (uint32_t)o->specpv_n_retrieval,
                                       .n_window = (uint32_t)o->specpv_n_window,
                                       .n_buffer = (uint32_t)o->specpv_n_buffer,
                                       .threshold = GR_SPECPV_THRESHOLD,
                                       .interval = GR_SPECPV_INTERVAL};
    const struct gr_kv_budget most = view_budget(o);
    if (!o->specpv) {
        return none;
    }
    const struct gr_specpv_params resolved = gr_specpv_resolve(&none, &p);
    const char *wrong = gr_specpv_preflight(&resolved, 1, 0, w->lm->n_ctx_max);
    if (wrong != NULL || gr_lm_view_create(w->lm, &most, o->n_session_max) != GR_OK) {
        log_warn("SpecPV: %s; sessions are verified in full", wrong != NULL ? wrong : "there are no partial views");
        w->lacks_views = true;
        return none;
    }
    return p;
}

/* A drafter is optional at every moment: a target that has served already does not stay away because its head's folder
 * has gone. Without features it can be read by no head until it is started anew. */
static enum gr_status create_llama(const struct gr_target_options *o, struct gr_llama_config *c,
                                   struct gr_hf_config *hf, uint64_t *fingerprint, struct gr_lm **out)
{
    const enum gr_status st = gr_llama_create_on(o->device, c, hf, fingerprint, out);
    if (st == GR_OK || c->head_dir == NULL || !o->head_optional) {
        return st;
    }
    struct gr_fallbacks fallbacks = {0};
    gr_fall_back(&fallbacks, GR_FALLBACK_HEAD_GONE, 0, 0, c->head_dir);
    c->head_dir = NULL;
    c->n_capture = 0;
    return gr_llama_create_on(o->device, c, hf, fingerprint, out);
}

/* A rank that does what rank 0 says. */
static bool follows(const struct gr_target_options *o)
{
    return o->n_rank > 1 && o->ranks->rank > 0;
}

static enum gr_status open_group(struct worker *w, const struct gr_target_options *o, const struct gr_hf_config *hf,
                                 struct gr_llama_config *c)
{
    const struct gr_rank_group_config g = {.model = o->model,
                                           .devices = o->devices,
                                           .n_rank = o->n_rank,
                                           .n_thread = o->n_thread,
                                           .transport = o->rank_transport,
                                           .allreduce = o->rank_allreduce,
                                           .limit_ns = o->rank_limit_ns,
                                           .meets_at = o->rank_group,
                                           .listen = o->rank_listen,
                                           .ranks = o->ranks,
                                           .argv = o->argv};
    return gr_rank_group_open(&g, hf, c, &w->group);
}

static enum gr_status create_model(struct worker *w, const struct gr_target_options *o, struct gr_hf_config *hf,
                                   int32_t n_token, uint64_t *fingerprint)
{
    /* On a GPU 0 leaves the choice to the model, which knows the memory. */
    struct gr_kv_blocks kv = {.n = o->kv_blocks};
    const struct gr_geometry *geometry = NULL;
    GR_TRY(gr_geometry_find(o->geometry, &geometry));
    GR_TRY(gr_model_path_config(o->model, hf));
    GR_TRY(gr_expand_config(geometry, o->model, hf));
    const int n_ctx = o->n_ctx_max > 0 ? GR_MIN(o->n_ctx_max, hf->max_pos) : hf->max_pos;
    if (o->n_ctx_max > hf->max_pos) {
        log_warn("--max-model-len %d: the model has %d positions (max_position_embeddings), and so many are used",
                 o->n_ctx_max, hf->max_pos);
    }
    if (o->device == GR_DEVICE_CPU) {
        GR_TRY(gr_kv_blocks_choose(o->kv_blocks, gr_llama_kv_bytes_per_token(hf), o->n_session_max, n_ctx, &kv));
    }
    struct gr_llama_config c = {.dir = o->model,
                                .as = (enum gr_weights_as)o->dtype,
                                .head_dir = o->head,
                                .geometry = geometry,
                                .tuned = o->tuned,
                                .isa = o->isa,
                                .n_thread = o->n_thread,
                                .n_ctx_max = n_ctx,
                                .n_row_max = o->n_session_max * GR_TREE_MAX + specpv_buffer(o) + PREFILL_CHUNK,
                                .n_out_max = o->n_session_max * GR_TREE_MAX + specpv_buffer(o) + 1,
                                .n_pool_block = kv.n,
                                .n_pool_block_least = kv.least,
                                .n_scratch_block = o->n_session_max * GR_SCRATCH_BLOCKS,
                                .n_seq_max = o->n_session_max,
                                .n_token = n_token,
                                .view_most = view_budget(o),
                                .n_view = o->specpv ? o->n_session_max : 0};
    c.raw_features = o->ship_raw;
    c.far = w->far;
    if (o->n_rank > 1) {
        GR_TRY(open_group(w, o, hf, &c));
    }
    if (follows(o)) {
        c.head_dir = NULL; /* rank 0 serves it */
    } else if (o->head != NULL && o->capture_layers != NULL) {
        GR_TRY(gr_capture_parse(o->capture_layers, &c.n_capture, c.capture_layer));
    }
    GR_TRY(create_llama(o, &c, hf, fingerprint, &w->lm));
    return o->rank_group != NULL ? gr_rank_group_compare(w->group, *fingerprint, w->lm->numerics_id) : GR_OK;
}

/* At least a prompt chunk, a tree, and what a refresh computes again; more than the context has no use. */
static int32_t feature_keep(const struct worker *w, const struct gr_target_options *o)
{
    return GR_MAX(GR_MIN(o->feature_keep, w->lm->n_ctx_max), PREFILL_CHUNK + GR_TREE_MAX + specpv_buffer(o));
}

static enum gr_status check_feature_memory(const struct worker *w, const struct gr_target_options *o)
{
    const uint64_t per_session = (uint64_t)feature_keep(w, o) * (uint64_t)gr_lm_ship_width(w->lm) * sizeof(uint16_t);
    const uint64_t bytes = per_session * (uint64_t)o->n_session_max;
    struct gr_free_memory available;
    gr_memory_available(&available);
    const uint64_t half = available.bytes / 2;
    if (bytes > half && w->far == NULL) {
        log_error("--feature-keep %d: the features of %d sessions take %" PRIu64 " MiB (%" PRIu64
                  " MiB each), half of the available memory is %" PRIu64 " MiB (by %s); lower it, or "
                  "--sessions",
                  feature_keep(w, o), o->n_session_max, bytes >> 20, per_session >> 20, half >> 20, available.from);
        return GR_ENOMEM;
    }
    return GR_OK;
}

/* Whether features stay with the blocks of the prefix cache: where there is memory for those of every block. They lie
 * in the host's; far memory is what is left beside a model. */
static bool keep_prefix_features(const struct worker *w, const struct gr_target_options *o)
{
    const uint64_t row_bytes = (uint64_t)gr_lm_ship_width(w->lm) * sizeof(uint16_t);
    const uint64_t bytes = (uint64_t)w->lm->n_pool_block * GR_KV_BLOCK_TOKENS * row_bytes;
    struct gr_free_memory available;
    if (!o->prefix_cache || row_bytes == 0) {
        return false;
    }
    gr_memory_available(&available);
    const bool fits = w->far == NULL && bytes <= available.bytes / 2;
    if (fits) {
        log_info("prefix cache: features of %d blocks take up to %" PRIu64 " MiB", w->lm->n_pool_block, bytes >> 20);
    } else {
        log_warn("prefix cache: features of %d blocks would take %" PRIu64 " MiB%s; a head starts after what a session "
                 "takes from the cache (lower --kv-blocks, or use --prefix-cache off)",
                 w->lm->n_pool_block, bytes >> 20,
                 w->far != NULL ? " beside the model" : ", more than half of what is free");
    }
    return fits;
}

static enum gr_status create_machine(struct worker *w, const struct gr_target_options *o, uint64_t fingerprint)
{
    struct gr_cost_table cost;
    const struct gr_specpv_params views = create_views(w, o);
    const struct gr_target_config c = {
        .n_session_max = o->n_session_max,
        .n_ctx_max = w->lm->n_ctx_max,
        .n_vocab = w->lm->n_vocab,
        .model = o->model,
        .n_row_max = w->lm->n_row_max,
        .n_out_max = w->lm->n_out_max,
        .prefill_chunk = PREFILL_CHUNK,
        .n_pool_block = w->lm->n_pool_block,
        .feature_width = gr_lm_ship_width(w->lm),
        .feature_raw = w->lm->raw_features,
        .feature_later = gr_lm_fuses(w->lm),
        .feature_keep = feature_keep(w, o),
        .feature_window = GR_FEATURES_WINDOW,
        .far = w->far,
        .round_deadline_ns = o->round_deadline_ns,
        .admit_tokens = ADMIT_TOKENS,
        .prefill_share = o->prefill_share,
        .shares_device = o->shares_device,
        .cost = &cost,
        .specpv = views,
        .lacks_views = w->lacks_views,
        .specpv_score_max = view_budget(o).score_max,
        .prefix_cache = o->prefix_cache,
        .prefix_features = keep_prefix_features(w, o),
        .kv_identity = {.model_fingerprint = fingerprint, .numerics_id = w->lm->numerics_id},
        .test_corrupt = (uint32_t)o->test_corrupt};
    const struct gr_target_io io = {.ctx = w,
                                    .frame_begin = frame_begin,
                                    .frame_end = frame_end,
                                    .frame_body = frame_body,
                                    .send_msg = send_msg,
                                    .commit_room = commit_room,
                                    .start_pass = start_pass};
    GR_TRY(check_feature_memory(w, o));
    GR_TRY(gr_verifier_create(w->lm, o->n_session_max, &w->verifier));
    GR_TRY(gr_calibrate(&(struct gr_calibration){.verifier = w->verifier,
                                                 .n_ctx_max = w->lm->n_ctx_max,
                                                 .n_pool_block = w->lm->n_pool_block,
                                                 .n_session_max = o->n_session_max,
                                                 .budget_ns = CALIBRATE_NS},
                        &cost));
    w->chunk_ns = (uint64_t)gr_cost_table_estimate(&cost, &(struct gr_pass_load){.n_row = PREFILL_CHUNK});
    return gr_target_create(&c, &io, &w->target);
}

/* Ranks wait for each other in a pass, and know better who has hung. */
static uint64_t pass_limit_ns(const struct gr_target_options *o)
{
    return o->n_rank > 1 && o->pass_limit_ns > 0 ? GR_MAX(o->pass_limit_ns, 2 * o->rank_limit_ns) : o->pass_limit_ns;
}

static enum gr_status create_io(struct worker *w, const struct gr_target_options *o, uint64_t fingerprint,
                                uint64_t tokenizer_fingerprint)
{
    struct gr_worker_config c = {.join = o->join,
                                 .listen = o->listen,
                                 .forced_transport = o->forced_transport,
                                 .spin_ns = gr_worker_spin_ns(o->spin_ms, o->device != GR_DEVICE_CPU, gr_cpu_count()),
                                 .pass_limit_ns = pass_limit_ns(o),
                                 .pass_rows = PREFILL_CHUNK,
                                 .pass_ns = w->chunk_ns,
                                 .loop_conn = o->loop_conn};
    char name[GR_MODEL_NAME_MAX];
    gr_model_path_name(o->model, name, sizeof(name));
    GR_TRY(
        gr_worker_config_describe(&c, &(struct gr_worker_identity){.role = GR_ROLE_TARGET,
                                                                   .n_vocab = w->lm->n_vocab,
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

/* A rank that follows has a model and nothing else. */
static enum gr_status create(struct worker *w, const struct gr_target_options *o)
{
    struct gr_hf_config hf;
    uint64_t fingerprint = 0;
    uint64_t tokenizer_fingerprint = 0;
    int32_t n_token = 0;
    GR_TRY(gr_tokenizer_of_worker(o->model, &tokenizer_fingerprint, &n_token));
    /* Rows of the vocabulary that no token has are padding: they are never sampled. */
    GR_TRY(gr_far_features_open(o, &w->far));
    GR_TRY(create_model(w, o, &hf, n_token, &fingerprint));
    if (follows(o)) {
        gr_joined_tell(); /* whoever has started it sees that its group is whole */
        gr_worker_signals_follow();
        return GR_OK;
    }
    GR_TRY(create_machine(w, o, fingerprint));
    if (gr_lm_ship_width(w->lm) > 0) {
        log_info("%s: %s features of width %d; those of the last %d positions of a session are kept", o->head,
                 w->lm->raw_features ? "raw" : "fused", gr_lm_ship_width(w->lm), feature_keep(w, o));
    }
    log_info("%s: %d layers, %d KV blocks, context %d, %s%s kernels, %d ranks of %d threads", o->model, hf.n_layer,
             w->lm->n_pool_block, w->lm->n_ctx_max, o->device == GR_DEVICE_CPU ? "" : "CUDA and ", w->lm->kernels->name,
             o->n_rank, gr_team_size(w->lm->team));
    return create_io(w, o, fingerprint, tokenizer_fingerprint);
}

static void destroy(struct worker *w, const struct gr_target_options *o)
{
    if (w->group != NULL) {
        gr_rank_group_let_go(o->ranks);
    }
    gr_worker_io_destroy(w->io);
    gr_target_destroy(w->target);
    gr_verifier_destroy(w->verifier);
    gr_lm_destroy(w->lm);
    gr_far_features_close(w->far);
    gr_group_destroy(w->group);
    if (w->group != NULL) {
        gr_ranks_finish(o->ranks);
    }
}

enum gr_status gr_target_worker_run(const struct gr_target_options *options)
{
    struct worker w = {.test_fail_pass = options->test_fail_pass, .test_hang_pass = options->test_hang_pass};
    enum gr_status st = create(&w, options);
    if (st == GR_OK && follows(options)) {
        st = gr_llama_follow(w.lm);
    } else if (st == GR_OK) {
        st = gr_worker_signals_run(w.io);
    } else if (st == GR_ECUDA) {
        st = GR_EUNSUPPORTED; /* before it ran: not worth another try */
    }
    if (w.group != NULL && w.group->status != GR_OK) {
        st = GR_ECUDA; /* whenever that was: another group may do better */
    }
    destroy(&w, options);
    return st;
}
