/* For tests: a file of a text. */
#ifndef GR_TESTS_WRITE_FILE_H
#define GR_TESTS_WRITE_FILE_H

#include <stdio.h>

#include "common/base/status.h"

static inline void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    GR_ASSERT(f != NULL && fputs(text, f) >= 0);
    GR_ASSERT(fclose(f) == 0);
}

static inline void write_file_in(const char *dir, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    write_file(path, text);
}

#endif
