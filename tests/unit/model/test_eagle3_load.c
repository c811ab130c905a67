/* What does not fit is refused: by the draft worker's side (gr_eagle3_create), by the target's (gr_llama_create with
 * head_dir) or by both, with one line that names what is wrong. And: which layers are captured. */
#include "model/files/capture.h"
#include "model/eagle3.h"
#include "model/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/log_capture.h"
#include "tests/unit/tiny_model.h"

static enum gr_status create_head(const struct tiny_folder *head, const struct tiny_folder *target,
                                  struct gr_lm **lm_out)
{
    const struct gr_eagle3_config c = {.dir = head->dir,
                                       .target_dir = target->dir,
                                       .n_thread = 1,
                                       .n_row_max = 8,
                                       .n_out_max = 8,
                                       .n_pool_block = 2,
                                       .n_scratch_block = 1};
    return gr_eagle3_create(&c, NULL, NULL, lm_out);
}

static enum gr_status create_target(const struct tiny_folder *head, const struct tiny_folder *target,
                                    struct gr_lm **lm_out)
{
    const struct gr_llama_config c = {.dir = target->dir,
                                      .head_dir = head->dir,
                                      .n_thread = 1,
                                      .n_row_max = 8,
                                      .n_out_max = 8,
                                      .n_pool_block = 2,
                                      .n_scratch_block = 1};
    return gr_llama_create(&c, NULL, NULL, lm_out);
}

/* ---- refusals ---- */

enum change { PATCH, PATCH_TARGET, REMOVE, ADD, SET_I64, SET_BOOL, RETYPE };
enum side { HEAD = 1, TARGET = 2, BOTH = 3 };

struct refusal {
    enum change change;
    const char *name; /* config path, or tensor */
    const char *literal;
    int64_t d0, d1; /* ADD: shape; SET: index and value */
    enum side side; /* who refuses; the other accepts */
    enum gr_status status;
    const char *texts[3];
};

#define IDS "eagle_config.eagle_aux_hidden_state_layer_ids"
#define Q "midlayer.self_attn.q_proj.weight"

static const struct refusal refusals[] = {
    /* folders that do not belong together */
    {PATCH,
     "architectures",
     "[\"LlamaForCausalLM\"]",
     0,
     0,
     BOTH,
     GR_EUNSUPPORTED,
     {"LlamaForCausalLM", "LlamaForCausalLMEagle3"}},
    {PATCH, "num_hidden_layers", "2", 0, 0, BOTH, GR_EUNSUPPORTED, {"num_hidden_layers = 2", "has 1"}},
    {PATCH, "vocab_size", "65", 0, 0, BOTH, GR_EMISMATCH, {"vocab_size = 65", "has 64"}},
    {PATCH, "target_hidden_size", "40", 0, 0, BOTH, GR_EMISMATCH, {"hidden size 40", "has 32"}},
    {PATCH_TARGET, "vocab_size", "63", 0, 0, BOTH, GR_EMISMATCH, {"vocab_size = 64", "has 63"}},
    /* captured layers */
    {PATCH, IDS, "[1,3,8]", 0, 0, BOTH, GR_EMISMATCH, {"layer 9", "8 layers"}},
    {PATCH, IDS, "[2,4,200]", 0, 0, BOTH, GR_EMISMATCH, {"layer 200", "8 layers"}},
    {PATCH, IDS, "[1,2,3,4,5]", 0, 0, BOTH, GR_ELIMIT, {"5 layers", "at most 4"}},
    {PATCH, IDS, "[1,3]", 0, 0, BOTH, GR_EMISMATCH, {"fc.weight takes 96", "are 64"}},
    {PATCH, "eagle_config.use_aux_hidden_state", "false", 0, 0, BOTH, GR_EUNSUPPORTED, {"use_aux_hidden_state"}},
    {PATCH, "norm_before_fc", "true", 0, 0, BOTH, GR_ENOTFOUND, {"input_norm.weight is missing", "96"}},
    {PATCH, "fc_norm", "true", 0, 0, BOTH, GR_ENOTFOUND, {"fc_norm.0.weight is missing", "32"}},
    /* fc */
    {REMOVE, "fc.weight", NULL, 0, 0, BOTH, GR_ENOTFOUND, {"fc.weight is missing", "[32,96]"}},
    {ADD, "fc.weight", NULL, 32, 64, BOTH, GR_EMISMATCH, {"fc.weight takes 64", "are 96"}},
    {ADD, "fc.weight", NULL, 31, 96, BOTH, GR_EMISMATCH, {"fc.weight", "[32,96]", "[31,96]"}},
    {ADD, "fc.bias", NULL, 31, 0, BOTH, GR_EMISMATCH, {"fc.bias", "[32]", "[31]"}},
    {RETYPE, "fc.weight", NULL, 0, 0, BOTH, GR_EUNSUPPORTED, {"fc.weight", "I16", "not read"}},
    /* the map */
    {REMOVE, "d2t", NULL, 0, 0, BOTH, GR_ENOTFOUND, {"d2t is missing", "[24]"}},
    {PATCH, "draft_vocab_size", "23", 0, 0, BOTH, GR_EMISMATCH, {"d2t", "[23]", "[24]"}},
    {PATCH, "draft_vocab_size", NULL, 0, 0, BOTH, GR_EMISMATCH, {"d2t", "[64]", "[24]"}},
    {SET_I64, "d2t", NULL, 23, 41, BOTH, GR_EMISMATCH, {"d2t[23] = 41", "64 ids"}},
    {SET_I64, "d2t", NULL, 0, -1, BOTH, GR_EMISMATCH, {"d2t[0] = -1", "64 ids"}},
    {SET_I64, "d2t", NULL, 5, INT64_MAX, BOTH, GR_EMISMATCH, {"d2t[5]", "64 ids"}},
    {SET_I64, "d2t", NULL, 5, INT64_MIN, BOTH, GR_EMISMATCH, {"d2t[5]", "64 ids"}},
    {SET_I64, "d2t", NULL, 5, 4, BOTH, GR_EMISMATCH, {"d2t[5] = 4", "id 9", "must rise"}},
    {SET_BOOL, "t2d", NULL, 2, 1, BOTH, GR_EMISMATCH, {"t2d[2] is true", "none"}},
    {SET_BOOL, "t2d", NULL, 47, 0, BOTH, GR_EMISMATCH, {"t2d[47] is false", "a draft id"}},
    {SET_BOOL, "t2d", NULL, 63, 1, BOTH, GR_EMISMATCH, {"t2d[63] is true", "none"}},
    /* what only the head's worker needs */
    {REMOVE, Q, NULL, 0, 0, HEAD, GR_ENOTFOUND, {Q, "missing"}},
    {REMOVE, "midlayer.hidden_norm.weight", NULL, 0, 0, HEAD, GR_ENOTFOUND, {"hidden_norm.weight is missing"}},
    {REMOVE, "norm.weight", NULL, 0, 0, HEAD, GR_ENOTFOUND, {"norm.weight is missing"}},
    {REMOVE, "lm_head.weight", NULL, 0, 0, HEAD, GR_ENOTFOUND, {"lm_head.weight is missing", "[24,32]"}},
    {ADD, Q, NULL, 64, 32, HEAD, GR_EMISMATCH, {"q_proj.weight takes 32", "2 x 32 = 64"}},
    {ADD, Q, NULL, 32, 64, HEAD, GR_EMISMATCH, {Q, "[64,64]", "[32,64]"}},
    {ADD, "midlayer.self_attn.k_proj.weight", NULL, 16, 64, HEAD, GR_EMISMATCH, {"k_proj", "[32,64]", "[16,64]"}},
    {ADD, "midlayer.mlp.down_proj.weight", NULL, 32, 41, HEAD, GR_EMISMATCH, {"down_proj", "[32,40]", "[32,41]"}},
    {ADD, "lm_head.weight", NULL, 25, 32, HEAD, GR_EMISMATCH, {"lm_head.weight", "[24,32]", "[25,32]"}},
    {ADD, "embed_tokens.weight", NULL, 63, 32, HEAD, GR_EMISMATCH, {"embed_tokens.weight", "[64,32]", "[63,32]"}},
    {ADD, "midlayer.self_attn.q_norm.weight", NULL, 16, 0, HEAD, GR_EMISMATCH, {"q_norm", "does not have"}},
    {ADD, "layers.0.self_attn.v_proj.weight", NULL, 32, 64, HEAD, GR_EMISMATCH, {"layers.0", "does not have"}},
    {ADD, "midlayer.self_attn.q_proj.bias", NULL, 64, 0, HEAD, GR_EMISMATCH, {"q_proj.bias", "does not have"}},
    {ADD, "input_norm.weight", NULL, 96, 0, HEAD, GR_EMISMATCH, {"input_norm.weight", "does not have"}},
    {ADD, "fc_norm.1.weight", NULL, 32, 0, HEAD, GR_EMISMATCH, {"fc_norm.1.weight", "does not have"}},
    {PATCH, "attention_bias", "true", 0, 0, HEAD, GR_ENOTFOUND, {"q_proj.bias is missing", "[64]"}},
    {PATCH, "mlp_bias", "true", 0, 0, HEAD, GR_ENOTFOUND, {"gate_proj.bias is missing", "[40]"}},
    {PATCH, "num_attention_heads", "8", 0, 0, HEAD, GR_EMISMATCH, {Q, "[128,64]", "[64,64]"}},
    {PATCH, "head_dim", "24", 0, 0, HEAD, GR_ELIMIT, {"head_dim 24", "multiple of 16"}},
};

static void apply(const struct refusal *r, struct tiny_folder *head, struct tiny_folder *target)
{
    struct gr_tensor *t = tiny_find(head, r->name);
    switch (r->change) {
    case PATCH:
        json_patch_at(head->config, r->name, r->literal);
        break;
    case PATCH_TARGET:
        json_patch_at(target->config, r->name, r->literal);
        break;
    case REMOVE:
        tiny_remove(head, r->name);
        break;
    case ADD:
        tiny_add(head, r->name, (int)r->d0, (int)r->d1);
        break;
    case SET_I64:
        ((int64_t *)(uintptr_t)t->data)[r->d0] = r->d1;
        break;
    case SET_BOOL:
        ((uint8_t *)(uintptr_t)t->data)[r->d0] = (uint8_t)r->d1;
        break;
    case RETYPE:
        t->dtype = GR_FORMAT_I16;
        break;
    }
}

typedef enum gr_status create_fn(const struct tiny_folder *head, const struct tiny_folder *target,
                                 struct gr_lm **lm_out);

static void expect(const struct refusal *r, create_fn *create, const char *who, bool refused,
                   const struct tiny_folder *head, const struct tiny_folder *target)
{
    struct gr_lm *lm = NULL;
    struct log_capture cap;
    log_capture_begin(&cap);
    const enum gr_status st = create(head, target, &lm);
    const char *log = log_capture_end(&cap);
    bool good = st == (refused ? r->status : GR_OK) && log_capture_n_line(log) == (refused ? 1 : 0);
    for (size_t i = 0; refused && i < GR_ARRAY_LEN(r->texts) && r->texts[i] != NULL; i++) {
        good = good && strstr(log, r->texts[i]) != NULL;
    }
    if (!good) {
        fail_msg("%s %s: %s: status %d, log: %s", r->name, r->literal != NULL ? r->literal : "", who, (int)st, log);
    }
    gr_lm_destroy(lm);
}

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(refusals); i++) {
        const struct refusal *r = &refusals[i];
        struct tiny_folder head, target;
        tiny_head(&head, "midlayer");
        tiny_target(&target, 8);
        apply(r, &head, &target);
        tiny_write(&head);
        tiny_write(&target);
        expect(r, create_head, "head", (r->side & HEAD) != 0, &head, &target);
        expect(r, create_target, "target", (r->side & TARGET) != 0, &head, &target);
        tiny_finish(&head);
        tiny_finish(&target);
    }
    print_message("# %zu refusals\n", GR_ARRAY_LEN(refusals));
}

/* A wider head needs an embedding and an lm_head of its own. */
static void test_borrowed_width(void **state)
{
    (void)state;
    static const struct refusal r = {
        .name = "hidden 48 on 32", .status = GR_EMISMATCH, .texts = {"embed_tokens.weight", "32 wide", "48"}};
    struct tiny_folder head, target;
    tiny_target(&target, 8);
    tiny_head(&head, "midlayer");
    json_patch_at(head.config, "hidden_size", "48");
    json_patch_at(head.config, "target_hidden_size", "32");
    tiny_add(&head, "fc.weight", 48, 96);
    tiny_add_layer(&head, "midlayer", 96, 64, 32, 48, 40);
    tiny_add(&head, "midlayer.hidden_norm.weight", 48, 0);
    tiny_add(&head, "norm.weight", 48, 0);
    tiny_add(&head, "lm_head.weight", TINY_N_DRAFT, 48);
    tiny_write(&head);
    tiny_write(&target);
    expect(&r, create_head, "head", true, &head, &target);
    expect(&r, create_target, "target", false, &head, &target);
    tiny_finish(&head);
    tiny_finish(&target);
}

/* A head without t2d is complete: d2t says the same. */
static void test_without_t2d(void **state)
{
    (void)state;
    static const struct refusal none = {.name = "no t2d"};
    struct tiny_folder head, target;
    tiny_target(&target, 8);
    tiny_head(&head, "midlayer");
    tiny_remove(&head, "t2d");
    tiny_write(&head);
    tiny_write(&target);
    expect(&none, create_head, "head", false, &head, &target);
    expect(&none, create_target, "target", false, &head, &target);
    tiny_finish(&head);
    tiny_finish(&target);
}

/* The fc of two heads of one shape must not pass for the same. */
static void test_fingerprint(void **state)
{
    (void)state;
    struct tiny_folder head, target;
    struct gr_lm *lm[3];
    tiny_target(&target, 8);
    tiny_head(&head, "midlayer");
    tiny_write(&head);
    tiny_write(&target);
    assert_int_equal(create_head(&head, &target, &lm[0]), GR_OK);
    tiny_add(&head, "lm_head.weight", TINY_N_DRAFT, TINY_HIDDEN); /* not part of fc */
    tiny_write(&head);
    assert_int_equal(create_target(&head, &target, &lm[1]), GR_OK);
    tiny_add(&head, "fc.weight", TINY_HIDDEN, 3 * TINY_HIDDEN);
    tiny_write(&head);
    assert_int_equal(create_target(&head, &target, &lm[2]), GR_OK);
    assert_true(lm[0]->fc_fingerprint == lm[1]->fc_fingerprint);
    assert_true(lm[0]->fc_fingerprint != lm[2]->fc_fingerprint);
    for (size_t i = 0; i < GR_ARRAY_LEN(lm); i++) {
        gr_lm_destroy(lm[i]);
    }
    tiny_finish(&head);
    tiny_finish(&target);
}

/* ---- layouts of published heads ---- */

/* The flat config of tiny_head() in the layout of speculators: the geometry lies in transformer_layer_config, the ids
 * are inputs. */
static void to_speculators(struct tiny_folder *head)
{
    json_t *layer = head->config;
    head->config = json_pack("{s:[s], s:s, s:b, s:n, s:[iii], s:o}", "architectures", "Eagle3Speculator",
                             "speculators_model_type", "eagle3", "norm_before_residual", 1, "target_hidden_size",
                             "eagle_aux_hidden_state_layer_ids", 2, 4, 5, "transformer_layer_config", layer);
    json_object_set(head->config, "draft_vocab_size", json_object_get(layer, "draft_vocab_size"));
    json_object_del(layer, "draft_vocab_size");
    json_object_del(layer, "eagle_config");
    json_patch_at(layer, "architectures", "[\"LlamaForCausalLM\"]");
}

/* As nebius writes it: the name of a plain Llama, and a key of its own for the draft vocabulary. */
static void to_nebius(struct tiny_folder *head)
{
    json_patch_at(head->config, "norm_before_residual", "true");
    json_patch_at(head->config, "architectures", "[\"LlamaForCausalLM\"]");
    json_patch_at(head->config, "truncated_vocab_size", "24");
    json_object_del(head->config, "draft_vocab_size");
}

static void to_flat(struct tiny_folder *head)
{
    json_patch_at(head->config, "norm_before_residual", "true");
}

static uint64_t layout_fingerprint(void (*lay_out)(struct tiny_folder *head), struct gr_hf_config *hf)
{
    struct tiny_folder head, target;
    struct gr_lm *lm = NULL;
    uint64_t fingerprint = 0;
    tiny_target(&target, 8);
    tiny_head(&head, "layers.0");
    lay_out(&head);
    tiny_write(&head);
    tiny_write(&target);
    const struct gr_eagle3_config c = {.dir = head.dir,
                                       .target_dir = target.dir,
                                       .n_thread = 1,
                                       .n_row_max = 8,
                                       .n_out_max = 8,
                                       .n_pool_block = 2,
                                       .n_scratch_block = 1};
    assert_int_equal(gr_eagle3_create(&c, hf, &fingerprint, &lm), GR_OK);
    assert_string_equal(lm->captures, "2,4,5");
    gr_lm_destroy(lm);
    assert_int_equal(create_target(&head, &target, &lm), GR_OK);
    gr_lm_destroy(lm);
    tiny_finish(&head);
    tiny_finish(&target);
    return fingerprint;
}

/* The same tensors under each layout's config are the same head. */
static void test_layouts(void **state)
{
    (void)state;
    struct gr_hf_config flat, other;
    const uint64_t fingerprint = layout_fingerprint(to_flat, &flat);
    assert_true(flat.norm_before_residual);
    void (*const layouts[])(struct tiny_folder *) = {to_speculators, to_nebius};
    for (size_t i = 0; i < GR_ARRAY_LEN(layouts); i++) {
        assert_true(layout_fingerprint(layouts[i], &other) == fingerprint);
        assert_string_equal(other.architecture, flat.architecture);
        assert_int_equal(other.draft_n_vocab, TINY_N_DRAFT);
        assert_true(other.norm_before_residual && other.rope_theta == flat.rope_theta);
    }
}

/* ---- which layers ---- */

static void test_capture_choice(void **state)
{
    (void)state;
    static const struct {
        bool has;
        int n, layer[3], n_layer, n_override;
        int want[3]; /* {0}: refused */
    } cases[] = {
        {true, 3, {2, 4, 7}, 8, 0, {2, 4, 7}},
        {false, 0, {0}, 8, 0, {2, 4, 5}},
        {false, 0, {0}, 32, 0, {2, 16, 29}},
        {false, 0, {0}, 36, 0, {2, 18, 33}},
        {false, 0, {0}, 7, 0, {2, 3, 4}},
        {false, 0, {0}, 6, 0, {0}},
        {false, 0, {0}, 5, 0, {0}},
        {false, 0, {0}, 1, 0, {0}},
        {true, 3, {1, 3, 5}, 5, 0, {1, 3, 5}},
        {true, 3, {2, 4, 7}, 6, 0, {0}},
        {true, 3, {2, 4, 7}, 8, 3, {1, 2, 3}},
        {false, 0, {0}, 5, 3, {1, 2, 3}},
    };
    static const int override[] = {1, 2, 3};
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct gr_hf_config head = {.has_capture = cases[i].has, .n_capture = cases[i].n};
        memcpy(head.capture_layer, cases[i].layer, sizeof(cases[i].layer));
        struct gr_capture c = {.n = -1};
        struct log_capture cap;
        log_capture_begin(&cap);
        const enum gr_status st = gr_capture_choose("head", &head, cases[i].n_layer, cases[i].n_override, override, &c);
        (void)log_capture_end(&cap);
        const bool refused = cases[i].want[2] == 0;
        assert_int_equal(st == GR_OK, !refused);
        assert_int_equal(c.n, refused ? -1 : 3);
        if (!refused) {
            assert_memory_equal(c.layer, cases[i].want, sizeof(cases[i].want));
        }
    }
}

/* What enters the final norm is layer n_layer: normed and through lm_head it gives the logits. */
static void test_capture_last(void **state)
{
    (void)state;
    struct tiny_folder target;
    struct gr_lm *lm = NULL;
    tiny_target(&target, 3);
    tiny_write(&target);
    const struct gr_llama_config c = {.dir = target.dir,
                                      .n_thread = 1,
                                      .n_row_max = 8,
                                      .n_out_max = 8,
                                      .n_pool_block = 2,
                                      .n_scratch_block = 1,
                                      .n_capture = 2,
                                      .capture_layer = {0, 3}};
    assert_int_equal(gr_llama_create(&c, NULL, NULL, &lm), GR_OK);
    static const int32_t token = 9, zero = 0, one = 1;
    static const int16_t anc[GR_ATTN_ANC_MAX];
    const struct gr_attn_seq seq = {.n_row = 1, .block = &zero, .limit = &one, .n_anc = &zero, .anc = anc};
    assert_int_equal(gr_lm_forward(lm, &(struct gr_batch){.n_row = 1,
                                                          .n_seq = 1,
                                                          .n_out = 1,
                                                          .token = &token,
                                                          .pos = &zero,
                                                          .cell = &zero,
                                                          .seq = &seq,
                                                          .out_row = &zero}),
                     GR_OK);
    const uint16_t *embed = tiny_find(&target, "model.embed_tokens.weight")->data;
    const uint16_t *norm = tiny_find(&target, "model.norm.weight")->data;
    const uint16_t *head = tiny_find(&target, "lm_head.weight")->data;
    const float *last = lm->capture + TINY_HIDDEN;
    double sum = 0.0;
    for (int i = 0; i < TINY_HIDDEN; i++) {
        assert_true(lm->capture[i] == gr_bf16_to_f32(embed[token * TINY_HIDDEN + i]));
        sum += (double)last[i] * (double)last[i];
    }
    for (int o = 0; o < TINY_N_VOCAB; o++) {
        double want = 0.0;
        for (int i = 0; i < TINY_HIDDEN; i++) {
            want += (double)gr_bf16_to_f32(head[o * TINY_HIDDEN + i]) * (double)gr_bf16_to_f32(norm[i]) *
                    (double)last[i] / __builtin_sqrt(sum / TINY_HIDDEN + 1e-5);
        }
        assert_true(__builtin_fabs((double)lm->logits[o] - want) < 1e-4);
    }
    gr_lm_destroy(lm);
    tiny_finish(&target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_borrowed_width),
        cmocka_unit_test(test_without_t2d),  cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_layouts),      cmocka_unit_test(test_capture_choice),
        cmocka_unit_test(test_capture_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
