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
    const size_t digits = *port == ':' ? strspn(port + 1, "0123456789") : 0;
    return *port == '\0' || (*port == ':' && digits > 0 && digits <= 5 && port[1 + digits] == '\0');
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
    const struct gr_page *page = out->page;
    if (page == NULL) {
        return gr_api_refuse(&out->error, 404, NULL, "there is nothing at %.120s", v->path);
    }
    if (strcmp(v->method, page->post ? "POST" : "GET") != 0 && !(strcmp(v->method, "HEAD") == 0 && !page->post)) {
        return gr_api_refuse(&out->error, 405, NULL, "%.120s takes %s", v->path, page->post ? "POST" : "GET");
    }
    return GR_OK;
}

static enum gr_status check_body(const struct gr_visit *v, const struct gr_page *page, struct gr_api_error *e)
{
    if (page->post && !gr_type_is_json(v->type)) {
        return gr_api_refuse(e, 415, NULL, "the body must be application/json");
    }
    if (v->length != NULL && strtoull(v->length, NULL, 10) > GR_HTTP_BODY_MAX) {
        return gr_api_refuse(e, 413, NULL, "the body has %.20s bytes; at most %u are taken", v->length,
                             GR_HTTP_BODY_MAX);
    }
    return GR_OK;
}

static enum gr_status ask(const struct gr_door *d, const struct gr_visit *v, struct gr_admission *out)
{
    GR_TRY(check_head(v, &out->error));
    GR_TRY(check_host(d, v, &out->error));
    out->page = gr_page_find(v->path);
    if (out->page == NULL || !out->page->always) {
        GR_TRY(check_excess(v, &out->error));
    }
    if (out->page == NULL || !out->page->open) {
        GR_TRY(check_key(d, v, out));
    }
    GR_TRY(check_page(v, out));
    return check_body(v, out->page, &out->error);
}

void gr_door_ask(const struct gr_door *d, const struct gr_visit *v, struct gr_admission *out)
{
    *out = (struct gr_admission){0};
    if (ask(d, v, out) != GR_OK && out->error.http_status != 405) {
        out->page = NULL;
    }
}
