/* Reads a Hugging Face model folder's config.json (and the eos ids of generation_config.json) into
 * one plain struct. Every number is range-checked; a bad one is an error that names file, key,
 * value and limit. Pure apart from file reading; any thread may call. The struct owns nothing. */
#ifndef GR_MODEL_FILES_HF_CONFIG_H
#define GR_MODEL_FILES_HF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "common/base/status.h"

#define GR_EAGLE3_ARCHITECTURE "LlamaForCausalLMEagle3" /* of an EAGLE-3 head */

#define GR_HF_N_EOS_MAX 256 /* of a model's files; fewer may end a turn: GR_STOP_ID_MAX of common/rules/accept.h */
#define GR_HF_N_CAPTURE_MAX 8
#define GR_HF_N_LAYER_MAX 256       /* layers of a model, at most */
#define GR_HF_FILE_BYTES (1u << 20) /* config.json and generation_config.json, each at most */

enum gr_rope_kind { GR_ROPE_PLAIN, GR_ROPE_LINEAR, GR_ROPE_LLAMA3, GR_ROPE_YARN };

/* How an EAGLE-3 head counts the layers it captures (capture.h). */
enum gr_capture_ids { GR_CAPTURE_IDS_BY_FIRST, GR_CAPTURE_IDS_INPUTS, GR_CAPTURE_IDS_OUTPUTS };

struct gr_hf_config {
    /* One that family.h knows. The alias Eagle3LlamaForCausalLM is stored under its other
     * name, LlamaForCausalLMEagle3. Whether this build can run it is the model loader's decision.
     */
    char architecture[64];
    char model_type[32]; /* "" when absent */
    char dtype[16];      /* "bfloat16"; "" when absent. Key dtype or torch_dtype */
    int hidden, n_layer, n_head, n_kv_head, head_dim, ffn, n_vocab, max_pos;
    bool head_dim_given; /* false: head_dim is the family's, or hidden / n_head */
    float rms_eps;
    double rope_theta; /* 0: not given by an EAGLE-3 head, which then takes the target's */
    bool tie_embeddings;
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm; /* an RMSNorm over each head of q and k, before rotary embedding */
    /* Each row of attention at position p sees keys at positions above p - sliding_window only. 0: all keys. */
    int sliding_window;
    bool layer_sliding[GR_HF_N_LAYER_MAX]; /* the layer has the window */
    bool layer_no_rope[GR_HF_N_LAYER_MAX]; /* it has no rotary embedding */
    int scale_dim;                         /* attention is scaled by 1 / sqrt(scale_dim); 0: head_dim */
    /* Gemma; else zero. */
    bool norm_plus_one; /* a norm multiplies by 1 + w. Not from GGUF files, which hold 1 + w */
    bool post_norms;    /* what attention and the MLP give is normed before it is added */
    bool gelu;          /* GeGLU, by tanh, in place of SwiGLU */
    float embed_scale;  /* of the embedding as it is looked up; 0: none. Set by who runs the model (llama_source.c) */
    double rope_local_theta;     /* of layers with a window, which have plain rotary embedding then; 0: as the others */
    int bos_id;                  /* -1: none */
    int eos_id[GR_HF_N_EOS_MAX]; /* of config.json and generation_config.json together */
    int n_eos;
    enum gr_rope_kind rope_kind;
    struct {                         /* zero unless the kind uses the field */
        double factor;               /* linear, llama3, yarn */
        double low_freq_factor;      /* llama3 */
        double high_freq_factor;     /* llama3 */
        double beta_fast, beta_slow; /* yarn; default 32 and 1 */
        double attention_factor;     /* yarn: scales cos and sin; default 0.1 ln(factor) + 1 */
        int original_max_pos;        /* llama3, yarn */
        bool truncate;               /* yarn: floor and ceil of the correction range; default true */
    } rope;

    /* EAGLE-3 heads only; else zero. */
    int draft_n_vocab; /* draft_vocab_size; n_vocab when the head has no reduced vocabulary */
    int target_hidden; /* target_hidden_size; 0: not given, same as hidden */
    /* Layers of the target whose inputs feed the head, strictly increasing; capture.h has the rule that reads the
     * config's ids. has_capture false: the config is silent. */
    bool has_capture;
    enum gr_capture_ids capture_ids_are; /* what the config says its ids are */
    bool capture_ids_are_outputs;        /* what they were taken for */
    int n_capture;
    int capture_layer[GR_HF_N_CAPTURE_MAX];
    bool norm_before_residual; /* the residual is the normed feature */
    bool norm_before_fc;       /* one norm over the concatenated captures: input_norm */
    bool fc_norm;              /* a norm for each capture */
    bool norm_output;          /* what is fed back is the state after the final norm */

    /* Of a model expanded in memory (expand.h); else zero: nothing but the fields above counts. */
    int n_vocab_row, draft_n_vocab_row; /* rows of lm_head, padding included: target, head */

    /* GPT-OSS only; else zero. */
    int n_expert, n_expert_used;
    float swiglu_limit;
};

/* It is an EAGLE-3 head, no model by itself. */
static inline bool gr_hf_is_eagle3(const struct gr_hf_config *hf)
{
    return strcmp(hf->architecture, GR_EAGLE3_ARCHITECTURE) == 0;
}

/* A layer's window; 0: it sees all keys. */
static inline int gr_hf_window(const struct gr_hf_config *hf, int layer)
{
    return hf->layer_sliding[layer] ? hf->sliding_window : 0;
}

/* The same where it hides something of contexts of n_ctx tokens; 0: it hides nothing. */
static inline int gr_hf_window_within(const struct gr_hf_config *hf, int layer, int n_ctx)
{
    const int window = gr_hf_window(hf, layer);
    return window < n_ctx ? window : 0;
}

/* Logits that a pass computes. */
static inline int gr_hf_vocab_rows(const struct gr_hf_config *hf)
{
    return hf->n_vocab_row > 0 ? hf->n_vocab_row : hf->n_vocab;
}
static inline int gr_hf_draft_vocab_rows(const struct gr_hf_config *hf)
{
    return hf->draft_n_vocab_row > 0 ? hf->draft_n_vocab_row : hf->draft_n_vocab;
}

/* dir: model folder. Missing generation_config.json is no error. model_path.h takes GGUF files as well. */
GR_NODISCARD enum gr_status gr_hf_config_load(const char *dir, struct gr_hf_config *out);

/* config.json from memory; name stands for the file in messages. */
GR_NODISCARD enum gr_status gr_hf_config_parse(const char *name, const char *json, size_t len,
                                               struct gr_hf_config *out);

/* generation_config.json from memory: adds its eos ids to those of config. */
GR_NODISCARD enum gr_status gr_hf_config_parse_generation(const char *name, const char *json, size_t len,
                                                          struct gr_hf_config *config);

#endif
