#include "bench/simulate/events.h"

#include "common/base/status.h"

#include <stdlib.h>
#include <string.h>

#define N_FIRST 64 /* events that there is room for at first */
#define N_WAY 4    /* children of a place: a flat heap moves fewer keys from line to line */

/* The heap moves keys alone; events stay where they are. */
struct key {
    uint64_t at_ns, seq;
    uint32_t slot;
};

struct gr_events {
    size_t bytes, n, cap;
    uint64_t seq;
    struct key *key; /* (cap): the first n are the heap */
    uint8_t *event;  /* (cap, bytes) */
    uint32_t *free;  /* (cap): slots without an event, the first cap - n */
};

static void make_room(struct gr_events *e, size_t cap)
{
    e->key = realloc(e->key, cap * sizeof(*e->key));
    e->event = realloc(e->event, cap * e->bytes);
    e->free = realloc(e->free, cap * sizeof(*e->free));
    GR_ASSERT(e->key != NULL && e->event != NULL && e->free != NULL);
    for (size_t i = e->cap; i < cap; i++) {
        e->free[i - e->n] = (uint32_t)i;
    }
    e->cap = cap;
}

struct gr_events *gr_events_create(size_t event_bytes)
{
    struct gr_events *e = calloc(1, sizeof(*e));
    if (e != NULL) {
        e->bytes = event_bytes;
        make_room(e, N_FIRST);
    }
    return e;
}

void gr_events_destroy(struct gr_events *e)
{
    if (e != NULL) {
        free(e->key);
        free(e->event);
        free(e->free);
        free(e);
    }
}

static bool earlier(const struct key *a, const struct key *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->seq < b->seq);
}

void gr_events_push(struct gr_events *e, uint64_t at_ns, const void *event)
{
    if (e->n == e->cap) {
        make_room(e, 2 * e->cap);
    }
    const struct key k = {.at_ns = at_ns, .seq = e->seq++, .slot = e->free[e->cap - e->n - 1]};
    size_t i = e->n++;
    memcpy(e->event + k.slot * e->bytes, event, e->bytes);
    while (i > 0 && earlier(&k, &e->key[(i - 1) / N_WAY])) {
        e->key[i] = e->key[(i - 1) / N_WAY];
        i = (i - 1) / N_WAY;
    }
    e->key[i] = k;
}

/* The earliest child of place i; e->n: it has none. */
static size_t first_child(const struct gr_events *e, size_t i)
{
    size_t best = GR_MIN(N_WAY * i + 1, e->n);
    for (size_t c = best + 1; c <= N_WAY * i + N_WAY && c < e->n; c++) {
        best = earlier(&e->key[c], &e->key[best]) ? c : best;
    }
    return best;
}

bool gr_events_pop(struct gr_events *e, uint64_t *at_ns_out, void *event_out)
{
    if (e->n == 0) {
        return false;
    }
    const struct key top = e->key[0];
    const struct key last = e->key[--e->n];
    size_t i = 0;
    for (size_t c = first_child(e, i); c < e->n && earlier(&e->key[c], &last); c = first_child(e, i)) {
        e->key[i] = e->key[c];
        i = c;
    }
    e->key[i] = last;
    e->free[e->cap - e->n - 1] = top.slot;
    memcpy(event_out, e->event + top.slot * e->bytes, e->bytes);
    *at_ns_out = top.at_ns;
    return true;
}

uint64_t gr_events_next_ns(const struct gr_events *e)
{
    return e->n > 0 ? e->key[0].at_ns : UINT64_MAX;
}

const void *gr_events_peek(const struct gr_events *e)
{
    return e->n > 0 ? e->event + e->key[0].slot * e->bytes : NULL;
}

size_t gr_events_n(const struct gr_events *e)
{
    return e->n;
}
