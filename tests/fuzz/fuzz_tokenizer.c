/* First byte even: tokenizer.json from memory. Odd: text for a small tokenizer (NFC when bit 1 is
 * set), which has to come back, whole and token by token. */
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/tokenizer.h"
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

static void check_detok(const struct gr_tokenizer *tok, const int32_t *ids, size_t n)
{
    char *whole, out[GR_DETOK_OUT_MAX];
    size_t n_whole, at = 0, more;
    struct gr_detok d;
    GR_ASSERT(gr_tokenizer_decode(tok, ids, n, true, &whole, &n_whole) == GR_OK);
    gr_detok_init(&d, tok);
    for (size_t i = 0; i <= n; i++) {
        enum gr_status st =
            i < n ? gr_detok_push(&d, ids[i], out, sizeof(out), &more) : gr_detok_flush(&d, out, sizeof(out), &more);
        GR_ASSERT(st == GR_OK && more <= n_whole - at);
        GR_ASSERT(more == 0 || memcmp(whole + at, out, more) == 0);
        at += more;
    }
    GR_ASSERT(at == n_whole);
    free(whole);
}

static void encode(const struct gr_tokenizer *tok, const char *text, size_t len, bool lossless)
{
    size_t cap = gr_tokenizer_encode_bound(tok, len), n;
    int32_t *ids = malloc((cap + 1) * sizeof(*ids));
    GR_ASSERT(ids != NULL);
    if (gr_tokenizer_encode(tok, text, len, true, ids, cap, &n) == GR_OK) {
        check_detok(tok, ids, n);
        char *back;
        size_t n_back, n_bos = gr_tokenizer_bos_id(tok) >= 0 ? 1 : 0;
        if (lossless) {
            GR_ASSERT(gr_tokenizer_decode_bytes(tok, ids + n_bos, n - n_bos, false, &back, &n_back) == GR_OK);
            GR_ASSERT(n_back == len && memcmp(back, text, len) == 0);
            free(back);
        }
    }
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    if ((data[0] & 1) != 0) {
        bool nfc = (data[0] & 2) != 0;
        encode(small(nfc), text, size - 1, !nfc);
        return 0;
    }
    struct gr_tokenizer *tok;
    if (gr_tokenizer_parse("fuzz", text, size - 1, &tok) == GR_OK) {
        encode(tok, text, GR_MIN(size - 1, (size_t)256), false);
        gr_tokenizer_destroy(tok);
    }
    return 0;
}
