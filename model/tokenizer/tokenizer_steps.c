/* The fields of tokenizer.json around the model: normalizer, pre_tokenizer, post_processor,
 * decoder. Each step that graft does not do just as Hugging Face does is refused by name. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/log.h"
#include "model/files/json_util.h"
#include "model/tokenizer/tokenizer_internal.h"

/* GPT-2's, which ByteLevel brings with use_regex. */
#define BYTE_LEVEL_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Longer runs of combining marks cost quadratic time in utf8proc; no script has them (Unicode's
 * stream-safe format, UAX 15 sec. 13, allows 30). */
#define COMBINING_RUN_MAX 256

/* ---- normalizer ---- */

/* A step's type; missing is an error. */
static enum gr_status type_of(const struct gr_json_where *w, const char **out)
{
    return gr_json_string(w, "type", true, out);
}

static enum gr_status unknown_type(const struct gr_json_where *w, const char *type, const char *known)
{
    log_error("%s: %stype %.40s is not supported; known: %s", w->name, w->prefix, type, known);
    return GR_EUNSUPPORTED;
}

/* Calls fn on every object of the list under key. */
typedef enum gr_status step_fn(struct gr_tokenizer *tok, const struct gr_json_where *w);

static enum gr_status each_step(struct gr_tokenizer *tok, const struct gr_json_where *w, const char *key, step_fn *fn)
{
    const char *const keys[] = {"type", key, NULL};
    const json_t *list = NULL;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_array(w, key, true, &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct gr_json_where step = {w->name, w->prefix, json_array_get(list, i)};
        if (!json_is_object(step.obj)) {
            log_error("%s: %s%s[%zu] must be an object", w->name, w->prefix, key, i);
            return GR_EFORMAT;
        }
        GR_TRY(fn(tok, &step));
    }
    return GR_OK;
}

static enum gr_status normalizer_step(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", NULL};
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "NFC") != 0) {
        return unknown_type(w, type, "NFC, Sequence of NFC");
    }
    tok->nfc = true;
    return gr_json_only_keys(w, keys);
}

static enum gr_status parse_normalizer(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "Sequence") == 0) {
        return each_step(tok, w, "normalizers", normalizer_step);
    }
    return normalizer_step(tok, w);
}

/* Below U+0300, that is below the byte 0xCC, every text is NFC. */
static bool is_nfc_by_range(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if ((uint8_t)text[i] >= 0xCC) {
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

enum gr_status gr_tok_nfc(const char *text, size_t len, char **out, size_t *len_out)
{
    *out = NULL;
    if (is_nfc_by_range(text, len)) {
        *len_out = len;
        return GR_OK;
    }
    if (has_long_run(text, len)) {
        log_error("tokenizer: the text has more than %d combining marks in a row", COMBINING_RUN_MAX);
        return GR_ELIMIT;
    }
    uint8_t *nfc = NULL;
    utf8proc_ssize_t n =
        utf8proc_map((const uint8_t *)text, (utf8proc_ssize_t)len, &nfc, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0) {
        log_error("tokenizer: NFC of %zu bytes: %s", len, utf8proc_errmsg(n));
        return n == UTF8PROC_ERROR_NOMEM ? GR_ENOMEM : GR_EFORMAT;
    }
    *out = (char *)nfc;
    *len_out = (size_t)n;
    return GR_OK;
}

/* ---- pre_tokenizer ---- */

static enum gr_status add_split(struct gr_tokenizer *tok, const char *name, const char *pattern, bool literal,
                                bool drop_gaps)
{
    if (tok->n_split == GR_TOK_N_SPLIT_MAX) {
        log_error("%s: pre_tokenizer has more than %d Split steps", name, GR_TOK_N_SPLIT_MAX);
        return GR_ELIMIT;
    }
    struct gr_split *split = &tok->splits[tok->n_split];
    GR_TRY(gr_split_compile(name, pattern, literal, &split->code));
    split->drop_gaps = drop_gaps;
    tok->n_split++;
    return GR_OK;
}

static enum gr_status parse_split(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    const json_t *pattern = NULL;
    const char *behavior = "", *regex = NULL, *literal = NULL;
    bool invert = false;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_object(w, "pattern", true, &pattern));
    GR_TRY(gr_json_string(w, "behavior", true, &behavior));
    GR_TRY(gr_json_bool(w, "invert", false, &invert));
    struct gr_json_where pw = {w->name, "pre_tokenizer.pattern.", pattern};
    GR_TRY(gr_json_string(&pw, "Regex", false, &regex));
    GR_TRY(gr_json_string(&pw, "String", false, &literal));
    if (json_object_size(pattern) != 1 || (regex == NULL && literal == NULL)) {
        log_error("%s: pre_tokenizer.pattern must be {\"Regex\": ...} or {\"String\": ...}", w->name);
        return GR_EFORMAT;
    }
    bool isolated = strcmp(behavior, "Isolated") == 0;
    /* Removed and inverted: what the regex does not match is left out. */
    if (!isolated && !(strcmp(behavior, "Removed") == 0 && invert)) {
        log_error("%s: pre_tokenizer.behavior %.40s%s is not supported; known: Isolated, Removed "
                  "with invert",
                  w->name, behavior, invert ? " with invert" : "");
        return GR_EUNSUPPORTED;
    }
    return add_split(tok, w->name, regex != NULL ? regex : literal, regex == NULL, !isolated);
}

static enum gr_status parse_byte_level(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    bool prefix_space = true, use_regex = true; /* Hugging Face's defaults */
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_bool(w, "add_prefix_space", false, &prefix_space));
    GR_TRY(gr_json_bool(w, "use_regex", false, &use_regex));
    if (prefix_space) {
        log_error("%s: pre_tokenizer ByteLevel with add_prefix_space = true is not supported", w->name);
        return GR_EUNSUPPORTED;
    }
    return use_regex ? add_split(tok, w->name, BYTE_LEVEL_PATTERN, false, false) : GR_OK;
}

/* The last step has to be ByteLevel: it is what makes bytes of the text. */
static enum gr_status parse_pre_sequence(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", "pretokenizers", NULL};
    const json_t *list = NULL;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_array(w, "pretokenizers", true, &list));
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        struct gr_json_where step = {w->name, w->prefix, json_array_get(list, i)};
        const char *type = "";
        GR_TRY(type_of(&step, &type));
        if (strcmp(type, "Split") == 0 && i + 1 < n) {
            GR_TRY(parse_split(tok, &step));
        } else if (strcmp(type, "ByteLevel") == 0 && i + 1 == n) {
            return parse_byte_level(tok, &step);
        } else {
            return unknown_type(&step, type, "Split, and ByteLevel as the last step");
        }
    }
    log_error("%s: pre_tokenizer has no steps; ByteLevel must be the last", w->name);
    return GR_EUNSUPPORTED;
}

static enum gr_status parse_pre_tokenizer(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "Sequence") == 0) {
        return parse_pre_sequence(tok, w);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return parse_byte_level(tok, w);
    }
    return unknown_type(w, type, "ByteLevel, Sequence of Split and ByteLevel");
}

/* ---- post_processor ---- */

static enum gr_status add_template_id(struct gr_tokenizer *tok, const struct gr_json_where *w, const json_t *value)
{
    long long id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= tok->n_vocab || tok->entries[id].bytes == NULL) {
        log_error("%s: post_processor: an id in special_tokens is no token (%lld)", w->name, id);
        return GR_EFORMAT;
    }
    if (tok->n_template == GR_TOK_N_TEMPLATE_MAX) {
        log_error("%s: post_processor: more than %d tokens before the text", w->name, GR_TOK_N_TEMPLATE_MAX);
        return GR_ELIMIT;
    }
    tok->template_ids[tok->n_template++] = (int32_t)id;
    return GR_OK;
}

static enum gr_status add_template_token(struct gr_tokenizer *tok, const struct gr_json_where *w, const json_t *piece)
{
    const char *key = json_string_value(json_object_get(piece, "id"));
    const json_t *map = json_object_get(w->obj, "special_tokens");
    const json_t *ids = key != NULL ? json_object_get(json_object_get(map, key), "ids") : NULL;
    if (json_array_size(ids) == 0) {
        log_error("%s: post_processor: special_tokens has no ids for %.64s", w->name, key != NULL ? key : "(no id)");
        return GR_EFORMAT;
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        GR_TRY(add_template_id(tok, w, json_array_get(ids, i)));
    }
    return GR_OK;
}

/* "single": special tokens, then sequence A. Tokens after the text would end every prompt:
 * refused. */
static enum gr_status parse_template(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
    const json_t *single = NULL;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_array(w, "single", true, &single));
    bool seen_text = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        const json_t *sequence = json_object_get(piece, "Sequence");
        if (special != NULL && !seen_text) {
            GR_TRY(add_template_token(tok, w, special));
        } else if (sequence != NULL && !seen_text) {
            seen_text = true;
        } else {
            log_error("%s: post_processor.single[%zu]: only special tokens followed by one "
                      "Sequence are supported",
                      w->name, i);
            return GR_EUNSUPPORTED;
        }
    }
    if (!seen_text) {
        log_error("%s: post_processor.single has no Sequence", w->name);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status post_step(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "TemplateProcessing") == 0) {
        if (tok->n_template > 0) {
            log_error("%s: post_processor has more than one TemplateProcessing", w->name);
            return GR_EUNSUPPORTED;
        }
        return parse_template(tok, w);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return GR_OK; /* moves offsets, which graft has not */
    }
    return unknown_type(w, type, "ByteLevel, TemplateProcessing, Sequence of these");
}

static enum gr_status parse_post_processor(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "Sequence") == 0) {
        return each_step(tok, w, "processors", post_step);
    }
    return post_step(tok, w);
}

/* ---- decoder ---- */

static enum gr_status decoder_step(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    (void)tok; /* nothing to keep: there is one decoder */
    const char *type = "";
    GR_TRY(type_of(w, &type));
    return strcmp(type, "ByteLevel") == 0 ? GR_OK : unknown_type(w, type, "ByteLevel");
}

static enum gr_status parse_decoder(struct gr_tokenizer *tok, const struct gr_json_where *w)
{
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "Sequence") == 0) {
        return each_step(tok, w, "decoders", decoder_step);
    }
    return decoder_step(tok, w);
}

enum gr_status gr_tok_parse_steps(struct gr_tokenizer *tok, const char *name, const json_t *root)
{
    static const struct {
        const char *key, *prefix;
        bool required;
        step_fn *parse;
    } steps[] = {
        {"normalizer", "normalizer.", false, parse_normalizer},
        {"pre_tokenizer", "pre_tokenizer.", true, parse_pre_tokenizer},
        {"post_processor", "post_processor.", false, parse_post_processor},
        {"decoder", "decoder.", true, parse_decoder},
    };
    struct gr_json_where w = {name, "", root};
    for (size_t i = 0; i < GR_ARRAY_LEN(steps); i++) {
        const json_t *obj = NULL;
        GR_TRY(gr_json_object(&w, steps[i].key, steps[i].required, &obj));
        if (obj != NULL) {
            struct gr_json_where step = {name, steps[i].prefix, obj};
            GR_TRY(steps[i].parse(tok, &step));
        }
    }
    return GR_OK;
}
