#include "common/base/no_alloc.h"

#ifdef GR_DEBUG

#include "common/base/status.h"

#include <stddef.h>

static _Thread_local int depth;

void gr_no_alloc_begin(void)
{
    depth++;
}

void gr_no_alloc_end(void)
{
    depth--;
}

/* The linker turns malloc into __wrap_malloc and __real_malloc into malloc. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static void check(void)
{
    if (depth > 0) {
        depth = 0; /* the message below may allocate */
        gr_assert_failed("nothing is allocated in a round", __FILE__, __LINE__);
    }
}

void *__wrap_malloc(size_t size)
{
    check();
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    check();
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    check();
    return __real_realloc(p, size);
}

#endif
