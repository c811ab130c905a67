#include "bench/paths.h"

#include "common/program.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Up to a `*' only folders can be looked for. */
static int is_there(const char *path)
{
    char folder[2 * PATH_MAX];
    const size_t n = strcspn(path, "*");
    snprintf(folder, sizeof(folder), "%.*s", (int)n, path);
    return access(folder, F_OK) == 0;
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
    char *kept = found != NULL ? strdup(found) : NULL;
    return kept != NULL ? kept : relative;
}
