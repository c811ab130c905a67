#include "bench/sweep/capacity.h"

static double between(const struct gr_capacity_point *a, const struct gr_capacity_point *b, double speed)
{
    const double from = 1.0 / a->speed;
    const double share = (1.0 / speed - from) / (1.0 / b->speed - from);
    return a->n_client + share * (b->n_client - a->n_client);
}

struct gr_capacity gr_capacity_at(const struct gr_capacity_point *point, int n, double speed)
{
    for (int i = 0; i < n; i++) {
        if (point[i].speed >= speed) {
            continue;
        }
        if (i == 0) {
            return (struct gr_capacity){.kind = GR_CAPACITY_BELOW, .n_client = point[0].n_client};
        }
        return (struct gr_capacity){.kind = GR_CAPACITY_BETWEEN, .n_client = between(&point[i - 1], &point[i], speed)};
    }
    return n > 0 ? (struct gr_capacity){.kind = GR_CAPACITY_AT_LEAST, .n_client = point[n - 1].n_client}
                 : (struct gr_capacity){.kind = GR_CAPACITY_NONE};
}
