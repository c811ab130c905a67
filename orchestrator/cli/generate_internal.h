/* Parts of a generation (generate.h), each in its file: what is shown (generate_show.c), what is prepared
 * (generate_prepare.c), turns and what comes back (generate.c), the report at its end (generate_report.c). */
#ifndef GR_ORCHESTRATOR_CLI_GENERATE_INTERNAL_H
#define GR_ORCHESTRATOR_CLI_GENERATE_INTERNAL_H

#include <stdio.h>

#include "orchestrator/cli/generate.h"

/* ---- generate_show.c ---- */

void generation_clear_progress(struct gr_generation *g);
/* Text and trees on terminals would tear each other's lines: trees wait for a line of text to end. */
FILE *generation_trace_to(struct gr_generation *g);
/* The text's line is over. */
void generation_show_held(struct gr_generation *g);
/* What text there is and was not shown. False: it cannot be written. */
bool generation_show_text(struct gr_generation *g);
bool generation_has_open_line(const struct gr_generation *g);
/* Several answers are told apart by a line above each. */
void generation_show_heading(struct gr_generation *g, const char *before);

/* ---- generate.c ---- */

/* The context was full before --max-tokens. */
bool generation_at_context(const struct gr_generation *g);

#endif
