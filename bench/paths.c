#include "bench/paths.h"

#include "common/base/log.h"
#include "common/process/program.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEPT_MAX 16 /* more than one command has defaults */

/* Up to a `*' only folders can be looked for. */
static int is_there(const char *path)
{
    char folder[2 * PATH_MAX];
    const size_t n = strcspn(path, "*");
    snprintf(folder, sizeof(folder), "%.*s", (int)n, path);
    return access(folder, F_OK) == 0;
}

/* Until the process ends: options point to them. */
static const char *keep(const char *path, const char *otherwise)
{
    static char *kept[KEPT_MAX];
    static int n;
    if (n == KEPT_MAX || (kept[n] = strdup(path)) == NULL) {
        return otherwise;
    }
    return kept[n++];
}

const char *gr_bench_path(const char *relative)
{
    /* beside the programs of a build folder, and of an installation */
    static const char *const from_programs[] = {"..", GR_DATA_FROM_PROGRAMS};
    char path[2 * PATH_MAX];
    if (is_there(relative)) {
        return relative;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(from_programs); i++) {
        snprintf(path, sizeof(path), "%s/%s", from_programs[i], relative);
        if (is_there(gr_program_sibling(path))) {
            return keep(gr_program_sibling(path), relative);
        }
    }
    snprintf(path, sizeof(path), "%s/%s", GR_SOURCE_ROOT, relative);
    return is_there(path) ? keep(path, relative) : relative;
}

const char *gr_bench_path_of(const struct gr_bench_options *o, enum gr_bench_option_id id)
{
    char unused[GR_OPTION_TEXT_MAX];
    const char *text = gr_option_text(&o->values, gr_bench_option(id), unused);
    return gr_bench_is_given(o, id) || text == NULL ? text : gr_bench_path(text);
}

enum gr_status gr_bench_make_folder(const char *path)
{
    char inside[PATH_MAX];
    const bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
    if (snprintf(inside, sizeof(inside), "%s/.", path) >= (int)sizeof(inside)) {
        errno = ENAMETOOLONG;
    } else if (made && access(inside, W_OK) == 0) { /* a file is no folder */
        return GR_OK;
    }
    log_error("--save: folder %s: %s", path, strerror(errno));
    return GR_EIO;
}
