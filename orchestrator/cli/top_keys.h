/* What keys do in `graft top`: a state and a pure function of it, a view and a key. What cannot be taken back is asked
 * about first, and is done to what was named in the question, wherever the cursor stands by then. */
#ifndef GR_ORCHESTRATOR_CLI_TOP_KEYS_H
#define GR_ORCHESTRATOR_CLI_TOP_KEYS_H

#include "orchestrator/cli/top_view.h"

#define GR_TOP_PATTERN_BYTES 64

/* Keys that are no ASCII characters. */
enum gr_top_special { GR_TOP_KEY_UP = 256, GR_TOP_KEY_DOWN, GR_TOP_KEY_PAGE_UP, GR_TOP_KEY_PAGE_DOWN };

enum gr_top_act { GR_TOP_NOTHING, GR_TOP_QUIT, GR_TOP_DRAIN, GR_TOP_UNDRAIN, GR_TOP_CLOSE };

/* All zeroes: a screen that was just opened. */
struct gr_top_ui {
    char pattern[GR_TOP_PATTERN_BYTES];
    enum gr_top_sort sort;
    bool paused, help, typing; /* typing: keys go to the pattern */
    enum gr_top_act asked;     /* the question that waits for y */
    uint64_t asked_subject;
    enum gr_top_kind chosen_kind; /* the cursor's row; GR_TOP_TEXT: none yet */
    uint64_t chosen;
    char note[128]; /* one line of what was done or refused; a key clears it */
};

/* The line that the cursor stands on; -1: on none. */
int gr_top_chosen_line(const struct gr_top_ui *ui, const struct gr_top_view *v);
/* What is to be done now: to ui->asked_subject. */
enum gr_top_act gr_top_key(struct gr_top_ui *ui, const struct gr_top_view *v, int key);
/* The line at the foot: a question, the pattern as it is typed, a note, or the keys. */
void gr_top_foot(const struct gr_top_ui *ui, char *out, size_t cap);

/* The page that h shows; NULL ends it. */
extern const char *const gr_top_help[];

#endif
