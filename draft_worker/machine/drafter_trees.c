/* The tree that is owed to the target, and those that were sent: verdicts name their nodes. */
#include "draft_worker/machine/drafter_internal.h"

void drafter_owe(struct follow *f, uint32_t round, int32_t n_node, uint64_t now_ns)
{
    f->owed.due = true;
    f->owed.ready = false;
    f->owed.round = round;
    f->owed.n_node = n_node;
    f->owed.asked_ns = now_ns;
    f->owed.compute_ns = 0;
}

void drafter_owe_none(struct follow *f)
{
    f->owed.due = f->owed.ready = false;
}

void drafter_owe_answer(struct follow *f, uint64_t now_ns)
{
    f->owed.ready = false;
    f->owed.asked_ns = now_ns;
}

void drafter_owed_time(struct follow *f, uint64_t compute_ns)
{
    f->owed.compute_ns += compute_ns;
}

void drafter_owed_other(struct follow *f, uint32_t round, uint32_t base_len, uint64_t hash,
                        const struct gr_drafted *drafted)
{
    f->owed.grown.round = round;
    f->owed.grown.base_len = base_len;
    f->owed.grown.hash = hash;
    if (drafted != NULL) {
        f->owed.grown.drafted = *drafted;
    } else {
        f->owed.grown.drafted.tree.n = 0;
    }
}

void drafter_owed_grown(struct follow *f, const struct gr_drafted *drafted)
{
    drafter_owed_other(f, f->owed.round, (uint32_t)f->prefix.len, gr_prefix_hash(&f->prefix), drafted);
    drafter_owed_ready(f);
}

void drafter_owed_ready(struct follow *f)
{
    f->owed.ready = true;
}

void drafter_owed_sent(struct follow *f)
{
    drafter_owe_none(f);
    f->owed.compute_ns = 0;
}

void drafter_sent_note(struct follow *f, const struct sent_tree *t)
{
    f->trees.last = (struct sent_id){true, t->round, t->base_len, t->hash};
    if (t->drafted.tree.n > 0) { /* no verdict names a node of an empty one */
        f->trees.sent[1] = f->trees.sent[0];
        f->trees.sent[0] = *t;
        f->trees.sent[0].valid = true;
    }
}

void drafter_sent_cut(struct follow *f, int32_t len)
{
    for (int i = 0; i < N_SENT; i++) {
        f->trees.sent[i].valid = f->trees.sent[i].valid && f->trees.sent[i].base_len <= (uint32_t)len;
    }
}

void drafter_sent_forget(struct follow *f)
{
    f->trees.sent[0].valid = f->trees.sent[1].valid = false;
}

void drafter_sent_forget_last(struct follow *f)
{
    f->trees.last.valid = false;
}
