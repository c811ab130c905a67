#include "orchestrator/http/past.h"

#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/http/ids_json.h"
#include "orchestrator/http/json_text.h"
#include "orchestrator/http/tell.h"

#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTE_VERSION 1

/* ---- a note is made ---- */

static void put_digest(json_t *root, const char *name, const uint8_t *digest, size_t n)
{
    char hex[2 * GR_ONCE_BYTES + 1];
    sodium_bin2hex(hex, sizeof(hex), digest, n);
    json_object_set_new(root, name, json_string(hex));
}

static json_t *stops_json(const struct gr_api_request *r)
{
    json_t *all = json_array();
    for (int i = 0; i < r->n_stop; i++) {
        json_array_append_new(all, json_string(r->stop[i]));
    }
    return all;
}

static json_t *note_json(const struct gr_job *j)
{
    const struct gr_api_request *r = &j->request;
    const struct gr_turn_wishes *w = &j->ask.wishes.turn;
    json_t *root =
        json_pack("{s:i, s:b, s:s, s:I, s:s, s:I, s:b, s:b, s:b, s:b, s:I, s:I, s:I, s:o, s:o}", "version",
                  NOTE_VERSION, "chat", r->endpoint == GR_API_CHAT, "id", j->reply.id, "created",
                  (json_int_t)j->reply.created_s, "model", j->model->name, "tokenizer",
                  (json_int_t)j->model->fingerprint, "stream", (int)r->stream, "usage", (int)r->include_usage, "rounds",
                  (int)r->rounds, "resumes", (int)j->resumes, "max_tokens", (json_int_t)j->ask.prompt[0].max_tokens,
                  "min_tokens", (json_int_t)w->min_tokens, "logprobs", (json_int_t)r->n_logprob, "stop", stops_json(r),
                  "stop_ids", gr_ids_json(w->stop_ids.id, (size_t)w->stop_ids.n));
    if (root != NULL) {
        json_object_set_new(root, "value_rows", json_integer(w->n_logprob));
        json_object_set_new(root, "spec_tokens", json_integer(gr_ask_spec_tokens(&j->ask)));
        put_digest(root, "owner", j->owner.digest, sizeof(j->owner.digest));
    }
    if (root != NULL && j->once.asked) {
        put_digest(root, "key", j->once.key, sizeof(j->once.key));
        put_digest(root, "body", j->once.body, sizeof(j->once.body));
    }
    return root;
}

char *gr_past_note(const struct gr_job *j)
{
    if (j->n_answer != 1 || (!j->request.stream && !j->once.asked)) {
        return NULL;
    }
    char *text = gr_json_text(note_json(j));
    if (text == NULL) {
        log_error("out of memory for what is noted of an answer: it cannot be come back to after a restart");
    }
    return text;
}

/* ---- a note is read ---- */

static json_t *read_note(const struct gr_kept_answer *a)
{
    json_error_t error;
    json_t *root = json_loads(a->note, 0, &error);
    if (json_integer_value(json_object_get(root, "version")) != NOTE_VERSION) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static bool read_digest(const json_t *root, const char *name, uint8_t *out, size_t n)
{
    const char *hex = json_string_value(json_object_get(root, name));
    size_t got = 0;
    return hex != NULL && sodium_hex2bin(out, n, hex, strlen(hex), NULL, &got, NULL) == 0 && got == n;
}

static bool read_whose(const json_t *root, struct gr_api_owner *owner, struct gr_once *once)
{
    const bool known = read_digest(root, "owner", owner->digest, sizeof(owner->digest));
    *once = (struct gr_once){0};
    once->asked = known && read_digest(root, "key", once->key, sizeof(once->key)) &&
                  read_digest(root, "body", once->body, sizeof(once->body));
    return known;
}

bool gr_past_whose(const struct gr_kept_answer *a, struct gr_api_owner *owner, struct gr_once *once)
{
    json_t *root = read_note(a);
    const bool known = read_whose(root, owner, once);
    json_decref(root);
    return known;
}

static const struct gr_served *find_model(const json_t *root, const struct gr_served *served, int n_served)
{
    const char *name = json_string_value(json_object_get(root, "model"));
    const uint64_t fingerprint = (uint64_t)json_integer_value(json_object_get(root, "tokenizer"));
    for (int i = 0; i < n_served; i++) {
        if (name != NULL && strcmp(name, served[i].name) == 0 && fingerprint == served[i].fingerprint) {
            return &served[i];
        }
    }
    return NULL;
}

static bool flag(const json_t *root, const char *name)
{
    return json_is_true(json_object_get(root, name));
}

/* False: none is there, or it is out of bounds. */
static bool number(const json_t *root, const char *name, int64_t least, int64_t most, int64_t *out)
{
    const json_t *v = json_object_get(root, name);
    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= least && *out <= most;
}

/* Texts stay the note's. */
static bool take_request(const json_t *root, struct gr_api_request *r)
{
    const json_t *stop = json_object_get(root, "stop");
    r->endpoint = flag(root, "chat") ? GR_API_CHAT : GR_API_COMPLETIONS;
    r->stream = flag(root, "stream");
    r->include_usage = flag(root, "usage");
    r->rounds = flag(root, "rounds");
    r->n = 1;
    bool fits =
        json_array_size(stop) <= GR_STOP_STRING_MAX && number(root, "logprobs", -1, GR_LOGPROB_MAX, &r->n_logprob);
    for (size_t i = 0; fits && i < json_array_size(stop); i++) {
        r->stop[r->n_stop] = json_string_value(json_array_get(stop, i));
        fits = r->stop[r->n_stop++] != NULL;
    }
    return fits;
}

static bool take_ask(const json_t *root, uint32_t n_prompt_ids, struct gr_ask *a)
{
    const json_t *ids = json_object_get(root, "stop_ids");
    struct gr_turn_wishes *w = &a->wishes.turn;
    int64_t max_tokens = 0, min_tokens = 0, n_row = 0, n_node = 0;
    a->prompt = calloc(1, sizeof(*a->prompt));
    if (a->prompt == NULL || !number(root, "max_tokens", 1, 1 << 24, &max_tokens) ||
        !number(root, "min_tokens", 0, 1 << 24, &min_tokens) ||
        !number(root, "value_rows", 0, GR_LOGPROB_ROW, &n_row) || json_array_size(ids) > GR_STOP_ID_MAX) {
        return false;
    }
    if (json_object_get(root, "spec_tokens") != NULL && !number(root, "spec_tokens", 0, GR_NODE_MAX, &n_node)) {
        return false; /* a note of an earlier build has none */
    }
    a->n_prompt = a->n_each = 1;
    a->prompt[0] = (struct gr_ask_prompt){.n_ids = n_prompt_ids, .max_tokens = (uint32_t)max_tokens};
    w->min_tokens = (uint32_t)min_tokens;
    w->n_logprob = (uint32_t)n_row;
    a->wishes.want_draft = n_node > 0;
    a->wishes.n_node = (uint32_t)n_node;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        w->stop_ids.id[w->stop_ids.n++] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    return true;
}

static bool take_reply(const json_t *root, struct gr_job *j)
{
    const char *id = json_string_value(json_object_get(root, "id"));
    j->reply = (struct gr_reply){.endpoint = j->request.endpoint,
                                 .created_s = json_integer_value(json_object_get(root, "created")),
                                 .model = j->model->name,
                                 .tok = j->model->tok,
                                 .include_usage = j->request.include_usage};
    const int n = snprintf(j->reply.id, sizeof(j->reply.id), "%s", id != NULL ? id : "");
    return id != NULL && n < (int)sizeof(j->reply.id);
}

/* ---- a job is made ---- */

/* Values of these tokens are not in a journal. */
static bool take_tokens(struct gr_job *j, const struct gr_kept_answer *a, bool *stopped_out)
{
    struct gr_turn_text *t = &j->answer[0].turn_text;
    const uint32_t n = a->n_ids - a->turn_len;
    struct gr_msg_commit m = {.keep_len = a->turn_len, .final_len = a->n_ids};
    int32_t *ids = malloc(GR_MAX(n, 1u) * sizeof(*ids));
    if (ids == NULL) {
        return false;
    }
    memcpy(ids, a->ids + a->turn_len, n * sizeof(*ids));
    m.ids = (struct gr_msg_ids){.p = ids, .n = n};
    const enum gr_status st = gr_turn_text_take(t, &m, &j->ask.wishes.turn.stop_ids, stopped_out);
    gr_logprobs_lose(&t->logprobs, t->n_final);
    free(ids);
    return st == GR_OK;
}

/* stopped: its text has a stop string, by which it has ended whatever came after it. */
static bool end(struct gr_job *j, const struct gr_kept_answer *a, bool stopped)
{
    j->answer[0].over = true;
    j->answer[0].finish = stopped && a->finish == GR_FINISH_LENGTH ? GR_FINISH_STOP : a->finish;
    j->n_over = 1;
    (void)gr_tell_bad_end(j, a->finish, a->error);
    return gr_turn_text_end(&j->answer[0].turn_text) == GR_OK;
}

static bool fill(struct gr_job *j, const json_t *root, const struct gr_kept_answer *a, bool *stopped_out)
{
    const bool fits = j->model != NULL && a->turn_len <= a->n_ids && take_request(root, &j->request) &&
                      take_ask(root, a->turn_len, &j->ask) && take_reply(root, j) &&
                      a->n_ids - a->turn_len <= j->ask.prompt[0].max_tokens + GR_TREE_MAX &&
                      gr_job_prepare(j) == GR_OK && take_tokens(j, a, stopped_out);
    if (!fits) {
        return false;
    }
    j->resumes = flag(root, "resumes");
    j->restored = a->in_turn;
    j->untended = a->in_turn && !j->resumes;
    j->n_opened = 1;
    j->answer[0].session = a->session;
    j->answer[0].turn = a->turn;
    j->answer[0].epoch = a->epoch;
    return a->in_turn || end(j, a, *stopped_out);
}

struct gr_job *gr_past_job(const struct gr_kept_answer *a, const struct gr_served *served, int n_served,
                           bool *stopped_out)
{
    json_t *root = read_note(a);
    struct gr_job *j = root != NULL ? gr_job_create(NULL) : NULL;
    *stopped_out = false;
    if (j != NULL) {
        j->request.body = root; /* taken: its texts lie there */
        j->model = find_model(root, served, n_served);
        (void)read_whose(root, &j->owner, &j->once);
    } else {
        json_decref(root);
    }
    if (j == NULL || !fill(j, root, a, stopped_out)) {
        log_warn("session %" GR_SESSION_ID_PRI
                 " of the journal cannot be come back to: what is noted of its answer is not "
                 "of this version, or of a model or tokenizer that is not served any more",
                 a->session);
        gr_job_destroy(j);
        return NULL;
    }
    return j;
}
