#include "model/cuda/model.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/cuda/rows/rows.h"
#include "model/load/needs.h"

#include <stdio.h>

#define KEEP_FREE ((uint64_t)1 << 30) /* for the driver, graphs and staging */
#define LOOKS_PER_QUERY 4096          /* a look at the flag takes about 20 ns, asking the driver a microsecond */
#define LISTED_ROWS 128               /* with lists as long as may be: 4 MB; more rows have shorter ones */

enum gr_status gr_cuda_model_open(struct gr_cuda_model *m, struct gr_lm *lm, int device, int n_thread)
{
    GR_TRY(gr_cuda_device_open(&m->device, device));
    GR_TRY(gr_kernels_init_cpu(&m->kernels, NULL));
    lm->kernels = &m->kernels;
    return gr_team_create(gr_cpu_threads(n_thread), &lm->team);
}

enum gr_status gr_cuda_model_tune(struct gr_cuda_model *m, struct gr_lm *lm, const struct gr_tuned *tuned,
                                  const struct gr_cuda_tune_model *model)
{
    GR_TRY(gr_cuda_tune(&m->shapes, tuned, &m->device, model));
    gr_cuda_numerics_id(&m->shapes, lm->numerics_id, sizeof(lm->numerics_id));
    return GR_OK;
}

enum gr_status gr_cuda_choose_blocks(const struct gr_cuda_model *m, const struct gr_cuda_blocks *b, int *n_block_out)
{
    const int per_session = (b->n_ctx + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    const int64_t all = GR_MIN((int64_t)per_session * b->n_session, (int64_t)INT32_MAX / 64);
    const struct gr_needs needs = {.bf16_bytes = b->weights,
                                   .other_bytes = b->others + KEEP_FREE,
                                   .spare_bytes = b->views,
                                   .block_bytes = b->block_bytes,
                                   .leaves_room = b->asked == 0,
                                   .n_scratch_block = b->n_scratch,
                                   .n_block = b->asked > 0 ? b->asked : (int)all,
                                   .n_block_least = b->asked > 0 ? b->asked : per_session,
                                   .n_session = b->n_session,
                                   .n_ctx = b->n_ctx,
                                   .quiet = b->quiet};
    char where[32];
    struct gr_needs_of of = {.what = b->dir, .where = where, .free_by = m->device.name};
    snprintf(where, sizeof(where), "cuda:%d: ", m->device.index);
    GR_TRY(gr_cuda_memory_free(&m->device, &of.free_bytes));
    GR_TRY(gr_needs_fit(&needs, &of, n_block_out));
    gr_needs_tell(&needs, &of, *n_block_out);
    return GR_OK;
}

static enum gr_status take_picks(struct gr_cuda_model *m, struct gr_lm *lm, bool ranks)
{
    const size_t n_out = (size_t)lm->n_out_max;
    const size_t work = ranks ? gr_cuda_top_work_bytes(lm->n_out_max) : gr_cuda_pick_work_bytes(lm->n_out_max);
    void *host = NULL;
    void *alias = NULL;
    GR_TRY(gr_cuda_take(&m->device, "logits", work, &m->pick_work));
    GR_TRY(gr_cuda_take_host(&m->device, n_out * (ranks ? sizeof(*m->top) : sizeof(*m->picked)), &host, &alias));
    if (ranks) {
        m->top = host;
        m->top_alias = alias;
        lm->top = m->top;
    } else {
        m->picked = host;
        m->picked_alias = alias;
        lm->picked = m->picked;
    }
    GR_TRY(gr_cuda_take_host(&m->device, 3 * sizeof(uint32_t), &host, &alias));
    m->done = host;
    m->done_alias = alias;
    m->plan_error = (volatile int32_t *)host + 1; /* after done, here and as the device sees them */
    return GR_OK;
}

enum gr_status gr_cuda_model_take(struct gr_cuda_model *m, struct gr_lm *lm, int n_seq_max, int feature_width,
                                  bool ranks)
{
    const size_t n_logit = (size_t)lm->n_out_max * (size_t)lm->n_vocab_stride;
    const struct gr_cuda_pass_limits limits = {.n_row_max = lm->n_row_max,
                                               .n_out_max = lm->n_out_max,
                                               .n_seq_max = n_seq_max,
                                               .n_table_block = lm->n_ctx_max / GR_KV_BLOCK_TOKENS + 1,
                                               .n_scratch_block = lm->n_scratch_block,
                                               .feature_width = feature_width,
                                               .n_state = lm->n_state,
                                               .far_feature = lm->far_features,
                                               .n_entry =
                                                   ranks ? 0 : GR_MIN(lm->n_out_max, LISTED_ROWS) * GR_ADJUST_LIST_MAX};
    void *logits = NULL;
    lm->n_list_max = limits.n_entry;
    GR_TRY(gr_cuda_pass_init(&m->pass, &m->device, &limits));
    GR_TRY(gr_cuda_cells_init(&m->cells, &m->device));
    GR_TRY(gr_cuda_take(&m->device, "logits", n_logit * sizeof(float), &logits));
    m->logits = logits;
    GR_TRY(take_picks(m, lm, ranks));
    /* Pages that nobody touches cost nothing: only rows that the host picks come here. */
    lm->logits = gr_memory_take_f32(&m->memory, n_logit);
    return lm->logits != NULL ? GR_OK : GR_ENOMEM;
}

void gr_cuda_model_close(struct gr_cuda_model *m, struct gr_lm *lm)
{
    gr_team_destroy(lm->team);
    gr_cuda_device_close(&m->device);
    gr_memory_finish(&m->memory);
}

static void log_load(const struct gr_cuda_weights *w, uint64_t took_ns)
{
    log_info("cuda:%d: %.1f MB of weights in %.2f s; %.1f MB came from the host%s", w->device->index,
             (double)w->bytes / 1e6, (double)took_ns / 1e9, (double)w->copied / 1e6,
             w->loader->expand != NULL ? ", the rest was expanded on the device" : "");
}

enum gr_status gr_cuda_model_load(struct gr_cuda_model *m, const struct gr_loader *from, gr_cuda_load_fn *load,
                                  void *model)
{
    struct gr_memory memory = {0};
    struct gr_loader host = *from;
    host.kernels = &m->kernels;
    host.memory = &memory;
    struct gr_cuda_weights w;
    const uint64_t begin = gr_clock_ns();
    enum gr_status st = gr_cuda_weights_begin(&w, &m->device, &host, &m->shapes);
    if (st == GR_OK) {
        st = load(model, &w, &host);
    }
    const enum gr_status finished = gr_cuda_weights_finish(&w);
    gr_memory_finish(&memory);
    if (from->progress != NULL) {
        gr_load_progress_end(from->progress);
    }
    st = st != GR_OK ? st : finished;
    if (st == GR_OK) {
        log_load(&w, gr_clock_ns() - begin);
    }
    return st;
}

static enum gr_status enqueue_top(struct gr_cuda_model *m, const struct gr_lm *lm, int n)
{
    const struct gr_cuda_top_args a = {.logits = m->logits,
                                       .to_target = m->to_target,
                                       .how = m->pass.inputs.pick,
                                       .n_top = m->pass.inputs.n_top,
                                       .top = m->top_alias,
                                       .work = m->pick_work,
                                       .ticket = m->pass.inputs.ticket,
                                       .done = m->done_alias,
                                       .n_row = n,
                                       .n = lm->n_vocab,
                                       .stride = lm->n_vocab_stride,
                                       .n_row_true = m->pass.inputs.n_out};
    return gr_cuda_top(&a, m->device.stream);
}

static struct gr_cuda_pick_args pick_args(const struct gr_cuda_model *m, const struct gr_lm *lm, int n)
{
    return (struct gr_cuda_pick_args){.logits = m->logits,
                                      .how = m->pass.inputs.pick,
                                      .picked = m->picked_alias,
                                      .work = m->pick_work,
                                      .ticket = m->pass.inputs.ticket,
                                      .done = m->done_alias,
                                      .n_row = n,
                                      .n = lm->n_vocab,
                                      .stride = lm->n_vocab_stride,
                                      .n_row_true = m->pass.inputs.n_out};
}

enum gr_status gr_cuda_model_enqueue_picks(struct gr_cuda_model *m, const struct gr_lm *lm, int n)
{
    if (m->top != NULL) {
        return enqueue_top(m, lm, n);
    }
    const struct gr_cuda_pick_args a = pick_args(m, lm, n);
    return gr_cuda_pick(&a, m->device.stream);
}

enum gr_status gr_cuda_model_enqueue_adjusted_picks(struct gr_cuda_model *m, const struct gr_lm *lm, int n)
{
    const struct gr_cuda_adjust_args adjust = {.logits = m->logits,
                                               .row = m->pass.inputs.adjust,
                                               .entry = m->pass.inputs.entry,
                                               .n_row = n,
                                               .stride = lm->n_vocab_stride,
                                               .n_row_true = m->pass.inputs.n_out};
    const struct gr_cuda_pick_args pick = pick_args(m, lm, n);
    GR_TRY(gr_cuda_adjust(&adjust, m->device.stream));
    return gr_cuda_pick_adjusted(&pick, m->device.stream);
}

enum gr_status gr_cuda_model_enqueue_begin(struct gr_cuda_model *m, const struct gr_cuda_begin_step *s, int n)
{
    struct gr_cuda_begin_step step = *s;
    step.plan_error = (int32_t *)m->done_alias + 1;
    GR_TRY(gr_cuda_input(m->pass.host_alias, m->pass.dev, m->device.stream));
    return gr_cuda_enqueue_begin(&m->work, &step, n);
}

/* Bounded by the device: either the flag comes, or the driver says that the stream has ended, or why it broke. */
static enum gr_status wait_for_flag(const struct gr_cuda_model *m)
{
    for (;;) {
        for (int i = 0; i < LOOKS_PER_QUERY; i++) {
            if (*m->done == m->pass.ticket) {
                __atomic_thread_fence(__ATOMIC_ACQUIRE);
                return GR_OK;
            }
        }
        const cudaError_t e = cudaStreamQuery(m->device.stream);
        if (e != cudaErrorNotReady) {
            return gr_cuda_check(e, "a pass");
        }
    }
}

static enum gr_status fetch_logits(struct gr_cuda_model *m, struct gr_lm *lm, int n_out)
{
    const size_t stride = (size_t)lm->n_vocab_stride;
    bool any = false;
    for (int i = 0; i < n_out; i++) {
        if (!gr_lm_has_picked(lm, i)) {
            any = true;
            GR_TRY(gr_cuda_check(cudaMemcpyAsync(lm->logits + (size_t)i * stride, m->logits + (size_t)i * stride,
                                                 stride * sizeof(float), cudaMemcpyDeviceToHost, m->device.stream),
                                 "copy of logits"));
        }
    }
    return any ? gr_cuda_wait(&m->device, "copy of logits") : GR_OK;
}

enum gr_status gr_cuda_model_wait(struct gr_cuda_model *m, struct gr_lm *lm, int n_out)
{
    if (n_out == 0) {
        GR_TRY(gr_cuda_wait(&m->device, "a pass"));
    } else {
        GR_TRY(wait_for_flag(m));
    }
    gr_cuda_cells_done(&m->cells);
    const int error = m->plan_error[0] != GR_CUDA_ATTN_OK ? m->plan_error[0] : m->plan_error[1];
    if (error != GR_CUDA_ATTN_OK) {
        log_error("CUDA: attention refused a batch (enum gr_cuda_attn_error %d)", error);
        return GR_ELIMIT;
    }
    return fetch_logits(m, lm, n_out);
}

enum gr_status gr_cuda_model_begin(struct gr_cuda_model *m, const struct gr_batch *b, int pos_ahead)
{
    GR_TRY(m->broken);
    GR_TRY(gr_cuda_check(cudaSetDevice(m->device.index), "choice of the device"));
    gr_cuda_pass_write(&m->pass, b, pos_ahead);
    return GR_OK;
}

void gr_cuda_model_copy_cells(struct gr_cuda_model *m, int n, const int32_t *src, const int32_t *dst)
{
    if (n > 0 && m->broken == GR_OK) {
        m->broken = gr_cuda_check(cudaSetDevice(m->device.index), "choice of the device");
    }
    if (n > 0 && m->broken == GR_OK) {
        m->broken = gr_cuda_cells_copy(&m->cells, &m->device, &m->work.kv, n, src, dst);
    }
}
