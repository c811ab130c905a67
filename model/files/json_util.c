#include "model/files/json_util.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"

static enum gr_status read_all(int fd, const char *path, char *data, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = read(fd, data + done, len - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            log_error("%s: read stopped at byte %zu of %zu: %s", path, done, len,
                      n == 0 ? "the file became shorter" : strerror(errno));
            return GR_EIO;
        }
        done += (size_t)n;
    }
    data[len] = '\0';
    return GR_OK;
}

static enum gr_status read_fd(int fd, const char *path, size_t max_bytes, char **data_out, size_t *len_out)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        log_error("%s: %s", path, strerror(errno));
        return GR_EIO;
    }
    if (!S_ISREG(info.st_mode)) {
        log_error("%s: not a regular file", path);
        return GR_EIO;
    }
    if ((uintmax_t)info.st_size > max_bytes) {
        log_error("%s: %jd bytes, limit %zu", path, (intmax_t)info.st_size, max_bytes);
        return GR_ELIMIT;
    }
    size_t len = (size_t)info.st_size;
    char *data = malloc(len + 1);
    if (data == NULL) {
        log_error("%s: no memory for %zu bytes", path, len);
        return GR_ENOMEM;
    }
    enum gr_status st = read_all(fd, path, data, len);
    if (st != GR_OK) {
        free(data);
        return st;
    }
    *data_out = data;
    *len_out = len;
    return GR_OK;
}

enum gr_status gr_file_read(const char *path, size_t max_bytes, bool required, char **data_out, size_t *len_out)
{
    /* O_NONBLOCK: a FIFO under this name must not hang the start. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        bool missing = errno == ENOENT;
        if (required || !missing) {
            log_error("%s: %s", path, strerror(errno));
        }
        return missing ? GR_ENOTFOUND : GR_EIO;
    }
    enum gr_status st = read_fd(fd, path, max_bytes, data_out, len_out);
    close(fd);
    return st;
}

enum gr_status gr_path_join(char *path, size_t cap, const char *dir, const char *file)
{
    size_t n = strlen(dir);
    const char *slash = n > 0 && dir[n - 1] == '/' ? "" : "/";
    int len = snprintf(path, cap, "%s%s%s", dir, slash, file);
    if (len < 0 || (size_t)len >= cap) {
        log_error("%s: path with %s is longer than %zu bytes", dir, file, cap - 1);
        return GR_ELIMIT;
    }
    return GR_OK;
}

enum gr_status gr_json_parse_object(const char *name, const char *json, size_t len, json_t **out)
{
    json_error_t err;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &err);
    if (root == NULL) {
        if (json_error_code(&err) == json_error_out_of_memory) {
            log_error("%s: no memory to parse %zu bytes of JSON", name, len);
            return GR_ENOMEM;
        }
        log_error("%s:%d:%d: %s", name, err.line, err.column, err.text);
        return GR_EFORMAT;
    }
    if (!json_is_object(root)) {
        log_error("%s: must be a JSON object", name);
        json_decref(root);
        return GR_EFORMAT;
    }
    *out = root;
    return GR_OK;
}

enum gr_status gr_json_read_object(const char *dir, const char *file, size_t max_bytes, char path[PATH_MAX],
                                   json_t **out)
{
    char *json = NULL;
    size_t len = 0;
    *out = NULL;
    GR_TRY(gr_path_join(path, PATH_MAX, dir, file));
    enum gr_status st = gr_file_read(path, max_bytes, false, &json, &len);
    if (st == GR_OK) {
        st = gr_json_parse_object(path, json, len, out);
        free(json);
    }
    return st == GR_ENOTFOUND ? GR_OK : st;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return names[json_typeof(value)];
}

const char *gr_json_key(const struct gr_json_where *w, const char *key, char text[GR_JSON_KEY_BYTES])
{
    snprintf(text, GR_JSON_KEY_BYTES, "%s%s", w->prefix, key);
    const char *shown = json_string_value(json_object_get(w->shown, text));
    return shown != NULL ? shown : text;
}

/* The value, NULL when missing or null. */
static enum gr_status lookup(const struct gr_json_where *w, const char *key, bool required, const json_t **out)
{
    const json_t *value = json_object_get(w->obj, key);
    *out = NULL;
    if (value == NULL || json_is_null(value)) {
        if (required) {
            char text[GR_JSON_KEY_BYTES];
            log_error("%s: %s is missing", w->name, gr_json_key(w, key, text));
            return GR_EFORMAT;
        }
        return GR_OK;
    }
    *out = value;
    return GR_OK;
}

static enum gr_status wrong_type(const struct gr_json_where *w, const char *key, const json_t *value,
                                 const char *expected)
{
    char text[GR_JSON_KEY_BYTES];
    log_error("%s: %s must be %s, is %s", w->name, gr_json_key(w, key, text), expected, type_name(value));
    return GR_EFORMAT;
}

enum gr_status gr_json_int(const struct gr_json_where *w, const char *key, bool required, long long min, long long max,
                           int *out)
{
    const json_t *value;
    GR_TRY(lookup(w, key, required, &value));
    if (value == NULL) {
        return GR_OK;
    }
    if (!json_is_integer(value)) {
        return wrong_type(w, key, value, "an integer");
    }
    long long number = json_integer_value(value);
    if (number < min || number > max) {
        char text[GR_JSON_KEY_BYTES];
        log_error("%s: %s = %lld is outside %lld..%lld", w->name, gr_json_key(w, key, text), number, min, max);
        return GR_ELIMIT;
    }
    *out = (int)number;
    return GR_OK;
}

enum gr_status gr_json_double(const struct gr_json_where *w, const char *key, bool required, double min, double max,
                              double *out)
{
    const json_t *value;
    GR_TRY(lookup(w, key, required, &value));
    if (value == NULL) {
        return GR_OK;
    }
    if (!json_is_number(value)) {
        return wrong_type(w, key, value, "a number");
    }
    double number = json_number_value(value);
    if (!isfinite(number) || number < min || number > max) {
        char text[GR_JSON_KEY_BYTES];
        log_error("%s: %s = %g is outside %g..%g", w->name, gr_json_key(w, key, text), number, min, max);
        return GR_ELIMIT;
    }
    *out = number;
    return GR_OK;
}

enum gr_status gr_json_bool(const struct gr_json_where *w, const char *key, bool required, bool *out)
{
    const json_t *value;
    GR_TRY(lookup(w, key, required, &value));
    if (value == NULL) {
        return GR_OK;
    }
    if (!json_is_boolean(value)) {
        return wrong_type(w, key, value, "true or false");
    }
    *out = json_is_true(value);
    return GR_OK;
}

enum gr_status gr_json_string(const struct gr_json_where *w, const char *key, bool required, const char **out)
{
    const json_t *value;
    GR_TRY(lookup(w, key, required, &value));
    if (value == NULL) {
        return GR_OK;
    }
    if (!json_is_string(value)) {
        return wrong_type(w, key, value, "a string");
    }
    *out = json_string_value(value);
    return GR_OK;
}

enum gr_status gr_json_object(const struct gr_json_where *w, const char *key, bool required, const json_t **out)
{
    const json_t *value;
    GR_TRY(lookup(w, key, required, &value));
    if (value == NULL) {
        return GR_OK;
    }
    if (!json_is_object(value)) {
        return wrong_type(w, key, value, "an object");
    }
    *out = value;
    return GR_OK;
}

enum gr_status gr_json_array(const struct gr_json_where *w, const char *key, bool required, const json_t **out)
{
    const json_t *value;
    GR_TRY(lookup(w, key, required, &value));
    if (value == NULL) {
        return GR_OK;
    }
    if (!json_is_array(value)) {
        return wrong_type(w, key, value, "an array");
    }
    *out = value;
    return GR_OK;
}

static bool is_listed(const char *key, const char *const *keys)
{
    for (; *keys != NULL; keys++) {
        if (strcmp(key, *keys) == 0) {
            return true;
        }
    }
    return false;
}

enum gr_status gr_json_only_keys(const struct gr_json_where *w, const char *const *keys)
{
    /* jansson's iterators take no const; nothing is changed. */
    json_t *obj = (json_t *)(uintptr_t)w->obj;
    for (void *it = json_object_iter(obj); it != NULL; it = json_object_iter_next(obj, it)) {
        const char *key = json_object_iter_key(it);
        if (!is_listed(key, keys)) {
            log_error("%s: %s%.64s is not understood by graft", w->name, w->prefix, key);
            return GR_EUNSUPPORTED;
        }
    }
    return GR_OK;
}
