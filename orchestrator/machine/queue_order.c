#include "orchestrator/machine/queue_order.h"

#include "common/base/status.h"

#include <stdlib.h>

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare(const void *a, const void *b)
{
    const struct gr_queue_entry *x = a, *y = b;
    const int priority = compare_u64(x->priority, y->priority);
    const int tag = compare_u64(x->tag, y->tag);
    return priority != 0 ? priority : tag != 0 ? tag : compare_u64(x->arrival, y->arrival);
}

uint64_t gr_queue_tag(uint64_t newest_started, uint64_t newest_owned)
{
    return GR_MAX(newest_started, newest_owned) + 1;
}

void gr_queue_sort(struct gr_queue_entry *entry, int n)
{
    if (n > 1) { /* of none there may be no array */
        qsort(entry, (size_t)n, sizeof(*entry), compare);
    }
}
