#include "orchestrator/launch/note.h"

#include "common/base/log.h"

#include <jansson.h>
#include <sodium.h>
#include <string.h>

static json_t *note_json(const char *job, const struct gr_job_note *note)
{
    char hex[2 * GR_KEY_BYTES + 1] = "";
    json_t *addresses = json_array();
    for (int i = 0; i < note->n_address; i++) {
        (void)json_array_append_new(addresses, json_string(note->address[i]));
    }
    if (note->has_key) {
        sodium_bin2hex(hex, sizeof(hex), note->key, sizeof(note->key));
    }
    return json_pack("{s:i, s:s, s:o, s:s}", "version", 1, "job", job, "addresses", addresses, "key", hex);
}

char *gr_job_note_text(const char *job, const struct gr_job_note *note)
{
    json_t *j = note_json(job, note);
    char *text = j != NULL ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    if (text == NULL) {
        log_error("no memory for the note in the job directory");
    }
    return text;
}

static bool parse_key(const char *hex, struct gr_job_note *note)
{
    size_t n = 0;
    note->has_key = hex[0] != '\0';
    return !note->has_key || (sodium_hex2bin(note->key, sizeof(note->key), hex, strlen(hex), NULL, &n, NULL) == 0 &&
                              n == sizeof(note->key));
}

static bool parse(json_t *j, const char *job, struct gr_job_note *note)
{
    const char *of = NULL, *key = NULL;
    json_t *addresses = NULL;
    int version = 0;
    if (json_unpack(j, "{s:i, s:s, s:o, s:s}", "version", &version, "job", &of, "addresses", &addresses, "key", &key) !=
            0 ||
        version != 1 || strcmp(of, job) != 0 || !json_is_array(addresses) || !parse_key(key, note)) {
        return false;
    }
    note->n_address = 0;
    for (size_t i = 0; i < json_array_size(addresses) && note->n_address < GR_JOB_ADDRESS_MAX; i++) {
        const char *a = json_string_value(json_array_get(addresses, i));
        if (a != NULL && strlen(a) < sizeof(note->address[0])) {
            strcpy(note->address[note->n_address++], a);
        }
    }
    return note->n_address > 0;
}

bool gr_job_note_parse(const char *text, size_t n, const char *job, struct gr_job_note *out)
{
    json_t *j = json_loadb(text, n, 0, NULL);
    const bool good = j != NULL && parse(j, job, out);
    json_decref(j);
    return good;
}
