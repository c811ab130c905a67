#include "orchestrator/machine/due_times.h"

#include <stdlib.h>

bool gr_due_times_create(struct gr_due_times *d, uint32_t n_max)
{
    d->n = 0;
    d->at_ns = calloc(n_max, sizeof(*d->at_ns));
    d->heap = calloc(n_max, sizeof(*d->heap));
    d->spot = calloc(n_max, sizeof(*d->spot));
    for (uint32_t i = 0; d->at_ns != NULL && i < n_max; i++) {
        d->at_ns[i] = UINT64_MAX;
    }
    return d->at_ns != NULL && d->heap != NULL && d->spot != NULL;
}

void gr_due_times_destroy(struct gr_due_times *d)
{
    free(d->at_ns);
    free(d->heap);
    free(d->spot);
    *d = (struct gr_due_times){0};
}

static void stand(struct gr_due_times *d, uint32_t i, uint32_t place)
{
    d->heap[i] = place;
    d->spot[place] = i + 1;
}

static bool is_before(const struct gr_due_times *d, uint32_t a, uint32_t b)
{
    return d->at_ns[d->heap[a]] < d->at_ns[d->heap[b]];
}

static void swap(struct gr_due_times *d, uint32_t a, uint32_t b)
{
    const uint32_t place = d->heap[a];
    stand(d, a, d->heap[b]);
    stand(d, b, place);
}

static void rise(struct gr_due_times *d, uint32_t i)
{
    while (i > 0 && is_before(d, i, (i - 1) / 2)) {
        swap(d, i, (i - 1) / 2);
        i = (i - 1) / 2;
    }
}

static void sink(struct gr_due_times *d, uint32_t i)
{
    for (;;) {
        uint32_t first = 2 * i + 1;
        if (first >= d->n) {
            return;
        }
        first += first + 1 < d->n && is_before(d, first + 1, first);
        if (!is_before(d, first, i)) {
            return;
        }
        swap(d, i, first);
        i = first;
    }
}

static void leave(struct gr_due_times *d, uint32_t place)
{
    const uint32_t i = d->spot[place] - 1;
    swap(d, i, d->n - 1);
    d->n--;
    d->spot[place] = 0;
    if (i < d->n) {
        rise(d, i);
        sink(d, i);
    }
}

void gr_due_times_set(struct gr_due_times *d, uint32_t place, uint64_t at_ns)
{
    if (d->at_ns[place] == at_ns) {
        return;
    }
    if (d->spot[place] != 0) {
        leave(d, place);
    }
    d->at_ns[place] = at_ns;
    if (at_ns != UINT64_MAX) {
        stand(d, d->n, place);
        rise(d, d->n++);
    }
}

uint64_t gr_due_times_first_ns(const struct gr_due_times *d)
{
    return d->n > 0 ? d->at_ns[d->heap[0]] : UINT64_MAX;
}

int gr_due_times_take(struct gr_due_times *d, uint64_t now_ns)
{
    if (gr_due_times_first_ns(d) > now_ns || d->n == 0) {
        return -1;
    }
    const uint32_t place = d->heap[0];
    gr_due_times_set(d, place, UINT64_MAX);
    return (int)place;
}
