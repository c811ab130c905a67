/* Compiles the patterns of tokenizer.json. They are written for Oniguruma (Ruby syntax); this file
 * lets through the part of that syntax which PCRE2 reads alike, and refuses the rest by name. \s is
 * spelled out: PCRE2's also has U+180E, which is no White_Space. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

#define WHITE_SPACE                                                                             \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"

struct translation {
    const char *name, *pattern; /* borrowed; for messages */
    const char *p;              /* next byte of the pattern */
    char *out;                  /* owned; big enough for the worst case */
    size_t n;
    bool in_class;
};

static void put(struct translation *t, const char *text, size_t len)
{
    memcpy(t->out + t->n, text, len);
    t->n += len;
}

static void put_text(struct translation *t, const char *text)
{
    put(t, text, strlen(text));
}

/* Copies len bytes of the pattern. */
static void copy(struct translation *t, size_t len)
{
    put(t, t->p, len);
    t->p += len;
}

static enum gr_status refuse(const struct translation *t, const char *what)
{
    log_error("%s: pre_tokenizer regex: %s at byte %zu is not supported: %.200s", t->name, what,
              (size_t)(t->p - t->pattern), t->pattern);
    return GR_EUNSUPPORTED;
}

/* \p{L} and the like: general categories only. Names of scripts mean other sets in PCRE2 10.40+. */
static enum gr_status translate_property(struct translation *t)
{
    const char *q = t->p + 2;
    if (*q++ != '{') {
        return refuse(t, "\\p without braces");
    }
    q += *q == '^';
    if (*q == '\0' || strchr("LMNPSZC", *q++) == NULL) {
        return refuse(t, "a property that is no general category");
    }
    q += *q >= 'a' && *q <= 'z';
    if (*q != '}') {
        return refuse(t, "a property that is no general category");
    }
    copy(t, (size_t)(q + 1 - t->p));
    return GR_OK;
}

static enum gr_status translate_escape(struct translation *t)
{
    char c = t->p[1];
    if (c == 'p' || c == 'P') {
        return translate_property(t);
    }
    if (c == 's' || (c == 'S' && !t->in_class)) {
        put_text(t, t->in_class ? "" : c == 's' ? "[" : "[^");
        put_text(t, WHITE_SPACE);
        put_text(t, t->in_class ? "" : "]");
        t->p += 2;
        return GR_OK;
    }
    bool is_punct =
        c > ' ' && c < 0x7f && !((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'));
    if (is_punct || (c != '\0' && strchr("drntf", c) != NULL)) {
        copy(t, 2);
        return GR_OK;
    }
    return refuse(t, "an escape other than \\s \\S \\d \\p \\P \\r \\n \\t \\f or punctuation");
}

/* t->p is after "[" or inside the class. */
static enum gr_status translate_in_class(struct translation *t)
{
    if (*t->p == '[') {
        return refuse(t, "a class inside a class");
    }
    if (t->p[0] == '&' && t->p[1] == '&') {
        return refuse(t, "an intersection of classes");
    }
    t->in_class = *t->p != ']';
    copy(t, 1);
    return GR_OK;
}

static enum gr_status translate_class_start(struct translation *t)
{
    copy(t, t->p[1] == '^' ? 2 : 1);
    t->in_class = true;
    return *t->p == ']' ? refuse(t, "an empty class") : GR_OK;
}

static enum gr_status translate_group(struct translation *t)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (t->p[1] != '?' && t->p[1] != '*') { /* (* starts PCRE2's verbs: they could lift limits */
        copy(t, 1);
        return GR_OK;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(known); i++) {
        size_t len = strlen(known[i]);
        if (strncmp(t->p, known[i], len) == 0) {
            copy(t, len);
            return GR_OK;
        }
    }
    return refuse(t, "this group");
}

/* {n}, {n,} and {n,m}; what follows must not be + or ?, which mean other things to Oniguruma. */
static enum gr_status translate_interval(struct translation *t)
{
    const char *q = t->p + 1;
    size_t n_digit = strspn(q, "0123456789");
    q += n_digit;
    if (*q == ',') {
        q++;
        q += strspn(q, "0123456789");
    }
    if (n_digit == 0 || *q != '}' || q[1] == '+' || q[1] == '?') {
        return refuse(t, "this use of {");
    }
    copy(t, (size_t)(q + 1 - t->p));
    return GR_OK;
}

static enum gr_status translate_next(struct translation *t)
{
    if (*t->p == '\\') {
        return translate_escape(t);
    }
    if (t->in_class) {
        return translate_in_class(t);
    }
    switch (*t->p) {
    case '[':
        return translate_class_start(t);
    case '(':
        return translate_group(t);
    case '{':
        return translate_interval(t);
    case '^':
    case '$':
        return refuse(t, "an anchor"); /* of lines in Oniguruma */
    default:
        copy(t, 1);
        return GR_OK;
    }
}

static enum gr_status translate(struct translation *t)
{
    while (*t->p != '\0') {
        GR_TRY(translate_next(t));
    }
    t->out[t->n] = '\0';
    return GR_OK;
}

static enum gr_status compile(const char *name, const char *original, const char *pattern, size_t len, uint32_t options,
                              pcre2_code **out)
{
    int err;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL) {
        log_error("%s: no memory for a regex", name);
        return GR_ENOMEM;
    }
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* what . stops at, as in Oniguruma */
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, len, options, &err, &at, context);
    pcre2_compile_context_free(context);
    if (code == NULL) {
        char text[128];
        pcre2_get_error_message(err, (PCRE2_UCHAR *)text, sizeof(text));
        log_error("%s: pre_tokenizer regex: %s: %.200s", name, text, original);
        return GR_EFORMAT;
    }
    uint32_t match_empty = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &match_empty);
    if (match_empty != 0) {
        log_error("%s: pre_tokenizer regex can match the empty string, not supported: %.200s", name, original);
        pcre2_code_free(code);
        return GR_EUNSUPPORTED;
    }
    /* Without JIT (a hardened kernel, say) matching is slower, and right. */
    if (pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) != 0) {
        log_debug("%s: no JIT for the pre_tokenizer regex", name);
    }
    *out = code;
    return GR_OK;
}

enum gr_status gr_split_compile(const char *name, const char *pattern, bool literal, pcre2_code **out)
{
    size_t len = strlen(pattern);
    if (len == 0 || len > GR_TOK_PATTERN_BYTES) {
        log_error("%s: pre_tokenizer regex has %zu bytes, must be 1..%d", name, len, GR_TOK_PATTERN_BYTES);
        return GR_ELIMIT;
    }
    if (literal) {
        return compile(name, pattern, pattern, len, PCRE2_UTF | PCRE2_LITERAL, out);
    }
    /* Two bytes (\s) grow to the set with its brackets at most. */
    struct translation t = {.name = name, .pattern = pattern, .p = pattern};
    t.out = malloc(len * (sizeof(WHITE_SPACE) + 3) + 1);
    if (t.out == NULL) {
        log_error("%s: no memory for a regex", name);
        return GR_ENOMEM;
    }
    enum gr_status st = translate(&t);
    if (st == GR_OK) {
        st = compile(name, pattern, t.out, t.n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, out);
    }
    free(t.out);
    return st;
}
