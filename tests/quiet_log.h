/* For tests of code that must refuse thousands of inputs: the log in this program formats every line, counts it, keeps
 * the last one and prints nothing. Include it in one .c file: it stands in for common/log.c. */
#ifndef GR_TESTS_LOG_COUNT_H
#define GR_TESTS_LOG_COUNT_H

#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>

static int log_count_n;
static char log_count_last[512];

void gr_log_init(const char *role)
{
    (void)role;
}

void gr_log_set_level(enum gr_log_level level)
{
    (void)level;
}

bool gr_log_enabled(enum gr_log_level level)
{
    (void)level;
    return true;
}

bool gr_log_topic(enum gr_log_topic topic)
{
    (void)topic;
    return false;
}

void gr_log_topic_line(enum gr_log_topic topic, const char *fmt, ...)
{
    (void)topic;
    (void)fmt;
}

void gr_log_line(enum gr_log_level level, const char *fmt, ...)
{
    (void)level;
    va_list args;
    va_start(args, fmt);
    vsnprintf(log_count_last, sizeof(log_count_last), fmt, args);
    va_end(args);
    log_count_n++;
}

#endif
