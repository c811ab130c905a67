#include "orchestrator/http/served.h"

#include "common/base/log.h"
#include "model/files/model_path.h"
#include "model/tokenizer/tokenizer_of_model.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static void name_it(struct gr_served *s, const char *name, const char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/') {
        len--;
    }
    const char *last = memrchr(path, '/', len > 1 ? len - 1 : 0);
    const char *from = last != NULL ? last + 1 : path;
    if (name != NULL) {
        snprintf(s->name, sizeof(s->name), "%s", name);
    } else {
        snprintf(s->name, sizeof(s->name), "%.*s", (int)(path + len - from), from);
    }
}

static enum gr_status choose_form(struct gr_served *s, const struct gr_served_config *c)
{
    const struct gr_chat_file *f = &s->chat_file;
    if (c->chat_template == NULL) {
        s->chat.form = f->jinja != NULL ? gr_chat_by_text(f->jinja, f->len) : NULL;
        return GR_OK;
    }
    s->chat.form = gr_chat_by_name(c->chat_template);
    if (s->chat.form == NULL) {
        log_error("--chat-template %s: graft knows no template of this name; docs/chat.md lists them",
                  c->chat_template);
        return GR_EINVAL;
    }
    return GR_OK;
}

/* A model whose template is not known answers completions alone. */
static enum gr_status read_chat(struct gr_served *s, const struct gr_served_config *c, const struct gr_gguf *gguf)
{
    GR_TRY(gr_chat_file_read(c->path, gguf, &s->chat_file));
    GR_TRY(choose_form(s, c));
    s->chat.bos = s->chat_file.bos;
    s->chat.eos = s->chat_file.eos;
    if (s->chat.form == NULL) {
        log_warn("%s: it has %s: /v1/chat/completions is not served for it; %s", c->path,
                 s->chat_file.jinja == NULL ? "no chat template" : "a chat template that graft does not know",
                 c->has_others ? "of several models each has the template of its own files (docs/chat.md)"
                               : "--chat-template NAME gives it one");
    }
    return GR_OK;
}

static enum gr_status read_files(struct gr_served *s, const struct gr_served_config *c)
{
    const char *path = c->path;
    struct gr_model_meta meta;
    GR_TRY(gr_model_meta_open(path, &meta));
    const struct gr_gguf *gguf = gr_model_meta_gguf(&meta);
    s->hf = meta.hf;
    enum gr_status st = gr_tokenizer_of_files(path, gguf, &s->tok);
    if (st == GR_OK && s->tok == NULL) {
        log_error("%s: has no " GR_TOKENIZER_PLACES ": an endpoint takes and gives text", path);
        st = GR_ENOTFOUND;
    }
    if (st == GR_OK) {
        st = read_chat(s, c, gguf);
    }
    gr_model_meta_close(&meta);
    return st;
}

enum gr_status gr_served_open(const struct gr_served_config *c, struct gr_served *out)
{
    struct gr_served s = {.created_s = (int64_t)time(NULL), .named = c->name != NULL};
    name_it(&s, c->name, c->path);
    const enum gr_status st = read_files(&s, c);
    if (st != GR_OK) {
        gr_served_close(&s);
        return st;
    }
    s.fingerprint = gr_tokenizer_fingerprint(s.tok);
    s.n_vocab = GR_MIN(s.hf.n_vocab, gr_tokenizer_n_vocab(s.tok));
    *out = s;
    return GR_OK;
}

void gr_served_close(struct gr_served *s)
{
    gr_chat_file_free(&s->chat_file);
    gr_tokenizer_destroy(s->tok);
    *s = (struct gr_served){0};
}
