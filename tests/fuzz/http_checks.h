/* What holds of every refusal of the endpoint, whatever was sent. */
#ifndef GR_TESTS_FUZZ_HTTP_CHECKS_H
#define GR_TESTS_FUZZ_HTTP_CHECKS_H

#include "orchestrator/http/api_error.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_BYTES_MAX 1024

/* A status of the client's mistake, or of too many guests; an error object with all four members, in valid UTF-8
 * (jansson reads nothing else), which is short however long the request was. */
static inline void check_refusal(const struct gr_api_error *e)
{
    json_error_t unused;
    GR_ASSERT((e->http_status >= 400 && e->http_status < 500) || e->http_status == 503);
    GR_ASSERT(e->message[0] != '\0' && strchr(e->message, '\n') == NULL);
    char *text = gr_api_error_json(e);
    GR_ASSERT(text != NULL && strlen(text) < ERROR_BYTES_MAX);
    json_t *read = json_loads(text, 0, &unused);
    GR_ASSERT(json_object_size(json_object_get(read, "error")) == 4);
    json_decref(read);
    free(text);
}

#endif
