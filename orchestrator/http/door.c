#include "orchestrator/http/door.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* name, alone or with a port: another port than the listener's is a forwarded one. */
static bool is_host(const char *host, const char *name)
{
    const size_t n = strlen(name);
    if (strncasecmp(host, name, n) != 0) {
        return false;
    }
    const char *port = host + n;
    const size_t n_colon = *port == ':' ? 1 : 0;
    const size_t n_digit = n_colon > 0 ? strspn(port + 1, "0123456789") : 0;
    const char *rest = port + n_colon + n_digit; /* blanks at the end of a header's line are none of its value */
    return n_digit <= 5 && rest[strspn(rest, " \t")] == '\0';
}

bool gr_door_knows_host(const struct gr_door *d, const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    bool known = false;
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        known = known || is_host(host, names[i]);
    }
    for (int i = 0; i < d->n_host; i++) {
        known = known || is_host(host, d->host[i]);
    }
    return known;
}

bool gr_header_is_odd(const char *name)
{
    static const char *const framing[] = {"Content-Length", "Transfer-Encoding"};
    bool odd = name[strcspn(name, " \t")] != '\0';
    for (size_t i = 0; i < GR_ARRAY_LEN(framing); i++) {
        const size_t n = strlen(framing[i]);
        odd = odd || (strncasecmp(name, framing[i], n) == 0 && name[n] != '\0');
    }
    return odd;
}

bool gr_type_is_json(const char *type)
{
    static const char json[] = "application/json";
    const size_t n = sizeof(json) - 1;
    return type != NULL && strncasecmp(type, json, n) == 0 && (type[n] == '\0' || strchr("; \t", type[n]) != NULL);
}

static enum gr_status check_head(const struct gr_visit *v, struct gr_api_error *e)
{
    if (strlen(v->path) > GR_HTTP_PATH_MAX) {
        return gr_api_refuse(e, 414, NULL, "the path has %zu bytes; at most %u are taken", strlen(v->path),
                             GR_HTTP_PATH_MAX);
    }
    if (v->head_bytes > GR_HTTP_HEAD_MAX) {
        return gr_api_refuse(e, 431, NULL, "the headers have %zu bytes; at most %u are taken", v->head_bytes,
                             GR_HTTP_HEAD_MAX);
    }
    return GR_OK;
}

static bool is_length(const char *text)
{
    return text[0] != '\0' && text[strspn(text, "0123456789")] == '\0';
}

/* Where the body ends; if that is not certain, nothing that follows is taken for a request (RFC 9112, 5 and 6). */
static enum gr_status check_ends(const struct gr_visit *v, struct gr_admission *out)
{
    struct gr_api_error *e = &out->error;
    out->ends = true;
    if (v->odd_name) {
        return gr_api_refuse(e, 400, NULL,
                             "a header has a name that can be read in two ways: blanks do not belong into it, "
                             "nor before its colon, and its value stands on its line");
    }
    if (v->transfer != NULL) {
        return gr_api_refuse(e, 501, NULL, "Transfer-Encoding: %.40s is not done; `chunked' is", v->transfer);
    }
    if (v->lengths_differ || (v->is_chunked && v->length != NULL)) {
        return gr_api_refuse(e, 400, NULL, "one Content-Length is taken, or Transfer-Encoding, and not both");
    }
    if (v->length != NULL && !is_length(v->length)) {
        return gr_api_refuse(e, 400, NULL, "Content-Length is no number on its own line");
    }
    out->ends = false;
    return GR_OK;
}

/* What proxies and servers could take for different requests (RFC 9112, 3.2 and 6.3). */
static enum gr_status check_form(const struct gr_visit *v, struct gr_admission *out)
{
    struct gr_api_error *e = &out->error;
    GR_TRY(check_ends(v, out));
    if (v->n_host > 1 || (v->needs_host && v->n_host == 0)) {
        return gr_api_refuse(e, 400, NULL, "a request has one header Host; there are %d", v->n_host);
    }
    return v->nul_in_path ? gr_api_refuse(e, 400, NULL, "the path has a NUL character") : GR_OK;
}

static enum gr_status check_host(const struct gr_door *d, const struct gr_visit *v, struct gr_api_error *e)
{
    if (d->on_loopback && v->host != NULL && !gr_door_knows_host(d, v->host)) {
        return gr_api_refuse(e, 403, NULL,
                             "this endpoint is on loopback and does not know the host %.100s; --http-host names others",
                             v->host);
    }
    return GR_OK;
}

static enum gr_status check_excess(const struct gr_visit *v, struct gr_api_error *e)
{
    switch (v->excess) {
    case GR_GUEST_OF_ADDRESS:
        return gr_api_refuse(e, 429, NULL, "your address has too many connections (--http-connections-per-address)");
    case GR_GUEST_OF_ALL:
        return gr_api_refuse(e, 503, NULL, "there are too many connections (--http-connections)");
    default:
        return GR_OK;
    }
}

static enum gr_status check_key(const struct gr_door *d, const struct gr_visit *v, struct gr_admission *out)
{
    size_t len = 0;
    const char *key = v->n_authorization == 1 ? gr_api_bearer(v->authorization, &len) : NULL;
    if (d->keys == NULL || (key != NULL && gr_api_keys_find(d->keys, key, len, &out->owner))) {
        return GR_OK;
    }
    (void)gr_api_refuse(&out->error, 401, NULL, "%s",
                        key != NULL
                            ? "Incorrect API key provided."
                            : "You didn't provide an API key: one header `Authorization: Bearer KEY' is needed.");
    out->error.code = "invalid_api_key";
    return GR_EINVAL;
}

static enum gr_status check_page(const struct gr_visit *v, struct gr_admission *out)
{
    const struct gr_page *page = v->page;
    if (page == NULL) {
        return gr_api_refuse(&out->error, 404, NULL, "there is nothing at %.120s", v->path);
    }
    const bool has_head = !page->post && page->back == GR_RETURN_NONE; /* of a stream there is nothing to tell ahead */
    if (strcmp(v->method, page->post ? "POST" : "GET") != 0 && !(has_head && strcmp(v->method, "HEAD") == 0)) {
        return gr_api_refuse(&out->error, 405, NULL, "%.120s takes %s", v->path, page->post ? "POST" : "GET");
    }
    return GR_OK;
}

static enum gr_status check_body(const struct gr_visit *v, const struct gr_page *page, struct gr_api_error *e)
{
    if (page->post && !gr_type_is_json(v->type)) {
        return gr_api_refuse(e, 415, NULL, "the body must be application/json");
    }
    if (page->post && v->coding != NULL && strcasecmp(v->coding, "identity") != 0) {
        return gr_api_refuse(e, 415, NULL, "the body must come as it is; Content-Encoding: %.40s is not undone",
                             v->coding);
    }
    if (v->length != NULL && strtoull(v->length, NULL, 10) > GR_HTTP_BODY_MAX) {
        return gr_api_refuse(e, 413, NULL, "the body has %.20s bytes; at most %u are taken", v->length,
                             GR_HTTP_BODY_MAX);
    }
    return GR_OK;
}

static enum gr_status ask(const struct gr_door *d, const struct gr_visit *v, struct gr_admission *out)
{
    GR_TRY(check_form(v, out));
    GR_TRY(check_head(v, &out->error));
    GR_TRY(check_host(d, v, &out->error));
    if (v->page == NULL || !v->page->always) {
        GR_TRY(check_excess(v, &out->error));
    }
    if (v->page == NULL || !v->page->open) {
        GR_TRY(check_key(d, v, out));
    }
    GR_TRY(check_page(v, out));
    return check_body(v, v->page, &out->error);
}

void gr_door_ask(const struct gr_door *d, const struct gr_visit *v, struct gr_admission *out)
{
    *out = (struct gr_admission){0};
    const enum gr_status st = ask(d, v, out);
    (void)st; /* out->error says it */
}
