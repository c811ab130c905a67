/* What `graft top` shows: a pure function of what the orchestrator told to lines of text. Names that came from other
 * processes become plain ASCII there, so that no line holds a control sequence. */
#ifndef GR_ORCHESTRATOR_CLI_TOP_VIEW_H
#define GR_ORCHESTRATOR_CLI_TOP_VIEW_H

#include "orchestrator/cli/listing.h"

#define GR_TOP_LINE_BYTES 256 /* of the longest line, its NUL included */

/* All borrowed. */
struct gr_top_snapshot {
    const struct gr_listing *now;
    const struct gr_listing *before; /* NULL: speeds are not known */
    const struct gr_msg_pong *pong;  /* [now->n_worker], in its order; .worker 0: no answer. NULL: nobody was asked */
    uint64_t between_ns;             /* from before to now */
};

struct gr_top_settings {
    const char *pattern; /* rows that hold it, in either case, are shown; NULL or empty: all */
    enum gr_top_sort sort;
    int width; /* columns of the terminal: what does not fit is left out, from the right; 0: no limit */
};

enum gr_top_kind { GR_TOP_TEXT, GR_TOP_HEADING, GR_TOP_WORKER, GR_TOP_SESSION };

struct gr_top_line {
    char text[GR_TOP_LINE_BYTES];
    enum gr_top_kind kind;
    uint64_t subject; /* the worker's number or the session's id */
};

/* All zeroes: empty. */
struct gr_top_view {
    struct gr_top_line *line; /* owned */
    int n;
    size_t max; /* lines that there is memory for */
};

/* Tokens a second of now->session[i] since the snapshot before; negative: not known. */
double gr_top_speed(const struct gr_top_snapshot *s, int i);
/* Means over the n rounds of now->session[i] since the snapshot before or, where none came, over all of them. The
 * target waits for a tree, verifies it and does the rest; draft is the drafter's own time, a part of that wait or,
 * where it drafts ahead, of the pass. */
struct gr_top_round {
    uint64_t n;
    double wait_ms, verify_ms, host_ms, draft_ms;
};
struct gr_top_round gr_top_round(const struct gr_top_snapshot *s, int i);
/* What was in the view before is gone. GR_ENOMEM (logged). */
GR_NODISCARD enum gr_status gr_top_view_make(const struct gr_top_snapshot *s, const struct gr_top_settings *settings,
                                             struct gr_top_view *v);
void gr_top_view_finish(struct gr_top_view *v);
/* {"summary", "workers", "sessions"}, unfiltered and in the orchestrator's order; the caller's. NULL: out of memory. */
json_t *gr_top_json(const struct gr_top_snapshot *s);

#endif
