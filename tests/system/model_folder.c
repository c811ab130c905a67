/* For tests: writes the weights of a model (a folder or a GGUF file) as one model.safetensors in the format asked for,
 * in the order of their names, rounded to bf16 first: model_folder MODEL FILE bf16|f32 Or prints the fingerprint that a
 * worker has with --dtype auto: model_folder MODEL */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rules/bf16.h"
#include "model/files/fingerprint.h"
#include "model/files/model_path.h"
#include "model/files/safetensors_write.h"

/* Owned by the caller. */
static void *converted(const struct gr_tensor *t, bool f32, size_t *bytes_out)
{
    const size_t n_col = (size_t)gr_tensor_n_col(t);
    const int64_t n_row = t->n_dim == 2 ? t->shape[0] : 1;
    const size_t width = f32 ? sizeof(float) : sizeof(uint16_t);
    float *row = malloc(n_col * sizeof(*row));
    char *all = malloc((size_t)n_row * n_col * width);
    GR_ASSERT(row != NULL && all != NULL);
    for (int64_t r = 0; r < n_row; r++) {
        char *out = all + (size_t)r * n_col * width;
        gr_tensor_row_f32(t, r, row);
        for (size_t i = 0; i < n_col; i++) {
            const uint16_t rounded = gr_bf16_from_f32(row[i]);
            const float value = gr_bf16_to_f32(rounded);
            memcpy(out + i * width, f32 ? (const void *)&value : (const void *)&rounded, width);
        }
    }
    free(row);
    *bytes_out = (size_t)n_row * n_col * width;
    return all;
}

static int print_fingerprint(const char *path)
{
    struct gr_tensors *ts = NULL;
    struct gr_hf_config hf;
    if (gr_model_path_config(path, &hf) != GR_OK || gr_model_path_open(path, &ts) != GR_OK) {
        return 1;
    }
    printf("%016" PRIx64 "\n", gr_model_fingerprint(&hf, ts, false, true));
    gr_tensors_close(ts);
    return 0;
}

int main(int argc, char **argv)
{
    struct gr_tensors *ts = NULL;
    if (argc == 2) {
        return print_fingerprint(argv[1]);
    }
    if (argc != 4 || gr_model_path_open(argv[1], &ts) != GR_OK) {
        return 1;
    }
    const bool f32 = strcmp(argv[3], "f32") == 0;
    const size_t n = gr_tensors_count(ts);
    struct gr_tensor *out = calloc(n, sizeof(*out));
    GR_ASSERT(out != NULL);
    for (size_t i = 0; i < n; i++) {
        out[i] = *gr_tensors_at(ts, i);
        out[i].data = converted(&out[i], f32, &out[i].bytes);
        out[i].dtype = f32 ? GR_FORMAT_F32 : GR_FORMAT_BF16;
        out[i].n_head_paired = 0;
    }
    const enum gr_status st = gr_safetensors_write(argv[2], out, n);
    for (size_t i = 0; i < n; i++) {
        free((void *)(uintptr_t)out[i].data);
    }
    free(out);
    gr_tensors_close(ts);
    return st == GR_OK ? 0 : 1;
}
