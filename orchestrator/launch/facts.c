#include "orchestrator/launch/facts.h"

#include "common/base/in_file.h"
#include "transport/connect/bootstrap.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define HEAD_BYTES (1 << 20) /* of a file that is hashed by its beginning */

/* ---- files ---- */

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Of the first bytes and the size. */
static bool hash_head(const char *path, uint64_t *hash_out)
{
    struct stat sb;
    FILE *f = gr_in_file_stream(path);
    uint8_t *head = malloc(HEAD_BYTES);
    const bool good = f != NULL && head != NULL && fstat(fileno(f), &sb) == 0;
    if (good) {
        const size_t n = fread(head, 1, HEAD_BYTES, f);
        *hash_out = XXH3_64bits_withSeed(head, n, (uint64_t)sb.st_size);
    }
    free(head);
    if (f != NULL) {
        fclose(f);
    }
    return good;
}

/* Names and sizes of the weights' files, in whatever order the folder has them. */
static uint64_t hash_sizes(const char *folder)
{
    DIR *d = opendir(folder);
    uint64_t sum = 0;
    char path[4096];
    struct stat sb;
    if (d == NULL) {
        return 0;
    }
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (ends_with(e->d_name, ".safetensors") && stat(path, &sb) == 0) {
            sum += XXH3_64bits_withSeed(e->d_name, strlen(e->d_name), (uint64_t)sb.st_size);
        }
    }
    closedir(d);
    return sum;
}

bool gr_launch_files(const char *path, char text_out[32])
{
    char config[4096];
    uint64_t hash = 0;
    snprintf(config, sizeof(config), "%s/config.json", path);
    const bool folder = hash_head(config, &hash);
    if (!folder && !(ends_with(path, ".gguf") && hash_head(path, &hash))) {
        return false;
    }
    snprintf(text_out, 32, "%016" PRIx64, folder ? hash ^ hash_sizes(path) : hash);
    return true;
}

/* ---- options and variables ---- */

static void set(json_t *facts, const char *name, const char *value)
{
    json_t *text = json_string(value); /* NULL: no UTF-8 */
    (void)json_object_set_new(facts, name, text != NULL ? text : json_string("(no UTF-8)"));
}

/* What a rank is told that says where it is, or what is shown, and what is compared in another way. */
static bool is_own(const struct gr_option *r)
{
    static const enum gr_option_id own[] = {GR_OPTION_log_level,    GR_OPTION_tuned,     GR_OPTION_target_ib_hca,
                                            GR_OPTION_draft_ib_hca, GR_OPTION_gid_index, GR_OPTION_target_device,
                                            GR_OPTION_draft_device, GR_OPTION_model,     GR_OPTION_draft,
                                            GR_OPTION_control,      GR_OPTION_interface};
    for (size_t i = 0; i < GR_ARRAY_LEN(own); i++) {
        if (r == &gr_option_rows[own[i]]) {
            return true;
        }
    }
    return r->kind == GR_KIND_WORKERS || r->kind == GR_KIND_REST || r->group == gr_option_rows[GR_OPTION_roles].group;
}

static void add_options(json_t *facts, const struct gr_options *o)
{
    char text[GR_OPTION_TEXT_MAX], name[64];
    for (int i = 0; i < GR_N_OPTION; i++) {
        const struct gr_option *r = &gr_option_rows[i];
        const bool told = gr_option_is_for(r, GR_CMD_LAUNCH) && o->values.source[i] != GR_FROM_DEFAULT;
        const char *value = told && !is_own(r) && r->path == GR_PATH_NONE ? gr_option_text(&o->values, r, text) : NULL;
        if (value != NULL) {
            snprintf(name, sizeof(name), "--%s", r->name);
            set(facts, name, value);
        }
    }
}

/* add_options() has its value, where that is to be compared. */
static bool is_twin(const char *variable)
{
    char name[64];
    for (int i = 0; i < GR_N_OPTION; i++) {
        gr_option_environment(&gr_option_rows[i], name);
        const size_t len = strlen(name);
        if (len > 0 && strncmp(variable, name, len) == 0 && variable[len] == '=') {
            return true;
        }
    }
    return false;
}

static bool is_relevant(const char *variable)
{
    static const char *const others[] = {"GRAFT_KEY",      "GRAFT_LOG=",   "GRAFT_LOG_FORMAT=", "GRAFT_DEBUG=",
                                         "GRAFT_CONNECT=", "GRAFT_JOINED", "GRAFT_SILENT",      "GRAFT_SUPERVISED"};
    if (is_twin(variable)) {
        return false;
    }
    if (strncmp(variable, "GRAFT_", 6) != 0 && strncmp(variable, "NCCL_", 5) != 0) {
        return false;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(others); i++) {
        if (strncmp(variable, others[i], strlen(others[i])) == 0) {
            return false;
        }
    }
    return true;
}

static void add_variables(json_t *facts, char *const *env)
{
    for (; *env != NULL; env++) {
        const char *equals = strchr(*env, '=');
        char name[128];
        if (equals != NULL && is_relevant(*env)) {
            snprintf(name, sizeof(name), "%.*s", (int)(equals - *env), *env);
            set(facts, name, equals + 1);
        }
    }
}

static void add_files(json_t *facts, const char *name, const char *path)
{
    char text[32];
    if (path != NULL && gr_launch_files(path, text)) {
        set(facts, name, text);
    }
}

json_t *gr_launch_facts(const struct gr_options *o, const struct gr_roles *roles, char *const *env)
{
    char text[2048];
    json_t *facts = json_object();
    if (facts == NULL) {
        return NULL;
    }
    set(facts, "version", GR_VERSION);
    snprintf(text, sizeof(text), "%d", GR_PROTOCOL_VERSION);
    set(facts, "protocol", text);
    gr_roles_text(roles, text, sizeof(text));
    set(facts, "roles", text);
    add_options(facts, o);
    add_variables(facts, env);
    add_files(facts, "files of --model", o->model);
    add_files(facts, "files of --draft", o->draft);
    return facts;
}
