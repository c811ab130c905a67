/* What an endpoint answers in place of a result: the error object of OpenAI's API, and its HTTP status. One error, the
 * first that was found; its text is bounded and quotes nothing of the request but names. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_API_ERROR_H
#define GR_ORCHESTRATOR_HTTP_API_ERROR_H

#include "common/base/status.h"

#include <stdbool.h>

#define GR_API_PARAM_MAX 64
#define GR_API_MESSAGE_MAX 320
#define GR_API_ENDS "the orchestrator is shutting down" /* 503 */

struct gr_api_error {
    int http_status;              /* 0: there is none */
    char param[GR_API_PARAM_MAX]; /* the field that is wrong; empty: null */
    const char *code;             /* static text; NULL: null */
    bool is_final;                /* the same request would fail again: the response says X-Should-Retry: false */
    char message[GR_API_MESSAGE_MAX];
};

/* Fills e and returns GR_EINVAL. param NULL: none. Names and headers that it tells are the client's: what is no
 * printable text in them is spelled (utf8.h), so that an error is one line. */
enum gr_status gr_api_refuse(struct gr_api_error *e, int http_status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* One of no field; the text is a line of ours. */
struct gr_api_error gr_api_error_of(int http_status, const char *text);
/* The API's word for the kind of an error of this status. */
const char *gr_api_error_type(int http_status);
/* {"error": {...}} as text, owned by the caller (free). NULL: out of memory. */
char *gr_api_error_json(const struct gr_api_error *e);

#endif
