/* Finds added tokens in text: leftmost first, then longest, as Hugging Face's AddedVocabulary does.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

/* ---- trie ---- */

void gr_trie_finish(struct gr_trie *trie)
{
    free(trie->nodes);
    *trie = (struct gr_trie){0};
}

static uint32_t child_of(const struct gr_trie *trie, uint32_t node, uint8_t byte)
{
    if (node == 0) {
        return trie->first[byte];
    }
    uint32_t c = trie->nodes[node].child;
    while (c != 0 && trie->nodes[c].byte != byte) {
        c = trie->nodes[c].sibling;
    }
    return c;
}

/* Room was made for every byte of every token. */
static uint32_t add_child(struct gr_trie *trie, uint32_t node, uint8_t byte)
{
    uint32_t c = trie->n_node++;
    trie->nodes[c] = (struct gr_trie_node){.added = -1, .byte = byte};
    if (node == 0) {
        trie->first[byte] = c;
    } else {
        trie->nodes[c].sibling = trie->nodes[node].child;
        trie->nodes[node].child = c;
    }
    return c;
}

static void insert(struct gr_trie *trie, const char *text, size_t len, int added)
{
    uint32_t node = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t c = child_of(trie, node, (uint8_t)text[i]);
        node = c != 0 ? c : add_child(trie, node, (uint8_t)text[i]);
    }
    /* Two contents can be one after the normalizer; the first keeps the place. */
    if (trie->nodes[node].added < 0) {
        trie->nodes[node].added = added;
    }
}

static enum gr_status trie_init(struct gr_trie *trie, size_t n_byte)
{
    trie->nodes = calloc(n_byte + 1, sizeof(*trie->nodes));
    if (trie->nodes == NULL) {
        log_error("tokenizer: no memory for %zu bytes of added tokens", n_byte);
        return GR_ENOMEM;
    }
    trie->nodes[0].added = -1;
    trie->n_node = 1;
    return GR_OK;
}

/* What an added token looks like in normalized text. The steps are done as on any text: Llama 2's put a mark in front.
 */
static enum gr_status normalized_content(const struct gr_tokenizer *tok, const struct gr_added_token *a, char **owned,
                                         size_t *len_out)
{
    *owned = NULL;
    *len_out = a->len;
    return a->normalized ? gr_tok_normalize(tok, a->content, a->len, false, owned, len_out) : GR_OK;
}

static enum gr_status insert_token(struct gr_tokenizer *tok, int i)
{
    const struct gr_added_token *a = &tok->added[i];
    struct gr_trie *trie = a->normalized ? &tok->normalized_trie : &tok->raw_trie;
    char *owned;
    size_t len;
    GR_TRY(normalized_content(tok, a, &owned, &len));
    if (len > 0) {
        insert(trie, owned != NULL ? owned : a->content, len, i);
    }
    free(owned);
    return GR_OK;
}

enum gr_status gr_tok_build_tries(struct gr_tokenizer *tok)
{
    size_t n_byte[2] = {0};
    for (int i = 0; i < tok->n_added; i++) {
        const struct gr_added_token *a = &tok->added[i];
        char *owned;
        size_t len;
        GR_TRY(normalized_content(tok, a, &owned, &len));
        free(owned);
        n_byte[a->normalized] += len;
        tok->special_normalized = tok->special_normalized || (a->normalized && a->special);
    }
    if (n_byte[0] > 0) {
        GR_TRY(trie_init(&tok->raw_trie, n_byte[0]));
    }
    if (n_byte[1] > 0) {
        GR_TRY(trie_init(&tok->normalized_trie, n_byte[1]));
    }
    for (int i = 0; i < tok->n_added; i++) {
        GR_TRY(insert_token(tok, i));
    }
    return GR_OK;
}

/* ---- what stands beside a match ---- */

bool gr_is_white_space(int32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* \w of Rust's regex, but for a few symbols that are Other_Alphabetic (circled letters). */
static bool is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200C || c == 0x200D; /* Join_Control */
    }
}

/* The character at p, and its length; 0 at the end. */
static size_t char_at(const char *p, size_t n, int32_t *out)
{
    utf8proc_ssize_t len = n == 0 ? 0 : utf8proc_iterate((const uint8_t *)p, (utf8proc_ssize_t)n, out);
    return len > 0 ? (size_t)len : 0;
}

/* The character that ends before text[at], and its length; 0 at the start. */
static size_t char_before(const char *text, size_t at, int32_t *out)
{
    size_t begin = at;
    while (begin > 0) {
        begin--;
        if (((uint8_t)text[begin] & 0xC0) != 0x80) {
            return char_at(text + begin, at - begin, out);
        }
    }
    return 0;
}

static bool is_single_word(const struct gr_added_scan *s, size_t begin, size_t end)
{
    const char *text = s->text->text;
    int32_t c;
    if (char_before(text + s->begin, begin - s->begin, &c) > 0 && is_word(c)) {
        return false;
    }
    return char_at(text + end, s->end - end, &c) == 0 || !is_word(c);
}

/* The longest token whose trie text begins at a byte, and where that text ends (NFC can make it another one than the
 * content's). Special ones end at special_end at the latest. */
static const struct gr_added_token *longest_at(const struct gr_tokenizer *tok, const struct gr_trie *trie,
                                               const struct gr_added_scan *s, size_t at, size_t special_end,
                                               size_t *end_out)
{
    const struct gr_added_token *best = NULL;
    uint32_t node = 0;
    for (size_t i = at; i < s->end; i++) {
        node = child_of(trie, node, (uint8_t)s->text->text[i]);
        if (node == 0) {
            break;
        }
        const int32_t added = trie->nodes[node].added;
        if (added >= 0 && (!tok->added[added].special || i < special_end)) {
            best = &tok->added[added];
            *end_out = i + 1;
        }
    }
    return best;
}

/* Is a byte in a plain span? *end_out: where that span, or what lies between two, ends. */
static bool is_plain(struct gr_added_scan *s, size_t at, size_t *end_out)
{
    const struct gr_marked_text *t = s->text;
    while (s->i_plain < t->n_plain && t->plain[s->i_plain].end <= at) {
        s->i_plain++;
    }
    const struct gr_text_span *p = s->i_plain < t->n_plain ? &t->plain[s->i_plain] : NULL;
    const bool inside = p != NULL && p->begin <= at;
    *end_out = GR_MIN(inside ? p->end : p != NULL ? p->begin : s->end, s->end);
    return inside;
}

/* The match with the white space beside it that it takes. */
static struct gr_added_match stretch(const struct gr_added_scan *s, const struct gr_added_token *a, size_t begin,
                                     size_t end)
{
    const char *text = s->text->text;
    int32_t c;
    size_t n;
    while (a->lstrip && begin > s->at && (n = char_before(text, begin, &c)) > 0 && gr_is_white_space(c)) {
        begin -= n;
    }
    while (a->rstrip && (n = char_at(text + end, s->end - end, &c)) > 0 && gr_is_white_space(c)) {
        end += n;
    }
    return (struct gr_added_match){.begin = begin, .end = end, .token = a};
}

bool gr_trie_find(const struct gr_tokenizer *tok, const struct gr_trie *trie, struct gr_added_scan *s,
                  struct gr_added_match *out)
{
    for (size_t at = s->at; trie->nodes != NULL && at < s->end;) {
        size_t end = at, same_end;
        const bool plain = is_plain(s, at, &same_end);
        const struct gr_added_token *a = longest_at(tok, trie, s, at, plain ? s->end : same_end, &end);
        if (a == NULL) {
            at++;
        } else if (a->special && plain) { /* as Hugging Face: no shorter token is tried there */
            at = GR_MIN(end, same_end);
        } else if (a->single_word && !is_single_word(s, at, end)) {
            at = end; /* the same */
        } else {
            *out = stretch(s, a, at, end);
            s->at = out->end;
            return true;
        }
    }
    return false;
}
