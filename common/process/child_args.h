/* The command line of a child process (children.h), option by option. What is not to be said is left out: the child's
 * own default holds then. Borrowed pointers must live until the child is started. */
#ifndef GR_COMMON_PROCESS_CHILD_ARGS_H
#define GR_COMMON_PROCESS_CHILD_ARGS_H

#include "common/process/children.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_CHILD_NUMBER_MAX 24 /* numbers that are kept as text for a child, at most */

struct gr_child_args {
    const char *argv[GR_CHILD_ARG_MAX + 1]; /* NULL after the last; for gr_children_start() */
    char number[GR_CHILD_NUMBER_MAX][32];
    int n, n_number;
};

/* program: borrowed. */
void gr_child_args_begin(struct gr_child_args *a, const char *program);
/* value NULL: nothing is said. */
void gr_child_args_add(struct gr_child_args *a, const char *name, const char *value);
void gr_child_args_add_number(struct gr_child_args *a, const char *name, int64_t value);
/* To the last bit. */
void gr_child_args_add_real(struct gr_child_args *a, const char *name, double value);
/* An option without a value, if it is meant. */
void gr_child_args_add_flag(struct gr_child_args *a, const char *name, bool meant);

#endif
