/* Map from byte strings to indices 0..n-1: open addressing over xxh3. Strings are borrowed and must
 * outlive the table. Filled by one thread, then read by any. */
#ifndef GR_MODEL_FILES_STR_TABLE_H
#define GR_MODEL_FILES_STR_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct gr_str_slot {
    const char *str; /* NULL: free */
    uint32_t len;
    uint32_t value;
};

struct gr_str_table {
    struct gr_str_slot *slots; /* owned; a power of two, at most half full */
    size_t n_slot;
    size_t n_max;
    size_t n;
};

/* For at most n_max strings. */
GR_NODISCARD enum gr_status gr_str_table_init(struct gr_str_table *t, size_t n_max);
void gr_str_table_finish(struct gr_str_table *t);

/* False when the string is already there; *value_out is then its value. */
bool gr_str_table_add(struct gr_str_table *t, const char *str, size_t len, uint32_t value, uint32_t *value_out);
bool gr_str_table_get(const struct gr_str_table *t, const char *str, size_t len, uint32_t *value_out);

#endif
