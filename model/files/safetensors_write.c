#include "model/files/safetensors_write.h"

#include "common/base/log.h"
#include "common/base/out_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *describe(const struct gr_tensor *t, size_t begin)
{
    json_t *shape = json_array();
    for (int i = 0; i < t->n_dim; i++) {
        json_array_append_new(shape, json_integer(t->shape[i]));
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", gr_format_name(t->dtype), "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)(begin + t->bytes));
}

/* Calls visit for every tensor in the order of the file. */
static bool each(const struct gr_tensor *tensors, size_t n, bool (*visit)(void *ctx, const struct gr_tensor *t),
                 void *ctx)
{
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t i = 0; i < n; i++) {
            if (gr_format_bytes(tensors[i].dtype) == width && !visit(ctx, &tensors[i])) {
                return false;
            }
        }
    }
    return true;
}

struct header {
    json_t *root;
    size_t at;
};

static bool add_to_header(void *ctx, const struct gr_tensor *t)
{
    struct header *h = ctx;
    const bool done = json_object_set_new(h->root, t->name, describe(t, h->at)) == 0;
    h->at += t->bytes;
    return done;
}

static bool write_data(void *ctx, const struct gr_tensor *t)
{
    return fwrite(t->data, 1, t->bytes, ctx) == t->bytes;
}

/* The header's length (u64, little-endian) and the header, padded with blanks to 8 bytes. */
static bool write_header(FILE *f, const char *text)
{
    const size_t len = strlen(text);
    const size_t padded = (len + 7) / 8 * 8;
    uint8_t size[8];
    for (int i = 0; i < 8; i++) {
        size[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    }
    return fwrite(size, 1, 8, f) == 8 && fprintf(f, "%s%*s", text, (int)(padded - len), "") == (int)padded;
}

enum gr_status gr_safetensors_write(const char *path, const struct gr_tensor *tensors, size_t n)
{
    struct header h = {.root = json_object()};
    const bool described = h.root != NULL && each(tensors, n, add_to_header, &h);
    char *text = described ? json_dumps(h.root, JSON_COMPACT) : NULL;
    json_decref(h.root);
    if (text == NULL) {
        log_error("%s: no memory for the header of %zu tensors", path, n);
        return GR_ENOMEM;
    }
    struct gr_out_file o;
    enum gr_status st = gr_out_file_open("cannot write", path, 0666, false, &o);
    if (st == GR_OK) {
        const bool whole = write_header(o.f, text) && each(tensors, n, write_data, o.f);
        st = gr_out_file_close(&o, whole, NULL);
    }
    free(text);
    return st;
}
