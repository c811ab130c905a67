#include "orchestrator/machine/quarantine.h"

#include "common/base/clock.h"
#include "common/base/status.h"

#include <string.h>

#define TOGETHER_NS (100 * GR_MS)

static void drop_first(struct gr_quarantine *q, uint32_t n)
{
    q->n_mark -= n;
    memmove(q->mark, q->mark + n, q->n_mark * sizeof(q->mark[0]));
}

static void forget_old(struct gr_quarantine *q, uint64_t window_ns, uint64_t now_ns)
{
    uint32_t n_old = 0;
    while (n_old < q->n_mark && now_ns - q->mark[n_old].at_ns > window_ns) {
        n_old++;
    }
    drop_first(q, n_old);
}

static void add_mark(struct gr_quarantine *q, enum gr_failure kind, uint64_t now_ns)
{
    if (q->n_mark == GR_QUARANTINE_FAILURE_MAX) {
        drop_first(q, 1);
    }
    q->mark[q->n_mark++] = (struct gr_quarantine_mark){.at_ns = now_ns, .kind = kind};
}

static void go_out(struct gr_quarantine *q, const struct gr_quarantine_rule *rule, uint64_t now_ns)
{
    const uint64_t twice_ns = q->pause_ns > rule->pause_max_ns / 2 ? rule->pause_max_ns : 2 * q->pause_ns;
    q->pause_ns = q->n_pause == 0 ? rule->pause_min_ns : twice_ns;
    q->n_pause++;
    q->state = GR_QUARANTINE_OUT;
    q->until_ns = now_ns + q->pause_ns;
}

bool gr_quarantine_fail(struct gr_quarantine *q, const struct gr_quarantine_rule *rule, enum gr_failure kind,
                        uint64_t now_ns)
{
    if (rule->n_failure == 0) {
        return false;
    }
    forget_old(q, rule->window_ns, now_ns);
    if (q->n_mark > 0 && now_ns - q->mark[q->n_mark - 1].at_ns < TOGETHER_NS) {
        return false;
    }
    add_mark(q, kind, now_ns);
    const uint32_t enough = GR_MIN(rule->n_failure, GR_QUARANTINE_FAILURE_MAX);
    if (q->state == GR_QUARANTINE_GOOD && q->n_mark < enough) {
        return false;
    }
    go_out(q, rule, now_ns);
    return true;
}

bool gr_quarantine_succeed(struct gr_quarantine *q)
{
    if (q->state != GR_QUARANTINE_GOOD) {
        *q = (struct gr_quarantine){.state = GR_QUARANTINE_GOOD};
        return true;
    }
    uint32_t n_lasting = 0;
    for (uint32_t i = 0; i < q->n_mark; i++) {
        if (q->mark[i].kind == GR_FAILURE_LOSS) {
            q->mark[n_lasting++] = q->mark[i];
        }
    }
    q->n_mark = n_lasting;
    return false;
}

bool gr_quarantine_step(struct gr_quarantine *q, uint64_t now_ns)
{
    const bool over = now_ns >= gr_quarantine_due_ns(q);
    q->state = over ? GR_QUARANTINE_TRIAL : q->state;
    return over;
}

uint64_t gr_quarantine_due_ns(const struct gr_quarantine *q)
{
    return q->state == GR_QUARANTINE_OUT ? q->until_ns : UINT64_MAX;
}

bool gr_quarantine_shuns(const struct gr_quarantine *q, uint32_t n_active)
{
    return q->state == GR_QUARANTINE_OUT || (q->state == GR_QUARANTINE_TRIAL && n_active > 0);
}
