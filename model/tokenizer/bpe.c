/* Byte pair merging of one pre-token: a linked list of symbols and a heap of possible merges, so
 * that n bytes cost O(n log n). The order is Hugging Face's: lowest rank first, then leftmost. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

struct symbol {
    int32_t id;         /* -1: swallowed by its left neighbour */
    int32_t prev, next; /* -1: none */
};

struct candidate {
    uint64_t order; /* rank << 32 | position of the left symbol */
    int32_t id;     /* what the merge gives */
};

struct gr_bpe_scratch {
    struct symbol *symbols; /* [cap] */
    struct candidate *heap; /* [3 cap]: n - 1 at first, and two more for each of n - 1 merges */
    int32_t *ids;           /* [cap] */
    size_t cap, n_heap;
};

/* ---- merge table ---- */

static size_t slot_of(const struct gr_merge_table *t, uint64_t key)
{
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> (64 - t->log2_n_slot));
}

enum gr_status gr_merge_table_init(struct gr_merge_table *t, size_t n_max)
{
    int log2_n_slot = 4;
    while (((size_t)1 << log2_n_slot) / 2 < n_max) {
        log2_n_slot++;
    }
    size_t n_slot = (size_t)1 << log2_n_slot;
    t->slots = malloc(n_slot * sizeof(*t->slots));
    if (t->slots == NULL) {
        log_error("no memory for %zu merges", n_max);
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < n_slot; i++) {
        t->slots[i].key = UINT64_MAX;
    }
    t->log2_n_slot = log2_n_slot;
    return GR_OK;
}

void gr_merge_table_finish(struct gr_merge_table *t)
{
    free(t->slots);
    *t = (struct gr_merge_table){0};
}

static struct gr_merge_slot *probe(const struct gr_merge_table *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << t->log2_n_slot) - 1;
    size_t i = slot_of(t, key);
    while (t->slots[i].key != key && t->slots[i].key != UINT64_MAX) {
        i = (i + 1) & mask;
    }
    return &t->slots[i];
}

bool gr_merge_table_add(struct gr_merge_table *t, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    struct gr_merge_slot *slot = probe(t, left, right);
    if (slot->key != UINT64_MAX) {
        return false;
    }
    slot->key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    slot->rank = rank;
    slot->id = id;
    return true;
}

/* ---- heap ---- */

static void heap_push(struct gr_bpe_scratch *s, struct candidate c)
{
    size_t i = s->n_heap++;
    while (i > 0 && s->heap[(i - 1) / 2].order > c.order) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
}

static struct candidate heap_pop(struct gr_bpe_scratch *s)
{
    struct candidate top = s->heap[0];
    struct candidate last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap) {
            break;
        }
        if (child + 1 < s->n_heap && s->heap[child + 1].order < s->heap[child].order) {
            child++;
        }
        if (s->heap[child].order >= last.order) {
            break;
        }
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* ---- merging ---- */

struct gr_bpe_scratch *gr_bpe_scratch_create(void)
{
    return calloc(1, sizeof(struct gr_bpe_scratch));
}

static void scratch_free_arrays(struct gr_bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    free(s->ids);
    *s = (struct gr_bpe_scratch){0};
}

void gr_bpe_scratch_destroy(struct gr_bpe_scratch *s)
{
    if (s != NULL) {
        scratch_free_arrays(s);
        free(s);
    }
}

static enum gr_status scratch_reserve(struct gr_bpe_scratch *s, size_t n)
{
    if (n <= s->cap) {
        return GR_OK;
    }
    size_t cap = GR_MAX(n, GR_MAX((size_t)64, 2 * s->cap));
    scratch_free_arrays(s);
    s->symbols = malloc(cap * sizeof(*s->symbols));
    s->heap = malloc(3 * cap * sizeof(*s->heap));
    s->ids = malloc(cap * sizeof(*s->ids));
    if (s->symbols == NULL || s->heap == NULL || s->ids == NULL) {
        scratch_free_arrays(s);
        log_error("tokenizer: no memory for a pre-token of %zu bytes", n);
        return GR_ENOMEM;
    }
    s->cap = cap;
    return GR_OK;
}

/* Queues the merge of the symbol at `left` with its right neighbour, if there is one. */
static void consider(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s, int32_t left)
{
    int32_t right = left >= 0 ? s->symbols[left].next : -1;
    if (right < 0) {
        return;
    }
    const struct gr_merge_slot *m = probe(&tok->merges, s->symbols[left].id, s->symbols[right].id);
    if (m->key != UINT64_MAX) {
        uint64_t order = (uint64_t)m->rank << 32 | (uint32_t)left;
        heap_push(s, (struct candidate){.order = order, .id = m->id});
    }
}

static void merge_all(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s)
{
    while (s->n_heap > 0) {
        struct candidate c = heap_pop(s);
        int32_t left = (int32_t)(uint32_t)c.order;
        struct symbol *a = &s->symbols[left];
        if (a->id < 0 || a->next < 0) {
            continue;
        }
        /* The neighbours may have changed since it was queued. As in Hugging Face's code it still
         * counts when the present pair gives the same token. */
        struct symbol *b = &s->symbols[a->next];
        const struct gr_merge_slot *m = probe(&tok->merges, a->id, b->id);
        if (m->key == UINT64_MAX || m->id != c.id) {
            continue;
        }
        a->id = c.id;
        b->id = -1;
        a->next = b->next;
        if (a->next >= 0) {
            s->symbols[a->next].prev = left;
        }
        consider(tok, s, a->prev);
        consider(tok, s, left);
    }
}

enum gr_status gr_bpe_encode(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s, const char *bytes, size_t len,
                             const int32_t **ids_out, size_t *n_out)
{
    GR_TRY(scratch_reserve(s, len));
    *ids_out = s->ids;
    uint32_t whole;
    if (tok->ignore_merges && gr_str_table_get(&tok->by_bytes, bytes, len, &whole)) {
        s->ids[0] = (int32_t)whole;
        *n_out = 1;
        return GR_OK;
    }
    int32_t n_symbol = (int32_t)len; /* GR_TOKENIZER_TEXT_BYTES keeps it far below 2^31 */
    for (int32_t i = 0; i < n_symbol; i++) {
        s->symbols[i].id = tok->byte_id[(uint8_t)bytes[i]];
        s->symbols[i].prev = i - 1;
        s->symbols[i].next = i + 1 < n_symbol ? i + 1 : -1;
    }
    s->n_heap = 0;
    for (int32_t i = 0; i + 1 < n_symbol; i++) {
        consider(tok, s, i);
    }
    merge_all(tok, s);
    size_t n = 0;
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next) {
        s->ids[n++] = s->symbols[i].id;
    }
    *n_out = n;
    return GR_OK;
}
