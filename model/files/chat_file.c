#include "model/files/chat_file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/gguf.h"
#include "model/files/json_util.h"

#define JINJA_BYTES_MAX (16u << 20)
#define JINJA "chat_template.jinja"

void gr_chat_file_free(struct gr_chat_file *f)
{
    free(f->jinja);
    free(f->bos);
    free(f->eos);
    *f = (struct gr_chat_file){0};
}

/* A copy of text[0, len); NULL where there is no text. */
static enum gr_status copy(const char *text, size_t len, char **out)
{
    *out = text != NULL ? strndup(text, len) : NULL;
    if (text != NULL && *out == NULL) {
        log_error("out of memory for a chat template of %zu bytes", len);
        return GR_ENOMEM;
    }
    return GR_OK;
}

static enum gr_status take_jinja(struct gr_chat_file *f, const char *text, size_t len, const char *where)
{
    GR_TRY(copy(text, len, &f->jinja));
    f->len = text != NULL ? strlen(f->jinja) : 0;
    f->where = text != NULL ? where : NULL;
    return GR_OK;
}

/* ---- folders ---- */

/* Of several templates the one called default. */
static const json_t *default_of(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name != NULL && strcmp(name, "default") == 0) {
            return json_object_get(entry, "template");
        }
    }
    return NULL;
}

/* A text, or an object that has it as its content. */
static enum gr_status copy_token(const json_t *root, const char *key, char **out)
{
    const json_t *value = json_object_get(root, key);
    if (json_is_object(value)) {
        value = json_object_get(value, "content");
    }
    return copy(json_string_value(value), json_string_length(value), out);
}

static enum gr_status read_config(const char *path, const json_t *root, struct gr_chat_file *f)
{
    const json_t *value = json_object_get(root, "chat_template");
    if (json_is_array(value)) {
        value = default_of(value);
    }
    if (value != NULL && !json_is_string(value) && !json_is_null(value)) {
        log_error("%s: chat_template must be a string, or a list of objects with name and template, which are strings",
                  path);
        return GR_EFORMAT;
    }
    GR_TRY(take_jinja(f, json_string_value(value), json_string_length(value), GR_TOKENIZER_CONFIG));
    GR_TRY(copy_token(root, "bos_token", &f->bos));
    return copy_token(root, "eos_token", &f->eos);
}

static enum gr_status read_config_file(const char *dir, struct gr_chat_file *f)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    GR_TRY(gr_json_read_object(dir, GR_TOKENIZER_CONFIG, GR_TOKENIZER_CONFIG_BYTES, path, &root));
    const enum gr_status st = root != NULL ? read_config(path, root, f) : GR_OK;
    json_decref(root);
    return st;
}

/* It goes before what the other file says. */
static enum gr_status read_jinja_file(const char *dir, struct gr_chat_file *f)
{
    char path[PATH_MAX];
    char *text = NULL;
    size_t len = 0;
    GR_TRY(gr_path_join(path, sizeof(path), dir, JINJA));
    const enum gr_status st = gr_file_read(path, JINJA_BYTES_MAX, false, &text, &len);
    if (st != GR_OK) {
        return st == GR_ENOTFOUND ? GR_OK : st;
    }
    free(f->jinja);
    f->jinja = text;
    f->len = len;
    f->where = JINJA;
    return GR_OK;
}

/* ---- GGUF ---- */

/* The token of that id as the list spells it. */
static enum gr_status copy_listed(const struct gr_gguf *g, const char *id_key, char **out)
{
    const struct gr_gguf_field *list = gr_gguf_find(g, "tokenizer.ggml.tokens");
    int64_t id = -1;
    GR_TRY(gr_gguf_int(g, id_key, false, &id));
    if (list == NULL || !list->is_array || list->type != GR_GGUF_STRING || id < 0 || (uint64_t)id >= list->n) {
        return GR_OK;
    }
    const uint8_t *at = list->data;
    const char *text = NULL;
    size_t len = 0;
    for (int64_t i = 0; i <= id; i++) {
        text = gr_gguf_next_string(&at, &len);
    }
    return copy(text, len, out);
}

static enum gr_status read_metadata(const struct gr_gguf *g, struct gr_chat_file *f)
{
    const char *text = NULL;
    size_t len = 0;
    GR_TRY(gr_gguf_string(g, "tokenizer.chat_template", false, &text, &len));
    GR_TRY(take_jinja(f, text, len, "tokenizer.chat_template"));
    GR_TRY(copy_listed(g, "tokenizer.ggml.bos_token_id", &f->bos));
    return copy_listed(g, "tokenizer.ggml.eos_token_id", &f->eos);
}

enum gr_status gr_chat_file_read(const char *path, const struct gr_gguf *gguf, struct gr_chat_file *out)
{
    struct gr_chat_file f = {0};
    enum gr_status st = gguf != NULL ? read_metadata(gguf, &f) : read_config_file(path, &f);
    if (st == GR_OK && gguf == NULL) {
        st = read_jinja_file(path, &f);
    }
    if (st != GR_OK) {
        gr_chat_file_free(&f);
        return st;
    }
    *out = f;
    return GR_OK;
}
