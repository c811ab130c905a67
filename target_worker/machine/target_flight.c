/* A pass on its way, and what a session needs of it when it is done. */
#include "target_worker/machine/target_internal.h"

void target_flight_start(struct gr_target *t)
{
    t->pass_in_flight = true;
    t->io.start_pass(t->io.ctx, &t->pass);
}

void target_flight_ended(struct gr_target *t, uint64_t now_ns)
{
    t->pass_in_flight = false;
    t->idle_ns = now_ns;
}

void target_flight_begin(struct in_flight *f, bool waited, bool clean, uint64_t wait_ns)
{
    f->in_pass = true;
    f->draft_round = GR_WIRE_ROOT_ONLY;
    f->waited = waited;
    f->clean = clean;
    f->reroot = f->resync = false;
    f->wait_ns = wait_ns;
    f->draft_ns = 0;
    f->ahead = 0;
}

void target_flight_take_tree(struct in_flight *f, const struct walked_tree *w)
{
    f->draft_round = w->round;
    f->draft_ns = GR_MIN(w->draft_ns, f->wait_ns);
    f->ahead = w->ahead;
    f->reroot = w->root >= 0;
}

void target_flight_resync(struct in_flight *f)
{
    f->resync = f->in_pass;
}

void target_flight_land(struct in_flight *f)
{
    f->in_pass = false;
}
