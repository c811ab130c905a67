#include "orchestrator/http/ids_json.h"

#include <jansson.h>

struct json_t *gr_ids_json(const int32_t *ids, size_t n)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(all, json_integer(ids[i]));
    }
    return all;
}
