#include "model/load/shapes.h"

#include "common/rules/hash.h"

static void add(struct gr_model_shapes *s, int n_out, int n_in, enum gr_cuda_linear_out out)
{
    if (gr_shapes_find(s, n_out, n_in) == NULL) {
        GR_ASSERT(s->n_linear < GR_SHAPE_LINEAR_MAX);
        s->linear[s->n_linear++] = (struct gr_linear_shape){.n_out = n_out, .n_in = n_in, .out = out};
    }
}

/* n_in: inputs of q, k and v. */
static void add_layer(struct gr_model_shapes *s, const struct gr_hf_config *hf, int n_in)
{
    const int n_q = hf->n_head * hf->head_dim;
    *s = (struct gr_model_shapes){.n_head = hf->n_head, .n_kv_head = hf->n_kv_head, .head_dim = hf->head_dim};
    add(s, n_q + 2 * hf->n_kv_head * hf->head_dim, n_in, GR_CUDA_OUT_BF16);
    add(s, hf->hidden, n_q, GR_CUDA_OUT_ADD);
    add(s, 2 * hf->ffn, hf->hidden, GR_CUDA_OUT_SILU);
    add(s, hf->hidden, hf->ffn, GR_CUDA_OUT_ADD);
}

void gr_llama_shapes(const struct gr_hf_config *hf, int head_hidden, int n_capture, struct gr_model_shapes *out)
{
    add_layer(out, hf, hf->hidden);
    add(out, gr_vocab_stride(gr_hf_vocab_rows(hf)), hf->hidden, GR_CUDA_OUT_F32);
    if (head_hidden > 0) {
        add(out, head_hidden, n_capture * hf->hidden, GR_CUDA_OUT_BF16);
    }
}

void gr_eagle3_shapes(const struct gr_hf_config *hf, struct gr_model_shapes *out)
{
    add_layer(out, hf, 2 * hf->hidden);
    add(out, gr_vocab_stride(gr_hf_draft_vocab_rows(hf)), hf->hidden, GR_CUDA_OUT_F32);
}

const struct gr_linear_shape *gr_shapes_find(const struct gr_model_shapes *s, int n_out, int n_in)
{
    for (int i = 0; i < s->n_linear; i++) {
        if (s->linear[i].n_out == n_out && s->linear[i].n_in == n_in) {
            return &s->linear[i];
        }
    }
    return NULL;
}

uint32_t gr_shapes_hash(const struct gr_model_shapes *s)
{
    uint64_t h = gr_hash_extend(0, s->n_split_max);
    for (int i = 0; i < s->n_linear; i++) {
        const struct gr_linear_shape *l = &s->linear[i];
        const int32_t part[] = {l->n_out, l->n_in, l->cut.width, l->cut.parts};
        for (size_t k = 0; k < GR_ARRAY_LEN(part); k++) {
            h = gr_hash_extend(h, part[k]);
        }
    }
    return (uint32_t)(h >> 32);
}
