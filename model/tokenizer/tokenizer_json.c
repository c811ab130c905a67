/* tokenizer.json into parts: vocabulary, merges, added tokens; tokenizer_steps.c reads the steps around them. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/chat_file.h"
#include "model/tokenizer/tokenizer_internal.h"

struct reader {
    struct gr_tokenizer_parts parts;
    struct gr_tok_text *tokens;  /* owned, [parts.n_vocab] */
    struct gr_tok_merge *merges; /* owned */
    struct gr_tok_added *added;  /* owned */
};

/* ---- vocabulary ---- */

static enum gr_status check_id(const struct reader *r, const char *text, const json_t *id)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= GR_TOKENIZER_N_VOCAB) {
        log_error("%s: token %.64s: its id must be an integer 0..%d", r->parts.name, text, GR_TOKENIZER_N_VOCAB - 1);
        return GR_ELIMIT;
    }
    return GR_OK;
}

static enum gr_status read_vocab(struct reader *r, const json_t *vocab)
{
    json_int_t top = -1;
    json_t *obj = (json_t *)(uintptr_t)vocab; /* iterators take no const */
    for (void *it = json_object_iter(obj); it != NULL; it = json_object_iter_next(obj, it)) {
        GR_TRY(check_id(r, json_object_iter_key(it), json_object_iter_value(it)));
        top = GR_MAX(top, json_integer_value(json_object_iter_value(it)));
    }
    r->tokens = calloc((size_t)(top + 2), sizeof(*r->tokens));
    if (r->tokens == NULL) {
        log_error("%s: no memory for %lld tokens", r->parts.name, (long long)top + 1);
        return GR_ENOMEM;
    }
    r->parts.tokens = r->tokens;
    r->parts.n_vocab = (int32_t)top + 1;
    for (void *it = json_object_iter(obj); it != NULL; it = json_object_iter_next(obj, it)) {
        const char *text = json_object_iter_key(it);
        struct gr_tok_text *t = &r->tokens[json_integer_value(json_object_iter_value(it))];
        if (t->text != NULL) {
            log_error("%s: model.vocab gives id %td twice; the second is %.64s", r->parts.name, t - r->tokens, text);
            return GR_EFORMAT;
        }
        *t = (struct gr_tok_text){text, (uint32_t)strlen(text)};
    }
    return GR_OK;
}

/* ---- merges ---- */

static struct gr_tok_text text_of(const json_t *string)
{
    return (struct gr_tok_text){json_string_value(string), (uint32_t)json_string_length(string)};
}

/* "left right", or ["left", "right"]. */
static bool merge_parts(const json_t *merge, struct gr_tok_merge *out)
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        const char *space = strchr(text, ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL) {
            return false;
        }
        out->left = (struct gr_tok_text){text, (uint32_t)(space - text)};
        out->right = (struct gr_tok_text){space + 1, (uint32_t)strlen(space + 1)};
        return true;
    }
    const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b)) {
        return false;
    }
    out->left = text_of(a);
    out->right = text_of(b);
    return true;
}

static enum gr_status read_merges(struct reader *r, const json_t *merges)
{
    const size_t n = json_array_size(merges);
    r->merges = calloc(n + 1, sizeof(*r->merges));
    if (r->merges == NULL) {
        log_error("%s: no memory for %zu merges", r->parts.name, n);
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        if (!merge_parts(json_array_get(merges, i), &r->merges[i])) {
            log_error("%s: model.merges[%zu] must be \"left right\" or [\"left\", \"right\"]", r->parts.name, i);
            return GR_EFORMAT;
        }
    }
    r->parts.merges = r->merges;
    r->parts.n_merge = n;
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

static enum gr_status read_model_options(const struct gr_json_where *w, struct gr_tokenizer_parts *p)
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
    const char *type = "BPE"; /* old files do not say it */
    GR_TRY(gr_json_string(w, "type", json_object_get(w->obj, "merges") == NULL, &type));
    if (strcmp(type, "BPE") != 0) {
        log_error("%s: model.type %.40s is not supported; known: BPE", w->name, type);
        return GR_EUNSUPPORTED;
    }
    GR_TRY(gr_json_only_keys(w, keys));
    double dropout = 0;
    GR_TRY(gr_json_double(w, "dropout", false, 0, 1, &dropout));
    if (dropout != 0) {
        log_error("%s: model.dropout other than 0 is not supported", w->name);
        return GR_EUNSUPPORTED;
    }
    GR_TRY(refuse_affix(w, "continuing_subword_prefix"));
    GR_TRY(refuse_affix(w, "end_of_word_suffix"));
    GR_TRY(gr_json_string(w, "unk_token", false, &p->unk));
    GR_TRY(gr_json_bool(w, "fuse_unk", false, &p->fuse_unk));
    GR_TRY(gr_json_bool(w, "byte_fallback", false, &p->byte_fallback));
    return gr_json_bool(w, "ignore_merges", false, &p->ignore_merges);
}

/* ---- added tokens ---- */

/* Hugging Face takes the vocabulary's id then, and so ids other than the file says. */
static enum gr_status check_same_id(const char *name, const json_t *vocab, const char *content, int32_t id)
{
    const json_t *other = json_object_get(vocab, content);
    if (other != NULL && json_integer_value(other) != id) {
        log_error("%s: added token %.64s has id %d, model.vocab gives it id %lld", name, content, id,
                  (long long)json_integer_value(other));
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status read_added_token(const struct reader *r, const json_t *vocab, size_t i, const json_t *item,
                                       struct gr_tok_added *a)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    struct gr_json_where w = {.name = r->parts.name, .prefix = "added_tokens: ", .obj = item};
    const char *content = json_string_value(json_object_get(item, "content"));
    if (content == NULL) {
        log_error("%s: added_tokens[%zu] has no content string", r->parts.name, i);
        return GR_EFORMAT;
    }
    GR_TRY(gr_json_only_keys(&w, keys));
    GR_TRY(gr_json_int(&w, "id", true, 0, GR_TOKENIZER_N_VOCAB - 1, &a->id));
    GR_TRY(gr_json_bool(&w, "single_word", false, &a->single_word));
    GR_TRY(gr_json_bool(&w, "lstrip", false, &a->lstrip));
    GR_TRY(gr_json_bool(&w, "rstrip", false, &a->rstrip));
    GR_TRY(gr_json_bool(&w, "special", false, &a->special));
    a->normalized = !a->special; /* Hugging Face's default */
    GR_TRY(gr_json_bool(&w, "normalized", false, &a->normalized));
    a->content = (struct gr_tok_text){content, (uint32_t)strlen(content)};
    return check_same_id(r->parts.name, vocab, content, a->id);
}

static enum gr_status read_added(struct reader *r, const json_t *vocab, const json_t *added)
{
    const size_t n = json_array_size(added);
    r->added = calloc(n + 1, sizeof(*r->added));
    if (r->added == NULL) {
        log_error("%s: no memory for %zu added tokens", r->parts.name, n);
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        GR_TRY(read_added_token(r, vocab, i, json_array_get(added, i), &r->added[i]));
    }
    r->parts.added = r->added;
    r->parts.n_added = n;
    return GR_OK;
}

/* ---- all ---- */

/* transformers sets these anew for every call; so does graft, to nothing. */
static void warn_unused(const char *name, const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    if (value != NULL && !json_is_null(value)) {
        log_warn("%s: %s is not applied", name, key);
    }
}

static enum gr_status read_root(struct reader *r, const json_t *root)
{
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    struct gr_json_where w = {.name = r->parts.name, .prefix = "", .obj = root};
    const json_t *model = NULL, *added = NULL, *vocab = NULL, *merges = NULL;
    GR_TRY(gr_json_only_keys(&w, keys));
    warn_unused(r->parts.name, root, "truncation");
    warn_unused(r->parts.name, root, "padding");
    GR_TRY(gr_json_object(&w, "model", true, &model));
    GR_TRY(gr_json_array(&w, "added_tokens", false, &added));
    struct gr_json_where mw = {.name = r->parts.name, .prefix = "model.", .obj = model};
    GR_TRY(read_model_options(&mw, &r->parts));
    GR_TRY(gr_json_object(&mw, "vocab", true, &vocab));
    GR_TRY(gr_json_array(&mw, "merges", true, &merges));
    GR_TRY(read_vocab(r, vocab));
    GR_TRY(read_merges(r, merges));
    GR_TRY(read_added(r, vocab, added));
    return gr_tok_parse_steps(&r->parts, root);
}

enum gr_status gr_tokenizer_parse(const char *name, const char *json, size_t len, struct gr_tokenizer **out)
{
    json_t *root;
    GR_TRY(gr_json_parse_object(name, json, len, &root));
    struct reader r = {.parts = {.name = name, .tokens_field = "model.vocab", .merge_field = "model.merges"}};
    enum gr_status st = read_root(&r, root);
    if (st == GR_OK) {
        st = gr_tokenizer_build(&r.parts, out);
    }
    free(r.tokens);
    free(r.merges);
    free(r.added);
    json_decref(root);
    return st;
}

/* ---- a folder ---- */

/* eos_token of tokenizer_config.json: a text, or an object that has it as its content. */
static enum gr_status find_eos(const char *path, const json_t *root, struct gr_tokenizer *tok)
{
    const json_t *value = json_object_get(root, "eos_token");
    const char *text = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    if (value == NULL || json_is_null(value)) {
        return GR_OK;
    }
    if (text == NULL) {
        log_error("%s: eos_token must be a string, or an object with a string as its content", path);
        return GR_EFORMAT;
    }
    tok->eos_id = gr_tokenizer_added_id(tok, text);
    if (tok->eos_id < 0) {
        log_warn("%s: eos_token %.64s is no added token of tokenizer.json: it does not end a text", path, text);
    }
    return GR_OK;
}

static enum gr_status read_tokenizer_config(const char *dir, struct gr_tokenizer *tok)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    GR_TRY(gr_json_read_object(dir, GR_TOKENIZER_CONFIG, GR_TOKENIZER_CONFIG_BYTES, path, &root));
    const enum gr_status st = root != NULL ? find_eos(path, root, tok) : GR_OK;
    json_decref(root);
    return st;
}

enum gr_status gr_tokenizer_load(const char *dir, struct gr_tokenizer **out)
{
    char path[PATH_MAX];
    char *json;
    size_t len;
    struct gr_tokenizer *tok = NULL;
    GR_TRY(gr_path_join(path, sizeof(path), dir, "tokenizer.json"));
    GR_TRY(gr_file_read(path, GR_TOKENIZER_FILE_BYTES, true, &json, &len));
    enum gr_status st = gr_tokenizer_parse(path, json, len, &tok);
    free(json);
    GR_TRY(st);
    st = read_tokenizer_config(dir, tok);
    if (st != GR_OK) {
        gr_tokenizer_destroy(tok);
        return st;
    }
    *out = tok;
    return GR_OK;
}
