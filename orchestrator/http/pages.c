#include "orchestrator/http/pages.h"

#include "common/base/session_id.h"
#include "orchestrator/http/fleet.h"
#include "orchestrator/http/json_text.h"
#include "orchestrator/http/look.h"
#include "orchestrator/http/metrics.h"

#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_MAX_BYTES 128

/* What keeps turns of a served model from beginning, of any of them. */
enum lack { LACK_NOTHING, LACK_DRAINED /* all its targets are */, LACK_TARGET };

static enum lack worst_lack(const struct gr_page_fleet *f)
{
    enum lack worst = LACK_NOTHING;
    for (int i = 0; i < f->n_served; i++) {
        const struct gr_http_model *m = &f->state->model[i];
        const enum lack lack = m->n_target == 0 ? LACK_TARGET : m->n_taking == 0 ? LACK_DRAINED : LACK_NOTHING;
        worst = GR_MAX(worst, lack);
    }
    return worst;
}

/* 200 when a target of a served model is there, a drained one, too: starting this server anew would bring nothing.
 * Drafters only make answers faster. */
static char *make_health(const struct gr_page_fleet *f, int *http_status, const char **type)
{
    const struct gr_http_state *s = f->state;
    const enum lack lack = worst_lack(f);
    const char *status = s->draining                                ? "draining"
                         : s->n_target == 0                         ? "no target"
                         : lack == LACK_TARGET                      ? "a model without target"
                         : lack == LACK_DRAINED                     ? "drained"
                         : s->n_draft == 0 && s->n_draft_wanted > 0 ? "no drafter"
                                                                    : "ok";
    (void)type;
    *http_status = s->draining || s->n_target == 0 ? 503 : 200;
    return gr_json_text(
        json_pack("{s:s, s:i, s:i}", "status", status, "targets", (int)s->n_target, "drafters", (int)s->n_draft));
}

/* 200 when all who are configured are there, and a turn of any model could begin. */
static char *make_ready(const struct gr_page_fleet *f, int *http_status, const char **type)
{
    const struct gr_http_state *s = f->state;
    const uint32_t n_target_wanted = GR_MAX(s->n_target_wanted, 1u);
    const bool all = s->n_target >= n_target_wanted && s->n_draft >= s->n_draft_wanted;
    const enum lack lack = worst_lack(f);
    const char *status = s->draining                   ? "draining"
                         : lack == LACK_DRAINED        ? "drained"
                         : all && lack == LACK_NOTHING ? "ready"
                                                       : "waiting";
    (void)type;
    *http_status = all && lack == LACK_NOTHING && !s->draining ? 200 : 503;
    return gr_json_text(json_pack("{s:s, s:i, s:i, s:i, s:i}", "status", status, "targets", (int)s->n_target,
                                  "targets_wanted", (int)n_target_wanted, "drafters", (int)s->n_draft,
                                  "drafters_wanted", (int)s->n_draft_wanted));
}

static char *make_version(const struct gr_page_fleet *f, int *http_status, const char **type)
{
    (void)f, (void)http_status, (void)type;
    return gr_json_text(json_pack("{s:s}", "version", GR_VERSION));
}

static char *make_models(const struct gr_page_fleet *f, int *http_status, const char **type)
{
    json_t *data = json_array();
    (void)http_status, (void)type;
    for (int i = 0; i < f->n_served; i++) {
        const struct gr_served *m = &f->served[i];
        const uint32_t n_fleet = f->state->model[i].n_ctx;
        const int n_ctx = n_fleet > 0 ? (int)n_fleet : m->hf.max_pos;
        json_array_append_new(data, json_pack("{s:s, s:s, s:I, s:s, s:i}", "id", m->name, "object", "model", "created",
                                              (json_int_t)m->created_s, "owned_by", "graft", "max_model_len", n_ctx));
    }
    return gr_json_text(json_pack("{s:s, s:o}", "object", "list", "data", data));
}

static char *make_metrics(const struct gr_page_fleet *f, int *http_status, const char **type)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    (void)http_status;
    *type = "text/plain; version=0.0.4; charset=utf-8";
    if (out == NULL) {
        return NULL;
    }
    gr_metrics_write(
        out,
        &(struct gr_metrics_from){
            .state = f->state, .http = f->http, .path = gr_page_path, .now_ns = f->now_ns, .tls_end_s = f->tls_end_s});
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static char *make_fleet(const struct gr_page_fleet *f, int *http_status, const char **type)
{
    (void)http_status, (void)type;
    return gr_fleet_json(f->state, f->served, f->n_served);
}

static char *make_look(const struct gr_page_fleet *f, int *http_status, const char **type)
{
    (void)f, (void)http_status;
    *type = "text/html; charset=utf-8";
    return strdup(gr_look_html);
}

/* ---- paths ---- */

static const struct gr_page_header unkept[] = {{"Cache-Control", "no-store"}, {NULL, NULL}};
static const struct gr_page_header look_headers[] = {
    {"Content-Security-Policy", gr_look_policy},
    {"Cache-Control", "no-store"},
    {"Referrer-Policy", "no-referrer"},
    {"X-Frame-Options", "DENY"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {NULL, NULL},
};

static const struct gr_page pages[] = {
    {.path = "/v1/completions", .post = true, .read = GR_READ_COMPLETIONS},
    {.path = "/v1/chat/completions", .post = true, .read = GR_READ_CHAT},
    {.path = "/tokenize", .post = true, .read = GR_READ_TOKENIZE},
    {.path = "/detokenize", .post = true, .read = GR_READ_DETOKENIZE},
    {.path = "/v1/models", .make = make_models},
    {.path = "/v1/sessions/*/stream", .back = GR_RETURN_STREAM, .header = unkept},
    {.path = "/v1/sessions/*/stop", .post = true, .back = GR_RETURN_STOP},
    {.path = "/v1/graft/fleet", .make = make_fleet, .header = unkept},
    {.path = "/health", .open = true, .always = true, .make = make_health},
    {.path = "/ready", .make = make_ready},
    {.path = "/version", .make = make_version},
    {.path = "/metrics", .make = make_metrics},
    {.path = "/", .open = true, .make = make_look, .header = look_headers},
};

static_assert(GR_ARRAY_LEN(pages) == GR_HTTP_PATHS - 1, "one count for each page, and one for all other paths");

int gr_page_number(const struct gr_page *page)
{
    return page != NULL ? (int)(page - pages) : GR_HTTP_PATHS - 1;
}

const char *gr_page_path(int i)
{
    return i < GR_HTTP_PATHS - 1 ? pages[i].path : "other";
}

/* Doubled slashes, and one at the end, are left out. */
static void plain_path(const char *path, char plain[PATH_MAX_BYTES])
{
    size_t n = 0;
    for (const char *p = path; *p != '\0' && n + 1 < PATH_MAX_BYTES; p++) {
        if (*p != '/' || n == 0 || plain[n - 1] != '/') {
            plain[n++] = *p;
        }
    }
    n -= n > 1 && plain[n - 1] == '/';
    plain[n] = '\0';
}

/* A `*' of the pattern is one part, of anything. */
static bool fits(const char *pattern, const char *path)
{
    while (*pattern != '\0') {
        if (*pattern == '*') {
            const size_t n = strcspn(path, "/");
            if (n == 0) {
                return false;
            }
            path += n;
        } else if (*path++ != *pattern) {
            return false;
        }
        pattern++;
    }
    return *path == '\0';
}

bool gr_page_session(const char *path, uint64_t *out)
{
    char plain[PATH_MAX_BYTES], name[GR_SESSION_ID_DIGITS + 1];
    plain_path(path, plain);
    const size_t before = strlen("/v1/sessions/");
    if (strlen(plain) < before + GR_SESSION_ID_DIGITS || plain[before + GR_SESSION_ID_DIGITS] != '/') {
        return false;
    }
    memcpy(name, plain + before, GR_SESSION_ID_DIGITS);
    name[GR_SESSION_ID_DIGITS] = '\0';
    return gr_session_id_read(name, out);
}

const struct gr_page *gr_page_find(const char *path)
{
    char plain[PATH_MAX_BYTES];
    plain_path(path, plain);
    for (size_t i = 0; i < GR_ARRAY_LEN(pages); i++) {
        if (fits(pages[i].path, plain)) {
            return &pages[i];
        }
    }
    return NULL;
}
