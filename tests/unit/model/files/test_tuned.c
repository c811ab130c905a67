/* Files of measured shapes: what is read, what is refused and where the line points; what graft-bench tune writes is
 * read again; the shapes that a model is listed with. */
#include "bench/tune_file.h"
#include "common/base/log.h"
#include "model/load/shapes.h"
#include "model/files/tuned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/log_capture.h"

#define HEAD "{\"format\": 1, \"gpu\": \"NVIDIA H200\""

static char folder[] = "/tmp/graft-tuned-XXXXXX";
static char path[64];

static void put(const char *text)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void reads_what_is_there(void **state)
{
    struct gr_tuned t;
    (void)state;
    put(HEAD ", \"linear\": [{\"n_out\": 6144, \"n_in\": 4096, \"width\": 96, \"parts\": 2, \"us_1_row\": 1.5},"
             " {\"n_out\": 4096, \"n_in\": 64, \"width\": 248, \"parts\": 1, \"us_64_rows\": 2}],"
             " \"attention\": [{\"n_head\": 32, \"n_kv_head\": 8, \"head_dim\": 128, \"n_split_max\": 4,"
             " \"contexts\": [2048], \"us_1_row\": [1], \"us_64_rows\": [2.5]}]}");
    assert_int_equal(gr_tuned_load(path, &t), GR_OK);
    assert_string_equal(t.gpu, "NVIDIA H200");
    assert_int_equal(t.n_linear, 2);
    const struct gr_tuned_linear *l = gr_tuned_find_linear(&t, 6144, 4096);
    assert_non_null(l);
    assert_int_equal(l->cut.width, 96);
    assert_int_equal(l->cut.parts, 2);
    assert_null(gr_tuned_find_linear(&t, 4096, 6144));
    assert_int_equal(gr_tuned_find_attention(&t, 32, 8, 128)->n_split_max, 4);
    assert_null(gr_tuned_find_attention(&t, 32, 8, 64));
    put(HEAD "}");
    assert_int_equal(gr_tuned_load(path, &t), GR_OK);
    assert_int_equal(t.n_linear + t.n_attention, 0);
}

static void refused(const char *text, const char *word)
{
    struct gr_tuned t;
    struct log_capture c;
    put(text);
    log_capture_begin(&c);
    const enum gr_status st = gr_tuned_load(path, &t);
    log_capture_end(&c);
    if (st == GR_OK || strstr(c.text, word) == NULL || strstr(c.text, path) == NULL ||
        log_capture_n_line(c.text) != 1) {
        fail_msg("%s: status %d, \"%s\" is wanted in one line of the file: %s", text, (int)st, word, c.text);
    }
}

static void refuses_what_is_wrong(void **state)
{
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"", ":1:"},
        {"[]", "object"},
        {"{}", "format"},
        {"{\"format\": 2, \"gpu\": \"x\"}", "format"},
        {"{\"format\": 1}", "gpu"},
        {"{\"format\": 1, \"gpu\": 7}", "gpu"},
        {HEAD ", \"lines\": []}", "lines"},
        {HEAD ", \"linear\": {}}", "linear"},
        {HEAD ", \"linear\": [7]}", "linear[0]"},
        {HEAD ", \"linear\": [], \"attention\": [[]]}", "attention[0]"},
        {HEAD ", \"linear\": [{\"n_out\": 64, \"n_in\": 64, \"width\": 16}]}", "linear[0].parts"},
        {HEAD ", \"linear\": [{\"n_out\": 64, \"n_in\": 64, \"width\": \"16\", \"parts\": 1}]}", "linear[0].width"},
        {HEAD ", \"linear\": [{\"n_out\": 64, \"n_in\": 64, \"width\": 16, \"parts\": 1, \"rows\": 1}]}", "rows"},
        {HEAD ", \"linear\": [{\"n_out\": 64, \"n_in\": 64, \"width\": 17, \"parts\": 1}]}", "16, 32, 64"},
        {HEAD ", \"linear\": [{\"n_out\": 64, \"n_in\": 64, \"width\": 16, \"parts\": 2}]}", "linear[0].parts 2"},
        {HEAD ", \"linear\": [{\"n_out\": 64, \"n_in\": 4096, \"width\": 16, \"parts\": 3}]}", "linear[0].parts 3"},
        {HEAD ", \"linear\": [{\"n_out\": 64, \"n_in\": 4096, \"width\": 248, \"parts\": 2}]}", "multiple of 16"},
        {HEAD ", \"linear\": [{\"n_out\": 64, \"n_in\": 64, \"width\": 16, \"parts\": 1},"
              " {\"n_out\": 64, \"n_in\": 64, \"width\": 32, \"parts\": 1}]}",
         "linear[1].n_out: 64 x 64 is there twice"},
        {HEAD ", \"attention\": [{\"n_head\": 32, \"n_kv_head\": 8, \"head_dim\": 128, \"n_split_max\": 9}]}",
         "attention[0].n_split_max = 9"},
        {HEAD ", \"attention\": [{\"n_head\": 32, \"n_kv_head\": 8, \"head_dim\": 128, \"n_split_max\": 0}]}",
         "attention[0].n_split_max = 0"},
        {HEAD ", \"attention\": [{\"n_head\": 32, \"n_kv_head\": 8, \"head_dim\": 128, \"n_split_max\": 4,"
              " \"us_1_row\": [\"1\"]}]}",
         "attention[0].us_1_row"},
    };
    struct gr_tuned t;
    (void)state;
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        refused(cases[i].text, cases[i].word);
    }
    put(HEAD "}");
    assert_int_equal(truncate(path, (off_t)GR_TUNED_BYTES_MAX + 1), 0);
    assert_int_equal(gr_tuned_load(path, &t), GR_ELIMIT);
    assert_int_equal(gr_tuned_load("/does/not/exist.json", &t), GR_ENOTFOUND);
}

static void opens_what_the_options_say(void **state)
{
    struct gr_tuned t;
    struct log_capture c;
    (void)state;
    put(HEAD "}");
    assert_int_equal(gr_tuned_open(NULL, false, false, &t), GR_OK);
    assert_null(t.file);
    assert_int_equal(gr_tuned_open(path, true, true, &t), GR_OK);
    assert_true(t.required);
    assert_string_equal(t.file, path);
    log_capture_begin(&c);
    assert_int_equal(gr_tuned_open(NULL, true, true, &t), GR_EINVAL);
    assert_int_equal(gr_tuned_open(path, false, false, &t), GR_EINVAL);
    log_capture_end(&c);
    assert_int_equal(log_capture_n_line(c.text), 2);
    assert_non_null(strstr(c.text, "--tuned FILE"));
    assert_non_null(strstr(c.text, "GPU"));
}

static json_t *linear_entry(int n_out, int width)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:f, s:f}", "n_out", n_out, "n_in", 128, "width", width, "parts", 1,
                     "us_1_row", 1.25, "us_64_rows", 2.0 / 3.0);
}

/* Twice, as two commands do: the entry of a shape is replaced, others and the other section stay. */
static void writes_what_is_read(void **state)
{
    struct gr_tuned t;
    json_t *root = NULL;
    (void)state;
    (void)unlink(path);
    assert_int_equal(gr_tune_file_open(path, "NVIDIA H200", &root), GR_OK);
    gr_tune_file_put(root, "linear", linear_entry(64, 16), 2);
    gr_tune_file_put(root, "linear", linear_entry(128, 16), 2);
    assert_int_equal(gr_tune_file_write(path, root), GR_OK);
    json_decref(root);
    assert_int_equal(gr_tune_file_open(path, "NVIDIA H200", &root), GR_OK);
    gr_tune_file_put(root, "linear", linear_entry(64, 32), 2);
    gr_tune_file_put(root, "attention",
                     json_pack("{s:i, s:i, s:i, s:i}", "n_head", 6, "n_kv_head", 2, "head_dim", 64, "n_split_max", 2),
                     3);
    assert_int_equal(gr_tune_file_write(path, root), GR_OK);
    json_decref(root);
    assert_int_equal(gr_tuned_load(path, &t), GR_OK);
    assert_int_equal(t.n_linear, 2);
    assert_int_equal(t.n_attention, 1);
    assert_int_equal(gr_tuned_find_linear(&t, 64, 128)->cut.width, 32);
    assert_int_equal(gr_tuned_find_linear(&t, 128, 128)->cut.width, 16);
    struct log_capture c;
    log_capture_begin(&c);
    assert_int_equal(gr_tune_file_open(path, "NVIDIA H100 80GB HBM3", &root), GR_EMISMATCH);
    log_capture_end(&c);
    assert_int_equal(log_capture_n_line(c.text), 1);
    assert_non_null(strstr(c.text, "name another file"));
}

static void lists_each_matrix_once(void **state)
{
    const struct gr_hf_config hf = {
        .hidden = 4096, .n_layer = 32, .n_head = 32, .n_kv_head = 8, .head_dim = 128, .ffn = 14336, .n_vocab = 128256};
    struct gr_model_shapes s, head;
    (void)state;
    gr_llama_shapes(&hf, 4096, 3, &s);
    assert_int_equal(s.n_linear, 6);
    assert_non_null(gr_shapes_find(&s, 6144, 4096));
    assert_non_null(gr_shapes_find(&s, 4096, 4096));
    assert_non_null(gr_shapes_find(&s, 28672, 4096));
    assert_non_null(gr_shapes_find(&s, 4096, 14336));
    assert_non_null(gr_shapes_find(&s, 128256, 4096));
    assert_non_null(gr_shapes_find(&s, 4096, 12288));
    gr_eagle3_shapes(&hf, &head);
    assert_non_null(gr_shapes_find(&head, 6144, 8192));
    assert_null(gr_shapes_find(&head, 6144, 4096));
    struct gr_model_shapes other = s;
    other.linear[0].cut.width = 96;
    assert_true(gr_shapes_hash(&s) != gr_shapes_hash(&other));
    other = s;
    other.n_split_max = 4;
    assert_true(gr_shapes_hash(&s) != gr_shapes_hash(&other));
}

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/tuned.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_is_there),        cmocka_unit_test(refuses_what_is_wrong),
        cmocka_unit_test(opens_what_the_options_say), cmocka_unit_test(writes_what_is_read),
        cmocka_unit_test(lists_each_matrix_once),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
