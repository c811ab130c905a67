/* For tests: ids of texts by a tokenizer, and what they decode to.
 *
 *     tokenizer_ids FILE.json [no-special]
 *
 * FILE.json is a tokenizer.json, or the tokenizer.ggml.* fields of a GGUF file as one JSON object. Each line of
 * standard input is a JSON string: a text, its bytes as hexadecimal digits. Each line of output is one JSON array: the
 * ids, then the bytes that they decode to (special tokens too), then the same from the incremental detokenizer (without
 * them). */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_parts.h"

#define LINE_BYTES_MAX (64u << 20)

static void die(const char *what)
{
    fprintf(stderr, "tokenizer_ids: %s\n", what);
    exit(1);
}

static struct gr_tok_text *texts(const json_t *array, size_t *n_out)
{
    *n_out = json_array_size(array);
    struct gr_tok_text *t = calloc(*n_out + 1, sizeof(*t));
    GR_ASSERT(t != NULL);
    for (size_t i = 0; i < *n_out; i++) {
        const json_t *s = json_array_get(array, i);
        t[i] = (struct gr_tok_text){json_string_value(s), (uint32_t)json_string_length(s)};
    }
    return t;
}

static int integer(const json_t *root, const char *key, int missing)
{
    const json_t *v = json_object_get(root, key);
    return json_is_boolean(v) ? json_is_true(v) : json_is_integer(v) ? (int)json_integer_value(v) : missing;
}

static struct gr_tokenizer *from_fields(const char *name, const json_t *root)
{
    size_t n, n_merge;
    struct gr_tok_text *tokens = texts(json_object_get(root, "tokenizer.ggml.tokens"), &n);
    struct gr_tok_text *merges = texts(json_object_get(root, "tokenizer.ggml.merges"), &n_merge);
    const json_t *types = json_object_get(root, "tokenizer.ggml.token_type");
    const json_t *scores = json_object_get(root, "tokenizer.ggml.scores");
    int32_t *type = calloc(n + 1, sizeof(*type));
    float *score = calloc(n + 1, sizeof(*score));
    GR_ASSERT(type != NULL && score != NULL);
    for (size_t i = 0; i < n; i++) {
        type[i] = (int32_t)json_integer_value(json_array_get(types, i));
        score[i] = (float)json_number_value(json_array_get(scores, i));
    }
    const struct gr_gguf_vocab v = {.name = name,
                                    .kind = json_string_value(json_object_get(root, "tokenizer.ggml.model")),
                                    .pre = json_string_value(json_object_get(root, "tokenizer.ggml.pre")),
                                    .tokens = tokens,
                                    .types = json_array_size(types) == n ? type : NULL,
                                    .scores = json_array_size(scores) == n ? score : NULL,
                                    .n_token = (int32_t)n,
                                    .merges = merges,
                                    .n_merge = n_merge,
                                    .bos_id = integer(root, "tokenizer.ggml.bos_token_id", -1),
                                    .unk_id = integer(root, "tokenizer.ggml.unknown_token_id", -1),
                                    .add_bos = integer(root, "tokenizer.ggml.add_bos_token", -1),
                                    .add_space_prefix = integer(root, "tokenizer.ggml.add_space_prefix", 1) != 0};
    struct gr_tokenizer *tok = NULL;
    if (gr_tokenizer_from_gguf(&v, &tok) != GR_OK) {
        exit(1);
    }
    free(tokens);
    free(merges);
    free(type);
    free(score);
    return tok;
}

static struct gr_tokenizer *load(const char *path)
{
    json_error_t err;
    json_t *root = json_load_file(path, 0, &err);
    if (root == NULL) {
        die(err.text);
    }
    struct gr_tokenizer *tok = NULL;
    if (json_object_get(root, "tokenizer.ggml.tokens") != NULL) {
        tok = from_fields(path, root);
    } else {
        char *text = json_dumps(root, JSON_COMPACT);
        if (text == NULL || gr_tokenizer_parse(path, text, strlen(text), &tok) != GR_OK) {
            exit(1);
        }
        free(text);
    }
    json_decref(root);
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
