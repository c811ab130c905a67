/* What a GGUF file says of its tokenizer into parts. A GGUF file names the pre-tokenizer and does not spell it: the
 * table below has the patterns of the models' own tokenizer.json files by those names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL
#define QWEN2 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL
#define QWEN35 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K                                                                                            \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER \
    "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL
#define TEKKEN                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define DEEPSEEK3                                                                                          \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?" \
    "[\\p{P}\\p{S}]+[\\r\\n]*" TAIL
/* Letters of the scripts with two cases, as DeepSeek's first tokenizer lists them. */
/* clang-format off */
#define DEEPSEEK_LETTERS \
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ" \
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛ" \
    "Ꜣ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
/* clang-format on */

struct pre_row {
    const char *names; /* with blanks between */
    const char *patterns[6];
    bool ignore_merges, nfc, add_bos;
};

static const struct pre_row rows[] = {
    {.names = " llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     .patterns = {LLAMA3},
     .ignore_merges = true,
     .add_bos = true},
    {.names = " smaug-bpe dbrx chatglm-bpe ", .patterns = {LLAMA3}},
    {.names = " glm4 ", .patterns = {LLAMA3}, .ignore_merges = true},
    {.names = " qwen2 deepseek-r1-qwen stablelm2 megrez ", .patterns = {QWEN2}, .nfc = true},
    {.names = " qwen35 ", .patterns = {QWEN35}},
    {.names = " gpt-2 phi-2 exaone4 ", .patterns = {GPT2}},
    {.names = " mpt olmo ", .patterns = {GPT2}, .nfc = true},
    {.names = " starcoder refact smollm codeshell ", .patterns = {"\\p{N}", GPT2}},
    {.names = " command-r ", .patterns = {"\\p{N}", GPT2}, .nfc = true},
    {.names = " gpt-4o llama4 ", .patterns = {O200K}},
    {.names = " tekken ", .patterns = {TEKKEN}, .ignore_merges = true, .add_bos = true},
    {.names = " deepseek-v3 ", .patterns = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3}},
    {.names = " deepseek-coder ",
     .patterns = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", "\\p{N}"}},
    {.names = " deepseek-llm ",
     .patterns = {"[\\r\\n]", DEEPSEEK_LETTERS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", "[一-龥ࠀ-一가-퟿]+",
                  "\\p{N}"}},
};

static const struct pre_row *find_row(const char *pre)
{
    char word[72];
    const int n = snprintf(word, sizeof(word), " %s ", pre);
    for (size_t i = 0; i < GR_ARRAY_LEN(rows) && n < (int)sizeof(word) && strchr(pre, ' ') == NULL; i++) {
        if (strstr(rows[i].names, word) != NULL) {
            return &rows[i];
        }
    }
    return NULL;
}

bool gr_tok_pre_by_name(const char *pre, struct gr_tokenizer_parts *parts)
{
    const struct pre_row *row = find_row(pre);
    if (row == NULL) {
        return false;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(row->patterns) && row->patterns[i] != NULL; i++) {
        parts->pres[parts->n_pre++] = (struct gr_pre_part){.kind = GR_PRE_SPLIT, .pattern.text = row->patterns[i]};
    }
    if (row->nfc) {
        parts->norms[parts->n_norm++].kind = GR_NORM_NFC;
    }
    parts->ignore_merges = row->ignore_merges;
    parts->byte_level = true;
    parts->decode.byte_level = true;
    return true;
}

static enum gr_status unknown_pre(const char *path, const char *pre)
{
    char known[1024] = "";
    size_t n = 0;
    for (size_t i = 0; i < GR_ARRAY_LEN(rows) && n < sizeof(known); i++) {
        const char *names = rows[i].names + 1; /* they begin and end with a blank */
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%.*s", i > 0 ? " " : "", (int)strlen(names) - 1, names);
    }
    log_error("%s: tokenizer.ggml.pre %.40s is not supported; known: %s", path, pre, known);
    return GR_EUNSUPPORTED;
}

struct reader {
    const struct gr_gguf_vocab *v;
    struct gr_tokenizer_parts parts;
    struct gr_tok_text *tokens;  /* owned, [n_token] */
    struct gr_tok_merge *merges; /* owned */
    struct gr_tok_added *added;  /* owned */
};

/* ---- kind gpt2 ---- */

static bool token_is(const struct gr_gguf_vocab *v, int32_t id, const char *text)
{
    return id < v->n_token && v->tokens[id].len == strlen(text) && memcmp(v->tokens[id].text, text, strlen(text)) == 0;
}

/* Files without a name, or with a name that says nothing, of vocabularies that are known without doubt. */
static const char *guess_pre(const struct gr_gguf_vocab *v)
{
    const char *pre = token_is(v, 128000, "<|begin_of_text|>") ? "llama3"
                      : token_is(v, 151644, "<|im_start|>")    ? "qwen2"
                                                               : NULL;
    if (pre == NULL) {
        log_warn("%s: tokenizer.ggml.pre is %s: the pre-tokenizer of gpt-2 is taken; if it is another one the model "
                 "reads worse",
                 v->name, v->pre != NULL ? v->pre : "missing");
    }
    return pre != NULL ? pre : "gpt-2";
}

static enum gr_status read_gpt2(struct reader *r)
{
    const struct gr_gguf_vocab *v = r->v;
    const bool nameless = v->pre == NULL || v->pre[0] == '\0' || strcmp(v->pre, "default") == 0;
    const char *pre = nameless ? guess_pre(v) : v->pre;
    if (!gr_tok_pre_by_name(pre, &r->parts)) {
        return unknown_pre(v->name, pre);
    }
    if (v->add_bos < 0 ? find_row(pre)->add_bos : v->add_bos != 0) {
        r->parts.n_template = v->bos_id >= 0;
    }
    return GR_OK;
}

/* ---- kind llama ---- */

static void read_llama(struct reader *r)
{
    const struct gr_gguf_vocab *v = r->v;
    struct gr_tokenizer_parts *p = &r->parts;
    if (v->add_space_prefix) {
        p->norms[p->n_norm++] = (struct gr_norm_part){.kind = GR_NORM_PREPEND, .content = GR_TOK_MARK};
    }
    p->norms[p->n_norm++] =
        (struct gr_norm_part){.kind = GR_NORM_REPLACE, .pattern = {" ", true}, .content = GR_TOK_MARK};
    p->scores = v->n_merge == 0 ? v->scores : NULL;
    p->byte_fallback = p->decode.byte_fallback = true;
    p->decode.replace[0].from = GR_TOK_MARK;
    p->decode.replace[0].to = " ";
    p->decode.n_replace = 1;
    p->decode.n_strip = v->add_space_prefix;
    p->n_template = v->add_bos != 0 && v->bos_id >= 0;
}

/* ---- tokens and merges of both ---- */

/* Rows that only make the vocabulary's size round. */
static bool is_padding(struct gr_tok_text t, int32_t type)
{
    return type == GR_GGUF_UNUSED && t.len > 5 && memcmp(t.text, "[PAD", 4) == 0;
}

static enum gr_status read_tokens(struct reader *r)
{
    const struct gr_gguf_vocab *v = r->v;
    if (v->n_token < 1 || v->n_token > GR_TOKENIZER_N_VOCAB) {
        log_error("%s: tokenizer.ggml.tokens has %d entries, must be 1..%d", v->name, v->n_token, GR_TOKENIZER_N_VOCAB);
        return GR_ELIMIT;
    }
    r->tokens = calloc((size_t)v->n_token, sizeof(*r->tokens));
    r->added = calloc((size_t)v->n_token, sizeof(*r->added));
    if (r->tokens == NULL || r->added == NULL) {
        log_error("%s: no memory for %d tokens", v->name, v->n_token);
        return GR_ENOMEM;
    }
    for (int32_t id = 0; id < v->n_token; id++) {
        const int32_t type = v->types != NULL ? v->types[id] : GR_GGUF_NORMAL;
        if (is_padding(v->tokens[id], type)) {
            continue;
        }
        r->tokens[id] = v->tokens[id];
        if (type == GR_GGUF_UNKNOWN || type == GR_GGUF_CONTROL || type == GR_GGUF_USER_DEFINED) {
            r->added[r->parts.n_added++] =
                (struct gr_tok_added){.content = v->tokens[id], .id = id, .special = type != GR_GGUF_USER_DEFINED};
        }
    }
    r->parts.tokens = r->tokens;
    r->parts.n_vocab = v->n_token;
    r->parts.added = r->added;
    return GR_OK;
}

static enum gr_status read_merges(struct reader *r)
{
    const struct gr_gguf_vocab *v = r->v;
    r->merges = calloc(v->n_merge + 1, sizeof(*r->merges));
    if (r->merges == NULL) {
        log_error("%s: no memory for %zu merges", v->name, v->n_merge);
        return GR_ENOMEM;
    }
    for (size_t i = 0; i < v->n_merge; i++) {
        const struct gr_tok_text t = v->merges[i];
        const char *space = t.len > 2 ? memchr(t.text + 1, ' ', t.len - 1) : NULL;
        if (space == NULL) {
            log_error("%s: tokenizer.ggml.merges[%zu] must be \"left right\"", v->name, i);
            return GR_EFORMAT;
        }
        const uint32_t n = (uint32_t)(space - t.text);
        r->merges[i] = (struct gr_tok_merge){.left = {t.text, n}, .right = {space + 1, t.len - n - 1}};
    }
    r->parts.merges = r->merges;
    r->parts.n_merge = v->n_merge;
    return GR_OK;
}

static enum gr_status read_kind(struct reader *r)
{
    const struct gr_gguf_vocab *v = r->v;
    if (strcmp(v->kind, "gpt2") == 0) {
        return read_gpt2(r);
    }
    if (strcmp(v->kind, "llama") == 0 && (v->scores != NULL || v->n_merge > 0)) {
        read_llama(r);
        return GR_OK;
    }
    log_error("%s: tokenizer.ggml.model %.40s%s is not supported; known: gpt2, llama", v->name, v->kind,
              strcmp(v->kind, "llama") == 0 ? " without scores or merges" : "");
    return GR_EUNSUPPORTED;
}

enum gr_status gr_tokenizer_from_gguf(const struct gr_gguf_vocab *v, struct gr_tokenizer **out)
{
    struct reader r = {.v = v};
    char unk[GR_TOKEN_BYTES_MAX + 1];
    r.parts = (struct gr_tokenizer_parts){
        .name = v->name, .tokens_field = "tokenizer.ggml.tokens", .merge_field = "tokenizer.ggml.merges"};
    r.parts.template_ids[0] = v->bos_id;
    if (v->unk_id >= 0 && v->unk_id < v->n_token && strcmp(v->kind, "llama") == 0) {
        snprintf(unk, sizeof(unk), "%.*s", (int)GR_MIN(v->tokens[v->unk_id].len, (uint32_t)GR_TOKEN_BYTES_MAX),
                 v->tokens[v->unk_id].text);
        r.parts.unk = unk;
    }
    enum gr_status st = read_kind(&r);
    if (st == GR_OK) {
        st = read_tokens(&r);
    }
    if (st == GR_OK) {
        st = read_merges(&r);
    }
    if (st == GR_OK) {
        st = gr_tokenizer_build(&r.parts, out);
    }
    free(r.tokens);
    free(r.merges);
    free(r.added);
    return st;
}
