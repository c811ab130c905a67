/* tokenizer.ggml.* of a GGUF file into what tokenizer_gguf.c understands: here types, lengths and ranges are checked.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/gguf.h"
#include "model/tokenizer/tokenizer_internal.h"

#define PREFIX "tokenizer.ggml."
#define TOKENS PREFIX "tokens"
#define WORD_BYTES 64
/* The byte-level alphabet spells a byte in two at most; a merge is two tokens and a blank. */
#define TOKEN_LEN_MAX (2 * GR_TOKEN_BYTES_MAX)
#define MERGE_LEN_MAX (2 * TOKEN_LEN_MAX + 1)

struct metadata {
    const char *name; /* the file, for messages */
    const struct gr_gguf *gguf;
    struct gr_gguf_vocab v;
    char kind[WORD_BYTES], pre[WORD_BYTES];
    struct gr_tok_text *tokens, *merges; /* owned, as the next two */
    int32_t *types;
    float *scores;
};

/* ---- single values ---- */

/* *out is left alone where the key is missing. */
static enum gr_status read_word(const struct metadata *m, const char *key, bool required, char word[WORD_BYTES],
                                const char **out)
{
    const char *text = NULL;
    size_t len = 0;
    GR_TRY(gr_gguf_string(m->gguf, key, required, &text, &len));
    if (text == NULL) {
        return GR_OK;
    }
    if (len >= WORD_BYTES || memchr(text, '\0', len) != NULL) {
        log_error("%s: %s has %zu bytes, must be at most %d and none of them zero", m->name, key, len, WORD_BYTES - 1);
        return GR_ELIMIT;
    }
    memcpy(word, text, len);
    word[len] = '\0';
    *out = word;
    return GR_OK;
}

/* -1: missing. */
static enum gr_status read_id(const struct metadata *m, const char *key, int32_t *out)
{
    int64_t id = -1;
    *out = -1;
    GR_TRY(gr_gguf_int(m->gguf, key, false, &id));
    if (gr_gguf_find(m->gguf, key) == NULL) {
        return GR_OK;
    }
    if (id < 0 || id >= m->v.n_token) {
        log_error("%s: %s = %" PRId64 " is no token: " TOKENS " has %d", m->name, key, id, m->v.n_token);
        return GR_ELIMIT;
    }
    *out = (int32_t)id;
    return GR_OK;
}

static enum gr_status read_flag(const struct metadata *m, const char *key, int missing, int *out)
{
    int64_t value = missing;
    GR_TRY(gr_gguf_int(m->gguf, key, false, &value));
    *out = value < 0 ? -1 : value != 0;
    return GR_OK;
}

/* ---- arrays ---- */

/* NULL: missing. */
static enum gr_status find_array(const struct metadata *m, const char *key, uint64_t n_max,
                                 const struct gr_gguf_field **out)
{
    *out = gr_gguf_find(m->gguf, key);
    if (*out != NULL && !(*out)->is_array) {
        log_error("%s: %s must be an array", m->name, key);
        return GR_EFORMAT;
    }
    if (*out != NULL && (*out)->n > n_max) {
        log_error("%s: %s has %" PRIu64 " entries, limit %" PRIu64, m->name, key, (*out)->n, n_max);
        return GR_ELIMIT;
    }
    return GR_OK;
}

/* One value a token; NULL: missing. */
static enum gr_status find_numbers(const struct metadata *m, const char *key, enum gr_gguf_type type,
                                   const struct gr_gguf_field **out)
{
    GR_TRY(find_array(m, key, UINT64_MAX, out));
    if (*out == NULL) {
        return GR_OK;
    }
    if ((*out)->type != type) {
        log_error("%s: %s must be an array of %s", m->name, key, type == GR_GGUF_F32 ? "f32" : "i32");
        return GR_EFORMAT;
    }
    if ((*out)->n != (uint64_t)m->v.n_token) {
        log_error("%s: %s has %" PRIu64 " entries, " TOKENS " has %d", m->name, key, (*out)->n, m->v.n_token);
        return GR_EMISMATCH;
    }
    return GR_OK;
}

/* Four bytes each; *out is owned by the caller and NULL where the key is missing. */
static enum gr_status read_numbers(const struct metadata *m, const char *key, enum gr_gguf_type type, void **out)
{
    const struct gr_gguf_field *f = NULL;
    *out = NULL;
    GR_TRY(find_numbers(m, key, type, &f));
    if (f == NULL) {
        return GR_OK;
    }
    *out = malloc((size_t)f->n * 4 + 1);
    if (*out == NULL) {
        log_error("%s: no memory for %" PRIu64 " entries of %s", m->name, f->n, key);
        return GR_ENOMEM;
    }
    memcpy(*out, f->data, (size_t)f->n * 4);
    return GR_OK;
}

static enum gr_status take_texts(const struct metadata *m, const struct gr_gguf_field *f, size_t len_max,
                                 struct gr_tok_text *to)
{
    const uint8_t *at = f->data;
    for (uint64_t i = 0; i < f->n; i++) {
        size_t len = 0;
        const char *text = gr_gguf_next_string(&at, &len);
        if (len > len_max) {
            log_error("%s: %s[%" PRIu64 "] has %zu bytes, limit %zu", m->name, f->key, i, len, len_max);
            return GR_ELIMIT;
        }
        to[i] = (struct gr_tok_text){text, (uint32_t)len};
    }
    return GR_OK;
}

/* Borrowed texts in an array that the caller owns: *n_out of them, 0 and NULL where the key is missing. */
static enum gr_status read_texts(const struct metadata *m, const struct gr_gguf_field *f, size_t len_max,
                                 struct gr_tok_text **out, size_t *n_out)
{
    if (f == NULL) {
        return GR_OK;
    }
    if (f->type != GR_GGUF_STRING) {
        log_error("%s: %s must be an array of strings", m->name, f->key);
        return GR_EFORMAT;
    }
    *out = calloc((size_t)f->n + 1, sizeof(**out));
    if (*out == NULL) {
        log_error("%s: no memory for %" PRIu64 " entries of %s", m->name, f->n, f->key);
        return GR_ENOMEM;
    }
    *n_out = (size_t)f->n;
    return take_texts(m, f, len_max, *out);
}

static enum gr_status read_tokens(struct metadata *m)
{
    const struct gr_gguf_field *f = NULL;
    size_t n = 0;
    GR_TRY(find_array(m, TOKENS, GR_TOKENIZER_N_VOCAB, &f));
    if (f == NULL) {
        log_error("%s: " TOKENS " is missing", m->name);
        return GR_ENOTFOUND;
    }
    GR_TRY(read_texts(m, f, TOKEN_LEN_MAX, &m->tokens, &n));
    m->v.tokens = m->tokens;
    m->v.n_token = (int32_t)n;
    return GR_OK;
}

static enum gr_status read_merges(struct metadata *m)
{
    const struct gr_gguf_field *f = NULL;
    GR_TRY(find_array(m, PREFIX "merges", GR_TOK_N_MERGE_MAX, &f));
    GR_TRY(read_texts(m, f, MERGE_LEN_MAX, &m->merges, &m->v.n_merge));
    m->v.merges = m->merges;
    return GR_OK;
}

static enum gr_status read_types_and_scores(struct metadata *m)
{
    void *types = NULL, *scores = NULL;
    GR_TRY(read_numbers(m, PREFIX "token_type", GR_GGUF_I32, &types));
    m->v.types = m->types = types;
    GR_TRY(read_numbers(m, PREFIX "scores", GR_GGUF_F32, &scores));
    m->v.scores = m->scores = scores;
    return GR_OK;
}

/* ---- all ---- */

static enum gr_status read_flags(struct metadata *m)
{
    int space_prefix = 1, add_eos = 0;
    GR_TRY(read_flag(m, PREFIX "add_bos_token", -1, &m->v.add_bos));
    GR_TRY(read_flag(m, PREFIX "add_space_prefix", 1, &space_prefix));
    GR_TRY(read_flag(m, PREFIX "add_eos_token", 0, &add_eos));
    m->v.add_space_prefix = space_prefix != 0;
    if (add_eos > 0) {
        log_warn("%s: " PREFIX "add_eos_token is not applied: a prompt is to be gone on with", m->name);
    }
    return GR_OK;
}

static enum gr_status read_all(struct metadata *m)
{
    m->v.name = m->name;
    GR_TRY(read_word(m, PREFIX "model", true, m->kind, &m->v.kind));
    GR_TRY(read_word(m, PREFIX "pre", false, m->pre, &m->v.pre));
    GR_TRY(read_tokens(m));
    GR_TRY(read_types_and_scores(m));
    GR_TRY(read_merges(m));
    GR_TRY(read_id(m, PREFIX "bos_token_id", &m->v.bos_id));
    GR_TRY(read_id(m, PREFIX "unknown_token_id", &m->v.unk_id));
    return read_flags(m);
}

static bool is_word(const char *text, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(text, word, len) == 0;
}

bool gr_gguf_has_tokenizer(const struct gr_gguf *g)
{
    const struct gr_gguf_field *f = gr_gguf_find(g, PREFIX "model");
    if (f == NULL || f->type != GR_GGUF_STRING || f->is_array) {
        return f != NULL; /* of another type: the reader says what is wrong */
    }
    const uint8_t *at = f->data;
    size_t len = 0;
    const char *text = gr_gguf_next_string(&at, &len);
    return !is_word(text, len, "no_vocab") && !is_word(text, len, "none");
}

enum gr_status gr_tokenizer_from_metadata(const char *name, const struct gr_gguf *g, struct gr_tokenizer **out)
{
    struct metadata m = {.name = name, .gguf = g};
    enum gr_status st = read_all(&m);
    if (st == GR_OK) {
        st = gr_tokenizer_from_gguf(&m.v, out);
    }
    free(m.tokens);
    free(m.merges);
    free(m.types);
    free(m.scores);
    return st;
}
