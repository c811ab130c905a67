#include "orchestrator/http/api_request.h"

#include "common/base/utf8.h"
#include "orchestrator/http/api_body.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plain values ---- */

struct reading {
    struct gr_api_request *r;
    struct gr_api_error *e;
    const char *name; /* of the field at hand */
    int64_t old_max_tokens;
    bool wants_logprobs;
};

#define BAD(reading, ...) gr_api_refuse((reading)->e, 400, (reading)->name, __VA_ARGS__)

static enum gr_status wrong_kind(const struct reading *d, const json_t *v, const char *want)
{
    return BAD(d, "%s is %s; it must be %s", d->name, gr_api_kind_of(v), want);
}

static enum gr_status read_int(const struct reading *d, const json_t *v, double least, double most, int64_t *out)
{
    if (!json_is_integer(v)) {
        return wrong_kind(d, v, "an integer");
    }
    const int64_t x = json_integer_value(v);
    if (x == GR_API_NOT_GIVEN) { /* least and most, being doubles, cannot tell it from the next one */
        return BAD(d, "%s is %lld; it must be above that", d->name, (long long)x);
    }
    if ((double)x < least || (double)x > most) {
        return BAD(d, "%s is %lld; it must be %.0f to %.0f", d->name, (long long)x, least, most);
    }
    *out = x;
    return GR_OK;
}

static enum gr_status read_number(const struct reading *d, const json_t *v, double least, double most, double *out)
{
    if (!json_is_number(v)) {
        return wrong_kind(d, v, "a number");
    }
    const double x = json_number_value(v);
    if (!(x >= least && x <= most)) {
        return BAD(d, "%s is %g; it must be %g to %g", d->name, x, least, most);
    }
    *out = x;
    return GR_OK;
}

static enum gr_status read_bool(const struct reading *d, const json_t *v, bool *out)
{
    if (!json_is_boolean(v)) {
        return wrong_kind(d, v, "true or false");
    }
    *out = json_is_true(v);
    return GR_OK;
}

static enum gr_status read_string(const struct reading *d, const json_t *v, size_t most, const char **out)
{
    if (!json_is_string(v)) {
        return wrong_kind(d, v, "a string");
    }
    if (json_string_length(v) > most) {
        return BAD(d, "%s has %zu bytes; at most %zu are taken", d->name, json_string_length(v), most);
    }
    *out = json_string_value(v);
    return GR_OK;
}

/* ---- fields of more than one value ---- */

static enum gr_status read_model(struct reading *d, const json_t *v)
{
    return read_string(d, v, 1024, &d->r->model);
}

static enum gr_status read_cache_salt(struct reading *d, const json_t *v)
{
    GR_TRY(read_string(d, v, 256, &d->r->cache_salt));
    return d->r->cache_salt[0] != '\0' ? GR_OK : BAD(d, "cache_salt is empty; leave it out, or give it some bytes");
}

static enum gr_status read_specpv(struct reading *d, const json_t *v)
{
    static const char *const words[] = {"off", "lossy", "exact", "auto"};
    const char *word = NULL;
    GR_TRY(read_string(d, v, 16, &word));
    for (size_t i = 0; i < GR_ARRAY_LEN(words); i++) {
        if (strcmp(word, words[i]) == 0) {
            d->r->specpv = words[i];
        }
    }
    return d->r->specpv != NULL ? GR_OK : BAD(d, "specpv must be off, lossy, exact or auto");
}

static enum gr_status read_top_p(struct reading *d, const json_t *v)
{
    GR_TRY(read_number(d, v, 0.0, 1.0, &d->r->top_p));
    return (float)d->r->top_p > 0.0f ? GR_OK : BAD(d, "top_p is %g; it must be above 0, and at most 1", d->r->top_p);
}

/* vLLM writes -1 for all ids, others write 0. */
static enum gr_status read_top_k(struct reading *d, const json_t *v)
{
    GR_TRY(read_int(d, v, -1, 4194304, &d->r->top_k));
    d->r->top_k = GR_MAX(d->r->top_k, 0);
    return GR_OK;
}

/* The name before max_completion_tokens: where both are given the newer one counts. */
static enum gr_status read_old_max_tokens(struct reading *d, const json_t *v)
{
    return read_int(d, v, 1, 16777216, &d->old_max_tokens);
}

static enum gr_status read_chat_logprobs(struct reading *d, const json_t *v)
{
    return read_bool(d, v, &d->wants_logprobs);
}

static enum gr_status read_top_logprobs(struct reading *d, const json_t *v)
{
    return read_int(d, v, 0, 20, &d->r->n_logprob);
}

static enum gr_status read_add_generation_prompt(struct reading *d, const json_t *v)
{
    bool adds = true;
    return read_bool(d, v, &adds); /* settle_prompt_end() looks at it: what it may be depends on another field */
}

static enum gr_status read_template_kwargs(struct reading *d, const json_t *v)
{
    const char *key;
    json_t *value;
    if (!json_is_object(v)) {
        return wrong_kind(d, v, "an object");
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        if (strcmp(key, "enable_thinking") != 0) {
            return BAD(d, "chat_template_kwargs: %.40s is not known; enable_thinking is", key);
        }
        if (!json_is_null(value) && !json_is_boolean(value)) {
            return BAD(d, "chat_template_kwargs: enable_thinking must be true or false");
        }
        d->r->no_thinking = json_is_false(value);
    }
    return GR_OK;
}

static enum gr_status read_stream_options(struct reading *d, const json_t *v)
{
    const char *key;
    json_t *value;
    if (!json_is_object(v)) {
        return wrong_kind(d, v, "an object");
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        const bool usage = strcmp(key, "include_usage") == 0;
        if (!usage && strcmp(key, "include_obfuscation") != 0 && strcmp(key, "continuous_usage_stats") != 0) {
            return BAD(d, "stream_options: %.40s is not known; include_usage is", key);
        }
        if (!json_is_null(value) && !json_is_boolean(value)) {
            return BAD(d, "stream_options: %.40s must be true or false", key);
        }
        if (!usage && json_is_true(value)) {
            return BAD(d, "stream_options: %.40s is not done", key);
        }
        d->r->include_usage = usage ? json_is_true(value) : d->r->include_usage;
    }
    return GR_OK;
}

/* best_of above n would generate texts that nobody gets. */
static enum gr_status read_best_of(struct reading *d, const json_t *v)
{
    const json_t *n = json_object_get(d->r->body, "n");
    int64_t best_of = 0;
    GR_TRY(read_int(d, v, 0, 20, &best_of));
    const int64_t wanted = json_is_integer(n) ? json_integer_value(n) : 1;
    return best_of == wanted ? GR_OK : BAD(d, "best_of must be equal to n: other choices are not generated");
}

static enum gr_status add_stop(struct reading *d, const json_t *v)
{
    struct gr_api_request *r = d->r;
    if (!json_is_string(v)) {
        return wrong_kind(d, v, "a string, or an array of strings");
    }
    if (r->n_stop == GR_STOP_STRING_MAX) {
        return BAD(d, "stop: at most %d strings are taken", GR_STOP_STRING_MAX);
    }
    if (json_string_length(v) < 1 || json_string_length(v) > 256) {
        return BAD(d, "stop: a string has %zu bytes; it must have 1 to 256", json_string_length(v));
    }
    r->stop[r->n_stop++] = json_string_value(v);
    return GR_OK;
}

static enum gr_status read_stop(struct reading *d, const json_t *v)
{
    size_t i;
    json_t *one;
    if (!json_is_array(v)) {
        return add_stop(d, v);
    }
    json_array_foreach(v, i, one)
    {
        GR_TRY(add_stop(d, one));
    }
    return GR_OK;
}

static enum gr_status read_stop_ids(struct reading *d, const json_t *v)
{
    size_t i;
    json_t *one;
    if (!json_is_array(v)) {
        return wrong_kind(d, v, "an array of token ids");
    }
    if (json_array_size(v) > GR_STOP_ID_MAX / 2) {
        return BAD(d, "stop_token_ids: at most %d are taken", GR_STOP_ID_MAX / 2);
    }
    json_array_foreach(v, i, one)
    {
        int64_t id = 0;
        GR_TRY(read_int(d, one, 0, INT32_MAX, &id));
        d->r->stop_ids.id[d->r->stop_ids.n++] = (int32_t)id;
    }
    return GR_OK;
}

static enum gr_status read_bad_words(struct reading *d, const json_t *v)
{
    size_t i;
    json_t *one;
    if (!json_is_array(v)) {
        return wrong_kind(d, v, "an array of strings");
    }
    if (json_array_size(v) > GR_BAD_WORD_MAX) {
        return BAD(d, "bad_words: at most %d are taken", GR_BAD_WORD_MAX);
    }
    json_array_foreach(v, i, one)
    {
        if (!json_is_string(one) || json_string_length(one) < 1) {
            return BAD(d, "bad_words: each must be a string of at least one byte");
        }
        d->r->bad_word[d->r->n_bad_word++] = json_string_value(one);
    }
    return GR_OK;
}

static bool id_of_key(const char *key, int32_t *out)
{
    char *end = NULL;
    const long x = strtol(key, &end, 10);
    const bool digits = key[0] >= '0' && key[0] <= '9' && *end == '\0';
    *out = (int32_t)x;
    return digits && x <= INT32_MAX;
}

static enum gr_status read_logit_bias(struct reading *d, const json_t *v)
{
    struct gr_api_request *r = d->r;
    const char *key;
    json_t *value;
    if (!json_is_object(v)) {
        return wrong_kind(d, v, "an object of token ids and numbers");
    }
    if (json_object_size(v) > GR_BIAS_MAX) {
        return BAD(d, "logit_bias: at most %d ids are taken", GR_BIAS_MAX);
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        const double x = json_number_value(value);
        int32_t id = 0;
        if (!id_of_key(key, &id)) {
            return BAD(d, "logit_bias: %.40s is not a token id", key);
        }
        if (!json_is_number(value) || !(fabs(x) <= (double)GR_BIAS_VALUE_MAX)) {
            return BAD(d, "logit_bias: the value of id %d must be a number from -100 to 100", id);
        }
        r->biased.id[r->biased.n++] = id;
        r->bias.value[r->bias.n++] = (float)x;
    }
    return GR_OK;
}

/* ---- prompts ---- */

static enum gr_status read_ids(struct reading *d, const json_t *v, struct gr_api_prompt *p)
{
    size_t i;
    json_t *one;
    if (json_array_size(v) < 1) {
        return BAD(d, "prompt: a list of token ids must have at least one");
    }
    p->ids = malloc(json_array_size(v) * sizeof(*p->ids));
    if (p->ids == NULL) {
        return gr_api_refuse(d->e, 500, NULL, "out of memory");
    }
    json_array_foreach(v, i, one)
    {
        int64_t id = 0;
        if (!json_is_integer(one)) {
            return BAD(d, "prompt: element %zu of a list of token ids is %s", i, gr_api_kind_of(one));
        }
        GR_TRY(read_int(d, one, 0, INT32_MAX, &id));
        p->ids[p->n_ids++] = (int32_t)id;
    }
    return GR_OK;
}

static enum gr_status read_one_prompt(struct reading *d, const json_t *v)
{
    struct gr_api_prompt *p = &d->r->prompt[d->r->n_prompt++];
    if (json_is_array(v)) {
        return read_ids(d, v, p);
    }
    if (!json_is_string(v)) {
        return wrong_kind(d, v, "text, a list of texts, a list of token ids or a list of such lists");
    }
    p->text = json_string_value(v);
    p->len = json_string_length(v);
    return GR_OK;
}

static enum gr_status read_prompt(struct reading *d, const json_t *v)
{
    const bool list = json_is_array(v) && (json_array_size(v) == 0 || !json_is_integer(json_array_get(v, 0)));
    const size_t n = list ? json_array_size(v) : 1;
    size_t i;
    json_t *one;
    if (n < 1 || n > GR_API_PROMPT_MAX) {
        return BAD(d, "prompt: a list of %zu; it must have 1 to %d", n, GR_API_PROMPT_MAX);
    }
    d->r->prompt = calloc(n, sizeof(*d->r->prompt));
    if (d->r->prompt == NULL) {
        return gr_api_refuse(d->e, 500, NULL, "out of memory");
    }
    if (!list) {
        return read_one_prompt(d, v);
    }
    json_array_foreach(v, i, one)
    {
        GR_TRY(read_one_prompt(d, one));
    }
    return GR_OK;
}

/* ---- messages ---- */

static enum gr_status read_role(struct reading *d, size_t i, const json_t *v, enum gr_api_role *out)
{
    static const struct {
        const char *word;
        enum gr_api_role role;
    } roles[] = {{"system", GR_API_SYSTEM},
                 {"developer", GR_API_SYSTEM},
                 {"user", GR_API_USER},
                 {"assistant", GR_API_ASSISTANT}};
    const char *word = json_string_value(v);
    for (size_t k = 0; word != NULL && k < GR_ARRAY_LEN(roles); k++) {
        if (strcmp(word, roles[k].word) == 0) {
            *out = roles[k].role;
            return GR_OK;
        }
    }
    return BAD(d, "messages[%zu]: role must be system, developer, user or assistant", i);
}

static enum gr_status part_text(struct reading *d, size_t i, const json_t *part, const char **text, size_t *len)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *v = json_object_get(part, "text");
    if (type == NULL || strcmp(type, "text") != 0) {
        return BAD(d, "messages[%zu]: a part of its content is not text, and only text is taken", i);
    }
    if (!json_is_string(v)) {
        return BAD(d, "messages[%zu]: a part of type text has no text", i);
    }
    *text = json_string_value(v);
    *len = json_string_length(v);
    return GR_OK;
}

static enum gr_status join_parts(struct reading *d, size_t i, const json_t *parts, struct gr_api_message *m)
{
    size_t k, len = 0, n_all = 0;
    json_t *part;
    const char *text = NULL;
    json_array_foreach(parts, k, part)
    {
        GR_TRY(part_text(d, i, part, &text, &len));
        n_all += len;
    }
    m->joined = malloc(n_all + 1);
    if (m->joined == NULL) {
        return gr_api_refuse(d->e, 500, NULL, "out of memory");
    }
    json_array_foreach(parts, k, part)
    {
        GR_TRY(part_text(d, i, part, &text, &len));
        memcpy(m->joined + m->len, text, len);
        m->len += len;
    }
    m->joined[n_all] = '\0';
    m->text = m->joined;
    return GR_OK;
}

static bool is_given(const json_t *v)
{
    return v != NULL && !json_is_null(v) && !(json_is_array(v) && json_array_size(v) == 0);
}

static enum gr_status read_message(struct reading *d, size_t i, const json_t *v)
{
    struct gr_api_message *m = &d->r->message[d->r->n_message++];
    const json_t *content = json_object_get(v, "content");
    if (!json_is_object(v)) {
        return BAD(d, "messages[%zu] is %s; it must be an object with role and content", i, gr_api_kind_of(v));
    }
    GR_TRY(read_role(d, i, json_object_get(v, "role"), &m->role));
    if (is_given(json_object_get(v, "tool_calls")) || is_given(json_object_get(v, "function_call"))) {
        return BAD(d, "messages[%zu]: tool calls are not done", i);
    }
    if (json_is_array(content)) {
        return join_parts(d, i, content, m);
    }
    if (!json_is_string(content)) {
        return BAD(d, "messages[%zu]: content must be text, or an array of parts of type text", i);
    }
    m->text = json_string_value(content);
    m->len = json_string_length(content);
    return GR_OK;
}

static enum gr_status read_messages(struct reading *d, const json_t *v)
{
    size_t i;
    json_t *one;
    if (!json_is_array(v)) {
        return wrong_kind(d, v, "an array of messages");
    }
    if (json_array_size(v) < 1 || json_array_size(v) > GR_API_MESSAGE_N_MAX) {
        return BAD(d, "messages: %zu are given; it must be 1 to %d", json_array_size(v), GR_API_MESSAGE_N_MAX);
    }
    d->r->message = calloc(json_array_size(v), sizeof(*d->r->message));
    if (d->r->message == NULL) {
        return gr_api_refuse(d->e, 500, NULL, "out of memory");
    }
    json_array_foreach(v, i, one)
    {
        GR_TRY(read_message(d, i, one));
    }
    return GR_OK;
}

/* ---- the table ---- */

enum value_kind { INT, NUM, BOOL, READER, TAKEN_AS_IT_IS, NOT_DONE };

struct field {
    const char *name;
    unsigned endpoints;
    enum value_kind kind;
    size_t at; /* of the member */
    double least, most;
    enum gr_status (*read)(struct reading *d, const json_t *v);
    const char *harmless; /* NOT_DONE: a JSON array of values that ask for nothing else than what is done */
};

#define C GR_API_COMPLETIONS
#define H GR_API_CHAT
static const struct field fields[] = {
#define FIELD(name, endpoints, member, kind, least, most) \
    {#name, endpoints, kind, offsetof(struct gr_api_request, member), (double)(least), (double)(most), NULL, NULL},
#define READ(name, endpoints, function) {#name, endpoints, READER, 0, 0, 0, function, NULL},
#define TAKEN(name, endpoints) {#name, endpoints, TAKEN_AS_IT_IS, 0, 0, 0, NULL, NULL},
#define REFUSED(name, endpoints, harmless) {#name, endpoints, NOT_DONE, 0, 0, 0, NULL, harmless},
#include "orchestrator/http/api_fields.inc"
#undef FIELD
#undef READ
#undef TAKEN
#undef REFUSED
};
#undef C
#undef H

static const struct field *find_field(enum gr_api_endpoint endpoint, const char *name)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(fields); i++) {
        if ((fields[i].endpoints & endpoint) != 0 && strcmp(fields[i].name, name) == 0) {
            return &fields[i];
        }
    }
    return NULL;
}

static bool is_harmless(const char *harmless, const json_t *v)
{
    json_t *all = json_loads(harmless, 0, NULL);
    bool found = false;
    size_t i;
    json_t *one;
    json_array_foreach(all, i, one)
    {
        found = found || json_equal(one, v) == 1;
    }
    json_decref(all);
    return found;
}

/* Names the values that are done; where there are none, that the field is to be left out. */
static enum gr_status refuse_value(const struct reading *d, const struct field *f)
{
    json_t *all = json_loads(f->harmless, 0, NULL);
    char values[128] = "";
    size_t i, n = 0;
    json_t *one;
    json_array_foreach(all, i, one)
    {
        char *text = json_dumps(one, JSON_ENCODE_ANY | JSON_COMPACT);
        n += (size_t)snprintf(values + n, sizeof(values) - n, "%s%s", i > 0 ? " or " : "", text != NULL ? text : "?");
        GR_ASSERT(n < sizeof(values)); /* the table's are short */
        free(text);
    }
    json_decref(all);
    return n > 0 ? BAD(d, "%s is done as %s alone: leave it out, or say so", f->name, values)
                 : BAD(d, "%s is not done: leave it out", f->name);
}

static enum gr_status read_field(struct reading *d, const struct field *f, const json_t *v)
{
    void *member = (char *)d->r + f->at;
    switch (f->kind) {
    case INT:
        return read_int(d, v, f->least, f->most, member);
    case NUM:
        return read_number(d, v, f->least, f->most, member);
    case BOOL:
        return read_bool(d, v, member);
    case READER:
        return f->read(d, v);
    case TAKEN_AS_IT_IS:
        return GR_OK;
    case NOT_DONE:
        return is_harmless(f->harmless, v) ? GR_OK : refuse_value(d, f);
    }
    return GR_EINVAL;
}

static enum gr_status unknown_name(const struct reading *d, char unknown[GR_API_PARAM_MAX])
{
    if (unknown == NULL) {
        return BAD(d, "Unrecognized request argument supplied: %.60s", d->name);
    }
    gr_utf8_show(d->name, strlen(d->name), unknown, GR_API_PARAM_MAX); /* it is logged */
    return GR_OK;
}

static enum gr_status read_all(struct reading *d, char unknown[GR_API_PARAM_MAX])
{
    const char *name;
    json_t *v;
    json_object_foreach(d->r->body, name, v)
    {
        const struct field *f = find_field(d->r->endpoint, name);
        d->name = name;
        if (f == NULL) {
            GR_TRY(unknown_name(d, unknown));
        } else if (!json_is_null(v)) {
            GR_TRY(read_field(d, f, v));
        }
    }
    return GR_OK;
}

/* ---- what only makes sense together ---- */

static enum gr_status settle_logprobs(struct reading *d)
{
    struct gr_api_request *r = d->r;
    if (r->endpoint == GR_API_CHAT && !d->wants_logprobs && r->n_logprob > 0) {
        return gr_api_refuse(d->e, 400, "top_logprobs", "top_logprobs needs logprobs to be true");
    }
    if (r->endpoint == GR_API_CHAT) {
        r->n_logprob = !d->wants_logprobs ? -1 : GR_MAX(r->n_logprob, (int64_t)0);
    }
    return GR_OK;
}

/* Either a turn of the assistant is begun, or the last one goes on. */
static enum gr_status settle_prompt_end(struct reading *d)
{
    const json_t *adds = json_object_get(d->r->body, "add_generation_prompt");
    if (d->r->go_on && json_is_true(adds)) {
        return gr_api_refuse(d->e, 400, "add_generation_prompt",
                             "add_generation_prompt and continue_final_message exclude each other");
    }
    if (!d->r->go_on && json_is_false(adds)) {
        return gr_api_refuse(d->e, 400, "add_generation_prompt",
                             "add_generation_prompt must be true: the answer is a turn of the assistant");
    }
    return GR_OK;
}

static enum gr_status settle_prompts(struct reading *d)
{
    struct gr_api_request *r = d->r;
    if (r->endpoint == GR_API_COMPLETIONS && r->n_prompt == 0) {
        return gr_api_refuse(d->e, 400, "prompt", "prompt is missing");
    }
    if (r->endpoint == GR_API_CHAT && r->n_message == 0) {
        return gr_api_refuse(d->e, 400, "messages", "messages is missing");
    }
    if (r->go_on && r->message[r->n_message - 1].role != GR_API_ASSISTANT) {
        return gr_api_refuse(d->e, 400, "continue_final_message",
                             "continue_final_message: the last message is not the assistant's");
    }
    GR_TRY(settle_prompt_end(d));
    if (r->n * GR_MAX(r->n_prompt, 1) > GR_API_CHOICE_MAX) {
        return gr_api_refuse(d->e, 400, "n", "n times the number of prompts is %lld; at most %d answers are given",
                             (long long)r->n * r->n_prompt, GR_API_CHOICE_MAX);
    }
    return GR_OK;
}

static enum gr_status settle(struct reading *d)
{
    struct gr_api_request *r = d->r;
    r->max_tokens = r->max_tokens == GR_API_NOT_GIVEN ? d->old_max_tokens : r->max_tokens;
    if (r->max_tokens != GR_API_NOT_GIVEN && r->min_tokens > r->max_tokens) {
        return gr_api_refuse(d->e, 400, "min_tokens", "min_tokens is %lld, above the most, %lld",
                             (long long)r->min_tokens, (long long)r->max_tokens);
    }
    if (!r->stream && r->rounds) {
        return gr_api_refuse(d->e, 400, "graft_rounds", "graft_rounds is about streams: stream must be true");
    }
    if (!r->stream && json_is_object(json_object_get(r->body, "stream_options"))) {
        return gr_api_refuse(d->e, 400, "stream_options", "stream_options needs stream to be true");
    }
    GR_TRY(settle_logprobs(d));
    return settle_prompts(d);
}

/* ---- the body ---- */

static void set_defaults(struct gr_api_request *r)
{
    r->n = 1;
    r->max_tokens = r->seed = r->num_speculative_tokens = GR_API_NOT_GIVEN;
    r->temperature = r->top_p = 1.0;
    r->n_logprob = -1;
    r->add_special = r->endpoint == GR_API_COMPLETIONS;
}

enum gr_status gr_api_request_parse(enum gr_api_endpoint endpoint, const char *text, size_t len,
                                    char unknown[GR_API_PARAM_MAX], struct gr_api_request *out, struct gr_api_error *e)
{
    struct reading d = {.r = out, .e = e, .old_max_tokens = GR_API_NOT_GIVEN};
    *out = (struct gr_api_request){.endpoint = endpoint};
    if (unknown != NULL) {
        unknown[0] = '\0';
    }
    GR_TRY(gr_api_body_load(text, len, &out->body, e));
    if (endpoint == GR_API_EITHER) {
        out->endpoint = json_object_get(out->body, "messages") != NULL ? GR_API_CHAT : GR_API_COMPLETIONS;
    }
    set_defaults(out);
    GR_TRY(read_all(&d, unknown));
    return settle(&d);
}

static void drop_texts(struct gr_api_request *r)
{
    for (int i = 0; i < r->n_prompt; i++) {
        free(r->prompt[i].ids);
    }
    for (int i = 0; i < r->n_message; i++) {
        free(r->message[i].joined);
    }
    free(r->prompt);
    free(r->message);
    r->prompt = NULL;
    r->message = NULL;
    r->n_prompt = r->n_message = 0;
    json_decref(r->body);
    r->body = NULL;
}

void gr_api_request_trim(struct gr_api_request *r)
{
    static const char *const stays[] = {"stop", "cache_salt"};
    json_t *left = json_object();
    bool all = left != NULL;
    for (size_t i = 0; all && i < GR_ARRAY_LEN(stays); i++) {
        json_t *v = json_object_get(r->body, stays[i]);
        all = v == NULL || json_object_set(left, stays[i], v) == 0;
    }
    if (!all) { /* out of memory: it stays as it is */
        json_decref(left);
        return;
    }
    drop_texts(r);
    r->body = left;
    r->model = r->specpv = NULL;
    r->n_bad_word = 0;
}

void gr_api_request_finish(struct gr_api_request *r)
{
    drop_texts(r);
    *r = (struct gr_api_request){0};
}
