#include "transport/worker/pass_watch.h"

#include "common/base/status.h"

static void count(struct gr_pass_watch *w, uint64_t now_ns)
{
    const uint64_t since_ns = now_ns > w->looked_ns ? now_ns - w->looked_ns : 0;
    w->ran_ns += GR_MIN(since_ns, GR_PASS_LOOK_NS);
    w->looked_ns = now_ns;
}

void gr_pass_watch_begin(struct gr_pass_watch *w, uint64_t now_ns)
{
    w->ran_ns = 0;
    w->looked_ns = now_ns;
}

void gr_pass_watch_end(struct gr_pass_watch *w, uint64_t now_ns)
{
    count(w, now_ns);
    w->longest_ns = GR_MAX(w->longest_ns, w->ran_ns);
}

bool gr_pass_watch_look(struct gr_pass_watch *w, uint64_t now_ns)
{
    count(w, now_ns);
    return w->limit_ns > 0 && w->ran_ns > GR_MAX(w->limit_ns, GR_PASS_LONGER * w->longest_ns);
}

uint64_t gr_pass_watch_due_ns(const struct gr_pass_watch *w)
{
    return w->limit_ns > 0 ? w->looked_ns + GR_PASS_LOOK_NS : UINT64_MAX;
}
