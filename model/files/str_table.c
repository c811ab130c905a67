#include "model/files/str_table.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/log.h"

enum gr_status gr_str_table_init(struct gr_str_table *t, size_t n_max)
{
    size_t n_slot = 16;
    while (n_slot / 2 < n_max) {
        n_slot *= 2;
    }
    t->slots = calloc(n_slot, sizeof(*t->slots));
    if (t->slots == NULL) {
        log_error("no memory for a table of %zu names", n_max);
        return GR_ENOMEM;
    }
    t->n_slot = n_slot;
    t->n_max = n_max;
    t->n = 0;
    return GR_OK;
}

void gr_str_table_finish(struct gr_str_table *t)
{
    free(t->slots);
    *t = (struct gr_str_table){0};
}

/* The slot of the string, or the free one where it belongs. */
static struct gr_str_slot *probe(const struct gr_str_table *t, const char *str, size_t len)
{
    size_t i = (size_t)XXH3_64bits(str, len) & (t->n_slot - 1);
    while (t->slots[i].str != NULL && (t->slots[i].len != len || memcmp(t->slots[i].str, str, len) != 0)) {
        i = (i + 1) & (t->n_slot - 1);
    }
    return &t->slots[i];
}

bool gr_str_table_add(struct gr_str_table *t, const char *str, size_t len, uint32_t value, uint32_t *value_out)
{
    struct gr_str_slot *slot = probe(t, str, len);
    if (slot->str != NULL) {
        *value_out = slot->value;
        return false;
    }
    GR_ASSERT(t->n < t->n_max && len <= UINT32_MAX);
    *slot = (struct gr_str_slot){.str = str, .len = (uint32_t)len, .value = value};
    t->n++;
    return true;
}

bool gr_str_table_get(const struct gr_str_table *t, const char *str, size_t len, uint32_t *value_out)
{
    if (t->n_slot == 0) {
        return false;
    }
    const struct gr_str_slot *slot = probe(t, str, len);
    if (slot->str == NULL) {
        return false;
    }
    *value_out = slot->value;
    return true;
}
