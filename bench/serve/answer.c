#include "bench/serve/answer.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gr_answer_fail(struct gr_answer *a, enum gr_answer_end end, const char *fmt, ...)
{
    if (a->end != GR_ANSWER_NONE) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    vsnprintf(a->said, sizeof(a->said), fmt, args);
    va_end(args);
    a->end = end;
}

static bool add_gap(struct gr_gaps *g, double s)
{
    if (g->n == g->cap) {
        const size_t wanted = g->cap == 0 ? 4096 : 2 * g->cap;
        double *more = realloc(g->s, wanted * sizeof(*more));
        if (more == NULL) {
            return false;
        }
        g->s = more;
        g->cap = wanted;
    }
    g->s[g->n++] = s;
    return true;
}

static bool add_text(struct gr_answer *a, const char *text, size_t n)
{
    if (a->n_text + n + 1 > a->text_cap) {
        const size_t wanted = 2 * (a->n_text + n + 1);
        char *more = realloc(a->text, wanted);
        if (more == NULL) {
            return false;
        }
        a->text = more;
        a->text_cap = wanted;
    }
    memcpy(a->text + a->n_text, text, n);
    a->n_text += n;
    a->text[a->n_text] = '\0';
    return true;
}

static void take_piece(struct gr_answer *a, const json_t *text, uint64_t now_ns, struct gr_gaps *gaps)
{
    bool kept = add_text(a, json_string_value(text), json_string_length(text));
    if (a->n_piece++ == 0) {
        a->first_ns = now_ns;
    } else {
        a->longest_gap_ns = GR_MAX(a->longest_gap_ns, now_ns - a->last_ns);
        kept = add_gap(gaps, 1e-9 * (double)(now_ns - a->last_ns)) && kept;
    }
    a->last_ns = now_ns;
    if (!kept) {
        gr_answer_fail(a, GR_ANSWER_FORM, "out of memory");
    }
}

/* The text of a completion's chunk, or of a chat's. */
static const json_t *text_of(const json_t *chunk)
{
    const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
    const json_t *text = json_object_get(choice, "text");
    return text != NULL ? text : json_object_get(json_object_get(choice, "delta"), "content");
}

static void take_usage(struct gr_answer *a, const json_t *usage)
{
    a->n_in = (uint32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    a->n_out = (uint32_t)json_integer_value(json_object_get(usage, "completion_tokens"));
}

static void take_chunk(struct gr_answer *a, const json_t *chunk, uint64_t now_ns, struct gr_gaps *gaps)
{
    const json_t *error = json_object_get(chunk, "error");
    const json_t *text = text_of(chunk);
    const json_t *usage = json_object_get(chunk, "usage");
    if (error != NULL) {
        const char *message = json_string_value(json_object_get(error, "message"));
        gr_answer_fail(a, GR_ANSWER_EVENT, "%s", message != NULL ? message : "an error event without a message");
    }
    if (json_string_length(text) > 0) {
        take_piece(a, text, now_ns, gaps);
    }
    if (json_is_object(usage)) {
        take_usage(a, usage);
    }
}

void gr_answer_take(struct gr_answer *a, const char *data, size_t n, uint64_t now_ns, struct gr_gaps *gaps)
{
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        a->done = true;
        return;
    }
    json_error_t e;
    json_t *chunk = json_loadb(data, n, JSON_ALLOW_NUL, &e);
    if (chunk == NULL) {
        gr_answer_fail(a, GR_ANSWER_FORM, "an event is not JSON: %s", e.text);
        return;
    }
    take_chunk(a, chunk, now_ns, gaps);
    json_decref(chunk);
}

void gr_answer_take_error(struct gr_answer *a, const char *bytes, size_t n)
{
    const size_t at = strlen(a->said);
    snprintf(a->said + at, sizeof(a->said) - at, "%.*s", (int)GR_MIN(n, sizeof(a->said)), bytes);
}

/* The message of an error object of OpenAI's, else the body as it is. */
static void tell_status(struct gr_answer *a)
{
    char body[GR_ANSWER_SAID_MAX];
    memcpy(body, a->said, sizeof(body));
    body[strcspn(body, "\r\n")] = '\0';
    json_t *o = json_loads(a->said, 0, NULL);
    const char *message = json_string_value(json_object_get(json_object_get(o, "error"), "message"));
    gr_answer_fail(a, GR_ANSWER_STATUS, "status %d: %.300s", a->status, message != NULL ? message : body);
    json_decref(o);
}

void gr_answer_finish(struct gr_answer *a, uint64_t now_ns)
{
    a->end_ns = now_ns;
    if (a->status != 200 && a->status != 0) {
        tell_status(a);
    } else if (!a->done) {
        gr_answer_fail(a, GR_ANSWER_CUT, "its stream ended without [DONE]");
    } else if (a->n_out == 0) {
        gr_answer_fail(a, GR_ANSWER_FORM, "its stream has no usage (stream_options.include_usage), or no token");
    }
    if (a->end == GR_ANSWER_NONE) {
        a->end = GR_ANSWER_DONE;
    }
}

void gr_answer_free(struct gr_answer *a)
{
    free(a->text);
    a->text = NULL;
}
