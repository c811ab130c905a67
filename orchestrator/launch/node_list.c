#include "orchestrator/launch/node_list.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PART_MAX 8     /* brackets of a name */
#define DIGITS_MAX 9   /* of a number between brackets */
#define ITEM_MAX 65536 /* bytes of a list */

/* One item of a list, "r[1-2]n[01,03]": texts with ranges between them. */
struct item {
    const char *text[PART_MAX + 1];
    size_t text_len[PART_MAX + 1];
    const char *range[PART_MAX]; /* after the bracket */
    size_t range_len[PART_MAX];
    int n_range;
};

/* The number and how wide it is written, at *p, which goes to the end of it. */
static bool take_number(const char **p, const char *end, long *n_out, int *width_out)
{
    const char *begin = *p;
    *n_out = 0;
    while (*p < end && isdigit((unsigned char)**p) && *p - begin < DIGITS_MAX) {
        *n_out = 10 * *n_out + (**p - '0');
        (*p)++;
    }
    *width_out = (int)(*p - begin);
    return *p > begin && (*p == end || !isdigit((unsigned char)**p));
}

/* Goes through "1,3,08-11". index >= 0: writes the number there into out. Returns how many there are, -1: malformed. */
static long walk_range(const char *p, size_t len, long index, char *out, size_t out_bytes)
{
    const char *end = p + len;
    long n = 0;
    for (;;) {
        long from, to;
        int width, to_width;
        if (!take_number(&p, end, &from, &width)) {
            return -1;
        }
        to = from;
        if (p < end && *p == '-') {
            p++;
            if (!take_number(&p, end, &to, &to_width) || to < from) {
                return -1;
            }
        }
        if (index >= n && index - n <= to - from) {
            snprintf(out, out_bytes, "%0*ld", width, from + (index - n));
        }
        n += to - from + 1;
        if (n > GR_NODE_LIST_MAX) {
            return -1;
        }
        if (p == end) {
            return n;
        }
        if (*p++ != ',') {
            return -1;
        }
    }
}

/* Takes one item off the list. False: malformed. */
static bool take_item(const char **list, struct item *out)
{
    const char *p = *list;
    *out = (struct item){.n_range = 0};
    out->text[0] = p;
    while (*p != '\0' && *p != ',') {
        if (*p == ']' || isspace((unsigned char)*p)) {
            return false;
        }
        if (*p != '[') {
            out->text_len[out->n_range]++;
            p++;
            continue;
        }
        const char *close = strchr(p, ']');
        if (close == NULL || out->n_range == PART_MAX || (p == *list && close[1] == '\0')) {
            return false;
        }
        out->range[out->n_range] = p + 1;
        out->range_len[out->n_range] = (size_t)(close - p - 1);
        out->n_range++;
        out->text[out->n_range] = close + 1;
        p = close + 1;
    }
    if (p == *list) {
        return false;
    }
    *list = p;
    return true;
}

static long count_item(const struct item *it)
{
    long n = 1;
    char unused[16];
    for (int i = 0; i < it->n_range; i++) {
        const long of_range = walk_range(it->range[i], it->range_len[i], -1, unused, sizeof(unused));
        if (of_range < 0 || (n *= of_range) > GR_NODE_LIST_MAX) {
            return -1;
        }
    }
    return n;
}

/* The last range turns fastest. */
static enum gr_status write_name(const struct item *it, long index, char *out, size_t out_bytes)
{
    char number[PART_MAX][16];
    size_t at = 0;
    for (int i = it->n_range - 1; i >= 0; i--) {
        const long n = walk_range(it->range[i], it->range_len[i], -1, number[i], sizeof(number[i]));
        (void)walk_range(it->range[i], it->range_len[i], index % n, number[i], sizeof(number[i]));
        index /= n;
    }
    for (int i = 0; i <= it->n_range && at < out_bytes; i++) {
        at += (size_t)snprintf(out + at, out_bytes - at, "%.*s%s", (int)it->text_len[i], it->text[i],
                               i < it->n_range ? number[i] : "");
    }
    return at < out_bytes ? GR_OK : GR_ELIMIT;
}

enum gr_status gr_node_list_at(const char *list, int index, char *name_out, size_t name_bytes)
{
    long at = 0;
    if (index < 0 || strlen(list) > ITEM_MAX) {
        return GR_EFORMAT;
    }
    for (;;) {
        struct item it;
        if (!take_item(&list, &it)) {
            return GR_EFORMAT;
        }
        const long n = count_item(&it);
        if (n < 0 || at + n > GR_NODE_LIST_MAX) {
            return GR_EFORMAT;
        }
        if (index - at < n) {
            return write_name(&it, index - at, name_out, name_bytes);
        }
        at += n;
        if (*list == '\0') {
            return GR_ENOTFOUND;
        }
        list++;
    }
}

int gr_tasks_per_node_at(const char *list, int index)
{
    const char *end = list + strlen(list);
    while (list < end) {
        long tasks, times = 1;
        int width;
        if (!take_number(&list, end, &tasks, &width)) {
            return -1;
        }
        if (end - list > 2 && list[0] == '(' && list[1] == 'x') {
            list += 2;
            if (!take_number(&list, end, &times, &width) || list == end || *list++ != ')') {
                return -1;
            }
        }
        if (index < times) {
            return (int)tasks;
        }
        index -= (int)times;
        if (list < end && *list++ != ',') {
            return -1;
        }
    }
    return -1;
}
