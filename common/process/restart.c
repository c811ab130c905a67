#include "common/process/restart.h"

#include "common/base/clock.h"
#include "common/base/status.h"

#define LONG_LIFE_NS (10 * GR_S)     /* a life of this length was no failure to start */
#define FIRST_PAUSE_NS (100 * GR_MS) /* before the first restart; each fruitless one doubles it */
#define DOUBLINGS_MAX 16             /* of the first pause: 100 ms times 2^16 is beyond any rule's longest pause */

static uint64_t next_pause_ns(struct gr_restart *r, uint64_t pause_max_ns, uint64_t life_ns)
{
    r->n_short = life_ns > LONG_LIFE_NS ? 0 : r->n_short;
    const int n = r->n_short++;
    return n == 0 ? 0 : GR_MIN(FIRST_PAUSE_NS << GR_MIN(n - 1, DOUBLINGS_MAX), pause_max_ns);
}

bool gr_restart_joined(struct gr_restart *r)
{
    const bool back = r->told;
    r->worked = r->joined = true;
    r->told = r->silent = false;
    return back;
}

void gr_restart_progress(struct gr_restart *r)
{
    r->n_fruitless = 0;
}

/* A child that is given up after a few ends says each of them: who waits for it sees that something goes on. */
static bool deserves_line(const struct gr_restart *r, const struct gr_restart_rule *rule, enum gr_end_kind kind)
{
    return rule->fruitless_max > 0 || !r->told || (kind == GR_END_FAILED && !r->silent);
}

struct gr_restart_answer gr_restart_end(struct gr_restart *r, const struct gr_restart_rule *rule, enum gr_end_kind kind,
                                        uint64_t life_ns)
{
    const bool first_life = r->n_end++ == 0;
    struct gr_restart_answer a = {.tell = deserves_line(r, rule, kind)};
    r->n_fruitless++;
    a.pause_ns = next_pause_ns(r, rule->pause_max_ns, life_ns);
    if (kind == GR_END_FAILED && first_life && !r->worked) {
        a.verdict = GR_RESTART_NEVER_WORKED;
    } else if (rule->fruitless_max > 0 && r->n_fruitless >= rule->fruitless_max) {
        a.verdict = GR_RESTART_FRUITLESS;
    }
    r->told = !r->joined;
    r->silent = r->silent || (kind == GR_END_FAILED && rule->fruitless_max == 0);
    a.silent = r->silent;
    r->joined = false;
    return a;
}
