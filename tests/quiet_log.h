/* For programs that must refuse thousands of inputs: tests/quiet_log.c stands in for common/base/log.c. Every line is
 * formatted, so that a bad argument shows; the lines that the level would decide on are counted, the last one is kept,
 * and nothing is printed. One thread. */
#ifndef GR_TESTS_QUIET_LOG_H
#define GR_TESTS_QUIET_LOG_H

#include "common/base/log.h"

extern int log_count_n;
extern char log_count_last[1024];
/* The same of fall-backs alone. */
extern int log_fallback_n;
extern char log_fallback_last[1024];
/* How many lines since log_forget() have these words; of more than 64 KiB of lines the first. */
int log_n_with(const char *words);
void log_forget(void);

#endif
