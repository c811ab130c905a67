#include "bench/paths.h"

#include "common/process/program.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
static const char *keep(const char *path)
{
    static char *kept[KEPT_MAX];
    static int n;
    if (n == KEPT_MAX) {
        return NULL;
    }
    kept[n] = strdup(path);
    return kept[n++];
}

const char *gr_bench_path(const char *relative)
{
    char beside[PATH_MAX];
    snprintf(beside, sizeof(beside), "../%s", relative);
    const char *const places[] = {gr_program_sibling(beside), GR_SOURCE_ROOT};
    char from_source[2 * PATH_MAX];
    if (is_there(relative)) {
        return relative;
    }
    snprintf(from_source, sizeof(from_source), "%s/%s", places[1], relative);
    const char *found = is_there(places[0]) ? places[0] : is_there(from_source) ? from_source : NULL;
    const char *kept = found != NULL ? keep(found) : NULL;
    return kept != NULL ? kept : relative;
}

const char *gr_bench_path_of(const struct gr_bench_options *o, enum gr_bench_option_id id)
{
    char unused[GR_OPTION_TEXT_MAX];
    const char *text = gr_option_text(&o->values, gr_bench_option(id), unused);
    return gr_bench_is_given(o, id) || text == NULL ? text : gr_bench_path(text);
}
