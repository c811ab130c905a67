#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "model/files/fingerprint.h"
#include "model/files/safetensors.h"
#include "tests/unit/log_capture.h"

#define INDEX "model.safetensors.index.json"

/* One file in memory: header text and n_data bytes 0, 1, 2, ... */
struct image {
    uint8_t bytes[4096] __attribute__((aligned(16)));
    size_t len;
};

static void make_image(struct image *im, const char *header, size_t n_data)
{
    size_t n = strlen(header), padded = (n + 7) / 8 * 8;
    GR_ASSERT(8 + padded + n_data <= sizeof(im->bytes));
    for (int i = 0; i < 8; i++) {
        im->bytes[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    }
    memset(im->bytes + 8, ' ', padded);
    memcpy(im->bytes + 8, header, n);
    for (size_t i = 0; i < n_data; i++) {
        im->bytes[8 + padded + i] = (uint8_t)i;
    }
    im->len = 8 + padded + n_data;
}

static void write_bytes(const char *dir, const char *name, const void *data, size_t len)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void write_image(const char *dir, const char *name, const char *header, size_t n_data)
{
    struct image im;
    make_image(&im, header, n_data);
    write_bytes(dir, name, im.bytes, im.len);
}

static void remove_file(const char *dir, const char *name)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)unlink(path);
}

/* A temporary folder with the files that these tests write. */
static int make_dir(void **state)
{
    char *dir = strdup("/tmp/graft-test-XXXXXX");
    assert_non_null(dir);
    assert_non_null(mkdtemp(dir));
    *state = dir;
    return 0;
}

static int remove_dir(void **state)
{
    char *dir = *state;
    static const char *const names[] = {"model.safetensors", INDEX, "a.safetensors", "b.safetensors"};
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        remove_file(dir, names[i]);
    }
    int rc = rmdir(dir);
    free(dir);
    return rc;
}

/* The open must fail with one line that holds both texts. */
static void expect_bad_dir(const char *dir, enum gr_status status, const char *a, const char *b)
{
    struct gr_tensors *st = NULL;
    struct log_capture cap;
    log_capture_begin(&cap);
    enum gr_status got = gr_safetensors_open(dir, &st);
    const char *log = log_capture_end(&cap);
    if (got != status || strstr(log, a) == NULL || strstr(log, b) == NULL || log_capture_n_line(log) != 1 ||
        st != NULL) {
        fail_msg("expected status %d, `%s', `%s'; got %d, log: %s", (int)status, a, b, (int)got, log);
    }
}

/* ---- one file ---- */

struct bad_header {
    const char *header;
    size_t n_data;
    enum gr_status status;
    const char *names[2];
};

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct bad_header bad_headers[] = {
    {"{" T("w", "F32", "[4]", "[0,16]") "}", 12, GR_EFORMAT, {"truncated", "76"}},
    {"{" T("w", "F32", "[4]", "[0,16]") "}", 17, GR_EFORMAT, {"after the last tensor", "80"}},
    {"{" T("w", "F32", "[4]", "[0,12]") "}", 12, GR_EFORMAT, {"tensor w", "needs 16 bytes"}},
    {"{" T("w", "F32", "[4]", "[16,0]") "}", 16, GR_EFORMAT, {"tensor w", "data_offsets"}},
    {"{" T("w", "F32", "[4]", "[-16,0]") "}", 16, GR_EFORMAT, {"tensor w", "data_offsets"}},
    {"{" T("w", "F32", "[4]", "[0]") "}", 16, GR_EFORMAT, {"tensor w", "data_offsets"}},
    {"{" T("w", "F32", "[4]", "[0,16.5]") "}", 16, GR_EFORMAT, {"tensor w", "data_offsets"}},
    {"{" T("w", "F32", "[4]", "[0,99999999999999999999]") "}", 16, GR_EFORMAT, {"", "big"}},
    {"{" T("w", "F31", "[4]", "[0,16]") "}", 16, GR_EUNSUPPORTED, {"tensor w", "F31"}},
    {"{" T("w", "F32", "[-4]", "[0,16]") "}", 16, GR_EFORMAT, {"tensor w", "shape[0]"}},
    {"{" T("w", "F32", "4", "[0,16]") "}", 16, GR_EFORMAT, {"tensor w", "shape"}},
    {"{" T("w", "F32", "[1,1,1,1,1,1,1,1,4]", "[0,16]") "}", 16, GR_EFORMAT, {"tensor w", "8"}},
    {"{" T("w", "F32", "[4294967296,4294967296]", "[0,16]") "}", 16, GR_EFORMAT, {"tensor w", "2^64"}},
    {"{" T("w", "F32", "[4611686018427387904]", "[0,0]") "}", 0, GR_EFORMAT, {"tensor w", "2^64"}},
    {"{" T("w", "F32", "[4]", "[0,16]") "," T("w", "F32", "[4]", "[16,32]") "}", 32, GR_EFORMAT, {"duplicate", "w"}},
    {"{" T("v", "F32", "[4]", "[0,16]") "," T("w", "F32", "[4]", "[12,28]") "}",
     28,
     GR_EFORMAT,
     {"tensor w", "overlap"}},
    {"{" T("v", "F32", "[4]", "[0,16]") "," T("w", "F32", "[4]", "[20,36]") "}", 36, GR_EFORMAT, {"tensor w", "hole"}},
    {"{" T("w", "F32", "[4]", "[4,20]") "}", 20, GR_EFORMAT, {"tensor w", "hole"}},
    {"{" T("v", "U8", "[3]", "[0,3]") "," T("w", "F32", "[1]", "[3,7]") "}", 7, GR_EFORMAT, {"tensor w", "aligned"}},
    {"{\"w\":[1]}", 0, GR_EFORMAT, {"tensor w", "object"}},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[0]}}", 0, GR_EFORMAT, {"tensor w", "data_offsets"}},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}", 0, GR_EUNSUPPORTED, {"tensor w", "x"}},
    {"{\"w\\n\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, GR_EFORMAT, {"control", "0x0a"}},
    {"{\"__metadata__\":{\"format\":1}," T("w", "F32", "[0]", "[0,0]") "}", 0, GR_EFORMAT, {"__metadata__", "format"}},
    {"{}", 0, GR_EFORMAT, {"no tensor", ""}},
    {"[]", 0, GR_EFORMAT, {"object", ""}},
    {"{\"w\"", 0, GR_EFORMAT, {"", ""}},
};

static void test_bad_headers(void **state)
{
    const char *dir = *state;
    for (size_t i = 0; i < GR_ARRAY_LEN(bad_headers); i++) {
        const struct bad_header *b = &bad_headers[i];
        write_image(dir, "model.safetensors", b->header, b->n_data);
        expect_bad_dir(dir, b->status, b->names[0], b->names[1]);
        expect_bad_dir(dir, b->status, "model.safetensors", dir);
    }
}

static void test_bad_lengths(void **state)
{
    const char *dir = *state;
    struct image im;
    make_image(&im, "{" T("w", "F32", "[4]", "[0,16]") "}", 16);
    write_bytes(dir, "model.safetensors", im.bytes, 0);
    expect_bad_dir(dir, GR_EFORMAT, "0 bytes", "model.safetensors");
    write_bytes(dir, "model.safetensors", im.bytes, 7);
    expect_bad_dir(dir, GR_EFORMAT, "7 bytes", "model.safetensors");
    write_bytes(dir, "model.safetensors", im.bytes, 20);
    expect_bad_dir(dir, GR_EFORMAT, "has only 20", "truncated");
    im.bytes[7] = 0xff;
    write_bytes(dir, "model.safetensors", im.bytes, im.len);
    expect_bad_dir(dir, GR_ELIMIT, "header of", "100000000");
    memset(im.bytes, 0xff, 8); /* 2^64 - 1: must not wrap */
    write_bytes(dir, "model.safetensors", im.bytes, im.len);
    expect_bad_dir(dir, GR_ELIMIT, "18446744073709551615", "100000000");
    remove_file(dir, "model.safetensors");
    expect_bad_dir(dir, GR_ENOTFOUND, dir, INDEX);
}

static void test_good_file(void **state)
{
    (void)state;
    struct image im;
    /* In the header's order b, a; an empty tensor and a scalar among them. */
    make_image(
        &im,
        "{\"__metadata__\":{\"format\":\"pt\"}," T("b", "BF16", "[2,3]", "[8,20]") "," T(
            "a", "I64", "[1]", "[0,8]") "," T("c", "U8", "[]", "[20,21]") "," T("d", "F32", "[5,0]", "[20,20]") "}",
        21);
    struct gr_tensors *st;
    assert_int_equal(gr_safetensors_parse("mem", im.bytes, im.len, &st), GR_OK);
    assert_int_equal(gr_tensors_count(st), 4);
    const struct gr_tensor *t = gr_tensors_at(st, 1);
    assert_string_equal(t->name, "b");
    assert_int_equal(t->dtype, GR_FORMAT_BF16);
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 12);
    assert_int_equal(*(const uint8_t *)t->data, 8);
    assert_string_equal(gr_tensors_file(st, 1), "mem");
    assert_null(gr_tensors_find(st, "e"));
    assert_int_equal(gr_tensors_find(st, "c")->n_dim, 0);
    assert_int_equal(gr_tensors_find(st, "d")->bytes, 0);
    gr_tensors_close(st);
    gr_tensors_close(NULL);
}

static void test_take(void **state)
{
    (void)state;
    struct image im;
    make_image(&im, "{" T("w", "BF16", "[2,3]", "[0,12]") "," T("x", "F32", "[1]", "[12,16]") "}", 16);
    struct gr_tensors *st;
    assert_int_equal(gr_safetensors_parse("m.safetensors", im.bytes, im.len, &st), GR_OK);
    static const struct {
        const char *name;
        enum gr_format dtype;
        int n_dim;
        int64_t shape[2];
        enum gr_status status;
        const char *text;
    } cases[] = {
        {"nope", GR_FORMAT_BF16, 1, {3, 0}, GR_ENOTFOUND, "tensor nope is missing (BF16 [3]"},
        {"w", GR_FORMAT_F16, 2, {2, 3}, GR_EMISMATCH, "expected F16 [2,3] by config.json, found BF16 [2,3]"},
        {"w", GR_FORMAT_BF16, 2, {3, 2}, GR_EMISMATCH, "expected BF16 [3,2] by config.json, found BF16 [2,3]"},
        {"w", GR_FORMAT_BF16, 1, {6, 0}, GR_EMISMATCH, "expected BF16 [6]"},
    };
    const void *data = NULL;
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        struct log_capture cap;
        log_capture_begin(&cap);
        enum gr_status got = gr_tensors_take(st, cases[i].name, cases[i].dtype, cases[i].n_dim, cases[i].shape, &data);
        const char *log = log_capture_end(&cap);
        assert_int_equal(got, cases[i].status);
        assert_non_null(strstr(log, cases[i].text));
        assert_non_null(strstr(log, "m.safetensors"));
        assert_null(data);
    }
    assert_int_equal(gr_tensors_take(st, "w", GR_FORMAT_BF16, 2, (int64_t[]){2, 3}, &data), GR_OK);
    assert_ptr_equal(data, im.bytes + im.len - 16);
    gr_tensors_close(st);
}

/* Floats of one dimension are looked at when they are taken: the first that is no number is named. */
static void test_vectors_are_finite(void **state)
{
    (void)state;
    static const struct {
        const char *dtype, *shape;
        enum gr_format id;
        int n_dim, bytes;
        uint32_t good, bad[3];
    } rows[] = {
        {"BF16", "[8]", GR_FORMAT_BF16, 1, 2, 0x7f7f, {0x7f80, 0xff80, 0x7fc1}}, /* inf, -inf, NaN */
        {"F16", "[8]", GR_FORMAT_F16, 1, 2, 0xfbff, {0x7c00, 0xfc00, 0x7e01}},
        {"F32", "[8]", GR_FORMAT_F32, 1, 4, 0xff7fffff, {0x7f800000, 0xff800000, 0xffc00001}},
        {"BF16", "[8,1]", GR_FORMAT_BF16, 2, 2, 0x7f7f, {0x7f80, 0xff80, 0x7fc1}}, /* a matrix is not */
        {"I32", "[8]", GR_FORMAT_I32, 1, 4, 1, {0x7f800000, 0xff800000, 0xffc00001}},
    };
    for (size_t k = 0; k < GR_ARRAY_LEN(rows); k++) {
        for (int at = -1; at < 8; at++) {
            struct image im;
            struct gr_tensors *st;
            struct log_capture cap;
            char header[160], want[64];
            const void *data = NULL;
            snprintf(header, sizeof(header), "{\"n.weight\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[0,%d]}}",
                     rows[k].dtype, rows[k].shape, 8 * rows[k].bytes);
            make_image(&im, header, (size_t)(8 * rows[k].bytes));
            for (int i = 0; i < 8; i++) {
                const uint32_t x = i == at || (at == 2 && i == 5) ? rows[k].bad[i % 3] : rows[k].good;
                memcpy(im.bytes + im.len - (size_t)((8 - i) * rows[k].bytes), &x, (size_t)rows[k].bytes);
            }
            assert_int_equal(gr_safetensors_parse("file", im.bytes, im.len, &st), GR_OK);
            const bool refused = at >= 0 && k < 3;
            log_capture_begin(&cap);
            assert_int_equal(gr_tensors_take(st, "n.weight", rows[k].id, rows[k].n_dim, (int64_t[]){8, 1}, &data),
                             refused ? GR_EFORMAT : GR_OK);
            const char *log = log_capture_end(&cap);
            snprintf(want, sizeof(want), "file: tensor n.weight: value %d of 8 ", at);
            assert_int_equal(log_capture_n_line(log), refused);
            assert_true(!refused || strstr(log, want) != NULL);
            assert_int_equal(data == NULL, refused);
            gr_tensors_close(st);
        }
    }
}

static void test_all_used(void **state)
{
    (void)state;
    struct image im;
    make_image(&im,
               "{" T("e", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "," T("b", "U8", "[1]", "[2,3]") "," T(
                   "c", "U8", "[1]", "[3,4]") "," T("d", "U8", "[1]", "[4,5]") "," T("l.0.rotary_emb.inv_freq", "U8",
                                                                                     "[1]", "[5,6]") "}",
               6);
    struct gr_tensors *st;
    struct log_capture cap;
    assert_int_equal(gr_safetensors_parse("m.safetensors", im.bytes, im.len, &st), GR_OK);
    log_capture_begin(&cap);
    enum gr_status got = gr_tensors_check_all_used(st);
    const char *log = log_capture_end(&cap);
    assert_int_equal(got, GR_EMISMATCH);
    assert_non_null(strstr(log, "5 tensors"));
    assert_non_null(strstr(log, "a, b, c, d, ..."));
    for (const char *name = "abcde"; *name != '\0'; name++) {
        assert_non_null(gr_tensors_find(st, (char[]){*name, '\0'}));
    }
    assert_int_equal(gr_tensors_check_all_used(st), GR_OK); /* the buffer is tolerated */
    gr_tensors_close(st);
}

/* ---- shards ---- */

static void write_shards(const char *dir, const char *index)
{
    write_image(dir, "a.safetensors", "{" T("w", "U8", "[4]", "[0,4]") "}", 4);
    write_image(dir, "b.safetensors", "{" T("x", "U8", "[4]", "[0,4]") "}", 4);
    write_bytes(dir, INDEX, index, strlen(index));
}

#define MAP(text) "{\"metadata\":{},\"weight_map\":" text "}"

static void test_bad_index(void **state)
{
    const char *dir = *state;
    static const struct {
        const char *index;
        enum gr_status status;
        const char *names[2];
    } cases[] = {
        {"[]", GR_EFORMAT, {INDEX, "object"}},
        {"{}", GR_EFORMAT, {INDEX, "weight_map"}},
        {MAP("{}"), GR_EFORMAT, {INDEX, "empty"}},
        {MAP("{\"w\":\"a.safetensors\",\"x\":\"b.safetensors\",\"y\":\"b.safetensors\"}"),
         GR_EFORMAT,
         {"tensor y", "b.safetensors"}},
        {MAP("{\"w\":\"a.safetensors\",\"x\":\"c.safetensors\"}"), GR_ENOTFOUND, {"c.safetensors", "No such file"}},
        {MAP("{\"w\":\"b.safetensors\",\"x\":\"a.safetensors\"}"), GR_EFORMAT, {"should be in", "is in"}},
        {MAP("{\"w\":\"a.safetensors\",\"v\":\"b.safetensors\"}"), GR_EFORMAT, {"tensor v", "b.safetensors"}},
        {MAP("{\"w\":\"../a.safetensors\"}"), GR_EFORMAT, {"plain name", "../a.safetensors"}},
        {MAP("{\"w\":\"/etc/passwd\"}"), GR_EFORMAT, {"plain name", "/etc/passwd"}},
        {MAP("{\"w\":7}"), GR_EFORMAT, {"plain name", "not a string"}},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        write_shards(dir, cases[i].index);
        expect_bad_dir(dir, cases[i].status, cases[i].names[0], cases[i].names[1]);
    }
    static const char good[] = MAP("{\"w\":\"a.safetensors\",\"x\":\"b.safetensors\"}");
    write_shards(dir, good);
    write_image(dir, "b.safetensors", "{" T("x", "U8", "[4]", "[0,4]") "," T("y", "U8", "[1]", "[4,5]") "}", 5);
    expect_bad_dir(dir, GR_EFORMAT, "tensor y", "not in weight_map");
    write_image(dir, "b.safetensors", "{" T("x", "U8", "[4]", "[0,4]") "," T("w", "U8", "[1]", "[4,5]") "}", 5);
    expect_bad_dir(dir, GR_EFORMAT, "tensor w", "again in");
    write_image(dir, "b.safetensors", "{" T("x", "U8", "[4]", "[0,4]") "}", 3);
    expect_bad_dir(dir, GR_EFORMAT, "b.safetensors", "truncated");

    write_shards(dir, good);
    struct gr_tensors *st;
    assert_int_equal(gr_safetensors_open(dir, &st), GR_OK);
    assert_int_equal(gr_tensors_count(st), 2);
    assert_non_null(strstr(gr_tensors_file(st, 1), "b.safetensors"));
    gr_tensors_close(st);
}

/* A hub's snapshot: every file a link to a blob whose name is a sum, and the shards are found beside the index's link.
 */
static void test_links(void **state)
{
    static const char *const names[] = {"a.safetensors", "b.safetensors", INDEX};
    const char *dir = *state;
    char from[256], blob[256], blobs[256];
    write_shards(dir, MAP("{\"w\":\"a.safetensors\",\"x\":\"b.safetensors\"}"));
    snprintf(blobs, sizeof(blobs), "%s/blobs", dir);
    assert_int_equal(mkdir(blobs, 0700), 0);
    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof(from), "%s/%s", dir, names[i]);
        snprintf(blob, sizeof(blob), "blobs/%d4f1d2", i);
        char to[600];
        snprintf(to, sizeof(to), "%s/%s", dir, blob);
        assert_int_equal(rename(from, to), 0);
        assert_int_equal(symlink(blob, from), 0);
    }
    struct gr_tensors *st;
    assert_int_equal(gr_safetensors_open(dir, &st), GR_OK);
    assert_int_equal(gr_tensors_count(st), 2);
    gr_tensors_close(st);
    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof(from), "%s/%s", dir, names[i]);
        snprintf(blob, sizeof(blob), "%s/blobs/%d4f1d2", dir, i);
        (void)unlink(from);
        (void)unlink(blob);
    }
    (void)rmdir(blobs);
}

static void demo_dir(const char *name, char dir[512])
{
    snprintf(dir, 512, "%s/models/demo/%s", GR_SOURCE_ROOT, name);
}

static void test_demo_models(void **state)
{
    (void)state;
    char dir[512];
    struct gr_tensors *st;
    const void *data;
    demo_dir("target", dir);
    assert_int_equal(gr_safetensors_open(dir, &st), GR_OK);
    assert_int_equal(gr_tensors_count(st), 74);
    assert_int_equal(gr_tensors_take(st, "model.embed_tokens.weight", GR_FORMAT_BF16, 2, (int64_t[]){4096, 384}, &data),
                     GR_OK);
    gr_tensors_close(st);
    demo_dir("eagle3", dir);
    assert_int_equal(gr_safetensors_open(dir, &st), GR_OK);
    assert_int_equal(gr_tensors_take(st, "d2t", GR_FORMAT_I64, 1, (int64_t[]){3072}, &data), GR_OK);
    assert_int_equal(gr_tensors_take(st, "t2d", GR_FORMAT_BOOL, 1, (int64_t[]){4096}, &data), GR_OK);
    gr_tensors_close(st);
}

/* ---- fingerprint ---- */

static uint64_t fingerprint_of(const struct image *im, int hidden)
{
    struct gr_tensors *st;
    struct gr_hf_config c = {.architecture = "LlamaForCausalLM", .hidden = hidden, .n_layer = 1};
    assert_int_equal(gr_safetensors_parse("m", im->bytes, im->len, &st), GR_OK);
    uint64_t value = gr_model_fingerprint(&c, st, false, true);
    gr_tensors_close(st);
    return value;
}

static void test_fingerprint(void **state)
{
    const char *dir = *state;
    struct image a, b;
    make_image(&a, "{" T("w", "U8", "[4]", "[0,4]") "," T("x", "U8", "[4]", "[4,8]") "}", 8);
    uint64_t base = fingerprint_of(&a, 4);
    assert_true(base == fingerprint_of(&a, 4));
    assert_true(base != fingerprint_of(&a, 8));
    b = a;
    b.bytes[b.len - 1] ^= 1;
    assert_true(base != fingerprint_of(&b, 4));
    make_image(&b, "{" T("w", "U8", "[2,2]", "[0,4]") "," T("x", "U8", "[4]", "[4,8]") "}", 8);
    assert_true(base != fingerprint_of(&b, 4));
    make_image(&b, "{" T("w", "U8", "[4]", "[0,4]") "," T("y", "U8", "[4]", "[4,8]") "}", 8);
    assert_true(base == fingerprint_of(&b, 4)); /* of values, not of names */

    /* The same tensors in another order and in shards. */
    make_image(&b, "{" T("x", "U8", "[4]", "[0,4]") "," T("w", "U8", "[4]", "[4,8]") "}", 8);
    memcpy(b.bytes + b.len - 8, (uint8_t[]){4, 5, 6, 7, 0, 1, 2, 3}, 8);
    assert_true(base == fingerprint_of(&b, 4));
    write_shards(dir, MAP("{\"w\":\"a.safetensors\",\"x\":\"b.safetensors\"}"));
    make_image(&b, "{" T("x", "U8", "[4]", "[0,4]") "}", 4);
    memcpy(b.bytes + b.len - 4, (uint8_t[]){4, 5, 6, 7}, 4);
    write_bytes(dir, "b.safetensors", b.bytes, b.len);
    struct gr_tensors *st;
    struct gr_hf_config c = {.architecture = "LlamaForCausalLM", .hidden = 4, .n_layer = 1};
    assert_int_equal(gr_safetensors_open(dir, &st), GR_OK);
    assert_true(base == gr_model_fingerprint(&c, st, false, true));
    gr_tensors_close(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bad_headers, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_bad_lengths, make_dir, remove_dir),
        cmocka_unit_test(test_good_file),
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_all_used),
        cmocka_unit_test(test_vectors_are_finite),
        cmocka_unit_test_setup_teardown(test_bad_index, make_dir, remove_dir),
        cmocka_unit_test(test_demo_models),
        cmocka_unit_test_setup_teardown(test_links, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_fingerprint, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
