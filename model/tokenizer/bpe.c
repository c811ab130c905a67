/* Byte pair merging of one pre-token: a linked list of symbols and a heap of possible merges, so that n bytes cost
 * O(n log n). The order is Hugging Face's: lowest rank first, then leftmost. Where there are scores instead of ranks
 * the order is llama.cpp's: highest score of the token that comes out, then leftmost; any two neighbours that make a
 * token together may merge, also such as are no token alone. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

enum { SWALLOWED = -1, UNKNOWN = -2 };

struct symbol {
    int32_t id;         /* SWALLOWED: by its left neighbour; UNKNOWN: no token (scores only) */
    int32_t prev, next; /* -1: none */
};

struct span {
    uint32_t begin, len; /* in the pre-token */
};

struct candidate {
    uint64_t order; /* rank << 32 | position of the left symbol; by scores their key << 32 */
    int32_t id;     /* what the merge gives */
};

struct gr_bpe_scratch {
    struct symbol *symbols; /* [cap] */
    struct span *spans;     /* [cap] where there are scores, else NULL */
    struct candidate *heap; /* [3 cap]: n - 1 at first, and two more for each of n - 1 merges */
    int32_t *ids;           /* [cap] */
    size_t cap, n_heap;
    int32_t n_symbol;
    const char *text; /* the pre-token */
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
    free(s->spans);
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

static enum gr_status scratch_reserve(struct gr_bpe_scratch *s, size_t n, bool spans)
{
    if (n <= s->cap) {
        return GR_OK;
    }
    size_t cap = GR_MAX(n, GR_MAX((size_t)64, 2 * s->cap));
    scratch_free_arrays(s);
    s->symbols = malloc(cap * sizeof(*s->symbols));
    s->spans = spans ? malloc(cap * sizeof(*s->spans)) : NULL;
    s->heap = malloc(3 * cap * sizeof(*s->heap));
    s->ids = malloc(cap * sizeof(*s->ids));
    if (s->symbols == NULL || (spans && s->spans == NULL) || s->heap == NULL || s->ids == NULL) {
        scratch_free_arrays(s);
        log_error("tokenizer: no memory for a pre-token of %zu bytes", n);
        return GR_ENOMEM;
    }
    s->cap = cap;
    return GR_OK;
}

/* ---- the first symbols ---- */

static void add_symbol(struct gr_bpe_scratch *s, int32_t id)
{
    const int32_t i = s->n_symbol++;
    s->symbols[i] = (struct symbol){.id = id, .prev = i - 1, .next = i + 1};
}

static void bytes_to_symbols(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s, const char *text, size_t len)
{
    bool unknown = false; /* the symbol before is the unk token */
    for (size_t i = 0; i < len; i++) {
        int32_t id = tok->byte_id[(uint8_t)text[i]];
        const bool known = id >= 0;
        id = known ? id : tok->unk_id;
        if (id >= 0 && (known || !unknown || !tok->fuse_unk)) {
            add_symbol(s, id);
        }
        unknown = !known;
    }
}

static int32_t id_of_char(const struct gr_tokenizer *tok, const char *text, size_t len)
{
    uint32_t id;
    if (len == 1) {
        return tok->byte_id[(uint8_t)text[0]];
    }
    return gr_str_table_get(&tok->by_text, text, len, &id) ? (int32_t)id : -1;
}

/* False: a byte of the character has no token <0xNN>. */
static bool add_fallback(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (tok->fallback_id[(uint8_t)text[i]] < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < len; i++) {
        add_symbol(s, tok->fallback_id[(uint8_t)text[i]]);
    }
    return true;
}

/* As Hugging Face: an unk token waits until a known character comes, so bytes of <0xNN> come before it. */
static void chars_to_symbols(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s, const char *text, size_t len)
{
    size_t size;
    bool unk_waits = false;
    for (size_t i = 0; i < len; i += size) {
        (void)gr_utf8_next((const uint8_t *)text + i, len - i, &size);
        const int32_t id = id_of_char(tok, text + i, size);
        if (id >= 0) {
            if (unk_waits) {
                add_symbol(s, tok->unk_id);
            }
            unk_waits = false;
            add_symbol(s, id);
        } else if ((!tok->byte_fallback || !add_fallback(tok, s, text + i, size)) && tok->unk_id >= 0) {
            if (unk_waits && !tok->fuse_unk) {
                add_symbol(s, tok->unk_id);
            }
            unk_waits = true;
        }
    }
    if (unk_waits) {
        add_symbol(s, tok->unk_id);
    }
}

/* ---- merging by rank ---- */

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

/* Joins the symbol at `left' with its right neighbour. */
static void join(struct gr_bpe_scratch *s, int32_t left, int32_t id)
{
    struct symbol *a = &s->symbols[left], *b = &s->symbols[a->next];
    a->id = id;
    b->id = SWALLOWED;
    a->next = b->next;
    if (a->next >= 0) {
        s->symbols[a->next].prev = left;
    }
}

static void merge_by_rank(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s)
{
    for (int32_t i = 0; i + 1 < s->n_symbol; i++) {
        consider(tok, s, i);
    }
    while (s->n_heap > 0) {
        struct candidate c = heap_pop(s);
        int32_t left = (int32_t)(uint32_t)c.order;
        struct symbol *a = &s->symbols[left];
        if (a->id < 0 || a->next < 0) {
            continue;
        }
        /* The neighbours may have changed since it was queued. As in Hugging Face's code it still
         * counts when the present pair gives the same token. */
        const struct gr_merge_slot *m = probe(&tok->merges, a->id, s->symbols[a->next].id);
        if (m->key == UINT64_MAX || m->id != c.id) {
            continue;
        }
        join(s, left, c.id);
        consider(tok, s, a->prev);
        consider(tok, s, left);
    }
}

/* ---- merging by score ---- */

/* The higher the score the lower the key. */
static uint32_t key_of_score(float score)
{
    uint32_t bits;
    score += 0.0f; /* -0 is 0 */
    memcpy(&bits, &score, sizeof(bits));
    return (bits >> 31) != 0 ? bits : ~bits & 0x7FFFFFFF;
}

static void consider_text(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s, int32_t left)
{
    int32_t right = left >= 0 ? s->symbols[left].next : -1;
    uint32_t id;
    if (right >= 0 && gr_str_table_get(&tok->by_text, s->text + s->spans[left].begin,
                                       s->spans[left].len + s->spans[right].len, &id)) {
        uint64_t order = (uint64_t)key_of_score(tok->scores[id]) << 32 | (uint32_t)left;
        heap_push(s, (struct candidate){.order = order, .id = (int32_t)id});
    }
}

static void merge_by_score(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s)
{
    for (int32_t i = 0; i + 1 < s->n_symbol; i++) {
        consider_text(tok, s, i);
    }
    while (s->n_heap > 0) {
        struct candidate c = heap_pop(s);
        int32_t left = (int32_t)(uint32_t)c.order;
        struct symbol *a = &s->symbols[left];
        /* Symbols only grow: the same length is the same pair. */
        if (a->id == SWALLOWED || a->next < 0 || s->spans[left].len + s->spans[a->next].len != tok->text_len[c.id]) {
            continue;
        }
        s->spans[left].len += s->spans[a->next].len;
        join(s, left, c.id);
        consider_text(tok, s, a->prev);
        consider_text(tok, s, left);
    }
}

static void chars_to_spans(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s, const char *text, size_t len)
{
    size_t size;
    for (size_t i = 0; i < len; i += size) {
        (void)gr_utf8_next((const uint8_t *)text + i, len - i, &size);
        const int32_t id = id_of_char(tok, text + i, size);
        s->spans[s->n_symbol] = (struct span){.begin = (uint32_t)i, .len = (uint32_t)size};
        add_symbol(s, id >= 0 ? id : UNKNOWN);
    }
}

/* Bytes of what stayed unknown; those without a token are the unk token, one each. */
static size_t put_bytes(const struct gr_tokenizer *tok, const char *text, size_t len, int32_t *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        const int32_t id = tok->byte_fallback ? tok->fallback_id[(uint8_t)text[i]] : -1;
        if (id >= 0 || tok->unk_id >= 0) {
            out[n++] = id >= 0 ? id : tok->unk_id;
        }
    }
    return n;
}

/* ---- all ---- */

static size_t take_ids(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s)
{
    size_t n = 0;
    for (int32_t i = s->n_symbol > 0 ? 0 : -1; i >= 0; i = s->symbols[i].next) {
        if (s->symbols[i].id == UNKNOWN) {
            n += put_bytes(tok, s->text + s->spans[i].begin, s->spans[i].len, s->ids + n);
        } else {
            s->ids[n++] = s->symbols[i].id;
        }
    }
    return n;
}

enum gr_status gr_bpe_encode(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s, const char *bytes, size_t len,
                             const int32_t **ids_out, size_t *n_out)
{
    GR_TRY(scratch_reserve(s, len, tok->scores != NULL)); /* GR_TOK_NORMALIZED_BYTES keeps it far below 2^31 */
    *ids_out = s->ids;
    uint32_t whole;
    if (tok->ignore_merges && gr_str_table_get(&tok->by_text, bytes, len, &whole)) {
        s->ids[0] = (int32_t)whole;
        *n_out = 1;
        return GR_OK;
    }
    s->n_symbol = 0;
    s->n_heap = 0;
    s->text = bytes;
    if (tok->scores != NULL) {
        chars_to_spans(tok, s, bytes, len);
    } else if (tok->byte_level) {
        bytes_to_symbols(tok, s, bytes, len);
    } else {
        chars_to_symbols(tok, s, bytes, len);
    }
    if (s->n_symbol > 0) {
        s->symbols[s->n_symbol - 1].next = -1;
    }
    if (tok->scores != NULL) {
        merge_by_score(tok, s);
    } else {
        merge_by_rank(tok, s);
    }
    *n_out = take_ids(tok, s);
    return GR_OK;
}
