/* A line of the log as a JSON object: for log.c alone. */
#ifndef GR_COMMON_BASE_LOG_JSON_H
#define GR_COMMON_BASE_LOG_JSON_H

#include "common/base/log.h"

#include <stddef.h>
#include <time.h>

/* NULL and 0: it has none, and the key stays out. Texts are UTF-8. */
struct gr_log_json {
    struct timespec at;
    const char *level, *process, *host, *rank, *message;
    int pid;
    const struct gr_log_subject *about;
};

/* Bytes of the object and its newline in out, without a NUL; 0: there is no memory, or it does not fit. */
size_t gr_log_json_spell(const struct gr_log_json *l, char *out, size_t cap);

#endif
