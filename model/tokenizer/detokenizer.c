/* Ids to bytes and text. What is not UTF-8 becomes U+FFFD, one for each maximal subpart, the rule
 * of the Unicode Standard (sec. 3.9) that Rust's from_utf8_lossy, and so Hugging Face's decoder,
 * follows. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

static const char replacement[3] = {(char)0xEF, (char)0xBF, (char)0xBD}; /* U+FFFD */

/* Writes the text of p[0, n) to out (room for 3 n bytes), returns its length. A partial character
 * at the end is left: *n_left_out says how many bytes. */
static size_t to_text(const uint8_t *p, size_t n, char *out, size_t *n_left_out)
{
    size_t n_out = 0;
    *n_left_out = 0;
    for (size_t i = 0; i < n;) {
        size_t len;
        enum gr_utf8_kind kind = gr_utf8_next(p + i, n - i, &len);
        if (kind == GR_UTF8_PARTIAL) {
            *n_left_out = len;
            break;
        }
        if (kind == GR_UTF8_CHAR) {
            memcpy(out + n_out, p + i, len);
            n_out += len;
        } else {
            memcpy(out + n_out, replacement, sizeof(replacement));
            n_out += sizeof(replacement);
        }
        i += len;
    }
    return n_out;
}

/* Bytes that an id gives; NULL and 0 for none. */
static const char *bytes_of(const struct gr_tokenizer *tok, int32_t id, bool skip_special, size_t *len_out)
{
    if (skip_special && gr_tokenizer_is_special(tok, id)) {
        *len_out = 0;
        return NULL;
    }
    return gr_tokenizer_token_bytes(tok, id, len_out);
}

/* Bytes at the start of a text that were put there when it was encoded. */
static size_t n_put_in_front(const struct gr_tokenizer *tok, const char *bytes, size_t len)
{
    size_t n = 0;
    while (n < tok->n_strip && n < len && bytes[n] == ' ') {
        n++;
    }
    return n;
}

enum gr_status gr_tokenizer_decode_bytes(const struct gr_tokenizer *tok, const int32_t *ids, size_t n,
                                         bool skip_special, char **bytes_out, size_t *len_out)
{
    size_t total = 0, len;
    for (size_t i = 0; i < n; i++) {
        (void)bytes_of(tok, ids[i], skip_special, &len);
        total += len;
    }
    char *bytes = malloc(total + 1);
    if (bytes == NULL) {
        log_error("tokenizer: no memory for the %zu bytes of %zu tokens", total, n);
        return GR_ENOMEM;
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const char *p = bytes_of(tok, ids[i], skip_special, &len);
        if (len > 0) {
            memcpy(bytes + at, p, len);
            at += len;
        }
    }
    const size_t n_front = n_put_in_front(tok, bytes, at);
    memmove(bytes, bytes + n_front, at - n_front);
    at -= n_front;
    bytes[at] = '\0';
    *bytes_out = bytes;
    *len_out = at;
    return GR_OK;
}

enum gr_status gr_tokenizer_decode(const struct gr_tokenizer *tok, const int32_t *ids, size_t n, bool skip_special,
                                   char **text_out, size_t *len_out)
{
    char *bytes;
    size_t n_bytes;
    GR_TRY(gr_tokenizer_decode_bytes(tok, ids, n, skip_special, &bytes, &n_bytes));
    char *text = malloc(3 * n_bytes + 1);
    if (text == NULL) {
        log_error("tokenizer: no memory for the text of %zu bytes", n_bytes);
        free(bytes);
        return GR_ENOMEM;
    }
    size_t n_left;
    size_t len = to_text((const uint8_t *)bytes, n_bytes, text, &n_left);
    free(bytes);
    if (n_left > 0) {
        memcpy(text + len, replacement, sizeof(replacement));
        len += sizeof(replacement);
    }
    text[len] = '\0';
    *text_out = text;
    *len_out = len;
    return GR_OK;
}

void gr_detok_init(struct gr_detok *d, const struct gr_tokenizer *tok)
{
    *d = (struct gr_detok){.tok = tok};
}

static enum gr_status put(const char *text, size_t n, char *out, size_t cap, size_t *n_out)
{
    if (n > cap) {
        log_error("detokenizer: %zu bytes of text, room for %zu; GR_DETOK_OUT_MAX is enough", n, cap);
        return GR_ELIMIT;
    }
    if (n > 0) {
        memcpy(out, text, n);
    }
    *n_out = n;
    return GR_OK;
}

enum gr_status gr_detok_push(struct gr_detok *d, int32_t id, char *out, size_t cap, size_t *n_out)
{
    /* A special token gives nothing and does not end a held character: as in whole decoding, what
     * stands left and right of it is one text. */
    size_t len;
    const char *bytes = bytes_of(d->tok, id, true, &len);
    uint8_t in[sizeof(d->held) + GR_TOKEN_BYTES_MAX];
    char text[GR_DETOK_OUT_MAX];
    if (len == 0) {
        *n_out = 0;
        return GR_OK;
    }
    /* A blank is a whole character, so nothing is held while blanks in front are looked for. */
    const size_t n_front = d->goes_on ? 0 : n_put_in_front(d->tok, bytes, len);
    memcpy(in, d->held, d->n_held);
    memcpy(in + d->n_held, bytes + n_front, len - n_front);
    size_t n_in = d->n_held + len - n_front, n_left;
    size_t n_text = to_text(in, n_in, text, &n_left);
    GR_TRY(put(text, n_text, out, cap, n_out));
    d->goes_on = true;
    GR_ASSERT(n_left < sizeof(d->held));
    memcpy(d->held, in + n_in - n_left, n_left);
    d->n_held = (uint8_t)n_left;
    return GR_OK;
}

enum gr_status gr_detok_flush(struct gr_detok *d, char *out, size_t cap, size_t *n_out)
{
    /* What is held is always the start of one character: one maximal subpart. */
    GR_TRY(put(replacement, d->n_held > 0 ? sizeof(replacement) : 0, out, cap, n_out));
    d->n_held = 0;
    d->goes_on = false;
    return GR_OK;
}
