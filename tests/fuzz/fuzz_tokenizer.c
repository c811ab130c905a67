/* First byte even: tokenizer.json from memory. Odd: text for a small tokenizer (NFC when bit 1 is
 * set), which has to come back, whole and token by token. */
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/tokenizer.h"
#include "tests/fuzz/tokenizer_checks.h"
#include "tests/unit/mini_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct gr_tokenizer *small(bool nfc)
{
    static struct gr_tokenizer *toks[2];
    if (toks[nfc] == NULL) {
        json_t *root = mini_tokenizer();
        if (nfc) {
            json_patch_at(root, "normalizer", "{\"type\":\"NFC\"}");
        }
        char *text = json_dumps(root, 0);
        GR_ASSERT(text != NULL);
        GR_ASSERT(gr_tokenizer_parse("small", text, strlen(text), &toks[nfc]) == GR_OK);
        free(text);
        json_decref(root);
    }
    return toks[nfc];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    if ((data[0] & 1) != 0) {
        bool nfc = (data[0] & 2) != 0;
        check_text(small(nfc), text, size - 1, !nfc);
        return 0;
    }
    struct gr_tokenizer *tok;
    if (gr_tokenizer_parse("fuzz", text, size - 1, &tok) == GR_OK) {
        check_text(tok, text, GR_MIN(size - 1, (size_t)256), false);
        gr_tokenizer_destroy(tok);
    }
    return 0;
}
