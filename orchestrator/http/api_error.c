#include "orchestrator/http/api_error.h"

#include "common/base/utf8.h"
#include "orchestrator/http/json_text.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum gr_status gr_api_refuse(struct gr_api_error *e, int http_status, const char *param, const char *fmt, ...)
{
    char said[GR_API_MESSAGE_MAX];
    va_list args;
    *e = (struct gr_api_error){.http_status = http_status};
    va_start(args, fmt);
    vsnprintf(said, sizeof(said), fmt, args);
    va_end(args);
    gr_utf8_show(said, strlen(said), e->message, sizeof(e->message));
    gr_utf8_show(param != NULL ? param : "", param != NULL ? strlen(param) : 0, e->param, sizeof(e->param));
    return GR_EINVAL;
}

struct gr_api_error gr_api_error_of(int http_status, const char *text)
{
    struct gr_api_error e;
    (void)gr_api_refuse(&e, http_status, NULL, "%.300s", text);
    return e;
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

char *gr_api_error_json(const struct gr_api_error *e)
{
    return gr_json_text(json_pack("{s:{s:o, s:s, s:o, s:o}}", "error", "message", text_or_null(e->message), "type",
                                  gr_api_error_type(e->http_status), "param", text_or_null(e->param), "code",
                                  text_or_null(e->code)));
}
