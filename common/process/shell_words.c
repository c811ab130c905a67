#include "common/process/shell_words.h"

#include <stdbool.h>
#include <string.h>

/* What no shell takes for anything but itself, wherever it stands. */
#define PLAIN "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+"

void gr_shell_word_print(const char *word, FILE *out)
{
    const bool plain = word[0] != '\0' && word[strspn(word, PLAIN)] == '\0';
    if (plain) {
        fputs(word, out);
        return;
    }
    putc('\'', out);
    for (; *word != '\0'; word++) {
        fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, out);
    }
    putc('\'', out);
}

void gr_shell_words_print(const char *const *word, FILE *out)
{
    for (int i = 0; word[i] != NULL; i++) {
        fputs(i > 0 ? " " : "", out);
        gr_shell_word_print(word[i], out);
    }
}
