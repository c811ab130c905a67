#include "target_worker/policy/outlook.h"

#include "common/base/status.h"

/* Many sessions may be placed by one outlook, and the difference that a single one makes is mostly the noise of the
 * table: a worker whose noise was above zero would get none of them. Costs rise faster with many rows than with few, so
 * a line through few sessions would make a worker that spoke when it was idle look faster than one that was busy. */
#define N_MORE_MAX 256

/* A pass of the load and of n more sessions. */
static double pass_ns(const struct gr_cost_table *cost, const struct gr_crowd_load *crowd, struct gr_pass_load load,
                      int n)
{
    for (int i = 0; i < n; i++) {
        gr_pass_load_add(&load, 1, gr_attends_all(crowd->n_context));
    }
    return gr_cost_table_estimate(cost, &load);
}

struct gr_outlook gr_outlook_of(const struct gr_cost_table *cost, const struct gr_crowd_load *crowd)
{
    const int n_more = GR_MIN(GR_MAX(crowd->n_room - 1, 1), N_MORE_MAX);
    const double next_ns = pass_ns(cost, crowd, crowd->load, 1);
    const double more_ns = (pass_ns(cost, crowd, crowd->load, 1 + n_more) - next_ns) / n_more;
    return (struct gr_outlook){.round_ns = next_ns,
                               .more_ns = GR_MAX(more_ns, 0.0),
                               .first_ns = pass_ns(cost, crowd, (struct gr_pass_load){0}, 1)};
}
