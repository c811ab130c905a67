/* For fuzz targets: a text through a tokenizer and back. */
#ifndef GR_TESTS_FUZZ_TOKENIZER_CHECKS_H
#define GR_TESTS_FUZZ_TOKENIZER_CHECKS_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/tokenizer.h"

static inline void check_detok(const struct gr_tokenizer *tok, const int32_t *ids, size_t n)
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

/* What cannot be encoded is refused; what can comes back, whole and token by token. lossless: with its bytes. */
static inline void check_text(const struct gr_tokenizer *tok, const char *text, size_t len, bool lossless)
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

#endif
