/* Parts into struct gr_tokenizer: what tokens decode to, the tables that merging reads, added tokens, compiled steps,
 * the fingerprint. Whoever fills the parts, limits and references between them are checked here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

#define N_ALPHABET 324

struct builder {
    const struct gr_tokenizer_parts *p;
    struct gr_tokenizer *tok;
    size_t arena_used, arena_bytes;
    uint16_t byte_of_char[N_ALPHABET]; /* byte-level alphabet: code point -> byte, 256: not in it */
    XXH3_state_t *hash;
};

/* ---- byte-level alphabet ---- */

static bool is_printable_byte(int b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* GPT-2's: printable Latin-1 stands for itself, the other 68 bytes are U+0100 and on, in order. */
static void init_alphabet(struct builder *b)
{
    for (size_t c = 0; c < N_ALPHABET; c++) {
        b->byte_of_char[c] = 256;
    }
    int next = 256;
    for (int byte = 0; byte < 256; byte++) {
        b->byte_of_char[is_printable_byte(byte) ? byte : next++] = (uint16_t)byte;
    }
}

/* Bytes that a vocabulary string stands for, written to out (no longer than the string). False: it has a character
 * outside the alphabet; such a token stands for its own UTF-8 (as in Hugging Face). */
static bool decode_alphabet(const struct builder *b, struct gr_tok_text t, char *out, size_t *len_out)
{
    size_t n = 0;
    for (size_t i = 0; i < t.len; i++) {
        uint32_t c = (uint8_t)t.text[i];
        if (c >= 0x80) {
            /* Two bytes reach beyond the alphabet's end. */
            if (c < 0xC0 || c >= 0xE0 || i + 1 >= t.len) {
                return false;
            }
            c = (c & 0x1F) << 6 | ((uint8_t)t.text[++i] & 0x3F);
        }
        if (c >= N_ALPHABET || b->byte_of_char[c] == 256) {
            return false;
        }
        out[n++] = (char)b->byte_of_char[c];
    }
    *len_out = n;
    return true;
}

/* ---- arena ---- */

/* The whole arena is taken at once, from the lengths of the strings: each as it is, and decoded, which is never longer.
 */
static enum gr_status alloc_arena(struct builder *b)
{
    const struct gr_tokenizer_parts *p = b->p;
    size_t n = 1;
    for (int32_t i = 0; i < p->n_vocab; i++) {
        n += 2 * (size_t)p->tokens[i].len;
    }
    for (size_t i = 0; i < p->n_added; i++) {
        n += 2 * (size_t)p->added[i].content.len;
    }
    b->tok->arena = malloc(n);
    if (b->tok->arena == NULL) {
        log_error("%s: no memory for %zu bytes of tokens", p->name, n);
        return GR_ENOMEM;
    }
    b->arena_bytes = n;
    return GR_OK;
}

static char *arena_room(struct builder *b, size_t len)
{
    GR_ASSERT(len <= b->arena_bytes - b->arena_used);
    return b->tok->arena + b->arena_used;
}

static char *arena_copy(struct builder *b, struct gr_tok_text t)
{
    char *p = arena_room(b, t.len);
    memcpy(p, t.text, t.len);
    b->arena_used += t.len;
    return p;
}

/* ---- what a token decodes to ---- */

/* Replaces every `from' in text[0, *len); `to' is not longer. */
static void replace_all(char *text, size_t *len, const char *from, const char *to)
{
    const size_t n_from = strlen(from), n_to = strlen(to);
    char *hit = text;
    while ((hit = memmem(hit, *len - (size_t)(hit - text), from, n_from)) != NULL) {
        memmove(hit + n_to, hit + n_from, *len - (size_t)(hit - text) - n_from);
        memcpy(hit, to, n_to);
        *len = *len - n_from + n_to;
        hit += n_to;
    }
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* <0xNN>: the byte; -1: another text. */
static int fallback_byte(const char *text, size_t len)
{
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || hex_digit(text[3]) < 0 || hex_digit(text[4]) < 0) {
        return -1;
    }
    return hex_digit(text[3]) << 4 | hex_digit(text[4]);
}

/* Writes the decoded token into the arena. */
static void decode_token(struct builder *b, struct gr_tok_text t, struct gr_tok_entry *e)
{
    const struct gr_decode_part *d = &b->p->decode;
    char *out = arena_room(b, t.len);
    size_t len = t.len;
    if (!d->byte_level || !decode_alphabet(b, t, out, &len)) {
        memcpy(out, t.text, t.len);
        len = t.len;
    }
    for (int i = 0; i < d->n_replace; i++) {
        replace_all(out, &len, d->replace[i].from, d->replace[i].to);
    }
    const int byte = d->byte_fallback ? fallback_byte(out, len) : -1;
    if (byte >= 0) {
        out[0] = (char)byte;
        len = 1;
    }
    e->bytes = out;
    e->len = (uint32_t)len;
    b->arena_used += len;
}

/* ---- vocabulary ---- */

static enum gr_status check_token(const struct builder *b, struct gr_tok_text t, int32_t id)
{
    if (id < 0 || id >= GR_TOKENIZER_N_VOCAB) {
        log_error("%s: token %.*s: its id must be 0..%d", b->p->name, (int)GR_MIN(t.len, 64u), t.text,
                  GR_TOKENIZER_N_VOCAB - 1);
        return GR_ELIMIT;
    }
    if (t.len == 0 || t.len > GR_TOKEN_BYTES_MAX) {
        log_error("%s: token %d has %u bytes, must be 1..%d", b->p->name, id, t.len, GR_TOKEN_BYTES_MAX);
        return GR_ELIMIT;
    }
    return GR_OK;
}

static enum gr_status alloc_entries(struct builder *b)
{
    const struct gr_tokenizer_parts *p = b->p;
    int32_t n = p->n_vocab;
    bool any = false;
    for (int32_t i = 0; i < p->n_vocab; i++) {
        any = any || p->tokens[i].text != NULL;
        if (p->tokens[i].text != NULL) {
            GR_TRY(check_token(b, p->tokens[i], i));
        }
    }
    for (size_t i = 0; i < p->n_added; i++) {
        GR_TRY(check_token(b, p->added[i].content, p->added[i].id));
        n = GR_MAX(n, p->added[i].id + 1);
    }
    if (!any) {
        log_error("%s: %s is empty", p->name, p->tokens_field);
        return GR_EFORMAT;
    }
    b->tok->n_vocab = n;
    b->tok->entries = calloc((size_t)n, sizeof(*b->tok->entries));
    if (b->tok->entries == NULL) {
        log_error("%s: no memory for %d tokens", p->name, n);
        return GR_ENOMEM;
    }
    return GR_OK;
}

/* What merging looks for: the token's bytes where the vocabulary is byte-level, else its string. */
static void load_token(struct builder *b, struct gr_tok_text t, int32_t id)
{
    const struct gr_tokenizer_parts *p = b->p;
    struct gr_tok_entry *e = &b->tok->entries[id];
    decode_token(b, t, e);
    e->flags = GR_TOK_PRESENT;
    char bytes[GR_TOKEN_BYTES_MAX];
    struct gr_tok_text key = {bytes, 0};
    size_t len = 0;
    if (p->byte_level && !decode_alphabet(b, t, bytes, &len)) {
        return; /* no text leads to it */
    }
    key = p->byte_level ? (struct gr_tok_text){bytes, (uint32_t)len} : t;
    uint32_t other;
    const char *kept = e->len == key.len && memcmp(e->bytes, key.text, key.len) == 0 ? e->bytes : arena_copy(b, key);
    (void)gr_str_table_add(&b->tok->by_text, kept, key.len, (uint32_t)id, &other); /* of equal ones the first */
}

static int32_t id_of_text(const struct gr_tokenizer *tok, const char *text, size_t len)
{
    uint32_t id;
    return gr_str_table_get(&tok->by_text, text, len, &id) ? (int32_t)id : -1;
}

/* Tokens of single bytes or ASCII characters, and those of <0xNN>. */
static void find_byte_tokens(struct gr_tokenizer *tok)
{
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        char spelled[8];
        snprintf(spelled, sizeof(spelled), "<0x%02X>", (unsigned)i);
        tok->byte_id[i] = tok->byte_level || i < 0x80 ? id_of_text(tok, &byte, 1) : -1;
        tok->fallback_id[i] = tok->byte_level ? -1 : id_of_text(tok, spelled, 6);
    }
}

static enum gr_status load_vocab(struct builder *b)
{
    const struct gr_tokenizer_parts *p = b->p;
    GR_TRY(gr_str_table_init(&b->tok->by_text, (size_t)p->n_vocab));
    for (int32_t id = 0; id < p->n_vocab; id++) {
        if (p->tokens[id].text != NULL) {
            load_token(b, p->tokens[id], id);
        }
    }
    find_byte_tokens(b->tok);
    return GR_OK;
}

static enum gr_status load_scores(struct builder *b)
{
    const struct gr_tokenizer_parts *p = b->p;
    struct gr_tokenizer *tok = b->tok;
    if (p->scores == NULL) {
        return GR_OK;
    }
    tok->scores = calloc((size_t)tok->n_vocab, sizeof(*tok->scores));
    tok->text_len = calloc((size_t)tok->n_vocab, sizeof(*tok->text_len));
    if (tok->scores == NULL || tok->text_len == NULL) {
        log_error("%s: no memory for %d scores", p->name, tok->n_vocab);
        return GR_ENOMEM;
    }
    for (int32_t id = 0; id < p->n_vocab; id++) {
        if (!isfinite(p->scores[id])) {
            log_error("%s: the score of token %d is not a finite number", p->name, id);
            return GR_EFORMAT;
        }
        tok->scores[id] = p->scores[id];
        tok->text_len[id] = p->tokens[id].len;
    }
    XXH3_64bits_update(b->hash, tok->scores, (size_t)p->n_vocab * sizeof(*tok->scores));
    return GR_OK;
}

/* ---- merges ---- */

/* Appends the key of a merge's part; false: not in the alphabet, or too long. */
static bool append_part(const struct builder *b, struct gr_tok_text t, char *bytes, size_t *n)
{
    size_t more = t.len;
    if (t.len == 0 || t.len > GR_TOKEN_BYTES_MAX) {
        return false;
    }
    if (!b->p->byte_level) {
        memcpy(bytes + *n, t.text, t.len);
    } else if (!decode_alphabet(b, t, bytes + *n, &more)) {
        return false;
    }
    *n += more;
    return true;
}

static enum gr_status load_merge(struct builder *b, const struct gr_tok_merge *m, uint32_t rank)
{
    const struct gr_tokenizer_parts *p = b->p;
    char bytes[2 * GR_TOKEN_BYTES_MAX];
    size_t n = 0, at;
    int32_t left = -1, right = -1, id = -1;
    const int n_left = (int)GR_MIN(m->left.len, 64u), n_right = (int)GR_MIN(m->right.len, 64u);
    bool spelled = append_part(b, m->left, bytes, &n);
    at = n;
    if (spelled && append_part(b, m->right, bytes, &n)) {
        left = id_of_text(b->tok, bytes, at);
        right = id_of_text(b->tok, bytes + at, n - at);
        id = id_of_text(b->tok, bytes, n);
    }
    if (left < 0 || right < 0 || id < 0) {
        log_error("%s: %s[%u]: %.*s and %.*s, or both together, are not in %s", p->name, p->merge_field, rank, n_left,
                  m->left.text, n_right, m->right.text, p->tokens_field);
        return GR_EFORMAT;
    }
    if (!gr_merge_table_add(&b->tok->merges, left, right, rank, id)) {
        log_error("%s: %s[%u]: %.*s %.*s is there a second time", p->name, p->merge_field, rank, n_left, m->left.text,
                  n_right, m->right.text);
        return GR_EFORMAT;
    }
    const uint32_t triple[3] = {(uint32_t)left, (uint32_t)right, (uint32_t)id};
    XXH3_64bits_update(b->hash, triple, sizeof(triple));
    return GR_OK;
}

static enum gr_status load_merges(struct builder *b)
{
    const struct gr_tokenizer_parts *p = b->p;
    if (p->n_merge > GR_TOK_N_MERGE_MAX) {
        log_error("%s: %s has %zu entries, limit %u", p->name, p->merge_field, p->n_merge, GR_TOK_N_MERGE_MAX);
        return GR_ELIMIT;
    }
    GR_TRY(gr_merge_table_init(&b->tok->merges, p->n_merge));
    for (size_t i = 0; i < p->n_merge; i++) {
        GR_TRY(load_merge(b, &p->merges[i], (uint32_t)i));
    }
    return GR_OK;
}

/* ---- added tokens ---- */

/* An added token decodes to its content, but where it is in the vocabulary too: merging may have led to it. In a
 * byte-level vocabulary its content is plain text and no spelling of bytes. */
static enum gr_status place_added(struct builder *b, const struct gr_tok_added *a)
{
    const struct gr_tokenizer_parts *p = b->p;
    struct gr_tok_entry *e = &b->tok->entries[a->id];
    const bool in_vocab = a->id < p->n_vocab && p->tokens[a->id].text != NULL;
    const bool same = in_vocab && p->tokens[a->id].len == a->content.len &&
                      memcmp(p->tokens[a->id].text, a->content.text, a->content.len) == 0;
    if ((e->flags & GR_TOK_ADDED) != 0 || (in_vocab && !same)) {
        log_error("%s: added token %.*s has id %d, which another token has", p->name, (int)GR_MIN(a->content.len, 64u),
                  a->content.text, a->id);
        return GR_EFORMAT;
    }
    if (!in_vocab || p->decode.byte_level) {
        e->bytes = arena_copy(b, a->content);
        e->len = a->content.len;
    }
    e->flags = GR_TOK_PRESENT | GR_TOK_ADDED | (a->special ? GR_TOK_SPECIAL : 0u);
    return GR_OK;
}

static enum gr_status load_added_token(struct builder *b, const struct gr_tok_added *a, struct gr_added_token *out)
{
    GR_TRY(place_added(b, a));
    *out = (struct gr_added_token){.len = a->content.len,
                                   .id = a->id,
                                   .single_word = a->single_word,
                                   .lstrip = a->lstrip,
                                   .rstrip = a->rstrip,
                                   .normalized = a->normalized,
                                   .special = a->special};
    out->content = arena_copy(b, a->content);
    return GR_OK;
}

static enum gr_status load_added(struct builder *b)
{
    const struct gr_tokenizer_parts *p = b->p;
    struct gr_tokenizer *tok = b->tok;
    if (p->n_added > GR_TOK_N_ADDED_MAX) {
        log_error("%s: added_tokens has %zu entries, limit %d", p->name, p->n_added, GR_TOK_N_ADDED_MAX);
        return GR_ELIMIT;
    }
    tok->added = calloc(p->n_added + 1, sizeof(*tok->added));
    if (tok->added == NULL) {
        log_error("%s: no memory for %zu added tokens", p->name, p->n_added);
        return GR_ENOMEM;
    }
    struct gr_str_table contents;
    GR_TRY(gr_str_table_init(&contents, p->n_added));
    enum gr_status st = GR_OK;
    for (size_t i = 0; i < p->n_added && st == GR_OK; i++) {
        uint32_t other;
        struct gr_added_token *a = &tok->added[i];
        st = load_added_token(b, &p->added[i], a);
        if (st == GR_OK && !gr_str_table_add(&contents, a->content, a->len, (uint32_t)i, &other)) {
            log_error("%s: added token %d has the content of added token %d", p->name, a->id, tok->added[other].id);
            st = GR_EFORMAT;
        }
        tok->n_added = (int)i + 1;
    }
    gr_str_table_finish(&contents);
    return st;
}

/* ---- the unknown ---- */

static enum gr_status find_unk(struct builder *b)
{
    const struct gr_tokenizer_parts *p = b->p;
    struct gr_tokenizer *tok = b->tok;
    tok->unk_id = -1;
    bool complete = tok->byte_level;
    for (int i = 0; i < 256; i++) {
        complete = complete && tok->byte_id[i] >= 0;
    }
    if (p->byte_level && p->byte_fallback && !complete) {
        log_error("%s: model.byte_fallback with a byte-level vocabulary that lacks some bytes is not supported",
                  p->name);
        return GR_EUNSUPPORTED;
    }
    for (int32_t id = 0; p->unk != NULL && id < p->n_vocab && tok->unk_id < 0; id++) {
        const struct gr_tok_text t = p->tokens[id];
        tok->unk_id = t.text != NULL && t.len == strlen(p->unk) && memcmp(t.text, p->unk, t.len) == 0 ? id : -1;
    }
    if (p->unk != NULL && tok->unk_id < 0) {
        tok->unk_id = gr_tokenizer_added_id(tok, p->unk);
    }
    if (p->unk != NULL && tok->unk_id < 0 && !complete) {
        log_error("%s: model.unk_token %.64s is no token", p->name, p->unk);
        return GR_EFORMAT;
    }
    return GR_OK;
}

/* ---- steps ---- */

static enum gr_status load_pre(struct builder *b, const struct gr_pre_part *part)
{
    const struct gr_tokenizer_parts *p = b->p;
    struct gr_pre *pre = &b->tok->pres[b->tok->n_pre];
    *pre = (struct gr_pre){.kind = part->kind,
                           .behavior = part->behavior,
                           .invert = part->invert,
                           .scheme = part->scheme,
                           .split = part->split};
    /* A match and what is no match are pieces alike there. */
    pre->invert = part->invert && part->behavior != GR_SPLIT_ISOLATED;
    if (part->kind == GR_PRE_METASPACE) {
        size_t len = strlen(part->mark), size = 0;
        if (len == 0 || len > 4 || gr_utf8_next((const uint8_t *)part->mark, len, &size) != GR_UTF8_CHAR ||
            size != len) {
            log_error("%s: pre_tokenizer.replacement must be one character", p->name);
            return GR_EFORMAT;
        }
        memcpy(pre->mark, part->mark, len);
        pre->mark_len = (uint8_t)len;
    } else if (part->kind == GR_PRE_SPLIT) {
        GR_TRY(gr_split_compile(p->name, "pre_tokenizer", &part->pattern, &pre->code));
    }
    b->tok->n_pre++;
    return GR_OK;
}

static enum gr_status load_steps(struct builder *b)
{
    const struct gr_tokenizer_parts *p = b->p;
    struct gr_tokenizer *tok = b->tok;
    for (int i = 0; i < p->n_norm; i++) {
        tok->n_norm = i + 1; /* also a half-made one is given back */
        GR_TRY(gr_norm_init(&tok->norms[i], p->name, &p->norms[i]));
    }
    for (int i = 0; i < p->n_pre; i++) {
        GR_TRY(load_pre(b, &p->pres[i]));
    }
    for (int i = 0; i < p->n_template; i++) {
        const int32_t id = p->template_ids[i];
        if (id < 0 || id >= tok->n_vocab || tok->entries[id].bytes == NULL) {
            log_error("%s: post_processor: an id in special_tokens is no token (%d)", p->name, id);
            return GR_EFORMAT;
        }
        tok->template_ids[i] = id;
    }
    tok->n_template = p->n_template;
    tok->n_strip = p->decode.n_strip;
    return GR_OK;
}

/* True when no token has a mark after another character: then no merge goes over the place before a mark, and a long
 * text need not be merged as one piece. */
static bool marks_begin_tokens(const struct gr_tokenizer_parts *p)
{
    const size_t n = sizeof(GR_TOK_MARK) - 1;
    for (int32_t id = 0; id < p->n_vocab; id++) {
        const char *text = p->tokens[id].text;
        const size_t len = p->tokens[id].len;
        for (size_t i = 1; text != NULL && i + n <= len; i++) {
            if (memcmp(text + i, GR_TOK_MARK, n) == 0 && (i < n || memcmp(text + i - n, GR_TOK_MARK, n) != 0)) {
                return false;
            }
        }
    }
    return true;
}

static size_t ids_per_byte(const struct gr_tokenizer *tok)
{
    size_t n = 1;
    for (int i = 0; i < tok->n_norm; i++) {
        n = GR_MIN(n * gr_norm_growth(tok, &tok->norms[i]), (size_t)4096);
    }
    for (int i = 0; i < tok->n_pre; i++) {
        const struct gr_pre *pre = &tok->pres[i];
        const bool own = pre->kind == GR_PRE_METASPACE && id_of_text(tok, pre->mark, pre->mark_len) >= 0;
        /* A blank or a mark in front of a piece, and a mark for a blank. */
        n *= pre->kind == GR_PRE_SPLIT ? 1 : pre->kind == GR_PRE_PREFIX_SPACE || own ? 2 : 1 + (size_t)pre->mark_len;
    }
    return GR_MIN(n, (size_t)4096);
}

/* ---- all ---- */

static uint64_t fingerprint(const struct builder *b)
{
    const struct gr_tokenizer *tok = b->tok;
    XXH3_state_t *h = b->hash; /* goes on after the merges */
    for (int32_t id = 0; id < tok->n_vocab; id++) {
        const struct gr_tok_entry *e = &tok->entries[id];
        const uint32_t head[3] = {(uint32_t)id, e->flags, e->len};
        if (e->bytes != NULL) {
            XXH3_64bits_update(h, head, sizeof(head));
            XXH3_64bits_update(h, e->bytes, e->len);
        }
    }
    return XXH3_64bits_digest(h);
}

static enum gr_status check_decode(const struct gr_tokenizer_parts *p)
{
    for (int i = 0; i < p->decode.n_replace; i++) {
        const char *from = p->decode.replace[i].from, *to = p->decode.replace[i].to;
        if (from[0] == '\0' || strlen(to) > strlen(from)) {
            log_error("%s: decoder: Replace by something longer is not supported", p->name);
            return GR_EUNSUPPORTED;
        }
    }
    return GR_OK;
}

static enum gr_status build(struct builder *b)
{
    struct gr_tokenizer *tok = b->tok;
    GR_TRY(check_decode(b->p));
    tok->eos_id = -1;
    tok->byte_level = b->p->byte_level;
    tok->ignore_merges = b->p->ignore_merges;
    tok->fuse_unk = b->p->fuse_unk;
    tok->byte_fallback = b->p->byte_fallback;
    GR_TRY(alloc_entries(b));
    GR_TRY(alloc_arena(b));
    GR_TRY(load_vocab(b));
    GR_TRY(load_scores(b));
    GR_TRY(load_merges(b));
    GR_TRY(load_added(b));
    GR_TRY(find_unk(b));
    GR_TRY(load_steps(b));
    GR_TRY(gr_tok_build_tries(tok));
    tok->cut_at_mark = !tok->byte_level && !tok->ignore_merges && marks_begin_tokens(b->p);
    tok->n_id_per_byte = ids_per_byte(tok);
    tok->fingerprint = fingerprint(b);
    return GR_OK;
}

enum gr_status gr_tokenizer_build(const struct gr_tokenizer_parts *parts, struct gr_tokenizer **out)
{
    struct builder b = {.p = parts};
    b.tok = calloc(1, sizeof(*b.tok));
    b.hash = XXH3_createState();
    enum gr_status st = GR_ENOMEM;
    if (b.tok == NULL || b.hash == NULL) {
        log_error("%s: no memory", parts->name);
    } else {
        XXH3_64bits_reset(b.hash);
        init_alphabet(&b);
        st = build(&b);
    }
    XXH3_freeState(b.hash);
    if (st != GR_OK) {
        gr_tokenizer_destroy(b.tok);
        return st;
    }
    *out = b.tok;
    return GR_OK;
}

void gr_tokenizer_destroy(struct gr_tokenizer *tok)
{
    if (tok == NULL) {
        return;
    }
    for (int i = 0; i < GR_TOK_N_PRE_MAX; i++) {
        pcre2_code_free(tok->pres[i].code);
    }
    for (int i = 0; i < tok->n_norm; i++) {
        gr_norm_finish(&tok->norms[i]);
    }
    gr_trie_finish(&tok->raw_trie);
    gr_trie_finish(&tok->normalized_trie);
    gr_merge_table_finish(&tok->merges);
    gr_str_table_finish(&tok->by_text);
    free(tok->scores);
    free(tok->text_len);
    free(tok->added);
    free(tok->entries);
    free(tok->arena);
    free(tok);
}
