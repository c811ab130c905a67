#include "orchestrator/cli/chat_setup.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>

/* The names, with commas between them. */
static const char *known(char text[static 512])
{
    const char *name;
    size_t at = 0;
    for (int i = 0; (name = gr_chat_name_at(i)) != NULL && at < 480; i++) {
        at += (size_t)snprintf(text + at, 512 - at, "%s%s", i > 0 ? ", " : "", name);
    }
    return text;
}

/* By the option, else by the text in the model's files. */
static enum gr_status choose(const struct gr_options *o, const struct gr_chat_file *f,
                             const struct gr_chat_template **out)
{
    char names[512];
    if (o->chat_template != NULL) {
        *out = gr_chat_by_name(o->chat_template);
        if (*out == NULL) {
            log_error("--chat-template %s: it is one of %s", o->chat_template, known(names));
        }
        return *out != NULL ? GR_OK : GR_EINVAL;
    }
    if (f->jinja == NULL) {
        log_error("%s has no chat template: --chat-template NAME gives one of %s", o->model, known(names));
        return GR_ENOTFOUND;
    }
    *out = gr_chat_by_text(f->jinja, f->len);
    if (*out == NULL) {
        log_error("%s: its chat template (%s, fingerprint %016" PRIx64 ") is none that graft knows; --chat-template "
                  "NAME overrides it with one of %s",
                  o->model, f->where, gr_chat_fingerprint(f->jinja, f->len), known(names));
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

static enum gr_status check(const struct gr_options *o, const struct gr_chat_template *form)
{
    if (o->chat_date != NULL && !gr_chat_has_date(form)) {
        log_error("--chat-date: the chat template %s tells no date", gr_chat_name(form));
        return GR_EINVAL;
    }
    if (o->chat_thinking == GR_CHOICE_THINKING_OFF && !gr_chat_thinks(form)) {
        log_error("--chat-thinking off: the chat template %s cannot tell the model not to think", gr_chat_name(form));
        return GR_EINVAL;
    }
    return GR_OK;
}

/* Where the model has no such token an answer ends at its limit alone. */
static void warn_of_ends(const struct gr_chat *c, const struct gr_tokenizer *tok)
{
    const char *end[GR_CHAT_N_END_MAX];
    if (gr_chat_ends(c, end) > 0 && gr_tokenizer_added_id(tok, end[0]) < 0) {
        log_warn("the tokenizer has no token %s, which ends an answer in the chat template %s", end[0],
                 gr_chat_name(c->form));
    }
}

enum gr_status gr_chat_setup_open(const struct gr_options *o, const struct gr_gguf *gguf,
                                  const struct gr_tokenizer *tok, struct gr_chat_setup *out)
{
    struct gr_chat_setup s = {0};
    GR_TRY(gr_chat_file_read(o->model, gguf, &s.file));
    enum gr_status st = choose(o, &s.file, &s.chat.form);
    if (st == GR_OK) {
        st = check(o, s.chat.form);
    }
    if (st != GR_OK) {
        gr_chat_setup_close(&s);
        return st;
    }
    s.chat.bos = s.file.bos;
    s.chat.eos = s.file.eos;
    s.chat.date = o->chat_date;
    s.chat.no_thinking = o->chat_thinking == GR_CHOICE_THINKING_OFF;
    if (tok != NULL) {
        warn_of_ends(&s.chat, tok);
    }
    *out = s;
    return GR_OK;
}

void gr_chat_setup_close(struct gr_chat_setup *s)
{
    gr_chat_file_free(&s->file);
    *s = (struct gr_chat_setup){0};
}
