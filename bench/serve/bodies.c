#include "bench/serve/bodies.h"

#include "common/base/log.h"
#include "model/files/json_util.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (256u << 20)

struct maker {
    const struct gr_bench_options *o;
    const char *model;
    json_t *extra; /* owned; NULL: none */
    struct gr_bodies *out;
};

static bool is_chat(const struct gr_bench_options *o)
{
    return o->serve_backend == GR_BENCH_OPENAI_CHAT;
}

/* ---- one body ---- */

static json_t *messages_of(json_t *prompt)
{
    return json_pack("[{s:s, s:O}]", "role", "user", "content", prompt);
}

static json_t *make_request(const struct maker *m, json_t *prompt)
{
    const struct gr_bench_options *o = m->o;
    json_t *r = json_pack("{s:s, s:f, s:b, s:{s:b}}", "model", m->model, "temperature", o->serve_temperature, "stream",
                          1, "stream_options", "include_usage", 1);
    json_object_set_new(r, is_chat(o) ? "max_completion_tokens" : "max_tokens", json_integer(o->output_len));
    if (is_chat(o)) {
        json_object_set_new(r, "messages", messages_of(prompt));
    } else {
        json_object_set(r, "prompt", prompt);
    }
    if (o->ignore_eos) {
        json_object_set_new(r, "ignore_eos", json_true());
    }
    if (o->serve_temperature > 0.0) { /* so that a prompt has one text */
        json_object_set_new(r, "seed", json_integer(o->serve_seed));
    }
    if (m->extra != NULL) {
        json_object_update(r, m->extra);
    }
    return r;
}

/* Takes prompt: a text, or a list of ids; NULL: out of memory. */
static enum gr_status add_body(struct maker *m, json_t *prompt)
{
    json_t *r = prompt != NULL ? make_request(m, prompt) : NULL;
    char *text = r != NULL ? json_dumps(r, JSON_COMPACT) : NULL;
    json_decref(r);
    json_decref(prompt);
    if (text == NULL) {
        log_error("out of memory for the requests");
        return GR_ENOMEM;
    }
    m->out->body[m->out->n++] = text;
    return GR_OK;
}

/* ---- prompts of a file ---- */

/* A line that is an object has the prompt as "prompt" (vLLM's custom data sets) or "text"; any other is one. */
static enum gr_status read_line(struct maker *m, int number, const char *line, size_t n)
{
    const char *path = m->o->serve_prompts;
    json_error_t e;
    if (line[0] != '{') {
        json_t *text = json_stringn(line, n);
        if (text == NULL) {
            log_error("%s:%d: not UTF-8", path, number);
            return GR_EFORMAT;
        }
        return add_body(m, text);
    }
    json_t *o = json_loadb(line, n, 0, &e);
    json_t *prompt = json_object_get(o, "prompt");
    prompt = prompt != NULL ? prompt : json_object_get(o, "text");
    if (!json_is_string(prompt)) {
        log_error("%s:%d: %s", path, number, o == NULL ? e.text : "the line has no text \"prompt\" or \"text\"");
        json_decref(o);
        return GR_EFORMAT;
    }
    json_incref(prompt);
    json_decref(o);
    return add_body(m, prompt);
}

static enum gr_status read_lines(struct maker *m, const char *text)
{
    int number = 0;
    while (*text != '\0' && m->out->n < m->o->serve_num_prompts) {
        const size_t whole = strcspn(text, "\n");
        const size_t n = whole > 0 && text[whole - 1] == '\r' ? whole - 1 : whole;
        number++;
        if (n > 0) {
            GR_TRY(read_line(m, number, text, n));
        }
        text += whole + (text[whole] == '\n');
    }
    if (m->out->n == 0) {
        log_error("%s has no prompt: it takes one a line", m->o->serve_prompts);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status read_file(struct maker *m)
{
    char *text = NULL;
    size_t n = 0;
    GR_TRY(gr_file_read(m->o->serve_prompts, FILE_BYTES_MAX, true, &text, &n));
    const enum gr_status st = strlen(text) == n ? read_lines(m, text) : GR_EFORMAT;
    if (strlen(text) != n) {
        log_error("%s is no text: it has a NUL", m->o->serve_prompts);
    }
    free(text);
    return st;
}

/* ---- random prompts ---- */

static json_t *random_ids(const struct gr_bench_options *o, unsigned short state[3])
{
    json_t *ids = json_array();
    for (int64_t i = 0; i < o->input_len; i++) {
        json_array_append_new(ids, json_integer(nrand48(state) % o->vocab_size));
    }
    return ids;
}

static enum gr_status draw_all(struct maker *m)
{
    unsigned short state[3] = {(unsigned short)m->o->serve_seed, (unsigned short)(m->o->serve_seed >> 16), 1};
    for (int64_t i = 0; i < m->o->serve_num_prompts; i++) {
        GR_TRY(add_body(m, random_ids(m->o, state)));
    }
    return GR_OK;
}

/* ---- all of them ---- */

static enum gr_status read_extra(struct maker *m)
{
    json_error_t e;
    if (m->o->extra_body == NULL) {
        return GR_OK;
    }
    m->extra = json_loads(m->o->extra_body, 0, &e);
    if (!json_is_object(m->extra)) {
        log_error("--extra-body: %s", m->extra == NULL ? e.text : "it is no JSON object");
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status make_all(struct maker *m)
{
    if (m->o->serve_prompts == NULL && is_chat(m->o)) {
        log_error("--backend openai-chat needs --prompts: a message is text, and random prompts are token ids");
        return GR_EINVAL;
    }
    GR_TRY(read_extra(m));
    m->out->body = calloc((size_t)m->o->serve_num_prompts, sizeof(*m->out->body));
    if (m->out->body == NULL) {
        log_error("out of memory for the requests");
        return GR_ENOMEM;
    }
    return m->o->serve_prompts != NULL ? read_file(m) : draw_all(m);
}

enum gr_status gr_bodies_make(const struct gr_bench_options *o, const char *model, struct gr_bodies *out)
{
    struct maker m = {.o = o, .model = model, .out = out};
    *out = (struct gr_bodies){.n = 0};
    const enum gr_status st = make_all(&m);
    json_decref(m.extra);
    return st;
}

void gr_bodies_free(struct gr_bodies *b)
{
    for (int i = 0; i < b->n; i++) {
        free(b->body[i]);
    }
    free(b->body);
    *b = (struct gr_bodies){.n = 0};
}
