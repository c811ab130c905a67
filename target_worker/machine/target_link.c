/* What is between a session and its drafter: what it has been told, what was asked of it, and since when it is silent.
 * Nobody else writes it, so "when is a DELTA owed" is answered by reading this page. */
#include "target_worker/machine/target_internal.h"

void target_link_attach(struct link *l, uint32_t peer, int32_t told_len, uint32_t fence_round)
{
    *l = (struct link){.attached = true,
                       .ever_attached = true,
                       .peer = peer,
                       .told_len = told_len,
                       .fence_round = fence_round,
                       .used_round = l->used_round};
}

void target_link_lose(struct link *l)
{
    l->attached = l->owes_delta = false;
    l->ever_attached = true;
    target_link_forget_asked(l);
}

void target_link_expect_none(struct link *l)
{
    l->ever_attached = true;
}

void target_link_ask(struct link *l, uint32_t round, uint64_t now_ns)
{
    l->asked = true;
    l->asked_round = round;
    l->asked_ns = now_ns;
    l->silent_ns = l->silent_ns == 0 ? now_ns : l->silent_ns;
}

void target_link_answered(struct link *l)
{
    l->asked = false;
}

void target_link_heard(struct link *l)
{
    l->silent_ns = 0;
}

void target_link_forget_asked(struct link *l)
{
    l->asked = false;
    l->silent_ns = 0;
}

void target_link_warm(struct link *l)
{
    l->warm = true;
}

void target_link_owe(struct link *l, bool delta)
{
    l->owes_delta = delta && l->attached;
}

void target_link_tell(struct link *l, int32_t len)
{
    l->told_len = len;
}

void target_link_forget_from(struct link *l, int32_t len)
{
    l->told_len = GR_MIN(l->told_len, len);
}

void target_link_fence(struct link *l, uint32_t round)
{
    l->fence_round = round;
}

void target_link_use(struct link *l, uint32_t round)
{
    l->used_round = GR_MAX(l->used_round, round);
}
