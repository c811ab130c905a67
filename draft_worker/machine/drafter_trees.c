/* The tree that is owed to the target, and those that were sent: verdicts name their nodes. */
#include "draft_worker/machine/drafter_internal.h"

void drafter_owe(struct session *s, uint32_t round, int32_t n_node, uint64_t now_ns)
{
    s->owed.due = true;
    s->owed.ready = false;
    s->owed.round = round;
    s->owed.n_node = n_node;
    s->owed.asked_ns = now_ns;
    s->owed.compute_ns = 0;
    s->owed.ahead = 0;
}

void drafter_owe_none(struct session *s)
{
    s->owed.due = s->owed.ready = false;
}

void drafter_owe_answer(struct session *s, uint64_t now_ns)
{
    s->owed.ready = false;
    s->owed.asked_ns = now_ns;
}

void drafter_owed_time(struct session *s, uint64_t compute_ns)
{
    s->owed.compute_ns += compute_ns;
}

void drafter_owed_met_ahead(struct session *s, bool hit)
{
    s->owed.ahead = (uint16_t)(GR_FRAME_DRAFT_AHEAD | (hit ? GR_FRAME_DRAFT_HIT : 0u));
}

void drafter_owed_other(struct session *s, uint32_t round, uint32_t base_len, uint64_t hash,
                        const struct gr_drafted *drafted)
{
    s->owed.grown.round = round;
    s->owed.grown.base_len = base_len;
    s->owed.grown.hash = hash;
    if (drafted != NULL) {
        s->owed.grown.drafted = *drafted;
    } else {
        s->owed.grown.drafted.tree.n = 0;
    }
}

void drafter_owed_grown(struct session *s, const struct gr_drafted *drafted)
{
    drafter_owed_other(s, s->owed.round, (uint32_t)s->prefix.len, gr_prefix_hash(&s->prefix), drafted);
    drafter_owed_ready(s);
}

void drafter_owed_ready(struct session *s)
{
    s->owed.ready = true;
}

void drafter_owed_sent(struct session *s)
{
    drafter_owe_none(s);
    s->owed.compute_ns = 0;
}

void drafter_sent_note(struct session *s, const struct sent_tree *t)
{
    s->trees.last = (struct sent_id){true, t->round, t->base_len, t->hash};
    if (t->drafted.tree.n > 0) { /* no verdict names a node of an empty one */
        s->trees.sent[1] = s->trees.sent[0];
        s->trees.sent[0] = *t;
        s->trees.sent[0].valid = true;
    }
}

void drafter_sent_cut(struct session *s, int32_t len)
{
    for (int i = 0; i < N_SENT; i++) {
        s->trees.sent[i].valid = s->trees.sent[i].valid && s->trees.sent[i].base_len <= (uint32_t)len;
    }
}

void drafter_sent_forget(struct session *s)
{
    s->trees.sent[0].valid = s->trees.sent[1].valid = false;
}

void drafter_sent_forget_last(struct session *s)
{
    s->trees.last.valid = false;
}
