/* Compiles the patterns of tokenizer.json. They are written for Oniguruma (Ruby syntax); this file
 * lets through the part of that syntax which PCRE2 reads alike, and refuses the rest by name. \s is
 * spelled out: PCRE2's also has U+180E, which is no White_Space. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

/* Oniguruma's \w: Alphabetic, marks, decimal numbers and connectors. Last stand the circled and squared letters. */
#define WORD                                                                                                        \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{" \
    "1f189}"
#define WORD_BEGIN_OR_END "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"
#define NO_WORD_BEGIN_OR_END "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))"

#define WHITE_SPACE                                                                             \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"

struct translation {
    const char *name, *what, *pattern; /* borrowed; for messages */
    const char *p;                     /* next byte of the pattern */
    char *out;                         /* owned; big enough for the worst case */
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
    log_error("%s: %s regex: %s at byte %zu is not supported: %.200s", t->name, t->what, what,
              (size_t)(t->p - t->pattern), t->pattern);
    return GR_EUNSUPPORTED;
}

/* \p{Name}: a general category, or a script. PCRE2 refuses the names that it does not know. */
static enum gr_status translate_property(struct translation *t)
{
    const char *q = t->p + 2;
    if (*q++ != '{') {
        return refuse(t, "\\p without braces");
    }
    const bool negated = *q == '^';
    q += negated;
    const char *name = q;
    q += strspn(q, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_");
    if (q == name || *q != '}') {
        return refuse(t, "this property");
    }
    const size_t len = (size_t)(q - name);
    const bool category = len <= 2 && strchr("LMNPSZC", name[0]) != NULL;
    put(t, t->p, (size_t)(name - t->p));
    put_text(t, category ? "" : "sc:"); /* of a script, not of its extensions */
    put(t, name, len + 1);
    t->p = q + 1;
    return GR_OK;
}

/* \xHH, \x{H...}, \uHHHH. */
static enum gr_status translate_code_point(struct translation *t)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    const bool braces = t->p[1] == 'x' && t->p[2] == '{';
    const char *digits = t->p + (braces ? 3 : 2);
    const size_t n = strspn(digits, hex), want = t->p[1] == 'u' ? 4 : 2;
    if (braces ? n < 1 || n > 6 || digits[n] != '}' : n < want) {
        return refuse(t, "this code point");
    }
    put_text(t, "\\x{");
    put(t, digits, braces ? n : want);
    put_text(t, "}");
    t->p = digits + (braces ? n + 1 : want);
    return GR_OK;
}

static void put_set(struct translation *t, const char *open, const char *set)
{
    put_text(t, t->in_class ? "" : open);
    put_text(t, set);
    put_text(t, t->in_class ? "" : "]");
    t->p += 2;
}

/* The escapes that mean something else to PCRE2, or nothing. False: none of them. */
static bool translate_set(struct translation *t)
{
    switch (t->p[1]) {
    case 's':
        put_set(t, "[", WHITE_SPACE);
        return true;
    case 'S':
        put_set(t, "[^", t->in_class ? "\\S\\x{180e}" : WHITE_SPACE);
        return true;
    case 'w':
        put_set(t, "[", WORD);
        return true;
    case 'W':
        if (!t->in_class) {
            put_set(t, "[^", WORD);
        }
        return !t->in_class;
    case 'h':
        put_set(t, "[", "0-9a-fA-F");
        return true;
    case 'b':
    case 'B':
        if (!t->in_class) {
            put_text(t, t->p[1] == 'b' ? WORD_BEGIN_OR_END : NO_WORD_BEGIN_OR_END);
            t->p += 2;
        }
        return !t->in_class;
    default:
        return false;
    }
}

static enum gr_status translate_escape(struct translation *t)
{
    char c = t->p[1];
    if (c == 'p' || c == 'P') {
        return translate_property(t);
    }
    if (c == 'x' || c == 'u') {
        return translate_code_point(t);
    }
    if (translate_set(t)) {
        return GR_OK;
    }
    bool is_punct =
        c > ' ' && c < 0x7f && !((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'));
    if (is_punct || (c != '\0' && strchr(t->in_class ? "dDrntfae" : "dDrntfaeAzZ", c) != NULL)) {
        copy(t, 2);
        return GR_OK;
    }
    return refuse(
        t, "an escape other than \\s \\S \\w \\W \\d \\D \\h \\b \\B \\p \\P \\x \\u \\A \\z or of one character");
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

static enum gr_status compile(const char *name, const char *what, const char *original, const char *pattern, size_t len,
                              uint32_t options, pcre2_code **out)
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
        log_error("%s: %s regex: %s: %.200s", name, what, text, original);
        return GR_EFORMAT;
    }
    /* Without JIT (a hardened kernel, say) matching is slower, and right. */
    if (pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) != 0) {
        log_debug("%s: no JIT for the %s regex", name, what);
    }
    *out = code;
    return GR_OK;
}

enum gr_status gr_split_compile(const char *name, const char *what, const struct gr_tok_pattern *pattern,
                                pcre2_code **out)
{
    size_t len = strlen(pattern->text);
    if (len == 0 || len > GR_TOK_PATTERN_BYTES) {
        log_error("%s: %s regex has %zu bytes, must be 1..%d", name, what, len, GR_TOK_PATTERN_BYTES);
        return GR_ELIMIT;
    }
    if (pattern->literal) {
        return compile(name, what, pattern->text, pattern->text, len, PCRE2_UTF | PCRE2_LITERAL, out);
    }
    /* Two bytes (\b) grow to the longest of the sets at most. */
    struct translation t = {.name = name, .what = what, .pattern = pattern->text, .p = pattern->text};
    t.out = malloc(len * (sizeof(WORD_BEGIN_OR_END) / 2 + 1) + 1);
    if (t.out == NULL) {
        log_error("%s: no memory for a regex", name);
        return GR_ENOMEM;
    }
    enum gr_status st = translate(&t);
    if (st == GR_OK) {
        /* Oniguruma's ^ and $ are those of lines. */
        const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE;
        st = compile(name, what, pattern->text, t.out, t.n, options, out);
    }
    free(t.out);
    return st;
}
