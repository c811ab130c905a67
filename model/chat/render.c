/* Conversations into text by the rows of templates.c. */
#include <stdlib.h>
#include <string.h>

#include "common/base/grow.h"
#include "common/base/log.h"
#include "model/chat/chat_internal.h"

#include <utf8proc.h>

/* ---- white space, as Python has it ---- */

/* str.isspace(): Unicode White_Space and four separators. */
static bool is_space(int32_t c)
{
    return gr_is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

static size_t space_at(const char *text, size_t len)
{
    int32_t c;
    const utf8proc_ssize_t n = len > 0 ? utf8proc_iterate((const uint8_t *)text, (utf8proc_ssize_t)len, &c) : 0;
    return n > 0 && is_space(c) ? (size_t)n : 0;
}

static size_t space_before(const char *text, size_t len)
{
    size_t n = 1;
    while (n < len && ((uint8_t)text[len - n] & 0xC0) == 0x80) {
        n++;
    }
    return len > 0 && space_at(text + len - n, n) == n ? n : 0;
}

struct gr_chat_piece gr_chat_strip_end(struct gr_chat_piece p)
{
    size_t n;
    while ((n = space_before(p.text, p.len)) > 0) {
        p.len -= n;
    }
    return p;
}

struct gr_chat_piece gr_chat_strip_piece(struct gr_chat_piece p)
{
    size_t n;
    while ((n = space_at(p.text, p.len)) > 0) {
        p.text += n;
        p.len -= n;
    }
    return gr_chat_strip_end(p);
}

struct gr_chat_piece gr_chat_strip_newlines(struct gr_chat_piece p, bool at_end)
{
    while (at_end && p.len > 0 && p.text[p.len - 1] == '\n') {
        p.len--;
    }
    while (!at_end && p.len > 0 && p.text[0] == '\n') {
        p.text++;
        p.len--;
    }
    return p;
}

/* ---- the text ---- */

void gr_chat_text_free(struct gr_chat_text *t)
{
    free(t->text);
    free(t->plain);
    *t = (struct gr_chat_text){0};
}

struct gr_marked_text gr_chat_text_marked(const struct gr_chat_text *t)
{
    return (struct gr_marked_text){.text = t->text, .len = t->len, .plain = t->plain, .n_plain = t->n_plain};
}

static void put(struct gr_chat_writer *w, const char *text, size_t len)
{
    struct gr_chat_text *t = w->out;
    char *bigger = gr_grow(t->text, &t->cap, t->len + len + 1, 1);
    t->text = bigger != NULL ? bigger : t->text;
    w->failed = w->failed || bigger == NULL;
    if (!w->failed) {
        memcpy(t->text + t->len, text != NULL ? text : "", len);
        t->len += len;
        t->text[t->len] = '\0';
    }
}

void gr_chat_put(struct gr_chat_writer *w, const char *text)
{
    const struct gr_chat *c = w->c;
    const char *given[] = {c->bos, c->eos, c->date};
    const char *usual[] = {c->form->bos, c->form->eos, c->form->date};
    for (const char *p = text; *p != '\0';) {
        const size_t n = strcspn(p, BOS EOS DATE);
        put(w, p, n);
        p += n;
        if (*p != '\0') {
            const size_t i = (size_t)(*p++ - BOS[0]);
            const char *known = given[i] != NULL ? given[i] : usual[i];
            put(w, known, strlen(known));
        }
    }
}

void gr_chat_put_plain(struct gr_chat_writer *w, const char *text, size_t len)
{
    struct gr_chat_text *t = w->out;
    const size_t begin = t->len;
    put(w, text, len);
    struct gr_text_span *bigger = gr_grow(t->plain, &t->cap_plain, t->n_plain + 1, sizeof(*bigger));
    t->plain = bigger != NULL ? bigger : t->plain;
    w->failed = w->failed || bigger == NULL;
    if (!w->failed && len > 0) {
        t->plain[t->n_plain++] = (struct gr_text_span){begin, begin + len};
    }
}

/* ---- turns ---- */

static const struct gr_chat_message *first_system(const struct gr_chat_writer *w)
{
    return w->messages[0].role == GR_CHAT_SYSTEM ? &w->messages[0] : NULL;
}

static struct gr_chat_piece piece_of(const struct gr_chat_message *m)
{
    return (struct gr_chat_piece){m->text, m->len};
}

static bool is_stripped(const struct gr_chat_template *f, enum gr_chat_role role)
{
    return f->strip == GR_CHAT_STRIP || f->strip == GR_CHAT_STRIP_JOINED ||
           (f->strip == GR_CHAT_STRIP_ANSWERS && role == GR_CHAT_ASSISTANT);
}

static void put_text(struct gr_chat_writer *w, const struct gr_chat_message *m)
{
    struct gr_chat_piece p = piece_of(m);
    if (is_stripped(w->c->form, m->role)) {
        p = gr_chat_strip_piece(p);
    }
    gr_chat_put_plain(w, p.text, p.len);
}

/* A turn of the system's own, the first one. */
static void put_head(struct gr_chat_writer *w)
{
    const struct gr_chat_template *f = w->c->form;
    const struct gr_chat_message *system = first_system(w);
    if (f->head != NULL) {
        f->head(w);
        return;
    }
    if (f->place != GR_CHAT_OWN_TURN || (system == NULL && f->system == NULL)) {
        return;
    }
    gr_chat_put(w, f->turn[GR_CHAT_SYSTEM].before);
    gr_chat_put(w, f->lead != NULL ? f->lead : "");
    if (system != NULL) {
        put_text(w, system);
    } else {
        gr_chat_put(w, f->system);
    }
    gr_chat_put(w, f->turn[GR_CHAT_SYSTEM].after);
}

static bool takes_system(const struct gr_chat_writer *w, size_t i)
{
    const enum gr_chat_system_place place = w->c->form->place;
    return first_system(w) != NULL && w->messages[i].role == GR_CHAT_USER &&
           ((place == GR_CHAT_FIRST_USER && i == 1) || (place == GR_CHAT_LAST_USER && i + 1 == w->n_message));
}

/* White space at the end of the text that was written so far goes; it may be the template's. */
static void strip_written(struct gr_chat_writer *w)
{
    size_t n;
    while (!w->failed && (n = space_before(w->out->text, w->out->len)) > 0) {
        w->out->len -= n;
        w->out->text[w->out->len] = '\0';
    }
}

/* Both as one text. Where that is stripped it begins with what the template writes; where the message is nothing but
 * white space, what goes at the end is the template's, too. */
static void put_with_system(struct gr_chat_writer *w, const struct gr_chat_message *m)
{
    const struct gr_chat_template *f = w->c->form;
    const struct gr_chat_message *system = first_system(w);
    gr_chat_put(w, f->turn[GR_CHAT_SYSTEM].before);
    gr_chat_put_plain(w, system->text, system->len);
    gr_chat_put(w, f->turn[GR_CHAT_SYSTEM].after);
    if (f->strip != GR_CHAT_STRIP_JOINED) {
        put_text(w, m);
        return;
    }
    const struct gr_chat_piece p = gr_chat_strip_end(piece_of(m));
    gr_chat_put_plain(w, p.text, p.len);
    if (p.len == 0) {
        strip_written(w);
    }
}

static void put_turn(struct gr_chat_writer *w, size_t i)
{
    const struct gr_chat_template *f = w->c->form;
    const struct gr_chat_message *m = &w->messages[i];
    const size_t n_plain = w->out->n_plain;
    gr_chat_put(w, f->turn[m->role].before);
    if (takes_system(w, i)) {
        put_with_system(w, m);
    } else if (m->role == GR_CHAT_ASSISTANT && f->old_answer != NULL) {
        f->old_answer(w, i);
    } else {
        put_text(w, m);
    }
    if (!w->c->goes_on || i + 1 < w->n_message) {
        gr_chat_put(w, f->turn[m->role].after);
    } else if (is_stripped(f, m->role) && w->out->n_plain == n_plain) {
        strip_written(w); /* transformers strips all that stands before the end of an open message */
    }
}

static void put_all(struct gr_chat_writer *w)
{
    const struct gr_chat_template *f = w->c->form;
    const bool silent = f->silent != NULL ? f->silent(w) : w->c->no_thinking;
    put(w, "", 0); /* a text there is, if an empty one */
    gr_chat_put(w, f->begin);
    put_head(w);
    for (size_t i = first_system(w) != NULL; i < w->n_message; i++) {
        if (w->messages[i].role != GR_CHAT_SYSTEM || !f->one_system) {
            put_turn(w, i);
        }
    }
    if (!w->c->goes_on) {
        gr_chat_put(w, f->answer);
        gr_chat_put(w, silent && f->no_thinking != NULL ? f->no_thinking : "");
    }
}

/* ---- what a template takes ---- */

static enum gr_status refuse(const struct gr_chat *c, const char *what)
{
    log_error("chat template %s: %s", c->form->name, what);
    return GR_EINVAL;
}

static enum gr_status check_roles(const struct gr_chat *c, const struct gr_chat_message *m, size_t n)
{
    const struct gr_chat_template *f = c->form;
    const size_t first = n > 0 && m[0].role == GR_CHAT_SYSTEM;
    if (n == 0) {
        return refuse(c, "there is no message");
    }
    if (first == 1 && f->place == GR_CHAT_NOWHERE) {
        return refuse(c, "the model takes no system message (--system); put it into the user's own");
    }
    if (c->goes_on && m[n - 1].role != GR_CHAT_ASSISTANT) {
        return refuse(c, "the answer can only go on with a message of the assistant");
    }
    for (size_t i = first; i < n && f->alternates; i++) {
        if (m[i].role == GR_CHAT_SYSTEM) {
            return refuse(c, "a system message may only come first");
        }
        if ((m[i].role == GR_CHAT_USER) != ((i - first) % 2 == 0)) {
            return refuse(c, "the user's and the assistant's messages must take turns, and the user begins");
        }
    }
    return GR_OK;
}

enum gr_status gr_chat_render(const struct gr_chat *c, const struct gr_chat_message *messages, size_t n,
                              struct gr_chat_text *out)
{
    *out = (struct gr_chat_text){0};
    GR_TRY(check_roles(c, messages, n));
    struct gr_chat_writer w = {.c = c, .messages = messages, .n_message = n, .out = out};
    put_all(&w);
    if (w.failed) {
        log_error("out of memory for a conversation of %zu messages", n);
        gr_chat_text_free(out);
        return GR_ENOMEM;
    }
    return GR_OK;
}
