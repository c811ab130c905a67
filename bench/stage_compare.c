/* Two files of stages (stage_dump.h) compared, stage by stage: cosine and relative difference, and the first stage in
 * which they part. */
#include "bench/stage_dump.h"

#include "common/base/log.h"
#include "model/files/json_util.h"
#include "model/files/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)4 << 30) /* bytes of a file of stages, at most */

struct dump_file {
    char *data;
    struct gr_tensors *tensors;
};

static enum gr_status open_file(const char *path, struct dump_file *f)
{
    size_t len = 0;
    GR_TRY(gr_file_read(path, FILE_BYTES_MAX, true, &f->data, &len));
    return gr_safetensors_parse(path, f->data, len, &f->tensors);
}

static void close_file(struct dump_file *f)
{
    gr_tensors_close(f->tensors);
    free(f->data);
}

struct difference {
    double relative, cosine, row_cosine, largest;
};

static double cosine(double dot, double aa, double bb)
{
    return aa == 0.0 && bb == 0.0 ? 1.0 : aa == 0.0 || bb == 0.0 ? 0.0 : dot / sqrt(aa * bb);
}

/* a, b: (n_row, width). */
static struct difference differ(const float *a, const float *b, size_t n_row, size_t width)
{
    struct difference d = {.row_cosine = 1.0};
    double aa = 0.0, bb = 0.0, ab = 0.0, dd = 0.0;
    for (size_t r = 0; r < n_row; r++) {
        double row_aa = 0.0, row_bb = 0.0, row_ab = 0.0;
        for (size_t i = r * width; i < (r + 1) * width; i++) {
            const double x = (double)a[i], y = (double)b[i];
            row_aa += x * x;
            row_bb += y * y;
            row_ab += x * y;
            dd += (x - y) * (x - y);
            d.largest = fmax(d.largest, fabs(x - y));
        }
        d.row_cosine = fmin(d.row_cosine, cosine(row_ab, row_aa, row_bb));
        aa += row_aa;
        bb += row_bb;
        ab += row_ab;
    }
    d.relative = dd == 0.0 ? 0.0 : sqrt(dd / bb);
    d.cosine = cosine(ab, aa, bb);
    return d;
}

static enum gr_status check_same_prompt(const struct dump_file *a, const struct dump_file *b)
{
    const struct gr_tensor *x = gr_tensors_find(a->tensors, "ids");
    const struct gr_tensor *y = gr_tensors_find(b->tensors, "ids");
    if (x != NULL && y != NULL && (x->bytes != y->bytes || memcmp(x->data, y->data, x->bytes) != 0)) {
        log_error("the dumps are of different prompts: their ids differ (%" PRId64 " and %" PRId64 " of them)",
                  x->shape[0], y->shape[0]);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

/* GR_ENOTFOUND: not a stage of both. */
static enum gr_status compare_stage(const struct dump_file *a, const struct dump_file *b, const char *name,
                                    struct gr_table *t)
{
    const struct gr_tensor *x = gr_tensors_find(a->tensors, name);
    const struct gr_tensor *y = gr_tensors_find(b->tensors, name);
    if (x == NULL || y == NULL) {
        log_warn("%s: only in one of the files", name);
        return GR_ENOTFOUND;
    }
    if (x->dtype != GR_FORMAT_F32 || y->dtype != GR_FORMAT_F32 || x->n_dim != 2 || y->n_dim != 2 ||
        x->shape[0] != y->shape[0] || x->shape[1] != y->shape[1]) {
        log_error("%s: %s of %d dimensions, (%" PRId64 ", %" PRId64 "), and %s of %d, (%" PRId64 ", %" PRId64
                  "): want F32 of two, and equal shapes",
                  name, gr_format_name(x->dtype), x->n_dim, x->shape[0], x->shape[1], gr_format_name(y->dtype),
                  y->n_dim, y->shape[0], y->shape[1]);
        return GR_EMISMATCH;
    }
    const struct difference d = differ(x->data, y->data, (size_t)x->shape[0], (size_t)x->shape[1]);
    gr_table_text(t, name);
    gr_table_number(t, (double)x->shape[0], 0);
    gr_table_number(t, (double)x->shape[1], 0);
    gr_table_number(t, d.relative, 9);
    gr_table_number(t, d.cosine, 9);
    gr_table_number(t, d.row_cosine, 9);
    gr_table_number(t, d.largest, 9);
    return GR_OK;
}

static enum gr_status compare_all(const struct dump_file *a, const struct dump_file *b, enum gr_table_format format,
                                  const char *note)
{
    static const char *const stages[] = {"captured", "fc_out", "attn_input",      "attn_out",
                                         "ffn_out",  "hidden", "pre_head_hidden", "logits"};
    static const char *const columns[] = {
        "stage", "rows", "width", "relative error", "cosine", "lowest cosine of a row", "largest difference"};
    struct gr_table t;
    int n_compared = 0;
    GR_TRY(check_same_prompt(a, b));
    gr_table_begin(&t, format, stdout, "stages compared", note, columns, (int)GR_ARRAY_LEN(columns));
    enum gr_status st = GR_OK;
    for (size_t i = 0; i < GR_ARRAY_LEN(stages) && st == GR_OK; i++) {
        st = compare_stage(a, b, stages[i], &t);
        n_compared += st == GR_OK;
        st = st == GR_ENOTFOUND ? GR_OK : st;
    }
    gr_table_end(&t);
    if (st == GR_OK && n_compared == 0) {
        log_error("the files have no stage in common");
        st = GR_ENOTFOUND;
    }
    return st;
}

int gr_bench_compare(const char *file, const char *reference, enum gr_table_format format)
{
    if (file == NULL || reference == NULL) {
        log_error("want two dumps: --compare A.safetensors --with B.safetensors");
        return 2;
    }
    struct dump_file a = {0}, b = {0};
    char note[512];
    snprintf(note, sizeof(note), "%s against %s", file, reference);
    enum gr_status st = open_file(file, &a);
    if (st == GR_OK) {
        st = open_file(reference, &b);
    }
    if (st == GR_OK) {
        st = compare_all(&a, &b, format, note);
    }
    close_file(&a);
    close_file(&b);
    return st == GR_OK ? 0 : 1;
}
