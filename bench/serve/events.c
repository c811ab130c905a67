#include "bench/serve/events.h"

#include <stdlib.h>
#include <string.h>

static enum gr_status append(char **to, size_t *n, size_t *cap, const char *bytes, size_t n_byte)
{
    if (n_byte > GR_EVENT_BYTES_MAX - *n) {
        return GR_ELIMIT;
    }
    if (*n + n_byte + 1 > *cap) {
        const size_t wanted = 2 * (*n + n_byte + 1);
        char *more = realloc(*to, wanted);
        if (more == NULL) {
            return GR_ENOMEM;
        }
        *to = more;
        *cap = wanted;
    }
    memcpy(*to + *n, bytes, n_byte);
    *n += n_byte;
    (*to)[*n] = '\0';
    return GR_OK;
}

static enum gr_status add_data(struct gr_events *e, const char *text, size_t n)
{
    if (e->has_data) {
        GR_TRY(append(&e->data, &e->n_data, &e->data_cap, "\n", 1));
    }
    e->has_data = true;
    return append(&e->data, &e->n_data, &e->data_cap, text, n);
}

static enum gr_status take_line(struct gr_events *e, gr_event_fn *on_event, void *ctx)
{
    const size_t n = e->n_line > 0 && e->line[e->n_line - 1] == '\r' ? e->n_line - 1 : e->n_line;
    if (n == 0) {
        if (e->has_data) {
            on_event(ctx, e->data, e->n_data);
        }
        e->has_data = false;
        e->n_data = 0;
        return GR_OK;
    }
    if (n < 5 || memcmp(e->line, "data:", 5) != 0) {
        return GR_OK;
    }
    const size_t skip = n > 5 && e->line[5] == ' ' ? 6 : 5;
    return add_data(e, e->line + skip, n - skip);
}

enum gr_status gr_events_feed(struct gr_events *e, const char *bytes, size_t n, gr_event_fn *on_event, void *ctx)
{
    while (n > 0) {
        const char *end = memchr(bytes, '\n', n);
        const size_t part = end != NULL ? (size_t)(end - bytes) : n;
        GR_TRY(append(&e->line, &e->n_line, &e->line_cap, bytes, part));
        if (end == NULL) {
            return GR_OK;
        }
        GR_TRY(take_line(e, on_event, ctx));
        e->n_line = 0;
        bytes += part + 1;
        n -= part + 1;
    }
    return GR_OK;
}

void gr_events_rewind(struct gr_events *e)
{
    e->n_line = 0;
    e->n_data = 0;
    e->has_data = false;
}

void gr_events_finish(struct gr_events *e)
{
    free(e->line);
    free(e->data);
    *e = (struct gr_events){.has_data = false};
}
