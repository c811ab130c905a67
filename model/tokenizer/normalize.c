/* The normalizer's steps: Unicode's normal forms by utf8proc, a text put in front, texts or regexes replaced. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/grow.h"
#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

/* Longer runs of combining marks cost quadratic time in utf8proc; no script has them (Unicode's stream-safe format,
 * UAX 15 sec. 13, allows 30). */
#define COMBINING_RUN_MAX 256

enum gr_status gr_norm_init(struct gr_norm *n, const char *name, const struct gr_norm_part *part)
{
    n->kind = part->kind;
    if (part->kind != GR_NORM_PREPEND && part->kind != GR_NORM_REPLACE) {
        return GR_OK;
    }
    n->len = strlen(part->content);
    n->content = strdup(part->content);
    if (n->len > GR_TOK_PATTERN_BYTES) {
        log_error("%s: normalizer.content has %zu bytes, limit %d", name, n->len, GR_TOK_PATTERN_BYTES);
        return GR_ELIMIT;
    }
    if (part->kind == GR_NORM_REPLACE && !part->pattern.literal) {
        GR_TRY(gr_split_compile(name, "normalizer", &part->pattern, &n->code));
    } else if (part->kind == GR_NORM_REPLACE) {
        n->literal = strdup(part->pattern.text);
        n->literal_len = strlen(part->pattern.text);
        if (n->literal_len == 0) {
            log_error("%s: normalizer.pattern is empty", name);
            return GR_EUNSUPPORTED;
        }
    }
    if (n->content == NULL || (n->kind == GR_NORM_REPLACE && n->code == NULL && n->literal == NULL)) {
        log_error("%s: no memory for the normalizer", name);
        return GR_ENOMEM;
    }
    return GR_OK;
}

void gr_norm_finish(struct gr_norm *n)
{
    free(n->content);
    free(n->literal);
    pcre2_code_free(n->code);
    *n = (struct gr_norm){0};
}

/* ---- what a step gives ---- */

struct buffer {
    char *text; /* owned */
    size_t len, cap;
    bool changed;
};

static enum gr_status append(struct buffer *b, const char *text, size_t len)
{
    if (len == 0) {
        return GR_OK;
    }
    if (len > GR_TOK_NORMALIZED_BYTES - b->len) {
        log_error("tokenizer: the normalized text is longer than %u bytes", GR_TOK_NORMALIZED_BYTES);
        return GR_ELIMIT;
    }
    char *grown = gr_grow(b->text, &b->cap, b->len + len, 1);
    if (grown == NULL) {
        log_error("tokenizer: no memory for %zu bytes of normalized text", b->len + len);
        return GR_ENOMEM;
    }
    b->text = grown;
    memcpy(b->text + b->len, text, len);
    b->len += len;
    return GR_OK;
}

/* ---- normal forms ---- */

/* Below this byte a text is in the normal form as it is: U+0300 begins with 0xCC, U+00C0 with 0xC3, U+00A0 with 0xC2.
 */
static uint8_t first_byte_to_look_at(enum gr_norm_kind kind)
{
    return kind == GR_NORM_NFC ? 0xCC : kind == GR_NORM_NFD ? 0xC3 : 0xC2;
}

static bool is_normal_by_range(enum gr_norm_kind kind, const char *text, size_t len)
{
    const uint8_t from = first_byte_to_look_at(kind);
    for (size_t i = 0; i < len; i++) {
        if ((uint8_t)text[i] >= from) {
            return false;
        }
    }
    return true;
}

static bool has_long_run(const char *text, size_t len)
{
    size_t run = 0;
    for (size_t i = 0; i < len;) {
        int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)text + i, (utf8proc_ssize_t)(len - i), &c);
        GR_ASSERT(n > 0);
        run = utf8proc_get_property(c)->combining_class != 0 ? run + 1 : 0;
        if (run > COMBINING_RUN_MAX) {
            return true;
        }
        i += (size_t)n;
    }
    return false;
}

/* utf8proc up to 2.9 makes nothing of U+11A7 after a Hangul syllable. It stands before the final consonants, is none
 * and composes with nothing: a text is composed piece by piece around it. */
#define BEFORE_FINALS "\xe1\x86\xa7"

static enum gr_status map_piece(utf8proc_option_t options, const char *text, size_t len, struct buffer *b)
{
    uint8_t *form = NULL;
    utf8proc_ssize_t n = utf8proc_map((const uint8_t *)text, (utf8proc_ssize_t)len, &form, options);
    if (n < 0) {
        log_error("tokenizer: normal form of %zu bytes: %s", len, utf8proc_errmsg(n));
        return n == UTF8PROC_ERROR_NOMEM ? GR_ENOMEM : GR_EFORMAT;
    }
    const enum gr_status st = append(b, (const char *)form, (size_t)n);
    free(form);
    return st;
}

static enum gr_status normal_form(enum gr_norm_kind kind, const char *text, size_t len, struct buffer *b)
{
    static const utf8proc_option_t options[] = {
        [GR_NORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [GR_NORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [GR_NORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [GR_NORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    const size_t n_mark = sizeof(BEFORE_FINALS) - 1;
    if (is_normal_by_range(kind, text, len)) {
        return GR_OK;
    }
    if (has_long_run(text, len)) {
        log_error("tokenizer: the text has more than %d combining marks in a row", COMBINING_RUN_MAX);
        return GR_ELIMIT;
    }
    b->changed = true;
    const char *mark;
    while ((mark = memmem(text, len, BEFORE_FINALS, n_mark)) != NULL) {
        const size_t n = (size_t)(mark - text);
        GR_TRY(map_piece(options[kind], text, n, b));
        GR_TRY(append(b, mark, n_mark));
        text += n + n_mark;
        len -= n + n_mark;
    }
    return map_piece(options[kind], text, len, b);
}

/* ---- Prepend, Replace ---- */

static enum gr_status prepend(const struct gr_norm *n, const char *text, size_t len, struct buffer *b)
{
    b->cap = len + n->len;
    b->text = malloc(b->cap + 1);
    b->changed = true;
    if (b->text == NULL) {
        b->cap = 0;
    }
    GR_TRY(append(b, n->content, n->len));
    return append(b, text, len);
}

static enum gr_status replace_literal(const struct gr_norm *n, const char *text, size_t len, struct buffer *b)
{
    const char *hit;
    size_t at = 0;
    while (at < len && (hit = memmem(text + at, len - at, n->literal, n->literal_len)) != NULL) {
        GR_TRY(append(b, text + at, (size_t)(hit - text) - at));
        GR_TRY(append(b, n->content, n->len));
        b->changed = true;
        at = (size_t)(hit - text) + n->literal_len;
    }
    return b->changed ? append(b, text + at, len - at) : GR_OK;
}

static enum gr_status replace_matches(const struct gr_norm *n, pcre2_match_data *match, const char *text, size_t len,
                                      struct buffer *b)
{
    size_t at = 0, from = 0;
    while (from <= len) {
        int rc = pcre2_match(n->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, match, NULL);
        if (rc == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (rc < 0) {
            log_error("tokenizer: normalizer regex at byte %zu of %zu: error %d", from, len, rc);
            return GR_ELIMIT;
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
        if (range[1] == range[0]) { /* nothing to replace: on by a character */
            from = range[1] + 1;
            while (from < len && ((uint8_t)text[from] & 0xC0) == 0x80) {
                from++;
            }
            continue;
        }
        GR_TRY(append(b, text + at, range[0] - at));
        GR_TRY(append(b, n->content, n->len));
        b->changed = true;
        at = from = range[1];
    }
    return b->changed ? append(b, text + at, len - at) : GR_OK;
}

static enum gr_status replace_regex(const struct gr_norm *n, const char *text, size_t len, struct buffer *b)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (match == NULL) {
        log_error("tokenizer: no memory to normalize");
        return GR_ENOMEM;
    }
    enum gr_status st = replace_matches(n, match, text, len, b);
    pcre2_match_data_free(match);
    return st;
}

/* *out stays NULL when nothing changes. */
static enum gr_status run_step(const struct gr_norm *n, const char *text, size_t len, bool glued, char **out,
                               size_t *len_out)
{
    struct buffer b = {0};
    enum gr_status st = GR_OK;
    if (n->kind <= GR_NORM_NFKD) {
        st = normal_form(n->kind, text, len, &b);
    } else if (n->kind == GR_NORM_PREPEND) {
        st = len > 0 && !glued ? prepend(n, text, len, &b) : GR_OK;
    } else {
        st = n->code != NULL ? replace_regex(n, text, len, &b) : replace_literal(n, text, len, &b);
    }
    if (st == GR_OK && b.changed && b.text == NULL) { /* all of it was replaced by nothing */
        b.text = calloc(1, 1);
        st = b.text != NULL ? GR_OK : GR_ENOMEM;
    }
    if (st != GR_OK) {
        free(b.text);
        return st;
    }
    *out = b.text;
    *len_out = b.len;
    return GR_OK;
}

enum gr_status gr_tok_normalize(const struct gr_tokenizer *tok, const char *text, size_t len, bool glued, char **out,
                                size_t *len_out)
{
    char *now = NULL;
    size_t n = len;
    for (int i = 0; i < tok->n_norm; i++) {
        char *next = NULL;
        size_t n_next = 0;
        enum gr_status st = run_step(&tok->norms[i], now != NULL ? now : text, n, glued, &next, &n_next);
        if (st != GR_OK) {
            free(now);
            return st;
        }
        if (next != NULL) {
            free(now);
            now = next;
            n = n_next;
        }
    }
    *out = now;
    *len_out = n;
    return GR_OK;
}

/* Characters of a text, or its bytes where one of the characters has no token of its own. */
static size_t n_symbol(const struct gr_tokenizer *tok, const char *text, size_t len)
{
    size_t n = 0, size;
    for (size_t i = 0; i < len; i += size) {
        uint32_t id;
        if (gr_utf8_next((const uint8_t *)text + i, len - i, &size) != GR_UTF8_CHAR ||
            !gr_str_table_get(&tok->by_text, text + i, size, &id)) {
            return len;
        }
        n++;
    }
    return n;
}

size_t gr_norm_growth(const struct gr_tokenizer *tok, const struct gr_norm *n)
{
    switch (n->kind) {
    case GR_NORM_NFC: /* bytes to bytes, Unicode's FAQ on normalization */
        return 3;
    case GR_NORM_NFD:
        return 4;
    case GR_NORM_NFKC:
    case GR_NORM_NFKD:
        return 11;
    case GR_NORM_PREPEND:
        return 1 + n_symbol(tok, n->content, n->len);
    case GR_NORM_REPLACE:
        break;
    }
    return GR_MAX((size_t)1, n_symbol(tok, n->content, n->len));
}
