/* For tests: ids of texts by a tokenizer, and what they decode to.
 *
 *     tokenizer_ids FILE [no-special]
 *
 * FILE is a tokenizer.json or a GGUF file, whose tensors may be missing. Each line of standard input is a text, its
 * bytes as hexadecimal digits. Each line of output is one JSON array: the
 * ids, then the bytes that they decode to (special tokens too), then the same from the incremental detokenizer (without
 * them). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/gguf.h"
#include "model/files/json_util.h"
#include "model/tokenizer/tokenizer_parts.h"

#define LINE_BYTES_MAX (64u << 20)
#define FILE_BYTES_MAX ((size_t)4 << 30)

static void die(const char *what)
{
    fprintf(stderr, "tokenizer_ids: %s\n", what);
    exit(1);
}

static struct gr_tokenizer *load(const char *path)
{
    struct gr_tokenizer *tok = NULL;
    struct gr_gguf *g = NULL;
    char *data = NULL;
    size_t len = 0;
    enum gr_status st = gr_file_read(path, FILE_BYTES_MAX, true, &data, &len);
    if (st == GR_OK && !gr_gguf_is(data, len)) {
        st = gr_tokenizer_parse(path, data, len, &tok);
    } else if (st == GR_OK && (st = gr_gguf_parse(path, data, len, &g)) == GR_OK) {
        st = gr_tokenizer_from_metadata(path, g, &tok);
        gr_gguf_free(g);
    }
    free(data);
    if (st != GR_OK) {
        exit(1);
    }
    return tok;
}

/* In place: digits to bytes. */
static size_t from_hex(char *line)
{
    size_t n = strspn(line, "0123456789abcdef") / 2;
    for (size_t i = 0; i < n; i++) {
        const char digits[3] = {line[2 * i], line[2 * i + 1], '\0'};
        line[i] = (char)strtoul(digits, NULL, 16);
    }
    return n;
}

static void put_hex(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf("%02x", (unsigned)(unsigned char)bytes[i]);
    }
}

static void put_stream(const struct gr_tokenizer *tok, const int32_t *ids, size_t n)
{
    static char out[GR_DETOK_OUT_MAX];
    struct gr_detok d;
    size_t more;
    gr_detok_init(&d, tok);
    for (size_t i = 0; i <= n; i++) {
        if ((i < n ? gr_detok_push(&d, ids[i], out, sizeof(out), &more)
                   : gr_detok_flush(&d, out, sizeof(out), &more)) != GR_OK) {
            exit(1);
        }
        put_hex(out, more);
    }
}

static void answer(const struct gr_tokenizer *tok, const char *text, size_t len, unsigned flags)
{
    const size_t cap = gr_tokenizer_encode_bound(tok, len) + 1;
    int32_t *ids = malloc(cap * sizeof(*ids));
    size_t n, n_back;
    char *back;
    if (ids == NULL || gr_tokenizer_encode(tok, text, len, flags, ids, cap, &n) != GR_OK ||
        gr_tokenizer_decode_bytes(tok, ids, n, false, &back, &n_back) != GR_OK) {
        exit(1);
    }
    printf("[[");
    for (size_t i = 0; i < n; i++) {
        printf(i > 0 ? ",%d" : "%d", ids[i]);
    }
    printf("],\"");
    put_hex(back, n_back);
    printf("\",\"");
    put_stream(tok, ids, n);
    printf("\"]\n");
    free(back);
    free(ids);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        die("give a file");
    }
    struct gr_tokenizer *tok = load(argv[1]);
    const unsigned flags = argc > 2 && strcmp(argv[2], "no-special") == 0 ? GR_ENCODE_NO_SPECIAL : 0;
    char *line = malloc(LINE_BYTES_MAX);
    GR_ASSERT(line != NULL);
    while (fgets(line, LINE_BYTES_MAX, stdin) != NULL) {
        const size_t len = from_hex(line);
        answer(tok, line, len, flags);
    }
    free(line);
    gr_tokenizer_destroy(tok);
    return 0;
}
