#include "transport/worker/pass_watch.h"

#include "common/base/status.h"

static void count(struct gr_pass_watch *w, uint64_t now_ns)
{
    const uint64_t since_ns = now_ns > w->looked_ns ? now_ns - w->looked_ns : 0;
    w->ran_ns += GR_MIN(since_ns, GR_PASS_LOOK_NS);
    w->looked_ns = now_ns;
}

void gr_pass_watch_know(struct gr_pass_watch *w, uint64_t n_row, uint64_t ns)
{
    if (ns > w->longest_ns) {
        w->longest_ns = ns;
        w->longest_row = GR_MAX(n_row, 1u);
    }
}

void gr_pass_watch_begin(struct gr_pass_watch *w, uint64_t n_row, uint64_t now_ns)
{
    w->n_row = n_row;
    w->ran_ns = 0;
    w->looked_ns = now_ns;
}

void gr_pass_watch_end(struct gr_pass_watch *w, uint64_t now_ns)
{
    count(w, now_ns);
    gr_pass_watch_know(w, w->n_row, w->ran_ns);
}

uint64_t gr_pass_watch_allowed_ns(const struct gr_pass_watch *w)
{
    if (w->longest_ns == 0) {
        return GR_PASS_LONGER * w->limit_ns;
    }
    const uint64_t times = w->n_row > w->longest_row ? w->n_row / w->longest_row + 1 : 1;
    return GR_MAX(w->limit_ns, GR_PASS_LONGER * times * w->longest_ns);
}

bool gr_pass_watch_look(struct gr_pass_watch *w, uint64_t now_ns)
{
    count(w, now_ns);
    return w->limit_ns > 0 && w->ran_ns > gr_pass_watch_allowed_ns(w);
}

uint64_t gr_pass_watch_due_ns(const struct gr_pass_watch *w)
{
    return w->limit_ns > 0 ? w->looked_ns + GR_PASS_LOOK_NS : UINT64_MAX;
}
