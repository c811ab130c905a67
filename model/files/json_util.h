/* Reading JSON that comes from outside: each getter checks type and range and logs one line that
 * names file, key, value and limit. Used by the readers of model folders; stateless. */
#ifndef GR_MODEL_FILES_JSON_UTIL_H
#define GR_MODEL_FILES_JSON_UTIL_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

/* Whole file, at most max_bytes, NUL-terminated after len; owned by the caller (free). A missing
 * file is GR_ENOTFOUND and is logged only if `required`. */
GR_NODISCARD enum gr_status gr_file_read(const char *path, size_t max_bytes, bool required, char **data_out,
                                         size_t *len_out);

/* dir + "/" + file; GR_ELIMIT when it does not fit. */
GR_NODISCARD enum gr_status gr_path_join(char *path, size_t cap, const char *dir, const char *file);

/* The text must be one JSON object without duplicate keys. json_decref the result. */
GR_NODISCARD enum gr_status gr_json_parse_object(const char *name, const char *json, size_t len, json_t **out);

/* The file dir/file of at most max_bytes, which must be such an object; *out is NULL where there is none. path: its
 * name, for messages about what is in it. */
GR_NODISCARD enum gr_status gr_json_read_object(const char *dir, const char *file, size_t max_bytes,
                                                char path[PATH_MAX], json_t **out);

/* Getters. name: file; prefix: "" or such as "rope_scaling.", for messages. A key that is
 * missing or null leaves *out alone when `required` is false. */
struct gr_json_where {
    const char *name;
    const char *prefix;
    const json_t *obj;
    const json_t *shown; /* prefix and key to what messages call the key instead: a GGUF file's field; NULL: nothing */
};

#define GR_JSON_KEY_BYTES 160
/* What messages call the key: with its prefix, or as `shown` has it. text is room for it. */
const char *gr_json_key(const struct gr_json_where *w, const char *key, char text[GR_JSON_KEY_BYTES]);

GR_NODISCARD enum gr_status gr_json_int(const struct gr_json_where *w, const char *key, bool required, long long min,
                                        long long max, int *out);
GR_NODISCARD enum gr_status gr_json_double(const struct gr_json_where *w, const char *key, bool required, double min,
                                           double max, double *out);
GR_NODISCARD enum gr_status gr_json_bool(const struct gr_json_where *w, const char *key, bool required, bool *out);
/* Borrowed; NULL when missing. */
GR_NODISCARD enum gr_status gr_json_string(const struct gr_json_where *w, const char *key, bool required,
                                           const char **out);
GR_NODISCARD enum gr_status gr_json_object(const struct gr_json_where *w, const char *key, bool required,
                                           const json_t **out);
GR_NODISCARD enum gr_status gr_json_array(const struct gr_json_where *w, const char *key, bool required,
                                          const json_t **out);

/* Error that names the first key of the object that is not in the NULL-terminated list. */
GR_NODISCARD enum gr_status gr_json_only_keys(const struct gr_json_where *w, const char *const *keys);

#endif
