/* UTF-8 as the Unicode Standard has it (sec. 3.9): what is a character, and what becomes of bytes that are none. Pure;
 * nothing is allocated. */
#ifndef GR_COMMON_BASE_UTF8_H
#define GR_COMMON_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gr_utf8_kind {
    GR_UTF8_CHAR,    /* a complete character of len bytes */
    GR_UTF8_INVALID, /* len bytes that can start no character (maximal subpart, at least 1) */
    GR_UTF8_PARTIAL, /* all n bytes are the start of a character */
};
/* n: at least 1. */
enum gr_utf8_kind gr_utf8_next(const uint8_t *p, size_t n, size_t *len_out);

/* Whole characters from begin to end? */
bool gr_utf8_valid(const char *text, size_t n);
/* Each byte that belongs to no character becomes `?': the text keeps its length. */
void gr_utf8_mend(char *text, size_t n);

/* How many bytes at the beginning are characters that a terminal shows and does not obey: no control character but line
 * ends and tabs, whole characters only. */
size_t gr_utf8_n_plain(const char *text, size_t n);

/* One line for people: control characters and bytes that belong to no character are spelled \n, \t, \x1b. Writes whole
 * characters and spellings only, as many as fit into cap - 1 bytes, and a NUL; returns how many bytes. cap: at least 1.
 */
size_t gr_utf8_show(const char *text, size_t n, char *out, size_t cap);

#endif
