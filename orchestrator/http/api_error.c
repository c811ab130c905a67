#include "orchestrator/http/api_error.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum gr_status gr_api_refuse(struct gr_api_error *e, int http_status, const char *param, const char *fmt, ...)
{
    va_list args;
    *e = (struct gr_api_error){.http_status = http_status};
    snprintf(e->param, sizeof(e->param), "%s", param != NULL ? param : "");
    va_start(args, fmt);
    vsnprintf(e->message, sizeof(e->message), fmt, args);
    va_end(args);
    return GR_EINVAL;
}

const char *gr_api_error_type(int http_status)
{
    switch (http_status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return http_status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static json_t *text_or_null(const char *text)
{
    return text != NULL && text[0] != '\0' ? json_string(text) : json_null();
}

/* A name that was cut in the middle of a character is not UTF-8 any more. */
static json_t *message_of(const struct gr_api_error *e)
{
    json_t *text = NULL;
    for (size_t n = strlen(e->message), cut = 0; text == NULL && cut < 4 && cut <= n; cut++) {
        text = json_stringn(e->message, n - cut);
    }
    return text != NULL ? text : json_string(gr_api_error_type(e->http_status));
}

char *gr_api_error_json(const struct gr_api_error *e)
{
    json_t *root =
        json_pack("{s:{s:o, s:s, s:o, s:o}}", "error", "message", message_of(e), "type",
                  gr_api_error_type(e->http_status), "param", text_or_null(e->param), "code", text_or_null(e->code));
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}
