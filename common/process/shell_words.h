/* Words as a shell reads them: for command lines that are shown to people, who may copy them. */
#ifndef GR_COMMON_PROCESS_SHELL_WORDS_H
#define GR_COMMON_PROCESS_SHELL_WORDS_H

#include <stdio.h>

/* Within single quotes where a shell would read it as anything but itself. */
void gr_shell_word_print(const char *word, FILE *out);
/* word: NULL after the last. Blanks stand between them, nothing after the last. */
void gr_shell_words_print(const char *const *word, FILE *out);

#endif
