/* The round that comes next: its number, whether it wants a tree, and until when it waits. target_round.c decides. */
#include "target_worker/machine/target_internal.h"

void target_next_root(struct next_round *n, enum gr_spec_mode mode, uint64_t now_ns)
{
    n->mode = mode;
    n->n_want = 0;
    n->verdict_ns = n->deadline_ns = now_ns;
}

void target_next_decide(struct next_round *n, const struct gr_spec_decision *d, uint64_t wait_ns, uint64_t silence_ns,
                        uint64_t now_ns)
{
    n->mode = d->mode;
    n->n_want = d->n_want;
    n->reason = d->reason;
    if (n->begun_round != n->round) {
        n->begun_round = n->round;
        n->give_up_ns = now_ns + silence_ns;
    }
    n->verdict_ns = now_ns;
    n->deadline_ns = GR_MIN(now_ns + wait_ns, n->give_up_ns);
}

void target_next_number(struct next_round *n)
{
    n->round++;
}

void target_next_resume(struct next_round *n)
{
    n->round = GR_MAX(n->round, 1u); /* round 0 was a prompt's */
    n->begun_round = 0;
}

void target_next_want_none(struct next_round *n)
{
    n->n_want = 0;
}

void target_next_asked_late(struct next_round *n, uint64_t now_ns)
{
    const uint64_t wait_ns = n->deadline_ns - GR_MIN(n->verdict_ns, n->deadline_ns);
    n->deadline_ns = GR_MIN(now_ns + wait_ns, n->give_up_ns);
}

void target_next_probe_sent(struct next_round *n)
{
    n->mode = GR_SPEC_ROOT; /* nobody waits for it */
    n->n_want = 0;
}
