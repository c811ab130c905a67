#include "orchestrator/http/api_body.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 32                    /* of a body's arrays and objects in each other */
#define INT_LIMIT 9223372036854775808.0 /* an integer is below, in 64 bits */

const char *gr_api_kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

/* What is deeper than anything that is read further is not loaded, so that no library's recursion is asked for it.
 * Brackets in strings do not count. What a backslash is before is no end of a string. */
static bool is_too_deep(const char *text, size_t len)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        if (in_string && text[i] == '\\') {
            i++;
        } else if (in_string) {
            in_string = text[i] != '"';
        } else {
            in_string = text[i] == '"';
            depth += (text[i] == '[' || text[i] == '{') - (text[i] == ']' || text[i] == '}');
            if (depth > DEPTH_MAX) {
                return true;
            }
        }
    }
    return false;
}

/* ---- a field is looked for ---- */

typedef bool test_fn(const json_t *v);

/* Is there such a value in it, or is it one? As deep as the body is. */
static bool has(const json_t *v, test_fn *test)
{
    size_t i;
    const char *name;
    json_t *one, *all = (json_t *)(uintptr_t)v;
    json_array_foreach(all, i, one)
    {
        if (has(one, test)) {
            return true;
        }
    }
    json_object_foreach(all, name, one)
    {
        if (has(one, test)) {
            return true;
        }
    }
    return test(v);
}

/* The name of the body's first field that has such a value; NULL: none has. */
static const char *field_with(json_t *body, test_fn *test)
{
    const char *name;
    json_t *v;
    json_object_foreach(body, name, v)
    {
        if (has(v, test)) {
            return name;
        }
    }
    return NULL;
}

static bool has_nul(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v);
}

static bool is_large(const json_t *v)
{
    return json_is_real(v) && fabs(json_real_value(v)) >= INT_LIMIT;
}

/* ---- errors ---- */

/* The library says of a number that is too large only where it is. */
static enum gr_status refuse_number(const char *text, size_t len, const json_error_t *error, struct gr_api_error *e)
{
    json_t *body = json_loadb(text, len, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    const char *name = field_with(body, is_large);
    const enum gr_status st =
        name != NULL
            ? gr_api_refuse(e, 400, name, "%.60s: a number is larger than 64 bits hold (-2^63 to 2^63 - 1)", name)
            : gr_api_refuse(e, 400, NULL, "line %d, column %d of the body: the number is too large", error->line,
                            error->column);
    json_decref(body);
    return st;
}

/* Of a name that is there twice: it ends at this byte. */
static enum gr_status refuse_twice(const char *text, const json_error_t *error, struct gr_api_error *e)
{
    char name[GR_API_PARAM_MAX] = "";
    const char *end = text + error->position - 1, *at = end;
    while (at > text && at[-1] != '"') {
        at--;
    }
    if (end > at && *end == '"') {
        snprintf(name, sizeof(name), "%.*s", (int)GR_MIN(end - at, GR_API_PARAM_MAX - 1), at);
    }
    return gr_api_refuse(e, 400, name, "%.60s is given twice: line %d, column %d of the body", name, error->line,
                         error->column);
}

/* The library's own text may quote bytes that are no text. */
static enum gr_status refuse(const char *text, size_t len, json_error_t *error, struct gr_api_error *e)
{
    switch (json_error_code(error)) {
    case json_error_numeric_overflow:
        return refuse_number(text, len, error, e);
    case json_error_duplicate_key:
        return refuse_twice(text, error, e);
    case json_error_null_byte_in_key:
        return gr_api_refuse(e, 400, NULL, "line %d, column %d of the body: the name of a field has a NUL character",
                             error->line, error->column);
    default:
        return gr_api_refuse(e, 400, NULL, "the body is not JSON in UTF-8: line %d, column %d", error->line,
                             error->column);
    }
}

static enum gr_status check(json_t *body, struct gr_api_error *e)
{
    if (!json_is_object(body)) {
        return gr_api_refuse(e, 400, NULL, "the body is %s; it must be an object", gr_api_kind_of(body));
    }
    const char *name = field_with(body, has_nul);
    return name == NULL ? GR_OK
                        : gr_api_refuse(e, 400, name, "%.60s: a text has a NUL character, which is not taken", name);
}

static bool is_blank(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && strchr(" \t\r\n", text[n]) != NULL && text[n] != '\0') {
        n++;
    }
    return n == len;
}

enum gr_status gr_api_body_load(const char *text, size_t len, json_t **out, struct gr_api_error *e)
{
    json_error_t error;
    if (is_blank(text, len)) {
        return gr_api_refuse(e, 400, NULL, "the body is empty; it must be a JSON object");
    }
    if (is_too_deep(text, len)) {
        return gr_api_refuse(e, 400, NULL, "the body is nested deeper than %d", DEPTH_MAX);
    }
    json_t *body = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (body == NULL) {
        return refuse(text, len, &error, e);
    }
    const enum gr_status st = check(body, e);
    if (st != GR_OK) {
        json_decref(body);
        return st;
    }
    *out = body;
    return GR_OK;
}
