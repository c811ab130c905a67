/* Lines that a person types: edited and remembered at a terminal (libedit), as they are from elsewhere. One thread. */
#ifndef GR_ORCHESTRATOR_CLI_LINES_H
#define GR_ORCHESTRATOR_CLI_LINES_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define GR_LINE_BYTES_MAX (1u << 20)

struct gr_lines;

/* Called before each read: waits until standard input has something. False: the line is not wanted any more. */
typedef bool gr_lines_wait_fn(void *ctx);

/* remember: lines go to the history file, $XDG_STATE_HOME/graft/chat_history (~/.local/state), mode 0600, and come from
 * there. A file that cannot be had is a warning. */
GR_NODISCARD enum gr_status gr_lines_open(gr_lines_wait_fn *wait, void *ctx, bool remember, struct gr_lines **out);
/* While an answer is shown nobody reads what is typed: it waits for the next line, a ctrl-D, too, which the kernel
 * would otherwise swallow. Without a terminal nothing happens. */
void gr_lines_pause(struct gr_lines *l);
void gr_lines_resume(struct gr_lines *l);
void gr_lines_close(struct gr_lines *l);
/* The next line without its newline, borrowed until the next call. GR_ECLOSED: there is no more; GR_ECANCELED: wait
 * said so; GR_ELIMIT (logged): it is too long. */
GR_NODISCARD enum gr_status gr_lines_next(struct gr_lines *l, const char **line_out, size_t *len_out);

#endif
