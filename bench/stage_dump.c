#include "bench/stage_dump.h"

#include "common/base/log.h"
#include "model/eagle3.h"
#include "model/llama.h"
#include "model/files/safetensors_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define N_ROW_MAX 512            /* rows of a pass, at most */
#define N_BLOCK (N_ROW_MAX / 16) /* KV blocks that N_ROW_MAX rows fill */
#define N_STAGE_MAX 12           /* stages that are written, at most */

struct dump {
    struct gr_lm *target, *head;
    int n_row;
    int32_t ids[N_ROW_MAX + 1]; /* prompt, the target's next token */
    float *fused;               /* (n_row, H) */
    struct gr_tensor tensor[N_STAGE_MAX];
    size_t n_tensor;
};

static enum gr_status parse_ids(const char *text, struct dump *d)
{
    const char *p = text;
    while (p != NULL && *p != '\0') {
        char *end = NULL;
        errno = 0;
        const long id = strtol(p, &end, 10);
        if (end == p || errno != 0 || id < 0 || id >= d->target->n_vocab || (*end != ',' && *end != '\0')) {
            log_error("--ids: `%.20s': want ids from 0 to %d, separated by commas", p, d->target->n_vocab - 1);
            return GR_EINVAL;
        }
        if (d->n_row == N_ROW_MAX) {
            log_error("--ids: more than %d ids", N_ROW_MAX);
            return GR_ELIMIT;
        }
        d->ids[d->n_row++] = (int32_t)id;
        p = *end == ',' ? end + 1 : end;
    }
    if (d->n_row == 0) {
        log_error("--dump needs --ids: the prompt as token ids, separated by commas");
        return GR_EINVAL;
    }
    return GR_OK;
}

/* Rows 0 .. n - 1 as one causal pass, logits of the last n_out. */
static enum gr_status run(struct gr_lm *lm, const int32_t *token, int n, int n_out, const float *feature)
{
    static int32_t block[N_BLOCK], pos[N_ROW_MAX], limit[N_ROW_MAX], n_anc[N_ROW_MAX], out_row[N_ROW_MAX];
    static const float *features[N_ROW_MAX];
    static int16_t anc[N_ROW_MAX * GR_ATTN_ANC_MAX];
    for (int i = 0; i < N_BLOCK; i++) {
        block[i] = i;
    }
    for (int i = 0; i < n; i++) {
        pos[i] = i;
        limit[i] = i + 1;
        features[i] = feature != NULL ? feature + (size_t)i * (size_t)lm->feature_width : NULL;
    }
    for (int i = 0; i < n_out; i++) {
        out_row[i] = n - n_out + i;
    }
    const struct gr_attn_seq seq = {.n_row = n, .block = block, .limit = limit, .n_anc = n_anc, .anc = anc};
    return gr_lm_forward(lm, &(struct gr_batch){.n_row = n,
                                                .n_seq = 1,
                                                .n_out = n_out,
                                                .token = token,
                                                .pos = pos,
                                                .cell = pos,
                                                .seq = &seq,
                                                .out_row = out_row,
                                                .feature = features});
}

static enum gr_status load(const struct gr_bench_dump *o, struct dump *d)
{
    const struct gr_llama_config t = {.dir = o->model,
                                      .isa = o->isa,
                                      .n_thread = o->n_thread,
                                      .head_dir = o->head,
                                      .n_ctx_max = N_ROW_MAX,
                                      .n_row_max = N_ROW_MAX,
                                      .n_out_max = 1,
                                      .n_pool_block = N_BLOCK,
                                      .n_scratch_block = 1,
                                      .geometry = o->geometry};
    const struct gr_eagle3_config h = {.dir = o->head,
                                       .target_dir = o->model,
                                       .isa = o->isa,
                                       .n_thread = o->n_thread,
                                       .n_ctx_max = N_ROW_MAX,
                                       .n_row_max = N_ROW_MAX,
                                       .n_out_max = N_ROW_MAX,
                                       .n_pool_block = N_BLOCK,
                                       .n_scratch_block = 1,
                                       .keep_stages = true,
                                       .geometry = o->geometry};
    if (o->head == NULL) {
        log_error("--dump needs --head: the folder of an EAGLE-3 head");
        return GR_EINVAL;
    }
    GR_TRY(gr_llama_create(&t, NULL, NULL, &d->target));
    return gr_eagle3_create(&h, NULL, NULL, &d->head);
}

static enum gr_status compute(struct dump *d)
{
    const float *row[N_ROW_MAX];
    GR_TRY(run(d->target, d->ids, d->n_row, 1, NULL));
    d->ids[d->n_row] = d->target->kernels->argmax(d->target->logits, d->target->n_vocab, false);
    for (int i = 0; i < d->n_row; i++) {
        row[i] = gr_lm_capture(d->target, i);
    }
    d->fused = calloc((size_t)d->n_row * (size_t)d->target->fused_width, sizeof(float));
    if (d->fused == NULL) {
        log_error("no memory for the features of %d rows", d->n_row);
        return GR_ENOMEM;
    }
    gr_lm_fuse(d->target, d->n_row, row, d->fused);
    return run(d->head, d->ids + 1, d->n_row, d->n_row, d->fused);
}

static void add(struct dump *d, const char *name, const float *value, int width)
{
    GR_ASSERT(value != NULL && d->n_tensor < N_STAGE_MAX);
    d->tensor[d->n_tensor++] = (struct gr_tensor){.name = name,
                                                  .dtype = GR_FORMAT_F32,
                                                  .n_dim = 2,
                                                  .shape = {d->n_row, width},
                                                  .data = value,
                                                  .bytes = (size_t)d->n_row * (size_t)width * sizeof(float)};
}

/* logits lie in rows of n_vocab_stride; the file has none of the padding. */
static void pack_logits(const struct gr_lm *lm, int n_row)
{
    for (int i = 1; i < n_row && lm->n_vocab != lm->n_vocab_stride; i++) {
        memmove(lm->logits + (size_t)i * (size_t)lm->n_vocab, gr_lm_logits(lm, i), (size_t)lm->n_vocab * sizeof(float));
    }
}

static enum gr_status write_dump(struct dump *d, const char *file)
{
    static const char *const stages[] = {"attn_input", "attn_out", "ffn_out", "hidden", "pre_head_hidden"};
    add(d, "captured", d->target->capture, d->target->n_capture * d->target->capture_width);
    add(d, "fc_out", d->fused, d->target->fused_width);
    for (size_t i = 0; i < GR_ARRAY_LEN(stages); i++) {
        int width = 0;
        const float *value = gr_eagle3_stage(d->head, stages[i], &width);
        add(d, stages[i], value, width);
    }
    pack_logits(d->head, d->n_row);
    add(d, "logits", d->head->logits, d->head->n_vocab);
    d->tensor[d->n_tensor++] = (struct gr_tensor){.name = "ids",
                                                  .dtype = GR_FORMAT_I32,
                                                  .n_dim = 1,
                                                  .shape = {d->n_row + 1},
                                                  .data = d->ids,
                                                  .bytes = (size_t)(d->n_row + 1) * sizeof(int32_t)};
    return gr_safetensors_write(file, d->tensor, d->n_tensor);
}

int gr_bench_dump(const struct gr_bench_dump *o)
{
    static struct dump d;
    enum gr_status st = load(o, &d);
    if (st == GR_OK) {
        st = parse_ids(o->ids, &d);
    }
    if (st == GR_OK) {
        st = compute(&d);
    }
    if (st == GR_OK) {
        st = write_dump(&d, o->file);
    }
    if (st == GR_OK) {
        printf("%s: %zu tensors of %d rows\n", o->file, d.n_tensor, d.n_row);
    }
    gr_lm_destroy(d.head);
    gr_lm_destroy(d.target);
    free(d.fused);
    return st == GR_OK ? 0 : st == GR_EINVAL ? 2 : 1;
}
