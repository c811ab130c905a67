#include "draft_worker/tree/acceptance_check.h"

#include <math.h>

static void begin_window(struct gr_acceptance_check *c)
{
    c->n = c->n_accepted = 0;
    c->expected = c->variance = 0.0;
}

/* The window is full: has something changed? */
static enum gr_check_event judge(struct gr_acceptance_check *c)
{
    const double shortfall = c->expected - c->n_accepted;
    const bool beyond_luck = shortfall > GR_CHECK_SIGMAS * sqrt(c->variance);
    if (!c->alarm && beyond_luck && c->n_accepted < GR_CHECK_COLLAPSED * c->expected) {
        c->alarm = c->reported = true;
        c->n_alarm++;
        return GR_CHECK_ALARM;
    }
    if (c->alarm && c->n_accepted >= GR_CHECK_RECOVERED * c->expected) {
        c->alarm = false;
        return GR_CHECK_END;
    }
    if (!c->reported) {
        c->reported = true;
        return GR_CHECK_REPORT;
    }
    return GR_CHECK_NOTHING;
}

enum gr_check_event gr_acceptance_check_observe(struct gr_acceptance_check *c, float prob, bool accepted)
{
    const double p = fmin(fmax((double)prob, 0.0), 1.0);
    c->n++;
    c->n_accepted += accepted;
    c->expected += p;
    c->variance += p * (1.0 - p);
    if (c->n < GR_CHECK_WINDOW) {
        return GR_CHECK_NOTHING;
    }
    const enum gr_check_event event = judge(c);
    c->last_expected = c->expected / c->n;
    c->last_accepted = (double)c->n_accepted / c->n;
    begin_window(c);
    return event;
}
