/* The metadata of one GGUF file from memory: what is taken as a tokenizer encodes and decodes the file's own bytes. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/gguf.h"
#include "model/tokenizer/tokenizer_parts.h"
#include "tests/fuzz/tokenizer_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + 1); /* of its own, so that the sanitizer sees its end */
    struct gr_tokenizer *tok = NULL;
    struct gr_gguf *g = NULL;
    GR_ASSERT(copy != NULL);
    memcpy(copy, data, size);
    if (gr_gguf_parse("fuzz", copy, size, &g) == GR_OK) {
        if (gr_gguf_has_tokenizer(g) && gr_tokenizer_from_metadata("fuzz", g, &tok) == GR_OK) {
            check_text(tok, (const char *)copy, GR_MIN(size, (size_t)256), false);
            check_text(tok, "ab 12 <s>\xc3\xa9!", 12, false);
        }
        gr_gguf_free(g);
    }
    free(copy);
    gr_tokenizer_destroy(tok); /* it has kept nothing of the file */
    return 0;
}
