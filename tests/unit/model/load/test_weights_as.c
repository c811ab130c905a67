/* Weights by their format in the file and by --dtype: a model whose values are bf16's gives the same bits and the same
 * fingerprint from a BF16, F32, F16 or mixed folder, held as bf16 or as f32, from shards and links, and from a GGUF
 * file whose q and k rows lie paired; wider values are kept or rounded as was asked. */
#include "common/options/options.h"

#include <assert.h>
#include "model/load/loader.h"
#include "model/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sys/stat.h>

#include "model/files/format.h"
#include "tests/unit/gguf_image.h"
#include "tests/unit/golden.h"
#include "tests/unit/log_capture.h"
#include "tests/unit/tiny_model.h"
#include "tests/unit/tiny_retype.h"

#define N_LAYER 2
#define N_ROW 9

struct result {
    enum gr_status status;
    uint64_t fingerprint;
    float logits[N_ROW * TINY_N_VOCAB];
};

static_assert((int)GR_CHOICE_DTYPE_F32 == (int)GR_WEIGHTS_F32 && (int)GR_CHOICE_DTYPE_BF16 == (int)GR_WEIGHTS_BF16,
              "choices of --dtype are the enum of what weights are held as");

/* "auto", "bf16" or "f32"; NULL is auto. */
static enum gr_weights_as as_of(const char *text)
{
    return text != NULL && strcmp(text, "bf16") == 0  ? GR_WEIGHTS_BF16
           : text != NULL && strcmp(text, "f32") == 0 ? GR_WEIGHTS_F32
                                                      : GR_WEIGHTS_AUTO;
}

static void run(const char *path, const char *as, const char *isa, struct result *out)
{
    static const int32_t token[N_ROW] = {5, 11, 2, 63, 0, 17, 17, 40, 9};
    struct gr_lm *lm = NULL;
    const struct gr_llama_config c = {.dir = path,
                                      .as = as_of(as),
                                      .isa = isa,
                                      .n_thread = 2,
                                      .n_ctx_max = 64,
                                      .n_row_max = GOLDEN_ROW_MAX,
                                      .n_out_max = 16,
                                      .n_pool_block = GOLDEN_N_POOL,
                                      .n_scratch_block = 4};
    memset(out, 0, sizeof(*out));
    out->status = gr_llama_create(&c, NULL, &out->fingerprint, &lm);
    if (out->status != GR_OK) {
        return;
    }
    golden_run(lm, token, 0, N_ROW, N_ROW, NULL);
    for (int i = 0; i < N_ROW; i++) {
        memcpy(out->logits + (size_t)i * TINY_N_VOCAB, gr_lm_logits(lm, i), TINY_N_VOCAB * sizeof(float));
    }
    gr_lm_destroy(lm);
}

static void must_equal(const struct result *a, const struct result *b, const char *what)
{
    if (a->status != GR_OK || b->status != GR_OK || memcmp(a->logits, b->logits, sizeof(a->logits)) != 0) {
        fail_msg("%s: other logits (or %s)", what, gr_status_text(a->status));
    }
    if (a->fingerprint != b->fingerprint) {
        fail_msg("%s: another fingerprint", what);
    }
}

/* ---- other formats of the same values ---- */

static void test_formats(void **state)
{
    (void)state;
    static const char *const kernels[] = {NULL, "c", "ref"};
    for (size_t isa = 0; isa < GR_ARRAY_LEN(kernels); isa++) {
        struct tiny_folder f;
        struct result base, other;
        tiny_target(&f, N_LAYER);
        tiny_simplify(&f);
        tiny_write(&f);
        run(f.dir, NULL, kernels[isa], &base);
        assert_int_equal(base.status, GR_OK);
        run(f.dir, "f32", kernels[isa], &other);
        must_equal(&base, &other, "BF16 held as f32");
        for (size_t i = 0; i < f.n; i++) {
            tiny_retype(&f.tensor[i], i % 3 == 0 ? GR_FORMAT_F32 : i % 3 == 1 ? GR_FORMAT_F16 : GR_FORMAT_BF16);
        }
        tiny_add_raw(&f, "model.layers.0.self_attn.rotary_emb.inv_freq", GR_FORMAT_F32, 8, 0);
        tiny_write(&f);
        static const char *const as[] = {"auto", "bf16", "f32"};
        for (size_t k = 0; k < GR_ARRAY_LEN(as); k++) {
            run(f.dir, as[k], kernels[isa], &other);
            must_equal(&base, &other, as[k]);
        }
        tiny_finish(&f);
    }
}

/* Values that bf16 has not: auto and f32 keep them, bf16 rounds them and is another model. */
static void test_wide_values(void **state)
{
    (void)state;
    struct tiny_folder f;
    struct result narrow, kept, rounded, f32;
    tiny_target(&f, N_LAYER);
    tiny_write(&f);
    run(f.dir, NULL, NULL, &narrow);
    struct gr_tensor *t = tiny_find(&f, "model.layers.1.mlp.up_proj.weight");
    tiny_retype(t, GR_FORMAT_F32);
    for (size_t i = 0; i < t->bytes / 4; i++) {
        ((float *)(uintptr_t)t->data)[i] *= 1.0001f; /* rounds to what it was */
    }
    tiny_write(&f);
    run(f.dir, NULL, NULL, &kept);
    run(f.dir, "bf16", NULL, &rounded);
    run(f.dir, "f32", NULL, &f32);
    must_equal(&rounded, &narrow, "rounded");
    must_equal(&kept, &f32, "kept");
    assert_true(kept.fingerprint != narrow.fingerprint);
    assert_true(memcmp(kept.logits, narrow.logits, sizeof(kept.logits)) != 0);
    tiny_finish(&f);
}

/* ---- GGUF ---- */

static const char *gguf_name(const char *hf, char *out, size_t cap)
{
    static const char *const names[][2] = {
        {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"},
        {"self_attn.q_proj", "attn_q"},   {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},   {"self_attn.o_proj", "attn_output"},
        {"mlp.gate_proj", "ffn_gate"},    {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
    };
    int layer = 0;
    snprintf(out, cap, "%s",
             strcmp(hf, "lm_head.weight") == 0      ? "output.weight"
             : strcmp(hf, "model.norm.weight") == 0 ? "output_norm.weight"
                                                    : "token_embd.weight");
    for (size_t i = 0; sscanf(hf, "model.layers.%d.", &layer) == 1 && i < GR_ARRAY_LEN(names); i++) {
        if (strstr(hf, names[i][0]) != NULL) {
            snprintf(out, cap, "blk.%d.%s.weight", layer, names[i][1]);
        }
    }
    return out;
}

/* Row `row` of the file: q and k have the two halves of a head row by row in turns. */
static int64_t hf_row(const struct gr_tensor *t, int64_t row)
{
    if (strstr(t->name, "q_proj") == NULL && strstr(t->name, "k_proj") == NULL) {
        return row;
    }
    return row / 16 * 16 + row % 2 * 8 + row % 16 / 2;
}

static void gguf_data(struct gguf_image *g, const struct gr_tensor *t)
{
    const int64_t n_row = t->n_dim == 2 ? t->shape[0] : 1;
    const size_t row_bytes = t->bytes / (size_t)n_row;
    for (int64_t r = 0; r < n_row; r++) {
        gguf_bytes(g, (const char *)t->data + (size_t)hf_row(t, r) * row_bytes, row_bytes);
    }
    gguf_pad(g, 32);
}

/* Part `no` of a folder's tensors as a file; n_file 1: the whole model, else a split that says `total` tensors. */
static void write_split(const struct tiny_folder *f, const char *path, int no, int n_file, size_t total)
{
    static struct gguf_image g;
    const size_t begin = f->n * (size_t)no / (size_t)n_file, end = f->n * (size_t)(no + 1) / (size_t)n_file;
    uint64_t offset = 0;
    gguf_begin(&g, 3, end - begin, no == 0 ? 12 : 3);
    gguf_field_int(&g, "split.count", 2, (uint64_t)n_file, 2);
    gguf_field_int(&g, "split.no", 2, (uint64_t)no, 2);
    gguf_field_int(&g, "split.tensors.count", 5, total, 4);
    if (no == 0) {
        gguf_field_text(&g, "general.architecture", "llama");
        gguf_field_u32(&g, "llama.embedding_length", 32);
        gguf_field_u32(&g, "llama.block_count", N_LAYER);
        gguf_field_u32(&g, "llama.feed_forward_length", 48);
        gguf_field_u32(&g, "llama.context_length", 128);
        gguf_field_u32(&g, "llama.attention.head_count", 2);
        gguf_field_u32(&g, "llama.attention.head_count_kv", 1);
        gguf_field_f32(&g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
        gguf_field_f32(&g, "llama.rope.freq_base", 5000.0f);
    }
    for (size_t i = begin; i < end; i++) {
        const struct gr_tensor *t = &f->tensor[i];
        char name[64];
        const uint64_t dim[16] = {(uint64_t)gr_tensor_n_col(t), (uint64_t)t->shape[0]};
        gguf_tensor(&g, gguf_name(t->name, name, sizeof(name)), (uint32_t)t->n_dim, dim,
                    t->dtype == GR_FORMAT_F32 ? 0 : 30, offset);
        offset += (t->bytes + 31) / 32 * 32;
    }
    gguf_pad(&g, 32);
    for (size_t i = begin; i < end; i++) {
        gguf_data(&g, &f->tensor[i]);
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(g.bytes, 1, g.len, file), g.len);
    assert_int_equal(fclose(file), 0);
}

static void write_gguf(const struct tiny_folder *f, const char *path, int no, int n_file)
{
    write_split(f, path, no, n_file, f->n);
}

static void test_gguf(void **state)
{
    (void)state;
    struct tiny_folder f;
    struct result base, other;
    char path[3][160];
    tiny_target(&f, N_LAYER);
    tiny_write(&f);
    run(f.dir, NULL, NULL, &base);
    for (size_t i = 0; i < f.n; i += 2) {
        tiny_retype(&f.tensor[i], GR_FORMAT_F32);
    }
    snprintf(path[0], sizeof(path[0]), "%s/m.gguf", f.dir);
    write_gguf(&f, path[0], 0, 1);
    static const char *const as[] = {NULL, "bf16", "f32"};
    for (size_t k = 0; k < GR_ARRAY_LEN(as); k++) {
        run(path[0], as[k], k == 2 ? "ref" : NULL, &other);
        assert_int_equal(other.fingerprint, base.fingerprint);
        assert_true(k == 2 || memcmp(other.logits, base.logits, sizeof(base.logits)) == 0);
    }
    (void)unlink(path[0]);
    tiny_finish(&f);
}

/* ---- a file in three ---- */

/* Links into a folder of blobs, as a hub's cache has them. */
struct split {
    struct tiny_folder f;
    char dir[96], blob[3][160], link[3][160];
};

static void split_make(struct split *s)
{
    tiny_target(&s->f, N_LAYER);
    tiny_write(&s->f);
    snprintf(s->dir, sizeof(s->dir), "%s/blobs", s->f.dir);
    assert_int_equal(mkdir(s->dir, 0700), 0);
    for (int i = 0; i < 3; i++) {
        snprintf(s->blob[i], sizeof(s->blob[i]), "%s/%d", s->dir, i);
        snprintf(s->link[i], sizeof(s->link[i]), "%s/m-%05d-of-00003.gguf", s->f.dir, i + 1);
        write_gguf(&s->f, s->blob[i], i, 3);
        assert_int_equal(symlink(s->blob[i], s->link[i]), 0);
    }
}

static void split_finish(struct split *s)
{
    for (int i = 0; i < 3; i++) {
        (void)unlink(s->link[i]);
        (void)unlink(s->blob[i]);
    }
    (void)rmdir(s->dir);
    tiny_finish(&s->f);
}

/* Any of the names is taken. */
static void test_split(void **state)
{
    (void)state;
    struct split s;
    struct result base, other;
    split_make(&s);
    run(s.f.dir, NULL, NULL, &base);
    for (int i = 0; i < 3; i++) {
        run(s.link[i], NULL, NULL, &other);
        must_equal(&base, &other, s.link[i]);
    }
    split_finish(&s);
}

static void refused(const char *path, const char *const *texts)
{
    struct log_capture cap;
    struct result r;
    log_capture_begin(&cap);
    run(path, NULL, NULL, &r);
    const char *log = log_capture_end(&cap);
    bool all = r.status != GR_OK && log_capture_n_line(log) == 1;
    for (; *texts != NULL; texts++) {
        all = all && strstr(log, *texts) != NULL;
    }
    if (!all) {
        fail_msg("%s: %s", path, log);
    }
}

static void test_split_refusals(void **state)
{
    (void)state;
    struct split s;
    split_make(&s);
    write_gguf(&s.f, s.blob[1], 2, 3); /* the third in the second's place */
    refused(s.link[0], (const char *const[]){s.link[1], "split.no = 2 (from 0)", "file 2 of 3", NULL});
    write_gguf(&s.f, s.blob[1], 1, 4);
    refused(s.link[0], (const char *const[]){s.link[1], "split.count = 4", "one of 3 files", NULL});
    write_split(&s.f, s.blob[1], 1, 3, s.f.n + 1);
    refused(s.link[0], (const char *const[]){s.link[1], "of another model", s.link[0], NULL});
    for (int i = 0; i < 3; i++) {
        write_split(&s.f, s.blob[i], i, 3, s.f.n + 1);
    }
    refused(s.link[0], (const char *const[]){s.link[0], "split.tensors.count = ", "its 3 files have", NULL});

    /* Another model's second file that says as many tensors: one of them is in the first, too. */
    struct tiny_folder more;
    for (int i = 0; i < 3; i++) {
        write_gguf(&s.f, s.blob[i], i, 3);
    }
    tiny_target(&more, N_LAYER);
    const struct gr_tensor first = more.tensor[0];
    more.tensor[0] = more.tensor[more.n / 3];
    more.tensor[more.n / 3] = first;
    write_gguf(&more, s.blob[1], 1, 3);
    refused(s.link[0], (const char *const[]){s.link[0], "and again in", s.link[1], NULL});
    tiny_finish(&more);

    write_gguf(&s.f, s.blob[1], 1, 3);
    (void)unlink(s.link[1]);
    refused(s.link[0], (const char *const[]){s.link[1], "No such file", NULL});
    char whole[160];
    snprintf(whole, sizeof(whole), "%s/m.gguf", s.f.dir);
    assert_int_equal(rename(s.link[0], whole), 0);
    refused(whole, (const char *const[]){whole, "split.count = 3", "NAME-00001-of-0000N.gguf", NULL});
    (void)unlink(whole);
    split_finish(&s);
}

/* ---- what is refused, and what is not ---- */

static void test_refusals(void **state)
{
    (void)state;
    struct tiny_folder f;
    char path[160];
    refused("HuggingFaceTB/SmolLM2-135M",
            (const char *const[]){"HuggingFaceTB/SmolLM2-135M: not a folder; graft loads local folders and .gguf files",
                                  NULL});
    tiny_target(&f, N_LAYER);
    refused(f.dir, (const char *const[]){f.dir, "an empty folder", NULL});
    tiny_write(&f);
    snprintf(path, sizeof(path), "%s/config.json", f.dir);
    refused(path, (const char *const[]){path, "does not begin with GGUF", NULL});
    snprintf(path, sizeof(path), "%s/model.safetensors", f.dir);
    char pickle[160];
    snprintf(pickle, sizeof(pickle), "%s/pytorch_model.bin", f.dir);
    assert_int_equal(rename(path, pickle), 0);
    refused(f.dir, (const char *const[]){pickle, "pickle", "tools/bin_to_safetensors.py", NULL});
    assert_int_equal(rename(pickle, path), 0);
    tiny_find(&f, "model.norm.weight")->dtype = GR_FORMAT_I16;
    tiny_write(&f);
    refused(f.dir, (const char *const[]){path, "model.norm.weight", "I16", "not read", NULL});
    tiny_find(&f, "model.norm.weight")->dtype = GR_FORMAT_BF16;
    struct gr_tensor *t = tiny_find(&f, "model.layers.1.mlp.up_proj.weight");
    t->shape[0] = TINY_HIDDEN;
    t->shape[1] = TINY_FFN;
    tiny_write(&f);
    refused(f.dir, (const char *const[]){path, "model.layers.1.mlp.up_proj.weight", "expected [48,32]",
                                         "found BF16 [32,48]", NULL});
    t->shape[0] = TINY_FFN;
    t->shape[1] = TINY_HIDDEN;
    tiny_add(&f, "model.layers.0.mlp.up_projection.weight", TINY_FFN, TINY_HIDDEN);
    tiny_write(&f);
    refused(f.dir, (const char *const[]){path, "model.layers.0.mlp.up_projection.weight", NULL});
    tiny_remove(&f, "model.layers.0.mlp.up_projection.weight");
    tiny_remove(&f, "model.layers.0.mlp.up_proj.weight");
    tiny_write(&f);
    refused(f.dir, (const char *const[]){path, "model.layers.0.mlp.up_proj.weight is missing", NULL});
    tiny_finish(&f);
}

/* tie_word_embeddings and lm_head.weight, each there or not: the config decides. */
static void test_tied(void **state)
{
    (void)state;
    struct tiny_folder f;
    struct result untied, stored, tied;
    tiny_target(&f, N_LAYER);
    tiny_write(&f);
    run(f.dir, NULL, NULL, &untied);
    json_object_set_new(f.config, "tie_word_embeddings", json_true());
    tiny_write(&f);
    run(f.dir, NULL, NULL, &stored);
    tiny_remove(&f, "lm_head.weight");
    tiny_write(&f);
    run(f.dir, NULL, NULL, &tied);
    must_equal(&stored, &tied, "lm_head beside a tied embedding");
    assert_true(memcmp(untied.logits, tied.logits, sizeof(tied.logits)) != 0);
    json_object_set_new(f.config, "tie_word_embeddings", json_false());
    tiny_write(&f);
    refused(f.dir, (const char *const[]){"lm_head.weight is missing", NULL});
    tiny_finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats), cmocka_unit_test(test_wide_values),    cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_split),   cmocka_unit_test(test_split_refusals), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_tied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
