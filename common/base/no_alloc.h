/* "Nothing is allocated in a round": debug builds check it. Between begin and end, malloc, calloc and realloc called by
 * graft's own code on this thread are a programmer's error (the linker wraps them, see meson.build). Other builds:
 * nothing. */
#ifndef GR_COMMON_BASE_NO_ALLOC_H
#define GR_COMMON_BASE_NO_ALLOC_H

#ifdef GR_DEBUG
void gr_no_alloc_begin(void);
void gr_no_alloc_end(void);
#else
static inline void gr_no_alloc_begin(void)
{
}
static inline void gr_no_alloc_end(void)
{
}
#endif

#endif
