/* What a request is called by those who sent it: X-Request-Id, which is told back, and the trace of `traceparent' (W3C
 * Trace Context, section 3.2), which lines of the log carry. Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_REQUEST_NAMES_H
#define GR_ORCHESTRATOR_HTTP_REQUEST_NAMES_H

#include "common/protocol/msg.h"

#include <stdbool.h>

#define GR_REQUEST_ID_MAX 129 /* with its NUL */

struct gr_request_names {
    char request_id[GR_REQUEST_ID_MAX];
    char trace_id[GR_TRACE_ID_MAX]; /* empty: it has none */
};

/* Up to 128 letters, digits and `-._~:/+=@'. */
bool gr_request_id_is_good(const char *text);
/* False: the header is not as the standard has it, and is as good as none. out: 32 hex digits. */
bool gr_trace_parent_read(const char *header, char out[GR_TRACE_ID_MAX]);

#endif
