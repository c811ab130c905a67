/* Who has told this process to end. Where all processes of a job are signalled, a supervisor hands on what its child
 * has been told already: what the parent says and what others say are counted apart, so that this is not taken for
 * haste. For signal handlers, too. */
#ifndef GR_COMMON_PROCESS_TOLD_H
#define GR_COMMON_PROCESS_TOLD_H

#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

/* All zero: nobody has told it yet. */
struct gr_told {
    volatile sig_atomic_t by_parent, by_others;
};

/* FIRST: it is news. SAME: the other side has said it before. AGAIN: this side has, and asks for haste. */
enum gr_told_as { GR_TOLD_FIRST, GR_TOLD_SAME, GR_TOLD_AGAIN };

static inline enum gr_told_as gr_told_by(struct gr_told *t, pid_t sender)
{
    const bool is_parent = sender == getppid();
    volatile sig_atomic_t *own = is_parent ? &t->by_parent : &t->by_others;
    const bool before = *own != 0, by_the_other = (is_parent ? t->by_others : t->by_parent) != 0;
    *own = 1;
    return before ? GR_TOLD_AGAIN : by_the_other ? GR_TOLD_SAME : GR_TOLD_FIRST;
}

#endif
