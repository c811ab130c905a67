#include "bench/tune_file.h"

#include "common/base/log.h"
#include "common/base/out_file.h"
#include "model/files/tuned.h"

#include <string.h>
#include <sys/stat.h>

/* A device, a FIFO or an empty file has nothing that stays. */
static bool holds_something(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
}

enum gr_status gr_tune_file_open(const char *path, const char *gpu, json_t **root_out)
{
    struct gr_tuned tuned;
    json_error_t e;
    if (!holds_something(path)) {
        *root_out = json_pack("{s:i, s:s, s:[], s:[]}", "format", GR_TUNED_FORMAT, "gpu", gpu, "linear", "attention");
        GR_ASSERT(*root_out != NULL);
        return GR_OK;
    }
    GR_TRY(gr_tuned_load(path, &tuned));
    if (strcmp(tuned.gpu, gpu) != 0) {
        log_error("--output %s: what is in it was measured on %s, this is %s; name another file", path, tuned.gpu, gpu);
        return GR_EMISMATCH;
    }
    *root_out = json_load_file(path, 0, &e);
    if (*root_out == NULL) {
        log_error("%s:%d: %s", path, e.line, e.text);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static bool same_shape(json_t *a, json_t *b, int n_key)
{
    const char *key;
    json_t *value;
    int i = 0;
    json_object_foreach(a, key, value)
    {
        if (i++ < n_key && !json_equal(value, json_object_get(b, key))) {
            return false;
        }
    }
    return true;
}

void gr_tune_file_put(json_t *root, const char *section, json_t *entry, int n_key)
{
    json_t *list = json_object_get(root, section);
    json_t *old;
    size_t i;
    if (!json_is_array(list)) {
        list = json_array();
        GR_ASSERT(json_object_set_new(root, section, list) == 0);
    }
    json_array_foreach(list, i, old)
    {
        if (same_shape(entry, old, n_key)) {
            GR_ASSERT(json_array_set_new(list, i, entry) == 0);
            return;
        }
    }
    GR_ASSERT(json_array_append_new(list, entry) == 0);
}

enum gr_status gr_tune_file_write(const char *path, const json_t *root)
{
    struct gr_out_file o;
    GR_TRY(gr_out_file_open("--output", path, 0666, false, &o));
    return gr_out_file_close(&o, json_dumpf(root, o.f, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) == 0, NULL);
}
