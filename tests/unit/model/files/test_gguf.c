/* The GGUF reader: what files tell, and hostile ones: each is refused in one line that names what is wrong, and nothing
 * large is taken for a count that the file cannot hold. Real files, made by others, are the system test's. */
#include "model/files/gguf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

#include "model/files/gguf_model.h"
#include "tests/unit/gguf_image.h"
#include "tests/unit/log_capture.h"

static struct gguf_image image;

/* The bytes in a block of their own, so that a sanitizer sees their end. */
static enum gr_status parse(size_t len, char *log, size_t cap)
{
    uint8_t *copy = malloc(len + 1);
    struct gr_gguf *g = NULL;
    struct log_capture capture;
    assert_non_null(copy);
    memcpy(copy, image.bytes, len);
    log_capture_begin(&capture);
    const enum gr_status st = gr_gguf_parse("m.gguf", copy, len, &g);
    snprintf(log, cap, "%s", log_capture_end(&capture));
    gr_gguf_free(g);
    free(copy);
    return st;
}

static void expect(enum gr_status want, const char *text)
{
    char log[8192];
    const enum gr_status st = parse(image.len, log, sizeof(log));
    if (st != want || strstr(log, text) == NULL || strstr(log, "m.gguf") == NULL || log_capture_n_line(log) != 1) {
        fail_msg("wanted %s and `%s', got %s and: %s", gr_status_text(want), text, gr_status_text(st), log);
    }
}

#define DIM(...)         \
    (const uint64_t[16]) \
    {                    \
        __VA_ARGS__      \
    }

static void one_tensor(uint32_t n_dim, const uint64_t *dim, uint32_t type, uint64_t offset, size_t data_bytes)
{
    gguf_begin(&image, 3, 1, 0);
    gguf_tensor(&image, "w", n_dim, dim, type, offset);
    gguf_pad(&image, 32);
    for (size_t i = 0; i < data_bytes; i++) {
        gguf_number(&image, 7, 1);
    }
}

static void test_reads(void **state)
{
    (void)state;
    struct gr_gguf *g = NULL;
    int64_t i = 0;
    double x = 0.0;
    const char *text = NULL;
    size_t len = 0;
    for (uint32_t version = 2; version <= 3; version++) {
        gguf_begin(&image, version, 2, 6);
        gguf_field_int(&image, "a.u16", 2, 60000, 2);
        gguf_field_int(&image, "a.i8", 1, 0xfe, 1);
        gguf_field_int(&image, "a.i64", 11, (uint64_t)-5, 8);
        gguf_field_f32(&image, "a.f32", 0.5f);
        gguf_field_text(&image, "a.text", "caf\xc3\xa9");
        gguf_text(&image, "a.same"); /* a value for each layer */
        gguf_number(&image, 9, 4);
        gguf_number(&image, 4, 4);
        gguf_number(&image, 3, 8);
        gguf_number(&image, 12, 4);
        gguf_number(&image, 12, 4);
        gguf_number(&image, 12, 4);
        gguf_tensor(&image, "x", 1, DIM(3), 0, 32);
        gguf_tensor(&image, "w", 2, DIM(32, 2), 8, 64);
        gguf_pad(&image, 32);
        const size_t data_at = image.len;
        gguf_bytes(&image, (const uint8_t[64 + 68]){1}, 64 + 68);
        assert_int_equal(gr_gguf_parse("m", image.bytes, image.len, &g), GR_OK);
        assert_int_equal(gr_gguf_int(g, "a.u16", true, &i), GR_OK);
        assert_int_equal(i, 60000);
        assert_int_equal(gr_gguf_int(g, "a.i8", true, &i), GR_OK);
        assert_int_equal(i, -2);
        assert_int_equal(gr_gguf_int(g, "a.i64", true, &i), GR_OK);
        assert_int_equal(i, -5);
        assert_int_equal(gr_gguf_int(g, "a.same", true, &i), GR_OK);
        assert_int_equal(i, 12);
        assert_int_equal(gr_gguf_float(g, "a.f32", true, &x), GR_OK);
        assert_true(x == 0.5);
        assert_int_equal(gr_gguf_string(g, "a.text", true, &text, &len), GR_OK);
        assert_int_equal(len, 5);
        assert_memory_equal(text, "caf\xc3\xa9", 5);
        assert_int_equal(gr_gguf_int(g, "a.none", false, &i), GR_OK);
        assert_int_equal(i, 12);
        assert_int_equal(gr_gguf_n_tensor(g), 2);
        const struct gr_gguf_tensor *w = gr_gguf_tensor(g, 1);
        assert_string_equal(w->name, "w");
        assert_int_equal(w->dtype, GR_FORMAT_Q8_0);
        assert_int_equal(w->shape[0], 2);
        assert_int_equal(w->shape[1], 32);
        assert_int_equal(w->begin, data_at + 64);
        assert_int_equal(w->bytes, 68);
        gr_gguf_free(g);
    }
}

static void test_heads(void **state)
{
    (void)state;
    image.len = 0;
    gguf_bytes(&image, "GGML\3\0\0\0", 8);
    expect(GR_EFORMAT, "no GGUF file");
    gguf_begin(&image, 1, 0, 0);
    expect(GR_EUNSUPPORTED, "version 1");
    gguf_begin(&image, 0x03000000u, 0, 0);
    expect(GR_EUNSUPPORTED, "big-endian");
    gguf_begin(&image, 0, 0, 0);
    expect(GR_EUNSUPPORTED, "version 0 is not read");
    gguf_begin(&image, 4, 0, 0);
    expect(GR_EUNSUPPORTED, "version 4");
    gguf_begin(&image, 3, UINT64_C(1) << 60, 0);
    expect(GR_ELIMIT, "tensors: more than is read");
    gguf_begin(&image, 3, 1000, 0);
    expect(GR_EFORMAT, "room for");
    gguf_begin(&image, 3, 0, UINT64_C(1) << 63);
    expect(GR_ELIMIT, "metadata fields: more than is read");
}

static void test_fields(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, element;
        uint64_t n;
        enum gr_status status;
        const char *text;
    } cases[] = {
        {8, 0, UINT64_C(1) << 48, GR_EFORMAT, "said to have"},
        {9, 4, UINT64_C(1) << 63, GR_EFORMAT, "said to have"},
        {9, 8, UINT64_C(1) << 40, GR_EFORMAT, "said to have"},
        {9, 9, 1, GR_EUNSUPPORTED, "array of arrays"},
        {13, 0, 0, GR_EFORMAT, "type 13"},
        {9, UINT32_MAX, 1, GR_EFORMAT, "type 4294967295"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        gguf_begin(&image, 3, 0, 1);
        gguf_text(&image, "some.key");
        gguf_number(&image, cases[i].type, 4);
        if (cases[i].type == 9) {
            gguf_number(&image, cases[i].element, 4);
        }
        gguf_number(&image, cases[i].n, 8);
        gguf_pad(&image, 64);
        expect(cases[i].status, cases[i].text);
    }
    gguf_begin(&image, 3, 0, 2);
    gguf_field_u32(&image, "k", 1);
    gguf_field_u32(&image, "k", 2);
    expect(GR_EFORMAT, "field k is there twice");
    for (uint32_t alignment = 0; alignment < 64; alignment += 12) { /* 0, 12, 24, ...: none is a power of two */
        gguf_begin(&image, 3, 0, 1);
        gguf_field_u32(&image, "general.alignment", alignment);
        expect(GR_EFORMAT, "general.alignment");
    }
    gguf_begin(&image, 3, 0, 1);
    gguf_field_u32(&image, "general.alignment", 1u << 31);
    expect(GR_EFORMAT, "general.alignment");
}

static void test_tensors(void **state)
{
    (void)state;
    const uint64_t most = INT64_MAX;
    one_tensor(2, DIM(most, 2), 0, 0, 64);
    expect(GR_EFORMAT, "tensor w: F32 [2,9223372036854775807]");
    one_tensor(3, DIM(4, (1u << 30) - 1, (1u << 30) + 1), 0, 0, 64);
    expect(GR_EFORMAT, "tensor w");
    one_tensor(2, DIM(UINT64_MAX, 1), 0, 0, 64);
    expect(GR_EFORMAT, "a dimension of 18446744073709551615");
    one_tensor(9, DIM(1), 0, 0, 64);
    expect(GR_EFORMAT, "9 dimensions");
    one_tensor(UINT32_MAX, DIM(1), 0, 0, 64);
    expect(GR_EFORMAT, "4294967295 dimensions");
    one_tensor(0, DIM(1), 0, 0, 64);
    expect(GR_EFORMAT, "0 dimensions");
    one_tensor(1, DIM(256), 23, 0, 256);
    expect(GR_EUNSUPPORTED, "tensor w is IQ4_XS");
    one_tensor(1, DIM(256), 4711, 0, 256);
    expect(GR_EUNSUPPORTED, "type 4711");
    one_tensor(2, DIM(48, 2), 2, 0, 256);
    expect(GR_EFORMAT, "no whole blocks of 32");
    one_tensor(1, DIM(8), 0, 16, 64);
    expect(GR_EFORMAT, "alignment 32");
    one_tensor(1, DIM(8), 0, UINT64_MAX - 31, 64);
    expect(GR_EFORMAT, "2^64");
    one_tensor(1, DIM(16), 0, 32, 64);
    expect(GR_EFORMAT, "tensor w ends at byte 160, the file has 128: 32 are missing");
    gguf_begin(&image, 3, 2, 0);
    gguf_tensor(&image, "a", 1, DIM(16), 0, 0);
    gguf_tensor(&image, "b", 1, DIM(16), 0, 32);
    gguf_pad(&image, 32);
    gguf_bytes(&image, (const uint8_t[128]){0}, 128);
    expect(GR_EFORMAT, "tensors a and b overlap");
}

/* ---- a model ---- */

static void model(const char *architecture, uint32_t n_kv_head, const char *rename)
{
    gguf_begin(&image, 3, 3, 10);
    gguf_field_text(&image, "general.architecture", architecture);
    gguf_field_u32(&image, "llama.embedding_length", 32);
    gguf_field_u32(&image, "llama.block_count", 1);
    gguf_field_u32(&image, "llama.feed_forward_length", 48);
    gguf_field_u32(&image, "llama.context_length", 128);
    gguf_field_u32(&image, "llama.attention.head_count", 2);
    gguf_field_int(&image, "llama.attention.head_count_kv", 10, n_kv_head, 8);
    gguf_field_f32(&image, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_field_f32(&image, "llama.rope.freq_base", 5000.0f);
    gguf_field_u32(&image, "tokenizer.ggml.eos_token_id", 3);
    gguf_tensor(&image, "token_embd.weight", 2, DIM(32, 64), 30, 0);
    gguf_tensor(&image, rename, 2, DIM(32, 32), 30, 4096);
    gguf_tensor(&image, "output.weight", 2, DIM(32, 64), 30, 4096 + 2048);
    gguf_pad(&image, 32);
    for (int i = 0; i < 4096 + 2048 + 4096; i++) {
        gguf_number(&image, (unsigned)i / 64 % 128, 1); /* a row of 32 bf16 is 64 bytes: rows differ */
    }
}

static void test_model(void **state)
{
    (void)state;
    struct gr_hf_config hf;
    struct gr_tensors *ts = NULL;
    model("llama", 1, "blk.0.attn_q.weight");
    assert_int_equal(gr_gguf_model_parse("m.gguf", image.bytes, image.len, &hf, &ts), GR_OK);
    assert_string_equal(hf.architecture, "LlamaForCausalLM");
    assert_int_equal(hf.hidden, 32);
    assert_int_equal(hf.n_kv_head, 1);
    assert_int_equal(hf.head_dim, 16);
    assert_int_equal(hf.n_vocab, 64);
    assert_int_equal(hf.max_pos, 128);
    assert_true(hf.rope_theta == 5000.0 && hf.rms_eps == 1e-5f);
    assert_int_equal(hf.n_eos, 1);
    assert_int_equal(hf.eos_id[0], 3);
    assert_false(hf.tie_embeddings);
    /* Row 8 + j of a head of 16 is the partner of row j: it lies beside it in the file. */
    const struct gr_tensor *q = gr_tensors_find(ts, "model.layers.0.self_attn.q_proj.weight");
    assert_non_null(q);
    assert_int_equal(q->n_head_paired, 2);
    for (int row = 0; row < 32; row++) {
        const int head = row / 16, j = row % 16;
        assert_ptr_equal(gr_tensor_row(q, row), (const uint8_t *)q->data + 64 * (head * 16 + j % 8 * 2 + j / 8));
    }
    assert_non_null(gr_tensors_find(ts, "lm_head.weight"));
    gr_tensors_close(ts);
}

/* Llama 3.1 and later: the file has divisors where a folder has a rule. 8: what 3.1 8B has, 32: 3.2. */
static void test_rope_freqs(void **state)
{
    (void)state;
    static const double factors[] = {8.0, 32.0, 1.0};
    for (size_t k = 0; k < GR_ARRAY_LEN(factors); k++) {
        for (int broken = 0; broken < 2; broken++) {
            struct gr_hf_config hf;
            struct log_capture cap;
            gguf_begin(&image, 3, 2, 8);
            gguf_field_text(&image, "general.architecture", "llama");
            gguf_field_u32(&image, "llama.embedding_length", 128);
            gguf_field_u32(&image, "llama.block_count", 1);
            gguf_field_u32(&image, "llama.feed_forward_length", 48);
            gguf_field_u32(&image, "llama.context_length", 131072);
            gguf_field_u32(&image, "llama.attention.head_count", 1);
            gguf_field_f32(&image, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
            gguf_field_f32(&image, "llama.rope.freq_base", 500000.0f);
            gguf_tensor(&image, "rope_freqs.weight", 1, DIM(64), 0, 0);
            gguf_tensor(&image, "token_embd.weight", 2, DIM(128, 2), 30, 256);
            gguf_pad(&image, 32);
            for (int i = 0; i < 64; i++) { /* as llama.cpp's converter writes them */
                const double wavelength = 2.0 * M_PI * pow(500000.0, i / 64.0);
                const double smooth = (8192.0 / wavelength - 1.0) / 3.0;
                double x = wavelength < 8192.0 / 4.0 ? 1.0
                           : wavelength > 8192.0     ? factors[k]
                                                     : 1.0 / ((1.0 - smooth) / factors[k] + smooth);
                x *= broken && i == 20 ? 1.01 : 1.0;
                const float value = (float)x;
                gguf_bytes(&image, &value, sizeof(value));
            }
            gguf_bytes(&image, (const uint8_t[512]){0}, 512);
            log_capture_begin(&cap);
            const enum gr_status st = gr_gguf_model_parse("m.gguf", image.bytes, image.len, &hf, NULL);
            const char *log = log_capture_end(&cap);
            if (broken) {
                assert_int_equal(st, GR_EUNSUPPORTED);
                assert_non_null(strstr(log, "rope_freqs.weight"));
                continue;
            }
            assert_int_equal(st, GR_OK);
            assert_int_equal(hf.rope_kind, factors[k] > 1.0 ? GR_ROPE_LLAMA3 : GR_ROPE_PLAIN);
            assert_true(factors[k] == 1.0 || (hf.rope.factor == factors[k] && hf.rope.low_freq_factor == 1.0 &&
                                              hf.rope.high_freq_factor == 4.0 && hf.rope.original_max_pos == 8192));
        }
    }
}

static void test_model_refusals(void **state)
{
    (void)state;
    struct gr_hf_config hf;
    struct gr_tensors *ts = NULL;
    struct log_capture cap;
    model("mamba", 1, "blk.0.attn_q.weight");
    log_capture_begin(&cap);
    assert_int_equal(gr_gguf_model_parse("m.gguf", image.bytes, image.len, &hf, &ts), GR_EUNSUPPORTED);
    assert_non_null(strstr(log_capture_end(&cap), "general.architecture mamba is not read; known: llama"));
    model("llama", 3, "blk.0.attn_q.weight");
    log_capture_begin(&cap);
    assert_int_not_equal(gr_gguf_model_parse("m.gguf", image.bytes, image.len, &hf, &ts), GR_OK);
    assert_non_null(strstr(log_capture_end(&cap), "llama.attention.head_count_kv = 3 is outside 1..2"));
    model("llama", 1, "blk.0.attn_qq.weight"); /* a name that nobody knows stays, for who checks that all are used */
    assert_int_equal(gr_gguf_model_parse("m.gguf", image.bytes, image.len, &hf, &ts), GR_OK);
    log_capture_begin(&cap);
    assert_int_equal(gr_tensors_check_all_used(ts), GR_EMISMATCH);
    assert_non_null(strstr(log_capture_end(&cap), "blk.0.attn_qq.weight"));
    gr_tensors_close(ts);
}

/* A model of two layers. n 0: the field is this number; else an array of n of it. */
static void model_with(const char *field, uint32_t n, uint32_t value)
{
    static const struct {
        const char *key;
        uint32_t value;
    } fields[] = {
        {"llama.block_count", 2},           {"llama.embedding_length", 32},       {"llama.feed_forward_length", 48},
        {"llama.context_length", 128},      {"llama.attention.head_count", 2},    {"llama.attention.head_count_kv", 2},
        {"llama.attention.key_length", 16}, {"llama.attention.value_length", 16}, {"llama.vocab_size", 64},
        {"llama.rope.freq_base", 10000},    {"tokenizer.ggml.eot_token_id", 3},
    };
    gguf_begin(&image, 3, 1, GR_ARRAY_LEN(fields) + 2);
    gguf_field_text(&image, "general.architecture", "llama");
    gguf_field_f32(&image, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (size_t i = 0; i < GR_ARRAY_LEN(fields); i++) {
        const bool it = strcmp(fields[i].key, field) == 0;
        if (it && n > 0) {
            gguf_field_array(&image, field, 4, n);
            for (uint32_t k = 0; k < n; k++) {
                gguf_number(&image, value, 4);
            }
        } else {
            gguf_field_u32(&image, fields[i].key, it ? value : fields[i].value);
        }
    }
    gguf_tensor(&image, "token_embd.weight", 2, DIM(32, 64), 30, 0);
    gguf_pad(&image, 32);
    for (int i = 0; i < 4096; i++) {
        gguf_number(&image, 0, 1);
    }
}

/* Every mistake is told by the field's own name: a file has no keys of a config.json. */
static void test_fields_of_a_model(void **state)
{
    (void)state;
    static const struct {
        const char *field;
        uint32_t n, value;
        const char *in_log; /* NULL: the model loads */
    } rows[] = {
        {"", 0, 0, NULL},
        {"llama.attention.head_count_kv", 2, 1, NULL},
        {"llama.attention.head_count_kv", 3, 1,
         "llama.attention.head_count_kv is an array of 3, llama.block_count = 2: must be a number or have one"},
        {"llama.attention.head_count", 1, 2, "llama.attention.head_count is an array of 1"},
        {"llama.feed_forward_length", 1, 48, "llama.feed_forward_length is an array of 1"},
        {"llama.attention.key_length", 3, 16, "llama.attention.key_length is an array of 3"},
        {"llama.rope.freq_base", 4, 10000, "llama.rope.freq_base is an array of 4"},
        {"llama.block_count", 2, 2, "llama.block_count is an array of 2, must be a number"},
        {"llama.block_count", 0, 257, "llama.block_count = 257 is outside 1..256"},
        {"llama.embedding_length", 0, 0, "llama.embedding_length = 0 is outside 1.."},
        {"llama.attention.key_length", 0, 0, "llama.attention.key_length = 0 is outside 2..1024"},
        {"llama.attention.value_length", 0, 8, "heads of 16: llama.attention.value_length = 8: must be equal"},
        {"llama.context_length", 0, 0, "llama.context_length = 0 is outside 1.."},
        {"llama.rope.freq_base", 0, 0, "llama.rope.freq_base = 0 is outside 1.."},
        {"llama.vocab_size", 0, 65, "llama.vocab_size = 65, tensor token_embd.weight has 64 rows"},
        {"llama.vocab_size", 0, 63, "llama.vocab_size = 63, tensor token_embd.weight has 64 rows"},
        {"tokenizer.ggml.eot_token_id", 0, 64, "tokenizer.ggml.eot_token_id = 64 is outside the vocabulary of 64"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        struct gr_hf_config hf;
        struct log_capture cap;
        model_with(rows[i].field, rows[i].n, rows[i].value);
        log_capture_begin(&cap);
        const enum gr_status st = gr_gguf_model_parse("m.gguf", image.bytes, image.len, &hf, NULL);
        const char *log = log_capture_end(&cap);
        const bool told =
            rows[i].in_log == NULL || (strstr(log, rows[i].in_log) != NULL && log_capture_n_line(log) == 1);
        if ((st == GR_OK) != (rows[i].in_log == NULL) || !told) {
            fail_msg("%s: status %d, log: %s", rows[i].field, (int)st, log);
        }
    }
}

/* A file cut at any byte is refused in one line. */
static void test_cut(void **state)
{
    (void)state;
    char log[8192];
    model("llama", 1, "blk.0.attn_q.weight");
    for (size_t len = 0; len < image.len; len += len < 900 ? 1 : 97) {
        const enum gr_status st = parse(len, log, sizeof(log));
        assert_true(st == GR_EFORMAT);
        assert_int_equal(log_capture_n_line(log), 1);
    }
    assert_int_equal(parse(image.len - 1, log, sizeof(log)), GR_EFORMAT);
    assert_int_equal(parse(image.len, log, sizeof(log)), GR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),   cmocka_unit_test(test_heads),      cmocka_unit_test(test_fields),
        cmocka_unit_test(test_tensors), cmocka_unit_test(test_model),      cmocka_unit_test(test_model_refusals),
        cmocka_unit_test(test_cut),     cmocka_unit_test(test_rope_freqs), cmocka_unit_test(test_fields_of_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
