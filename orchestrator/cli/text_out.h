/* An answer's text on standard output. */
#ifndef GR_ORCHESTRATOR_CLI_TEXT_OUT_H
#define GR_ORCHESTRATOR_CLI_TEXT_OUT_H

#include <stdbool.h>
#include <stddef.h>

/* Writes whole characters of an answer. A terminal obeys control characters, so there they are spelled (\x1b), but for
 * line ends and tabs; elsewhere the text is as it is. False: it cannot be written (errno). */
bool gr_text_out(const char *text, size_t len);

#endif
