#include "common/base/cgroup.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 4096 /* of a path below /sys/fs/cgroup, its NUL included */
/* A v1 group without a limit says the most pages that a counter holds. */
#define V1_NO_LIMIT (UINT64_C(1) << 62)

/* A hierarchy's name: "" is version 2, else a controller of version 1. */
struct walk {
    const char *root;
    const char *controller;
    char group[PATH_BYTES]; /* this process's, as /proc/self/cgroup says */
    char dir[PATH_BYTES];   /* where that is in the file system, without the root */
    size_t n_mount;         /* bytes of dir that are the mount point: the last level */
};

static FILE *open_under(const char *root, const char *path)
{
    char full[2 * PATH_BYTES];
    const int n = snprintf(full, sizeof(full), "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof(full) ? fopen(full, "re") : NULL;
}

/* ---- which group, and where it is mounted ---- */

static bool list_has(const char *list, const char *item)
{
    const size_t len = strlen(item);
    while (*list != '\0') {
        const size_t n = strcspn(list, ",");
        if (n == len && memcmp(list, item, n) == 0) {
            return true;
        }
        list += n + (list[n] == ',');
    }
    return false;
}

/* Lines "ID:CONTROLLERS:PATH"; version 2 has no controllers. */
static bool find_group(struct walk *w)
{
    char *line = NULL;
    size_t cap = 0;
    bool found = false;
    FILE *f = open_under(w->root, "/proc/self/cgroup");
    while (f != NULL && !found && getline(&line, &cap, f) > 0) {
        char *controllers = strchr(line, ':');
        char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL) {
            log_debug("/proc/self/cgroup: a line is not ID:CONTROLLERS:PATH");
            continue;
        }
        *controllers++ = *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        const bool fits = w->controller[0] == '\0' ? strcmp(line, "0") == 0 && controllers[0] == '\0'
                                                   : list_has(controllers, w->controller);
        found = fits && path[0] == '/' && strlen(path) < sizeof(w->group);
        if (found) {
            snprintf(w->group, sizeof(w->group), "%s", path);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    free(line);
    return found;
}

/* mountinfo writes blanks and backslashes as \ and three octal digits. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *p = text; *p != '\0'; p++) {
        if (p[0] == '\\' && strspn(p + 1, "01234567") >= 3) {
            *to++ = (char)((p[1] - '0') << 6 | (p[2] - '0') << 3 | (p[3] - '0'));
            p += 3;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
}

struct mount {
    char *root, *point; /* the part of the hierarchy that is mounted, and where; into the line */
};

/* "ID PARENT DEVICE ROOT POINT OPTIONS [more] - TYPE SOURCE SUPER-OPTIONS"; a mount of the walk's hierarchy? */
static bool parse_mount(const struct walk *w, char *line, struct mount *out)
{
    char *tail = strstr(line, " - ");
    char *field[5], *rest = NULL, *at = line;
    if (tail == NULL) {
        return false;
    }
    *tail = '\0';
    for (int i = 0; i < 5; i++) {
        field[i] = strtok_r(at, " ", &rest);
        at = NULL;
        if (field[i] == NULL) {
            return false;
        }
    }
    const char *type = strtok_r(tail + 3, " \n", &rest);
    const char *source = strtok_r(NULL, " \n", &rest);
    const char *options = strtok_r(NULL, " \n", &rest);
    const bool fits =
        type != NULL && source != NULL &&
        (w->controller[0] == '\0' ? strcmp(type, "cgroup2") == 0
                                  : strcmp(type, "cgroup") == 0 && options != NULL && list_has(options, w->controller));
    unescape(field[3]);
    unescape(field[4]);
    *out = (struct mount){.root = field[3], .point = field[4]};
    return fits;
}

/* What of the group's path is below the mount's root; NULL: it is elsewhere. */
static const char *below(const char *group, const char *root)
{
    const size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
    const char *rest = group + n;
    const bool inside = strncmp(group, root, n) == 0 && (*rest == '/' || *rest == '\0');
    /* "/../x": outside of the namespace that the mount shows. */
    if (!inside || strncmp(rest, "/..", 3) == 0) {
        return NULL;
    }
    return strcmp(rest, "/") == 0 ? "" : rest;
}

/* The mount that shows this process's group. In a container that is not told where its group is, the mount point is
 * the group. */
static bool find_dir(struct walk *w)
{
    char *line = NULL;
    size_t cap = 0;
    bool found = false, exact = false;
    FILE *f = open_under(w->root, "/proc/self/mountinfo");
    while (f != NULL && !exact && getline(&line, &cap, f) > 0) {
        struct mount m;
        if (!parse_mount(w, line, &m)) {
            continue;
        }
        const char *rest = below(w->group, m.root);
        exact = rest != NULL;
        const size_t n_point = strlen(m.point), n_rest = exact ? strlen(rest) : 0;
        if ((exact || !found) && n_point + n_rest < sizeof(w->dir)) {
            memcpy(w->dir, m.point, n_point);
            memcpy(w->dir + n_point, exact ? rest : "", n_rest + 1);
            w->n_mount = n_point;
            found = true;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    free(line);
    return found;
}

/* ---- the files of a level ---- */

static FILE *open_file(const struct walk *w, const char *name)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", w->dir, name);
    return open_under(w->root, path);
}

/* One number, or "max", which is no limit. False: the file is not there or says something else. */
static bool read_number(const struct walk *w, const char *name, uint64_t *out)
{
    char text[64] = "", *end = text;
    FILE *f = open_file(w, name);
    if (f == NULL) {
        return false;
    }
    const bool any = fgets(text, sizeof(text), f) != NULL;
    fclose(f);
    const size_t n = strcspn(text, "\n");
    text[n] = '\0';
    const bool none = strcmp(text, "max") == 0;
    const uint64_t v = strtoull(text, &end, 10);
    if (!none && (!any || n == 0 || n > 20 || strspn(text, "0123456789") != n)) {
        log_debug("%s/%s: `%s' is neither a number nor max", w->dir, name, text);
        return false;
    }
    *out = none ? UINT64_MAX : v;
    return true;
}

/* A line "KEY NUMBER" of memory.stat; 0: it is not there. */
static uint64_t read_stat(const struct walk *w, const char *key)
{
    char line[256], name[64];
    uint64_t v = 0, found = 0;
    FILE *f = open_file(w, "memory.stat");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "%63s %" SCNu64, name, &v) == 2 && strcmp(name, key) == 0) {
            found = v;
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

static void note(char *from, size_t size, const struct walk *w, const char *name)
{
    const int n = snprintf(from, size, "%s/%s", w->dir, name);
    if (n < 0 || (size_t)n >= size) {
        snprintf(from, size, "%s of a control group", name);
    }
}

static void limit_memory(const struct walk *w, const char *name, uint64_t limit, uint64_t used,
                         struct gr_cgroup_limits *out)
{
    const uint64_t left = limit > used ? limit - used : 0;
    if (left < out->memory_left) {
        out->memory_left = left;
        note(out->memory_from, sizeof(out->memory_from), w, name);
    }
}

static uint64_t used_memory(const struct walk *w, const char *name, const char *cache_key)
{
    uint64_t used = 0;
    if (!read_number(w, name, &used)) {
        return 0;
    }
    const uint64_t cache = read_stat(w, cache_key);
    return used > cache ? used - cache : 0;
}

static void memory_v2(const struct walk *w, struct gr_cgroup_limits *out)
{
    static const char *const names[] = {"memory.max", "memory.high"};
    for (int i = 0; i < 2; i++) {
        uint64_t limit = 0;
        if (read_number(w, names[i], &limit) && limit != UINT64_MAX) {
            limit_memory(w, names[i], limit, used_memory(w, "memory.current", "inactive_file"), out);
        }
    }
}

static void memory_v1(const struct walk *w, struct gr_cgroup_limits *out)
{
    uint64_t limit = 0;
    if (read_number(w, "memory.limit_in_bytes", &limit) && limit < V1_NO_LIMIT) {
        limit_memory(w, "memory.limit_in_bytes", limit, used_memory(w, "memory.usage_in_bytes", "total_inactive_file"),
                     out);
    }
}

static void limit_cpu(const struct walk *w, const char *name, int64_t quota, int64_t period,
                      struct gr_cgroup_limits *out)
{
    if (quota <= 0 || period <= 0) {
        log_debug("%s/%s: %" PRId64 " us in %" PRId64 " us is no quota", w->dir, name, quota, period);
        return;
    }
    const int64_t n = quota / period + (quota % period > 0);
    if (n < out->n_cpu) {
        out->n_cpu = (int)n;
        note(out->cpu_from, sizeof(out->cpu_from), w, name);
    }
}

static bool scan_cpu_file(const struct walk *w, const char *name, int64_t *first, int64_t *second)
{
    char text[64] = "";
    FILE *f = open_file(w, name);
    if (f == NULL) {
        return false;
    }
    const bool any = fgets(text, sizeof(text), f) != NULL;
    fclose(f);
    const int want = second != NULL ? 2 : 1;
    int64_t unused;
    const int n = any ? sscanf(text, "%" SCNd64 " %" SCNd64, first, second != NULL ? second : &unused) : 0;
    if (n < want && strncmp(text, "max", 3) != 0) {
        log_debug("%s/%s: `%s' is not of its form", w->dir, name, text);
    }
    return n >= want;
}

static void cpu_v2(const struct walk *w, struct gr_cgroup_limits *out)
{
    int64_t quota, period;
    if (scan_cpu_file(w, "cpu.max", &quota, &period)) { /* "max 100000" is none */
        limit_cpu(w, "cpu.max", quota, period, out);
    }
}

static void cpu_v1(const struct walk *w, struct gr_cgroup_limits *out)
{
    int64_t quota, period;
    if (scan_cpu_file(w, "cpu.cfs_quota_us", &quota, NULL) && scan_cpu_file(w, "cpu.cfs_period_us", &period, NULL) &&
        quota != -1) {
        limit_cpu(w, "cpu.cfs_quota_us", quota, period, out);
    }
}

/* ---- the walk ---- */

static void walk_up(const char *root, const char *controller,
                    void (*level)(const struct walk *w, struct gr_cgroup_limits *out), struct gr_cgroup_limits *out)
{
    struct walk w = {.root = root, .controller = controller};
    if (!find_group(&w) || !find_dir(&w)) {
        return;
    }
    for (;;) {
        level(&w, out);
        char *slash = strrchr(w.dir, '/');
        if (strlen(w.dir) <= w.n_mount || slash == NULL) {
            return;
        }
        *slash = '\0';
    }
}

void gr_cgroup_read(const char *root, struct gr_cgroup_limits *out)
{
    struct gr_cgroup_limits l = {.memory_left = UINT64_MAX, .n_cpu = INT_MAX};
    walk_up(root, "", memory_v2, &l);
    walk_up(root, "", cpu_v2, &l);
    walk_up(root, "memory", memory_v1, &l);
    walk_up(root, "cpu", cpu_v1, &l);
    *out = l;
}
