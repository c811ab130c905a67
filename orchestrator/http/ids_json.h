/* Token ids as an array of JSON. */
#ifndef GR_ORCHESTRATOR_HTTP_IDS_JSON_H
#define GR_ORCHESTRATOR_HTTP_IDS_JSON_H

#include <stddef.h>
#include <stdint.h>

struct json_t;

struct json_t *gr_ids_json(const int32_t *ids, size_t n);

#endif
