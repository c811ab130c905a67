/* tokenizer.json into struct gr_tokenizer: vocabulary, merges, added tokens, fingerprint. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/log.h"
#include "model/files/json_util.h"
#include "model/tokenizer/tokenizer_internal.h"

#define N_MERGE_MAX (1u << 23) /* merges of a BPE model, at most */

struct loader {
    const char *name; /* for messages */
    struct gr_tokenizer *tok;
    size_t arena_used, arena_bytes;
    uint16_t byte_of_char[324]; /* byte-level alphabet: code point -> byte, 256: not in it */
    XXH3_state_t *merge_hash;
};

/* ---- byte-level alphabet ---- */

static bool is_printable_byte(int b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* GPT-2's: printable Latin-1 stands for itself, the other 68 bytes are U+0100 and on, in order. */
static void init_alphabet(struct loader *ld)
{
    for (size_t c = 0; c < GR_ARRAY_LEN(ld->byte_of_char); c++) {
        ld->byte_of_char[c] = 256;
    }
    int next = 256;
    for (int b = 0; b < 256; b++) {
        ld->byte_of_char[is_printable_byte(b) ? b : next++] = (uint16_t)b;
    }
}

/* Bytes that a vocabulary string stands for, written to out (no longer than the string). False: it
 * has a character outside the alphabet; such a token stands for its own UTF-8 (as in Hugging Face).
 */
static bool decode_alphabet(const struct loader *ld, const char *text, size_t len, char *out, size_t *len_out)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t c = (uint8_t)text[i];
        if (c >= 0x80) {
            /* jansson has checked the UTF-8; two bytes reach beyond the alphabet's end. */
            if (c >= 0xE0 || i + 1 >= len) {
                return false;
            }
            c = (c & 0x1F) << 6 | ((uint8_t)text[++i] & 0x3F);
        }
        if (c >= GR_ARRAY_LEN(ld->byte_of_char) || ld->byte_of_char[c] == 256) {
            return false;
        }
        out[n++] = (char)ld->byte_of_char[c];
    }
    *len_out = n;
    return true;
}

/* ---- arena ---- */

/* The whole arena is taken at once, from the lengths of the file's strings. */
static enum gr_status alloc_arena(struct loader *ld, const json_t *vocab, const json_t *added)
{
    size_t n = 1;
    json_t *obj = (json_t *)(uintptr_t)vocab; /* iterators take no const */
    for (void *it = json_object_iter(obj); it != NULL; it = json_object_iter_next(obj, it)) {
        n += strlen(json_object_iter_key(it));
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        n += json_string_length(json_object_get(json_array_get(added, i), "content"));
    }
    ld->tok->arena = malloc(n);
    if (ld->tok->arena == NULL) {
        log_error("%s: no memory for %zu bytes of tokens", ld->name, n);
        return GR_ENOMEM;
    }
    ld->arena_bytes = n;
    return GR_OK;
}

static char *arena_take(struct loader *ld, size_t len)
{
    GR_ASSERT(len <= ld->arena_bytes - ld->arena_used);
    char *p = ld->tok->arena + ld->arena_used;
    ld->arena_used += len;
    return p;
}

/* ---- vocabulary ---- */

static enum gr_status check_token(const struct loader *ld, const char *text, const json_t *id)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= GR_TOKENIZER_N_VOCAB) {
        log_error("%s: token %.64s: its id must be an integer 0..%d", ld->name, text, GR_TOKENIZER_N_VOCAB - 1);
        return GR_ELIMIT;
    }
    size_t len = strlen(text);
    if (len == 0 || len > GR_TOKEN_BYTES_MAX) {
        log_error("%s: token %lld has %zu bytes, must be 1..%d", ld->name, (long long)json_integer_value(id), len,
                  GR_TOKEN_BYTES_MAX);
        return GR_ELIMIT;
    }
    return GR_OK;
}

static enum gr_status alloc_entries(struct loader *ld, const json_t *vocab, const json_t *added)
{
    json_int_t top = -1;
    json_t *obj = (json_t *)(uintptr_t)vocab;
    for (void *it = json_object_iter(obj); it != NULL; it = json_object_iter_next(obj, it)) {
        const json_t *id = json_object_iter_value(it);
        GR_TRY(check_token(ld, json_object_iter_key(it), id));
        top = GR_MAX(top, json_integer_value(id));
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *item = json_array_get(added, i);
        const char *content = json_string_value(json_object_get(item, "content"));
        if (content == NULL) {
            log_error("%s: added_tokens[%zu] has no content string", ld->name, i);
            return GR_EFORMAT;
        }
        GR_TRY(check_token(ld, content, json_object_get(item, "id")));
        top = GR_MAX(top, json_integer_value(json_object_get(item, "id")));
    }
    if (top < 0) {
        log_error("%s: model.vocab is empty", ld->name);
        return GR_EFORMAT;
    }
    ld->tok->n_vocab = (int32_t)top + 1;
    ld->tok->entries = calloc((size_t)top + 1, sizeof(*ld->tok->entries));
    if (ld->tok->entries == NULL) {
        log_error("%s: no memory for %lld tokens", ld->name, (long long)top + 1);
        return GR_ENOMEM;
    }
    return GR_OK;
}

static enum gr_status load_token(struct loader *ld, const char *text, int32_t id)
{
    struct gr_tok_entry *e = &ld->tok->entries[id];
    if (e->bytes != NULL) {
        log_error("%s: model.vocab gives id %d twice; the second is %.64s", ld->name, id, text);
        return GR_EFORMAT;
    }
    char bytes[GR_TOKEN_BYTES_MAX];
    size_t text_len = strlen(text), len = text_len;
    bool in_alphabet = decode_alphabet(ld, text, text_len, bytes, &len);
    char *p = arena_take(ld, in_alphabet ? len : text_len);
    memcpy(p, in_alphabet ? bytes : text, in_alphabet ? len : text_len);
    e->bytes = p;
    e->len = (uint32_t)(in_alphabet ? len : text_len);
    e->flags = GR_TOK_PRESENT;
    uint32_t other;
    /* One string has one spelling in the alphabet, and JSON's keys are unique. */
    if (in_alphabet) {
        bool fresh = gr_str_table_add(&ld->tok->by_bytes, p, len, (uint32_t)id, &other);
        GR_ASSERT(fresh);
    }
    return GR_OK;
}

static enum gr_status load_vocab(struct loader *ld, const json_t *vocab)
{
    struct gr_tokenizer *tok = ld->tok;
    GR_TRY(gr_str_table_init(&tok->by_bytes, json_object_size(vocab)));
    json_t *obj = (json_t *)(uintptr_t)vocab;
    for (void *it = json_object_iter(obj); it != NULL; it = json_object_iter_next(obj, it)) {
        int32_t id = (int32_t)json_integer_value(json_object_iter_value(it));
        GR_TRY(load_token(ld, json_object_iter_key(it), id));
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        uint32_t id;
        if (!gr_str_table_get(&tok->by_bytes, &byte, 1, &id)) {
            log_error("%s: model.vocab has no token for the byte 0x%02x; is it byte-level BPE?", ld->name, (unsigned)b);
            return GR_EUNSUPPORTED;
        }
        tok->byte_id[b] = (int32_t)id;
    }
    return GR_OK;
}

/* ---- merges ---- */

/* "left right", or ["left", "right"]. */
static bool merge_parts(const json_t *merge, const char **left, size_t *n_left, const char **right, size_t *n_right)
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        const char *space = strchr(text, ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL) {
            return false;
        }
        *left = text;
        *n_left = (size_t)(space - text);
        *right = space + 1;
        *n_right = strlen(space + 1);
        return true;
    }
    const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b)) {
        return false;
    }
    *left = json_string_value(a);
    *n_left = json_string_length(a);
    *right = json_string_value(b);
    *n_right = json_string_length(b);
    return true;
}

/* Appends the bytes of a merge's part; false: not in the alphabet, or too long. */
static bool append_part(const struct loader *ld, const char *text, size_t len, char *bytes, size_t *n)
{
    size_t more;
    if (len == 0 || len > GR_TOKEN_BYTES_MAX || !decode_alphabet(ld, text, len, bytes + *n, &more)) {
        return false;
    }
    *n += more;
    return true;
}

static enum gr_status load_merge(struct loader *ld, const json_t *merge, uint32_t rank)
{
    struct gr_tokenizer *tok = ld->tok;
    const char *left, *right;
    size_t n_left, n_right, n = 0;
    if (!merge_parts(merge, &left, &n_left, &right, &n_right)) {
        log_error("%s: model.merges[%u] must be \"left right\" or [\"left\", \"right\"]", ld->name, rank);
        return GR_EFORMAT;
    }
    char bytes[2 * GR_TOKEN_BYTES_MAX];
    uint32_t a = 0, b = 0, id = 0;
    bool known = append_part(ld, left, n_left, bytes, &n) && gr_str_table_get(&tok->by_bytes, bytes, n, &a);
    size_t at = n;
    known = known && append_part(ld, right, n_right, bytes, &n) &&
            gr_str_table_get(&tok->by_bytes, bytes + at, n - at, &b) && gr_str_table_get(&tok->by_bytes, bytes, n, &id);
    if (!known) {
        log_error("%s: model.merges[%u]: %.*s and %.*s, or both together, are not in model.vocab", ld->name, rank,
                  (int)GR_MIN(n_left, (size_t)64), left, (int)GR_MIN(n_right, (size_t)64), right);
        return GR_EFORMAT;
    }
    if (!gr_merge_table_add(&tok->merges, (int32_t)a, (int32_t)b, rank, (int32_t)id)) {
        log_error("%s: model.merges[%u]: %.*s %.*s is there a second time", ld->name, rank,
                  (int)GR_MIN(n_left, (size_t)64), left, (int)GR_MIN(n_right, (size_t)64), right);
        return GR_EFORMAT;
    }
    const uint32_t triple[3] = {a, b, id};
    XXH3_64bits_update(ld->merge_hash, triple, sizeof(triple));
    return GR_OK;
}

static enum gr_status load_merges(struct loader *ld, const json_t *merges)
{
    size_t n = json_array_size(merges);
    if (n > N_MERGE_MAX) {
        log_error("%s: model.merges has %zu entries, limit %u", ld->name, n, N_MERGE_MAX);
        return GR_ELIMIT;
    }
    GR_TRY(gr_merge_table_init(&ld->tok->merges, n));
    for (size_t i = 0; i < n; i++) {
        GR_TRY(load_merge(ld, json_array_get(merges, i), (uint32_t)i));
    }
    return GR_OK;
}

/* ---- model ---- */

static enum gr_status refuse_affix(const struct gr_json_where *w, const char *key)
{
    const char *text = "";
    GR_TRY(gr_json_string(w, key, false, &text));
    if (text[0] != '\0') {
        log_error("%s: %s%s = %.40s is not supported; must be null", w->name, w->prefix, key, text);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

/* unk_token and fuse_unk are read and have no effect: every byte has its token, so nothing is
 * unknown. */
static enum gr_status check_model(const struct gr_json_where *w, struct gr_tokenizer *tok)
{
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    const char *type = "", *unk = NULL;
    GR_TRY(gr_json_string(w, "type", true, &type));
    if (strcmp(type, "BPE") != 0) {
        log_error("%s: model.type %.40s is not supported; known: BPE", w->name, type);
        return GR_EUNSUPPORTED;
    }
    GR_TRY(gr_json_only_keys(w, keys));
    double dropout = 0;
    GR_TRY(gr_json_double(w, "dropout", false, 0, 1, &dropout));
    bool fuse_unk = false, byte_fallback = false;
    GR_TRY(gr_json_bool(w, "byte_fallback", false, &byte_fallback));
    if (dropout != 0 || byte_fallback) {
        log_error("%s: model.%s is not supported", w->name,
                  byte_fallback ? "byte_fallback = true" : "dropout other than 0");
        return GR_EUNSUPPORTED;
    }
    GR_TRY(gr_json_string(w, "unk_token", false, &unk));
    GR_TRY(gr_json_bool(w, "fuse_unk", false, &fuse_unk));
    GR_TRY(refuse_affix(w, "continuing_subword_prefix"));
    GR_TRY(refuse_affix(w, "end_of_word_suffix"));
    return gr_json_bool(w, "ignore_merges", false, &tok->ignore_merges);
}

/* ---- added tokens ---- */

static enum gr_status place_added(struct loader *ld, const struct gr_added_token *a)
{
    struct gr_tok_entry *e = &ld->tok->entries[a->id];
    bool same = e->len == a->len && e->bytes != NULL && memcmp(e->bytes, a->content, a->len) == 0;
    if (e->bytes != NULL && ((e->flags & GR_TOK_ADDED) != 0 || !same)) {
        log_error("%s: added token %.*s has id %d, which another token has", ld->name, (int)GR_MIN(a->len, 64u),
                  a->content, a->id);
        return GR_EFORMAT;
    }
    e->bytes = a->content;
    e->len = a->len;
    e->flags = GR_TOK_PRESENT | GR_TOK_ADDED | (a->special ? GR_TOK_SPECIAL : 0u);
    return GR_OK;
}

/* Hugging Face takes the vocabulary's id then, and so ids other than the file says. */
static enum gr_status check_same_id(const struct loader *ld, const json_t *vocab, const char *content, int32_t id)
{
    const json_t *other = json_object_get(vocab, content);
    if (other != NULL && json_integer_value(other) != id) {
        log_error("%s: added token %.64s has id %d, model.vocab gives it id %lld", ld->name, content, id,
                  (long long)json_integer_value(other));
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status load_added_token(struct loader *ld, const json_t *vocab, const json_t *item, size_t i)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    struct gr_json_where w = {ld->name, "added_tokens: ", item};
    struct gr_added_token *a = &ld->tok->added[i];
    const char *content = "";
    GR_TRY(gr_json_only_keys(&w, keys));
    GR_TRY(gr_json_string(&w, "content", true, &content));
    GR_TRY(gr_json_int(&w, "id", true, 0, GR_TOKENIZER_N_VOCAB - 1, &a->id));
    GR_TRY(gr_json_bool(&w, "single_word", false, &a->single_word));
    GR_TRY(gr_json_bool(&w, "lstrip", false, &a->lstrip));
    GR_TRY(gr_json_bool(&w, "rstrip", false, &a->rstrip));
    GR_TRY(gr_json_bool(&w, "special", false, &a->special));
    a->normalized = !a->special; /* Hugging Face's default */
    GR_TRY(gr_json_bool(&w, "normalized", false, &a->normalized));
    GR_TRY(check_same_id(ld, vocab, content, a->id));
    a->len = (uint32_t)strlen(content);
    char *p = arena_take(ld, a->len);
    memcpy(p, content, a->len);
    a->content = p;
    return place_added(ld, a);
}

static enum gr_status load_added(struct loader *ld, const json_t *vocab, const json_t *added)
{
    size_t n = json_array_size(added);
    struct gr_tokenizer *tok = ld->tok;
    if (n > GR_TOK_N_ADDED_MAX) {
        log_error("%s: added_tokens has %zu entries, limit %d", ld->name, n, GR_TOK_N_ADDED_MAX);
        return GR_ELIMIT;
    }
    tok->added = calloc(n + 1, sizeof(*tok->added));
    if (tok->added == NULL) {
        log_error("%s: no memory for %zu added tokens", ld->name, n);
        return GR_ENOMEM;
    }
    struct gr_str_table contents;
    GR_TRY(gr_str_table_init(&contents, n));
    enum gr_status st = GR_OK;
    for (size_t i = 0; i < n && st == GR_OK; i++) {
        uint32_t other;
        st = load_added_token(ld, vocab, json_array_get(added, i), i);
        const struct gr_added_token *a = &tok->added[i];
        if (st == GR_OK && !gr_str_table_add(&contents, a->content, a->len, (uint32_t)i, &other)) {
            log_error("%s: added token %d has the content of added token %d", ld->name, a->id, tok->added[other].id);
            st = GR_EFORMAT;
        }
        tok->n_added = (int)i + 1;
    }
    gr_str_table_finish(&contents);
    return st;
}

/* ---- all ---- */

static uint64_t fingerprint(const struct loader *ld)
{
    const struct gr_tokenizer *tok = ld->tok;
    XXH3_state_t *h = ld->merge_hash; /* goes on after the merges */
    for (int32_t id = 0; id < tok->n_vocab; id++) {
        const struct gr_tok_entry *e = &tok->entries[id];
        const uint32_t head[3] = {(uint32_t)id, e->flags, e->len};
        if (e->bytes != NULL) {
            XXH3_64bits_update(h, head, sizeof(head));
            XXH3_64bits_update(h, e->bytes, e->len);
        }
    }
    return XXH3_64bits_digest(h);
}

/* transformers sets these anew for every call; so does graft, to nothing. */
static void warn_unused(const struct loader *ld, const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    if (value != NULL && !json_is_null(value)) {
        log_warn("%s: %s is not applied", ld->name, key);
    }
}

static enum gr_status load_root(struct loader *ld, const json_t *root)
{
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    struct gr_json_where w = {ld->name, "", root};
    const json_t *model = NULL, *added = NULL, *vocab = NULL, *merges = NULL;
    GR_TRY(gr_json_only_keys(&w, keys));
    warn_unused(ld, root, "truncation");
    warn_unused(ld, root, "padding");
    GR_TRY(gr_json_object(&w, "model", true, &model));
    GR_TRY(gr_json_array(&w, "added_tokens", false, &added));
    struct gr_json_where mw = {ld->name, "model.", model};
    GR_TRY(check_model(&mw, ld->tok));
    GR_TRY(gr_json_object(&mw, "vocab", true, &vocab));
    GR_TRY(gr_json_array(&mw, "merges", true, &merges));

    GR_TRY(alloc_entries(ld, vocab, added));
    GR_TRY(alloc_arena(ld, vocab, added));
    GR_TRY(load_vocab(ld, vocab));
    GR_TRY(load_merges(ld, merges));
    GR_TRY(load_added(ld, vocab, added));
    GR_TRY(gr_tok_parse_steps(ld->tok, ld->name, root));
    GR_TRY(gr_tok_build_tries(ld->tok));
    ld->tok->fingerprint = fingerprint(ld);
    return GR_OK;
}

enum gr_status gr_tokenizer_parse(const char *name, const char *json, size_t len, struct gr_tokenizer **out)
{
    json_t *root;
    GR_TRY(gr_json_parse_object(name, json, len, &root));
    struct loader ld = {.name = name};
    ld.tok = calloc(1, sizeof(*ld.tok));
    ld.merge_hash = XXH3_createState();
    enum gr_status st = GR_ENOMEM;
    if (ld.tok == NULL || ld.merge_hash == NULL) {
        log_error("%s: no memory", name);
    } else {
        XXH3_64bits_reset(ld.merge_hash);
        init_alphabet(&ld);
        st = load_root(&ld, root);
    }
    XXH3_freeState(ld.merge_hash);
    json_decref(root);
    if (st != GR_OK) {
        gr_tokenizer_destroy(ld.tok);
        return st;
    }
    *out = ld.tok;
    return GR_OK;
}

enum gr_status gr_tokenizer_load(const char *dir, struct gr_tokenizer **out)
{
    char path[PATH_MAX];
    char *json;
    size_t len;
    GR_TRY(gr_path_join(path, sizeof(path), dir, "tokenizer.json"));
    GR_TRY(gr_file_read(path, GR_TOKENIZER_FILE_BYTES, true, &json, &len));
    enum gr_status st = gr_tokenizer_parse(path, json, len, out);
    free(json);
    return st;
}

void gr_tokenizer_destroy(struct gr_tokenizer *tok)
{
    if (tok == NULL) {
        return;
    }
    for (int i = 0; i < tok->n_split; i++) {
        pcre2_code_free(tok->splits[i].code);
    }
    gr_trie_finish(&tok->raw_trie);
    gr_trie_finish(&tok->normalized_trie);
    gr_merge_table_finish(&tok->merges);
    gr_str_table_finish(&tok->by_bytes);
    free(tok->added);
    free(tok->entries);
    free(tok->arena);
    free(tok);
}
