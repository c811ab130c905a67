/* Conversations through the templates, for test_templates.py. Each line of standard input is a JSON object with
 * "messages" ([[role, text], ...]) and "template" (a name) or "jinja" (a text); "bos", "eos", "date", "thinking" and
 * "goes_on" may be there. The answer is a line: the text, its plain spans and, where a model's folder is named on the
 * command line, its ids; or that it is refused; of "jinja" alone: fingerprint and name. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/chat/chat.h"

#define N_MESSAGE_MAX 64

static size_t take_messages(const json_t *list, struct gr_chat_message *m)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    const size_t n = json_array_size(list);
    GR_ASSERT(n <= N_MESSAGE_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(list, i), *text = json_array_get(pair, 1);
        const char *role = json_string_value(json_array_get(pair, 0));
        int r = 0;
        while (strcmp(role, roles[r]) != 0) {
            r++;
        }
        m[i] = (struct gr_chat_message){(enum gr_chat_role)r, json_string_value(text), json_string_length(text)};
    }
    return n;
}

static json_t *spans_of(const struct gr_chat_text *t)
{
    json_t *list = json_array();
    for (size_t i = 0; i < t->n_plain; i++) {
        json_array_append_new(list, json_pack("[I,I]", (json_int_t)t->plain[i].begin, (json_int_t)t->plain[i].end));
    }
    return list;
}

static struct gr_tokenizer *tok; /* NULL: no ids */

static json_t *ids_of(const struct gr_chat *c, const struct gr_chat_message *m, size_t n_message)
{
    json_t *list = json_array();
    int32_t *ids = NULL;
    size_t n = 0;
    GR_ASSERT(gr_chat_ids(c, tok, m, n_message, &ids, &n) == GR_OK);
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_integer(ids[i]));
    }
    free(ids);
    return list;
}

static json_t *render(const struct gr_chat *c, const json_t *messages)
{
    struct gr_chat_message m[N_MESSAGE_MAX];
    struct gr_chat_text t;
    const size_t n = take_messages(messages, m);
    if (gr_chat_render(c, m, n, &t) != GR_OK) {
        return json_pack("{s:b}", "refused", 1);
    }
    json_t *out = json_pack("{s:s%,s:o}", "text", t.text, t.len, "plain", spans_of(&t));
    gr_chat_text_free(&t);
    if (tok != NULL) {
        json_object_set_new(out, "ids", ids_of(c, m, n));
    }
    return out;
}

static json_t *identify(const char *jinja, const struct gr_chat_template *form)
{
    char hex[17];
    snprintf(hex, sizeof(hex), "%016" PRIx64, gr_chat_fingerprint(jinja, strlen(jinja)));
    return json_pack("{s:s,s:s?}", "fingerprint", hex, "name", form != NULL ? gr_chat_name(form) : NULL);
}

static json_t *answer(const json_t *q)
{
    const char *name = json_string_value(json_object_get(q, "template"));
    const char *jinja = json_string_value(json_object_get(q, "jinja"));
    const struct gr_chat c = {.form = name != NULL ? gr_chat_by_name(name) : gr_chat_by_text(jinja, strlen(jinja)),
                              .bos = json_string_value(json_object_get(q, "bos")),
                              .eos = json_string_value(json_object_get(q, "eos")),
                              .date = json_string_value(json_object_get(q, "date")),
                              .no_thinking = json_is_false(json_object_get(q, "thinking")),
                              .goes_on = json_is_true(json_object_get(q, "goes_on"))};
    const json_t *messages = json_object_get(q, "messages");
    return messages == NULL ? identify(jinja, c.form) : render(&c, messages);
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t cap = 0;
    GR_ASSERT(argc < 2 || gr_tokenizer_load(argv[1], &tok) == GR_OK);
    while (getline(&line, &cap, stdin) > 0) {
        json_t *q = json_loads(line, 0, NULL);
        GR_ASSERT(q != NULL);
        json_t *a = answer(q);
        char *text = json_dumps(a, JSON_COMPACT);
        puts(text);
        free(text);
        json_decref(a);
        json_decref(q);
    }
    free(line);
    gr_tokenizer_destroy(tok);
    return 0;
}
