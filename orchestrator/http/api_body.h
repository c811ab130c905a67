/* The body of a request as a JSON object in which no name is twice and no text has a NUL, so that texts are C strings.
 * Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_API_BODY_H
#define GR_ORCHESTRATOR_HTTP_API_BODY_H

#include "orchestrator/http/api_error.h"

#include <jansson.h>
#include <stddef.h>

/* out: owned by the caller (json_decref). GR_EINVAL: e has the error, with the field's name if it is about one. */
GR_NODISCARD enum gr_status gr_api_body_load(const char *text, size_t len, json_t **out, struct gr_api_error *e);
/* "an object", "null", ... */
const char *gr_api_kind_of(const json_t *v);

#endif
