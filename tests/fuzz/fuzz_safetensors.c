/* One safetensors file from memory; what is accepted must lie inside it. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/fingerprint.h"
#include "model/files/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct gr_tensors *st, const uint8_t *data, size_t size)
{
    size_t total = 0;
    for (size_t i = 0; i < gr_tensors_count(st); i++) {
        const struct gr_tensor *t = gr_tensors_at(st, i);
        const uint8_t *begin = t->data;
        GR_ASSERT(begin >= data && t->bytes <= size && begin <= data + size - t->bytes);
        GR_ASSERT((uintptr_t)begin % gr_format_bytes(t->dtype) == 0);
        GR_ASSERT(gr_tensors_find(st, t->name) == t);
        total += t->bytes;
    }
    GR_ASSERT(total <= size);
    GR_ASSERT(gr_tensors_check_all_used(st) == GR_OK);
    struct gr_hf_config config = {0};
    (void)gr_model_fingerprint(&config, st, true, true); /* reads the tensors */
}

/* The length field is made to fit in every second input, so that the header is reached. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    bool fix = (data[0] & 1) != 0;
    size_t len = size - 1 + (fix ? 8 : 0);
    uint8_t *copy = malloc(len + 1); /* of its own, so that the sanitizer sees its end */
    GR_ASSERT(copy != NULL);
    if (fix) {
        const uint8_t *end = memrchr(data + 1, '}', size - 1);
        uint64_t header = end != NULL ? (uint64_t)(end - data) : size - 1;
        for (int i = 0; i < 8; i++) {
            copy[i] = (uint8_t)(header >> (8 * i));
        }
        memcpy(copy + 8, data + 1, size - 1);
    } else {
        memcpy(copy, data + 1, size - 1);
    }
    struct gr_tensors *st;
    if (gr_safetensors_parse("fuzz", copy, len, &st) == GR_OK) {
        check(st, copy, len);
        gr_tensors_close(st);
    }
    free(copy);
    return 0;
}
