#include "common/base/suggest.h"

#include "common/base/status.h"

#include <stdio.h>
#include <string.h>

#define LEN_MAX 63   /* longer names are none of ours */
#define BEGINS_MIN 3 /* letters with which a name may begin, to be meant */

/* Rows of the usual table, one at a time. */
static int distance(const char *a, size_t n, const char *b, size_t m)
{
    int row[LEN_MAX + 1];
    for (size_t j = 0; j <= m; j++) {
        row[j] = (int)j;
    }
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            const int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = GR_MIN(change, GR_MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[m];
}

void gr_suggest_offer(struct gr_suggest *s, const char *name)
{
    const size_t len = strlen(name);
    if (s->len == 0 || s->len > LEN_MAX || len > LEN_MAX) {
        return;
    }
    const bool begins = s->len >= BEGINS_MIN && len > s->len && memcmp(s->word, name, s->len) == 0;
    const int d = distance(s->word, s->len, name, len);
    if ((begins || d <= (int)(GR_MAX(s->len, len) / 3)) && (s->best == NULL || d < s->distance)) {
        s->best = name;
        s->distance = d;
    }
}

const char *gr_suggest_text(const struct gr_suggest *s, const char *prefix, char *out, size_t cap)
{
    snprintf(out, cap, s->best != NULL ? " (did you mean %s%s?)" : "", prefix, s->best);
    return out;
}
