/* For tests: what the log printed. Standard error goes into a temporary file between begin and end.
 */
#ifndef GR_TESTS_LOG_CAPTURE_H
#define GR_TESTS_LOG_CAPTURE_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/status.h"

struct log_capture {
    FILE *file;
    int saved;
    char text[8192];
};

static inline void log_capture_begin(struct log_capture *c)
{
    fflush(stderr);
    c->file = tmpfile();
    c->saved = dup(STDERR_FILENO);
    GR_ASSERT(c->file != NULL && c->saved >= 0);
    GR_ASSERT(dup2(fileno(c->file), STDERR_FILENO) >= 0);
}

/* Returns the text, which lives in c. */
static inline const char *log_capture_end(struct log_capture *c)
{
    fflush(stderr);
    GR_ASSERT(dup2(c->saved, STDERR_FILENO) >= 0);
    close(c->saved);
    rewind(c->file);
    size_t n = fread(c->text, 1, sizeof(c->text) - 1, c->file);
    c->text[n] = '\0';
    fclose(c->file);
    return c->text;
}

static inline int log_capture_n_line(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++) {
        n += *text == '\n';
    }
    return n;
}

#endif
