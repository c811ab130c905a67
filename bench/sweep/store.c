#include "bench/sweep/store.h"

#include "bench/paths.h"
#include "common/base/log.h"
#include "common/rules/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

void gr_store_digest(const json_t *about, char digest[static 20])
{
    char *text = json_dumps(about, JSON_COMPACT | JSON_SORT_KEYS);
    uint64_t hash = 0;
    for (const char *p = text; p != NULL && *p != '\0'; p++) {
        hash = gr_hash_extend(hash, (unsigned char)*p);
    }
    free(text);
    snprintf(digest, 20, "%016" PRIx64, hash);
}

/* ---- reading ---- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text != NULL ? text : "";
}

/* GR_EFORMAT: it is neither. */
static enum gr_status take(struct gr_store *s, json_t *line, bool pick_last)
{
    const json_t *about = json_object_get(line, "about");
    const char *digest = text_of(line, "digest");
    if (json_is_object(about) && digest[0] != '\0') {
        json_object_set(s->abouts, digest, (json_t *)(uintptr_t)about);
        if (pick_last) {
            snprintf(s->digest, sizeof(s->digest), "%s", digest);
        }
        return GR_OK;
    }
    const bool is_run = text_of(line, "by")[0] != '\0' && text_of(line, "fleet")[0] != '\0' &&
                        text_of(line, "mode")[0] != '\0' && json_is_integer(json_object_get(line, "sessions")) &&
                        json_is_integer(json_object_get(line, "repeat")) &&
                        (json_is_object(json_object_get(line, "row")) || text_of(line, "failed")[0] != '\0');
    return is_run && json_array_append(s->runs, line) == 0 ? GR_OK : GR_EFORMAT;
}

static enum gr_status take_lines(struct gr_store *s, FILE *f, bool pick_last)
{
    char *text = NULL;
    size_t cap = 0;
    enum gr_status st = GR_OK;
    ssize_t len = 0;
    for (int n = 1; st == GR_OK && (len = getline(&text, &cap, f)) > 0; n++) {
        json_error_t error;
        json_t *line = json_loadb(text, (size_t)len, 0, &error);
        if (text[len - 1] != '\n') {
            log_warn("%s:%d: the last line was cut short; its run is not taken as done", s->path, n);
            json_decref(line);
            break;
        }
        s->n_byte += len;
        if (line == NULL || take(s, line, pick_last) != GR_OK) {
            log_error("%s:%d: %s; a folder of another name is wanted", s->path, n,
                      line == NULL ? error.text : "no run of a sweep");
            st = GR_EFORMAT;
        }
        json_decref(line);
    }
    free(text);
    return st;
}

static enum gr_status read_all(struct gr_store *s, bool pick_last)
{
    struct stat st;
    FILE *f = fopen(s->path, "re");
    if (f == NULL && errno == ENOENT && !pick_last) {
        return GR_OK;
    }
    if (f == NULL) {
        log_error("%s: %s", s->path, strerror(errno));
        return errno == ENOENT ? GR_ENOTFOUND : GR_EIO;
    }
    enum gr_status got = GR_OK;
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > (off_t)GR_STORE_BYTES_MAX) {
        log_error("%s: not a file of at most %u MiB", s->path, GR_STORE_BYTES_MAX >> 20);
        got = GR_EFORMAT;
    } else {
        got = take_lines(s, f, pick_last);
    }
    fclose(f);
    return got;
}

/* ---- writing ---- */

static enum gr_status write_line(struct gr_store *s, const json_t *line)
{
    const bool good = json_dumpf(line, s->f, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12)) == 0 &&
                      fputc('\n', s->f) != EOF && fflush(s->f) == 0 && fdatasync(fileno(s->f)) == 0;
    if (!good) {
        log_error("%s: %s", s->path, strerror(errno));
        return GR_EIO;
    }
    return GR_OK;
}

/* One that was killed has let go of it. */
static enum gr_status lock(struct gr_store *s, const char *dir)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/lock", dir) >= (int)sizeof(path)) {
        log_error("--save: the name of the folder is too long");
        return GR_EINVAL;
    }
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->lock_fd < 0) {
        log_error("%s: %s", path, strerror(errno));
        return GR_EIO;
    }
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        log_error("--save %s: another sweep is writing into this folder", dir);
        return GR_EIO;
    }
    return GR_OK;
}

static enum gr_status begin_writing(struct gr_store *s, const json_t *about)
{
    s->f = fopen(s->path, "ae");
    if (s->f == NULL || ftruncate(fileno(s->f), s->n_byte) != 0) {
        log_error("%s: %s", s->path, strerror(errno));
        return GR_EIO;
    }
    if (json_object_get(s->abouts, s->digest) != NULL) {
        return GR_OK;
    }
    json_t *line = json_pack("{s:O, s:s}", "about", about, "digest", s->digest);
    json_object_set(s->abouts, s->digest, json_object_get(line, "about"));
    const enum gr_status st = write_line(s, line);
    json_decref(line);
    return st;
}

enum gr_status gr_store_open(const char *dir, const json_t *about, struct gr_store *out)
{
    *out = (struct gr_store){.runs = json_array(), .abouts = json_object(), .lock_fd = -1};
    if (snprintf(out->path, sizeof(out->path), "%s/runs.jsonl", dir) >= (int)sizeof(out->path)) {
        log_error("--save: the name of the folder is too long");
        return GR_EINVAL;
    }
    if (about == NULL) {
        return read_all(out, true);
    }
    gr_store_digest(about, out->digest);
    GR_TRY(gr_bench_make_folder(dir));
    GR_TRY(lock(out, dir));
    GR_TRY(read_all(out, false));
    return begin_writing(out, about);
}

void gr_store_close(struct gr_store *s)
{
    if (s->f != NULL) {
        fclose(s->f);
    }
    if (s->lock_fd >= 0) {
        close(s->lock_fd);
    }
    json_decref(s->runs);
    json_decref(s->abouts);
    *s = (struct gr_store){.lock_fd = -1};
}

/* ---- looking ---- */

static bool is_run(const struct gr_store *s, const json_t *line, const struct gr_run_id *id)
{
    return strcmp(text_of(line, "by"), s->digest) == 0 && strcmp(text_of(line, "fleet"), id->fleet) == 0 &&
           strcmp(text_of(line, "mode"), id->mode) == 0 &&
           json_integer_value(json_object_get(line, "sessions")) == id->n_session &&
           json_integer_value(json_object_get(line, "repeat")) == id->repeat;
}

/* The last line about it; NULL: none. */
static const json_t *find(const struct gr_store *s, const struct gr_run_id *id)
{
    for (size_t i = json_array_size(s->runs); i > 0; i--) {
        const json_t *line = json_array_get(s->runs, i - 1);
        if (is_run(s, line, id)) {
            return line;
        }
    }
    return NULL;
}

const json_t *gr_store_row(const struct gr_store *s, const struct gr_run_id *id)
{
    const json_t *line = find(s, id);
    return line != NULL ? json_object_get(line, "row") : NULL;
}

const char *gr_store_failure(const struct gr_store *s, const struct gr_run_id *id)
{
    const json_t *line = find(s, id);
    return line != NULL ? json_string_value(json_object_get(line, "failed")) : NULL;
}

enum gr_status gr_store_add(struct gr_store *s, const struct gr_run_id *id, const json_t *row, const char *why)
{
    json_t *line = json_pack("{s:s, s:s, s:s, s:i, s:i}", "by", s->digest, "fleet", id->fleet, "mode", id->mode,
                             "sessions", id->n_session, "repeat", id->repeat);
    int bad = line == NULL;
    if (row != NULL) {
        bad |= json_object_set(line, "row", (json_t *)(uintptr_t)row);
    } else {
        bad |= json_object_set_new(line, "failed", json_string(why[0] != '\0' ? why : "unknown"));
    }
    bad |= json_array_append(s->runs, line);
    const enum gr_status st = bad ? GR_ENOMEM : write_line(s, line);
    if (bad) {
        log_error("%s: a run is no text in UTF-8", s->path);
    }
    json_decref(line);
    return st;
}

const json_t *gr_store_about(const struct gr_store *s)
{
    return json_object_get(s->abouts, s->digest);
}
