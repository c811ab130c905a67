/* The pre-tokenizer's steps over one text between added tokens. The steps nest: each hands its pieces to the next, the
 * last to the caller. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

#define JIT_STACK_MIN_BYTES (32u << 10)
#define JIT_STACK_MAX_BYTES (1u << 20)

struct gr_splitter {
    const struct gr_tokenizer *tok;
    gr_piece_fn *fn;
    void *user;
    bool first, glued;                         /* of the text at hand */
    pcre2_match_data *match[GR_TOK_N_PRE_MAX]; /* one for each step: the steps nest */
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
};

enum gr_status gr_splitter_create(const struct gr_tokenizer *tok, gr_piece_fn *fn, void *user, struct gr_splitter **out)
{
    struct gr_splitter *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        log_error("tokenizer: no memory to encode");
        return GR_ENOMEM;
    }
    *s = (struct gr_splitter){.tok = tok, .fn = fn, .user = user};
    s->context = pcre2_match_context_create(NULL);
    s->jit_stack = pcre2_jit_stack_create(JIT_STACK_MIN_BYTES, JIT_STACK_MAX_BYTES, NULL);
    bool complete = s->context != NULL;
    for (int i = 0; i < tok->n_pre; i++) {
        s->match[i] = pcre2_match_data_create(1, NULL);
        complete = complete && s->match[i] != NULL;
    }
    if (!complete) {
        log_error("tokenizer: no memory to encode");
        gr_splitter_destroy(s);
        return GR_ENOMEM;
    }
    /* NULL where PCRE2 has no JIT: then the machine stack's 32 KB are not used either. */
    pcre2_jit_stack_assign(s->context, NULL, s->jit_stack);
    *out = s;
    return GR_OK;
}

void gr_splitter_destroy(struct gr_splitter *s)
{
    if (s == NULL) {
        return;
    }
    for (int i = 0; i < GR_TOK_N_PRE_MAX; i++) {
        pcre2_match_data_free(s->match[i]);
    }
    pcre2_jit_stack_free(s->jit_stack);
    pcre2_match_context_free(s->context);
    free(s);
}

/* ---- matches ---- */

static enum gr_status match_failed(int rc, size_t from, size_t len)
{
    char message[128];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof(message));
    log_error("tokenizer: pre_tokenizer regex at byte %zu of %zu: %s", from, len, message);
    return rc == PCRE2_ERROR_NOMEMORY ? GR_ENOMEM : GR_ELIMIT;
}

struct match {
    size_t begin, end;
    bool found;
};

/* Next match at or after `from' that is not the empty one at `last_end', the end of the match before: so a pattern that
 * can match nothing still comes to an end, as in Hugging Face's code. */
static enum gr_status next_match(const struct gr_splitter *s, int step, const char *text, size_t len, size_t from,
                                 size_t last_end, struct match *out)
{
    const pcre2_code *code = s->tok->pres[step].code;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->match[step]);
    *out = (struct match){.begin = len, .end = len};
    while (from <= len) {
        int rc = pcre2_match(code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, s->match[step], s->context);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
            /* The interpreter keeps its state on the heap, within PCRE2's limit. */
            rc = pcre2_match(code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match[step],
                             s->context);
        }
        if (rc == PCRE2_ERROR_NOMATCH) {
            return GR_OK;
        }
        if (rc < 0) {
            return match_failed(rc, from, len);
        }
        GR_ASSERT(range[0] >= from && range[1] >= range[0]);
        if (range[1] > range[0] || range[1] != last_end) {
            *out = (struct match){.begin = range[0], .end = range[1], .found = true};
            return GR_OK;
        }
        from++;
        while (from < len && ((uint8_t)text[from] & 0xC0) == 0x80) {
            from++;
        }
    }
    return GR_OK;
}

static enum gr_status run_steps(struct gr_splitter *s, int step, const char *text, size_t len, bool head);

/* ---- Split ---- */

/* Pieces come in order, matches and what lies between; a held piece waits for what joins it. */
struct joiner {
    struct gr_splitter *s;
    int step;
    const char *text;
    bool head;
    bool held, last_is_match;
    size_t begin, end; /* of the held piece */
};

static enum gr_status joiner_flush(struct joiner *j)
{
    if (!j->held) {
        return GR_OK;
    }
    j->held = false;
    return run_steps(j->s, j->step + 1, j->text + j->begin, j->end - j->begin, j->head && j->begin == 0);
}

static bool joins(const struct joiner *j, bool is_match)
{
    switch (j->s->tok->pres[j->step].behavior) {
    case GR_SPLIT_CONTIGUOUS:
        return is_match == j->last_is_match;
    case GR_SPLIT_MERGED_WITH_PREVIOUS:
        return is_match && !j->last_is_match;
    case GR_SPLIT_MERGED_WITH_NEXT:
        return !is_match && j->last_is_match;
    case GR_SPLIT_ISOLATED:
    case GR_SPLIT_REMOVED:
        break;
    }
    return false;
}

static enum gr_status joiner_add(struct joiner *j, size_t begin, size_t end, bool is_match)
{
    const struct gr_pre *p = &j->s->tok->pres[j->step];
    if (p->behavior == GR_SPLIT_REMOVED && is_match != p->invert) {
        return GR_OK;
    }
    is_match = is_match != p->invert;
    if (j->held && joins(j, is_match)) {
        j->end = end;
    } else {
        GR_TRY(joiner_flush(j));
        j->held = true;
        j->begin = begin;
        j->end = end;
    }
    j->last_is_match = is_match;
    return GR_OK;
}

static enum gr_status split_joined(struct gr_splitter *s, int step, const char *text, size_t len, bool head)
{
    struct joiner j = {.s = s, .step = step, .text = text, .head = head};
    struct match m = {.found = true};
    for (size_t at = 0, last = SIZE_MAX; m.found; at = last = m.end) {
        GR_TRY(next_match(s, step, text, len, at, last, &m));
        if (m.begin > at) {
            GR_TRY(joiner_add(&j, at, m.begin, false));
        }
        if (m.found) {
            GR_TRY(joiner_add(&j, m.begin, m.end, true));
        }
    }
    return joiner_flush(&j);
}

static enum gr_status split_isolated(struct gr_splitter *s, int step, const char *text, size_t len, bool head)
{
    struct match m = {.found = true};
    for (size_t at = 0, last = SIZE_MAX; m.found; at = last = m.end) {
        GR_TRY(next_match(s, step, text, len, at, last, &m));
        GR_TRY(run_steps(s, step + 1, text + at, m.begin - at, head && at == 0));
        GR_TRY(run_steps(s, step + 1, text + m.begin, m.end - m.begin, head && m.begin == 0));
    }
    return GR_OK;
}

/* ---- steps that change the text ---- */

static enum gr_status prefix_space(struct gr_splitter *s, int step, const char *text, size_t len, bool head)
{
    if (text[0] == ' ' || (head && s->glued)) {
        return run_steps(s, step + 1, text, len, head);
    }
    char *copy = malloc(len + 1);
    if (copy == NULL) {
        log_error("tokenizer: no memory for a piece of %zu bytes", len);
        return GR_ENOMEM;
    }
    copy[0] = ' ';
    memcpy(copy + 1, text, len);
    enum gr_status st = run_steps(s, step + 1, copy, len + 1, head);
    free(copy);
    return st;
}

static bool is_mark(const struct gr_pre *p, const char *text, size_t len)
{
    return len >= p->mark_len && memcmp(text, p->mark, p->mark_len) == 0;
}

/* Each mark begins a piece, and goes with the text up to the next one. */
static enum gr_status split_at_marks(struct gr_splitter *s, int step, const char *text, size_t len, bool head)
{
    const struct gr_pre *p = &s->tok->pres[step];
    size_t begin = 0;
    for (size_t i = 1; i < len && p->split; i++) {
        if (is_mark(p, text + i, len - i)) {
            GR_TRY(run_steps(s, step + 1, text + begin, i - begin, head && begin == 0));
            begin = i;
        }
    }
    return run_steps(s, step + 1, text + begin, len - begin, head && begin == 0);
}

static bool wants_mark(const struct gr_splitter *s, const struct gr_pre *p, const char *text, size_t len, bool head)
{
    if (p->scheme == GR_PREPEND_NEVER || text[0] == ' ' || is_mark(p, text, len) || (head && s->glued)) {
        return false;
    }
    return p->scheme == GR_PREPEND_ALWAYS || (head && s->first);
}

static enum gr_status metaspace(struct gr_splitter *s, int step, const char *text, size_t len, bool head)
{
    const struct gr_pre *p = &s->tok->pres[step];
    size_t n_space = 0, n = 0;
    for (size_t i = 0; i < len; i++) {
        n_space += text[i] == ' ';
    }
    char *marked = malloc(len + (n_space + 1) * p->mark_len);
    if (marked == NULL) {
        log_error("tokenizer: no memory for a piece of %zu bytes", len);
        return GR_ENOMEM;
    }
    if (wants_mark(s, p, text, len, head)) {
        memcpy(marked, p->mark, p->mark_len);
        n = p->mark_len;
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] == ' ') {
            memcpy(marked + n, p->mark, p->mark_len);
            n += p->mark_len;
        } else {
            marked[n++] = text[i];
        }
    }
    enum gr_status st = split_at_marks(s, step, marked, n, head);
    free(marked);
    return st;
}

/* ---- all ---- */

/* Steps from `step' on. As deep as there are steps. head: the piece begins the text at hand. */
static enum gr_status run_steps(struct gr_splitter *s, int step, const char *text, size_t len, bool head)
{
    if (len == 0) {
        return GR_OK;
    }
    if (step == s->tok->n_pre) {
        return s->fn(s->user, text, len);
    }
    switch (s->tok->pres[step].kind) {
    case GR_PRE_PREFIX_SPACE:
        return prefix_space(s, step, text, len, head);
    case GR_PRE_METASPACE:
        return metaspace(s, step, text, len, head);
    case GR_PRE_SPLIT:
        break;
    }
    return s->tok->pres[step].behavior == GR_SPLIT_ISOLATED ? split_isolated(s, step, text, len, head)
                                                            : split_joined(s, step, text, len, head);
}

enum gr_status gr_splitter_run(struct gr_splitter *s, const char *text, size_t len, bool first, bool glued)
{
    s->first = first;
    s->glued = glued;
    return run_steps(s, 0, text, len, true);
}
