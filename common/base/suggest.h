/* "Did you mean ...?" for a name that is not known. Pure; any thread. */
#ifndef GR_COMMON_BASE_SUGGEST_H
#define GR_COMMON_BASE_SUGGEST_H

#include <stdbool.h>
#include <stddef.h>

/* Collects the nearest of the names that are offered one by one. {.word, .len} to begin with. */
struct gr_suggest {
    const char *word; /* what was written, len bytes */
    size_t len;
    const char *best; /* NULL: none of those offered is near */
    int distance;     /* of best: letters to add, drop or change (Levenshtein 1966) */
};

/* Takes `name` for best where it is nearer: at most one letter in three is another, or it begins with
 * the word. */
void gr_suggest_offer(struct gr_suggest *s, const char *name);
/* "" or " (did you mean PREFIX best?)", in out. */
const char *gr_suggest_text(const struct gr_suggest *s, const char *prefix, char *out, size_t cap);

#endif
