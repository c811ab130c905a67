/* docs/options.md, from the tables of all programs. One thread. */
#ifndef GR_COMMON_OPTIONS_PAGE_H
#define GR_COMMON_OPTIONS_PAGE_H

#include "common/options/option.h"

/* table: (n_table) the first is graft's own; each further one becomes a part of the page. */
void gr_option_page(const struct gr_option_table *const *table, int n_table, FILE *out);

#endif
