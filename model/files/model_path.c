#include "model/files/model_path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "model/files/gguf_model.h"
#include "model/files/json_util.h"
#include "model/files/safetensors.h"

static bool is_empty(const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *e = NULL;
    bool empty = dir != NULL;
    while (empty && (e = readdir(dir)) != NULL) {
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return empty;
}

static bool is_gguf_name(const char *name)
{
    const size_t len = strlen(name);
    return len > 5 && strcmp(name + len - 5, ".gguf") == 0;
}

/* The first by name of the folder's GGUF files; false: it has none. */
static bool find_gguf(const char *path, char name[static NAME_MAX + 1])
{
    DIR *dir = opendir(path);
    const struct dirent *e = NULL;
    bool found = false;
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        if (is_gguf_name(e->d_name) && (!found || strcmp(e->d_name, name) < 0)) {
            snprintf(name, NAME_MAX + 1, "%s", e->d_name);
            found = true;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

/* The first by name of what lies in path's folder snapshots; false: it has no such folder, or it is empty. */
static bool find_snapshot(const char *path, char name[static NAME_MAX + 1])
{
    char snapshots[PATH_MAX];
    const int len = snprintf(snapshots, sizeof(snapshots), "%s/snapshots", path);
    DIR *dir = len > 0 && (size_t)len < sizeof(snapshots) ? opendir(snapshots) : NULL;
    const struct dirent *e = NULL;
    bool found = false;
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        if (e->d_name[0] != '.' && (!found || strcmp(e->d_name, name) < 0)) {
            snprintf(name, NAME_MAX + 1, "%s", e->d_name);
            found = true;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

/* A folder into which a GGUF file was downloaded, or the root of a model in a hub's cache. */
static enum gr_status check_folder(const char *path)
{
    char name[NAME_MAX + 1], config[PATH_MAX];
    if (is_empty(path)) {
        log_error("%s: an empty folder; a model has config.json and model.safetensors there", path);
        return GR_ENOTFOUND;
    }
    GR_TRY(gr_path_join(config, sizeof(config), path, "config.json"));
    const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
    const bool lacks = access(config, F_OK) != 0 && errno == ENOENT;
    if (lacks && find_snapshot(path, name)) {
        log_error("%s has no config.json: a model in a hub's cache lies in a folder of its snapshots: give "
                  "%s%ssnapshots/%s",
                  path, path, slash, name);
        return GR_ENOTFOUND;
    }
    if (lacks && find_gguf(path, name)) {
        log_error("%s has no config.json; for its GGUF file give %s%s%s", path, path, slash, name);
        return GR_ENOTFOUND;
    }
    return GR_OK;
}

/* By its first bytes: a hub's cache names files by their sums. */
static enum gr_status check_magic(const char *path)
{
    char head[4] = {0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t n = fd >= 0 ? read(fd, head, sizeof(head)) : -1;
    const int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (n < 0) {
        log_error("%s: %s", path, strerror(error));
        return GR_EIO;
    }
    if (!gr_gguf_is(head, (size_t)n)) {
        log_error("%s: a file that does not begin with GGUF; graft loads local folders and .gguf files", path);
        return GR_EFORMAT;
    }
    return GR_OK;
}

enum gr_status gr_model_path_kind(const char *path, enum gr_model_kind *out)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) {
            log_error("%s: not a folder; graft loads local folders and .gguf files", path);
            return GR_ENOTFOUND;
        }
        log_error("%s: %s", path, strerror(errno));
        return GR_EIO;
    }
    if (S_ISDIR(info.st_mode)) {
        GR_TRY(check_folder(path));
        *out = GR_MODEL_FOLDER;
        return GR_OK;
    }
    GR_TRY(check_magic(path));
    *out = GR_MODEL_GGUF;
    return GR_OK;
}

enum gr_status gr_model_path_config(const char *path, struct gr_hf_config *out)
{
    enum gr_model_kind kind = GR_MODEL_FOLDER;
    GR_TRY(gr_model_path_kind(path, &kind));
    return kind == GR_MODEL_GGUF ? gr_gguf_model_open(path, out, NULL) : gr_hf_config_load(path, out);
}

enum gr_status gr_model_meta_open(const char *path, struct gr_model_meta *out)
{
    enum gr_model_kind kind = GR_MODEL_FOLDER;
    *out = (struct gr_model_meta){.file = NULL};
    GR_TRY(gr_model_path_kind(path, &kind));
    return kind == GR_MODEL_GGUF ? gr_gguf_model_open(path, &out->hf, &out->file) : gr_hf_config_load(path, &out->hf);
}

void gr_model_meta_close(struct gr_model_meta *m)
{
    gr_tensors_close(m->file);
    m->file = NULL;
}

const struct gr_gguf *gr_model_meta_gguf(const struct gr_model_meta *m)
{
    return m->file != NULL ? gr_gguf_model_metadata(m->file) : NULL;
}

enum gr_status gr_model_path_open(const char *path, struct gr_tensors **out)
{
    enum gr_model_kind kind = GR_MODEL_FOLDER;
    GR_TRY(gr_model_path_kind(path, &kind));
    return kind == GR_MODEL_GGUF ? gr_gguf_model_open(path, NULL, out) : gr_safetensors_open(path, out);
}

void gr_model_path_name(const char *path, char *name, size_t cap)
{
    char *real = realpath(path, NULL);
    const char *whole = real != NULL ? real : path;
    const char *slash = strrchr(whole, '/');
    snprintf(name, cap, "%s", slash != NULL ? slash + 1 : whole);
    free(real);
}
