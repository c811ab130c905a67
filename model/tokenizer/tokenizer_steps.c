/* The fields of tokenizer.json around the model: normalizer, pre_tokenizer, post_processor,
 * decoder. Each step that graft does not do just as Hugging Face does is refused by name. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

/* GPT-2's, which ByteLevel brings with use_regex. */
#define BYTE_LEVEL_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- all steps ---- */

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

static enum gr_status unsupported(const struct gr_json_where *w, const char *what)
{
    log_error("%s: %s%s is not supported", w->name, w->prefix, what);
    return GR_EUNSUPPORTED;
}

/* Calls fn on every object of the list under key. */
typedef enum gr_status step_fn(struct gr_tokenizer_parts *p, const struct gr_json_where *w);

static enum gr_status each_step(struct gr_tokenizer_parts *p, const struct gr_json_where *w, const char *key,
                                step_fn *fn)
{
    const char *const keys[] = {"type", key, NULL};
    const json_t *list = NULL;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_array(w, key, true, &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct gr_json_where step = {.name = w->name, .prefix = w->prefix, .obj = json_array_get(list, i)};
        if (!json_is_object(step.obj)) {
            log_error("%s: %s%s[%zu] must be an object", w->name, w->prefix, key, i);
            return GR_EFORMAT;
        }
        GR_TRY(fn(p, &step));
    }
    return GR_OK;
}

/* {"Regex": ...} or {"String": ...}. */
static enum gr_status read_pattern(const struct gr_json_where *w, struct gr_tok_pattern *out)
{
    const json_t *pattern = NULL;
    const char *regex = NULL, *literal = NULL;
    GR_TRY(gr_json_object(w, "pattern", true, &pattern));
    struct gr_json_where pw = {.name = w->name, .prefix = w->prefix, .obj = pattern};
    GR_TRY(gr_json_string(&pw, "Regex", false, &regex));
    GR_TRY(gr_json_string(&pw, "String", false, &literal));
    if (json_object_size(pattern) != 1 || (regex == NULL && literal == NULL)) {
        log_error("%s: %spattern must be {\"Regex\": ...} or {\"String\": ...}", w->name, w->prefix);
        return GR_EFORMAT;
    }
    *out = (struct gr_tok_pattern){.text = regex != NULL ? regex : literal, .literal = regex == NULL};
    return GR_OK;
}

/* ---- normalizer ---- */

static enum gr_status read_prepend(const struct gr_json_where *w, struct gr_norm_part *n)
{
    static const char *const keys[] = {"type", "prepend", NULL};
    GR_TRY(gr_json_only_keys(w, keys));
    return gr_json_string(w, "prepend", true, &n->content);
}

static enum gr_status read_replace(const struct gr_json_where *w, struct gr_norm_part *n)
{
    static const char *const keys[] = {"type", "pattern", "content", NULL};
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_string(w, "content", true, &n->content));
    return read_pattern(w, &n->pattern);
}

static enum gr_status normalizer_step(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    static const char *const names[] = {
        [GR_NORM_NFC] = "NFC",   [GR_NORM_NFD] = "NFD",         [GR_NORM_NFKC] = "NFKC",
        [GR_NORM_NFKD] = "NFKD", [GR_NORM_PREPEND] = "Prepend", [GR_NORM_REPLACE] = "Replace"};
    static const char *const keys[] = {"type", NULL};
    const char *type = "";
    size_t kind = 0;
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "Sequence") == 0) {
        return each_step(p, w, "normalizers", normalizer_step);
    }
    while (kind < GR_ARRAY_LEN(names) && strcmp(type, names[kind]) != 0) {
        kind++;
    }
    if (kind == GR_ARRAY_LEN(names)) {
        return unknown_type(w, type, "NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence of these");
    }
    if (p->n_norm == GR_TOK_N_NORM_MAX) {
        log_error("%s: normalizer has more than %d steps", w->name, GR_TOK_N_NORM_MAX);
        return GR_ELIMIT;
    }
    struct gr_norm_part *n = &p->norms[p->n_norm++];
    *n = (struct gr_norm_part){.kind = (enum gr_norm_kind)kind};
    return n->kind == GR_NORM_PREPEND   ? read_prepend(w, n)
           : n->kind == GR_NORM_REPLACE ? read_replace(w, n)
                                        : gr_json_only_keys(w, keys);
}

/* ---- pre_tokenizer ---- */

static enum gr_status add_pre(struct gr_tokenizer_parts *p, struct gr_pre_part part)
{
    if (p->n_pre == GR_TOK_N_PRE_MAX) {
        log_error("%s: pre_tokenizer has more than %d steps", p->name, GR_TOK_N_PRE_MAX);
        return GR_ELIMIT;
    }
    p->pres[p->n_pre++] = part;
    return GR_OK;
}

static enum gr_status pre_split(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const behaviors[] = {[GR_SPLIT_ISOLATED] = "Isolated",
                                            [GR_SPLIT_REMOVED] = "Removed",
                                            [GR_SPLIT_CONTIGUOUS] = "Contiguous",
                                            [GR_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                            [GR_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext"};
    struct gr_pre_part part = {.kind = GR_PRE_SPLIT};
    const char *behavior = "";
    size_t i = 0;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_string(w, "behavior", true, &behavior));
    GR_TRY(gr_json_bool(w, "invert", false, &part.invert));
    GR_TRY(read_pattern(w, &part.pattern));
    while (i < GR_ARRAY_LEN(behaviors) && strcmp(behavior, behaviors[i]) != 0) {
        i++;
    }
    if (i == GR_ARRAY_LEN(behaviors)) {
        log_error("%s: pre_tokenizer.behavior %.40s is not known", w->name, behavior);
        return GR_EUNSUPPORTED;
    }
    part.behavior = (enum gr_split_behavior)i;
    return add_pre(p, part);
}

/* Numeric is more than digits: signs such as one half count too. */
static enum gr_status pre_digits(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", "individual_digits", NULL};
    bool individual = false;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_bool(w, "individual_digits", false, &individual));
    return add_pre(p, (struct gr_pre_part){.kind = GR_PRE_SPLIT, .pattern.text = individual ? "\\p{N}" : "\\p{N}+"});
}

static enum gr_status pre_byte_level(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    bool prefix_space = true, use_regex = true; /* Hugging Face's defaults */
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_bool(w, "add_prefix_space", false, &prefix_space));
    GR_TRY(gr_json_bool(w, "use_regex", false, &use_regex));
    p->byte_level = true;
    if (prefix_space) {
        GR_TRY(add_pre(p, (struct gr_pre_part){.kind = GR_PRE_PREFIX_SPACE}));
    }
    return use_regex ? add_pre(p, (struct gr_pre_part){.kind = GR_PRE_SPLIT, .pattern.text = BYTE_LEVEL_PATTERN})
                     : GR_OK;
}

/* Of the pre-tokenizer and of the decoder. Old files say add_prefix_space only. */
static enum gr_status read_metaspace(const struct gr_json_where *w, struct gr_pre_part *part)
{
    static const char *const keys[] = {"type",    "replacement", "prepend_scheme", "add_prefix_space", "split",
                                       "str_rep", NULL};
    bool prefix_space = true;
    const char *scheme = NULL;
    GR_TRY(gr_json_only_keys(w, keys));
    *part = (struct gr_pre_part){.kind = GR_PRE_METASPACE, .mark = GR_TOK_MARK, .split = true};
    GR_TRY(gr_json_string(w, "replacement", true, &part->mark));
    GR_TRY(gr_json_bool(w, "add_prefix_space", false, &prefix_space));
    GR_TRY(gr_json_bool(w, "split", false, &part->split));
    GR_TRY(gr_json_string(w, "prepend_scheme", false, &scheme));
    if (scheme == NULL) {
        scheme = prefix_space ? "always" : "never";
    }
    part->scheme = strcmp(scheme, "first") == 0   ? GR_PREPEND_FIRST
                   : strcmp(scheme, "never") == 0 ? GR_PREPEND_NEVER
                                                  : GR_PREPEND_ALWAYS;
    if (part->scheme == GR_PREPEND_ALWAYS && strcmp(scheme, "always") != 0) {
        log_error("%s: %sprepend_scheme %.40s is not known", w->name, w->prefix, scheme);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

static enum gr_status pre_metaspace(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    struct gr_pre_part part;
    GR_TRY(read_metaspace(w, &part));
    return add_pre(p, part);
}

static enum gr_status pre_step(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    static const struct {
        const char *type;
        step_fn *read;
    } known[] = {
        {"Split", pre_split}, {"Digits", pre_digits}, {"ByteLevel", pre_byte_level}, {"Metaspace", pre_metaspace}};
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (p->byte_level) { /* it makes bytes of the text: no step could be as in Hugging Face after it */
        return unsupported(w, "pretokenizers: a step after ByteLevel");
    }
    if (strcmp(type, "Sequence") == 0) {
        return each_step(p, w, "pretokenizers", pre_step);
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(known); i++) {
        if (strcmp(type, known[i].type) == 0) {
            return known[i].read(p, w);
        }
    }
    return unknown_type(w, type, "Split, Digits, ByteLevel, Metaspace, Sequence of these");
}

/* ---- post_processor ---- */

static enum gr_status add_template_id(struct gr_tokenizer_parts *p, const struct gr_json_where *w, const json_t *value)
{
    long long id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= GR_TOKENIZER_N_VOCAB) {
        log_error("%s: post_processor: an id in special_tokens is no token (%lld)", w->name, id);
        return GR_EFORMAT;
    }
    if (p->n_template == GR_TOK_N_TEMPLATE_MAX) {
        log_error("%s: post_processor: more than %d tokens before the text", w->name, GR_TOK_N_TEMPLATE_MAX);
        return GR_ELIMIT;
    }
    p->template_ids[p->n_template++] = (int32_t)id;
    return GR_OK;
}

static enum gr_status add_template_token(struct gr_tokenizer_parts *p, const struct gr_json_where *w,
                                         const json_t *piece)
{
    const char *key = json_string_value(json_object_get(piece, "id"));
    const json_t *map = json_object_get(w->obj, "special_tokens");
    const json_t *ids = key != NULL ? json_object_get(json_object_get(map, key), "ids") : NULL;
    if (json_array_size(ids) == 0) {
        log_error("%s: post_processor: special_tokens has no ids for %.64s", w->name, key != NULL ? key : "(no id)");
        return GR_EFORMAT;
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        GR_TRY(add_template_id(p, w, json_array_get(ids, i)));
    }
    return GR_OK;
}

/* "single": special tokens, then sequence A. Tokens after the text would end every prompt:
 * refused. */
static enum gr_status parse_template(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
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
            GR_TRY(add_template_token(p, w, special));
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

static enum gr_status post_step(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "TemplateProcessing") == 0) {
        if (p->n_template > 0) {
            log_error("%s: post_processor has more than one TemplateProcessing", w->name);
            return GR_EUNSUPPORTED;
        }
        return parse_template(p, w);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return GR_OK; /* moves offsets, which graft has not */
    }
    return unknown_type(w, type, "ByteLevel, TemplateProcessing, Sequence of these");
}

static enum gr_status parse_post_processor(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "Sequence") == 0) {
        return each_step(p, w, "processors", post_step);
    }
    return post_step(p, w);
}

/* ---- decoder ---- */

static enum gr_status add_replace(struct gr_tokenizer_parts *p, const struct gr_json_where *w, const char *from,
                                  const char *to)
{
    struct gr_decode_part *d = &p->decode;
    if (d->n_replace == GR_TOK_N_DECODE_MAX) {
        log_error("%s: decoder has more than %d Replace steps", w->name, GR_TOK_N_DECODE_MAX);
        return GR_ELIMIT;
    }
    d->replace[d->n_replace].from = from;
    d->replace[d->n_replace++].to = to;
    return GR_OK;
}

static enum gr_status decode_replace(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    struct gr_norm_part part = {.kind = GR_NORM_REPLACE};
    GR_TRY(read_replace(w, &part));
    if (!part.pattern.literal) {
        return unsupported(w, "pattern: Replace of a regex");
    }
    if (p->decode.byte_fallback || p->decode.fused) {
        return unsupported(w, "decoders: Replace after ByteFallback or Fuse");
    }
    return add_replace(p, w, part.pattern.text, part.content);
}

/* One blank at the start of the text goes, the one that was put there. Hugging Face takes all that the first token
 * begins with, and so the text's own too. */
static enum gr_status decode_metaspace(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    struct gr_pre_part part;
    GR_TRY(read_metaspace(w, &part));
    p->decode.n_strip = part.scheme != GR_PREPEND_NEVER;
    return add_replace(p, w, part.mark, " ");
}

static enum gr_status decode_strip(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", "content", "start", "stop", NULL};
    const char *content = "";
    int start = 0, stop = 0;
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_string(w, "content", true, &content));
    GR_TRY(gr_json_int(w, "start", true, 0, 1, &start));
    GR_TRY(gr_json_int(w, "stop", true, 0, 0, &stop));
    if (strcmp(content, " ") != 0 || !p->decode.fused) {
        return unsupported(w, "decoders: Strip of anything but blanks after Fuse");
    }
    p->decode.n_strip = (uint8_t)start;
    return GR_OK;
}

static enum gr_status decoder_step(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    static const char *const keys[] = {"type", NULL};
    const char *type = "";
    GR_TRY(type_of(w, &type));
    if (strcmp(type, "Sequence") == 0) {
        return each_step(p, w, "decoders", decoder_step);
    }
    if (strcmp(type, "Replace") == 0) {
        return decode_replace(p, w);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return decode_metaspace(p, w);
    }
    if (strcmp(type, "Strip") == 0) {
        return decode_strip(p, w);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        p->decode.byte_level = true;
        return GR_OK;
    }
    p->decode.byte_fallback = p->decode.byte_fallback || strcmp(type, "ByteFallback") == 0;
    p->decode.fused = p->decode.fused || strcmp(type, "Fuse") == 0;
    return strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0
               ? gr_json_only_keys(w, keys)
               : unknown_type(w, type, "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence of these");
}

static enum gr_status parse_decoder(struct gr_tokenizer_parts *p, const struct gr_json_where *w)
{
    GR_TRY(decoder_step(p, w));
    if (p->decode.byte_level && (p->decode.n_replace > 0 || p->decode.byte_fallback || p->decode.n_strip > 0)) {
        return unsupported(w, "decoders: ByteLevel together with others");
    }
    return GR_OK;
}

enum gr_status gr_tok_parse_steps(struct gr_tokenizer_parts *p, const json_t *root)
{
    static const struct {
        const char *key, *prefix;
        bool required;
        step_fn *parse;
    } steps[] = {
        {"normalizer", "normalizer.", false, normalizer_step},
        {"pre_tokenizer", "pre_tokenizer.", false, pre_step},
        {"post_processor", "post_processor.", false, parse_post_processor},
        {"decoder", "decoder.", true, parse_decoder},
    };
    struct gr_json_where w = {.name = p->name, .prefix = "", .obj = root};
    for (size_t i = 0; i < GR_ARRAY_LEN(steps); i++) {
        const json_t *obj = NULL;
        GR_TRY(gr_json_object(&w, steps[i].key, steps[i].required, &obj));
        if (obj != NULL) {
            struct gr_json_where step = {.name = p->name, .prefix = steps[i].prefix, .obj = obj};
            GR_TRY(steps[i].parse(p, &step));
        }
    }
    return GR_OK;
}
