/* How far loading has come, for who waits: a bar in place on a terminal, else a line at each quarter. Of small models
 * (needs.h: GR_LOAD_LARGE) nothing is shown. One thread. */
#ifndef GR_MODEL_LOAD_PROGRESS_H
#define GR_MODEL_LOAD_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct gr_load_progress {
    const char *what;    /* borrowed: the model's path */
    uint64_t bytes, all; /* loaded, and of all that will be */
    uint64_t drawn_ns;   /* when the bar was drawn last; 0: not yet */
    int n_quarter;       /* that were told */
    bool shown, bar;
};

void gr_load_progress_begin(struct gr_load_progress *p, const char *what, uint64_t all);
void gr_load_progress_add(struct gr_load_progress *p, uint64_t bytes);
/* Takes the bar away. Also after an error. */
void gr_load_progress_end(struct gr_load_progress *p);

#endif
