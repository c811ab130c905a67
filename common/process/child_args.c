#include "common/process/child_args.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>

static void put(struct gr_child_args *a, const char *text)
{
    GR_ASSERT(a->n < GR_CHILD_ARG_MAX);
    a->argv[a->n++] = text;
}

static char *take_number(struct gr_child_args *a)
{
    GR_ASSERT(a->n_number < GR_CHILD_NUMBER_MAX);
    return a->number[a->n_number++];
}

void gr_child_args_begin(struct gr_child_args *a, const char *program)
{
    *a = (struct gr_child_args){0};
    put(a, program);
}

void gr_child_args_add(struct gr_child_args *a, const char *name, const char *value)
{
    if (value != NULL) {
        put(a, name);
        put(a, value);
    }
}

void gr_child_args_add_number(struct gr_child_args *a, const char *name, int64_t value)
{
    char *text = take_number(a);
    snprintf(text, sizeof(a->number[0]), "%" PRId64, value);
    gr_child_args_add(a, name, text);
}

void gr_child_args_add_real(struct gr_child_args *a, const char *name, double value)
{
    char *text = take_number(a);
    snprintf(text, sizeof(a->number[0]), "%.17g", value);
    gr_child_args_add(a, name, text);
}

void gr_child_args_add_flag(struct gr_child_args *a, const char *name, bool meant)
{
    if (meant) {
        put(a, name);
    }
}
