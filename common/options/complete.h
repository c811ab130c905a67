/* Completion of all programs for a shell, as a script that is made from the tables of options: subcommands, options,
 * choices, files and folders. One thread. */
#ifndef GR_COMMON_OPTIONS_COMPLETE_H
#define GR_COMMON_OPTIONS_COMPLETE_H

#include "common/options/option.h"

void gr_option_complete_bash(const struct gr_option_table *const *table, int n_table, FILE *out);
void gr_option_complete_zsh(const struct gr_option_table *const *table, int n_table, FILE *out);

#endif
