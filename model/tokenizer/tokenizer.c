/* Encoding: text -> runs of valid UTF-8 -> added tokens -> normalizer -> added tokens that match normalized text ->
 * pre-tokenizer -> BPE. Everything a call needs is taken and given back by the call, so that one tokenizer serves many
 * threads. */
#include "model/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

struct encoder {
    const struct gr_tokenizer *tok;
    int32_t *ids; /* caller's, [cap] */
    size_t cap, n;
    const struct gr_marked_text *whole;
    bool first; /* nothing of the text was taken yet */
    bool glued; /* what comes goes on after bytes that are no UTF-8: it gets no blank in front */
    struct gr_bpe_scratch *bpe;
    struct gr_splitter *splitter;
};

static enum gr_status emit(struct encoder *e, const int32_t *ids, size_t n)
{
    if (n > e->cap - e->n) {
        log_error("tokenizer: the text has more than the %zu tokens there is room for", e->cap);
        return GR_ELIMIT;
    }
    memcpy(e->ids + e->n, ids, n * sizeof(*ids));
    e->n += n;
    return GR_OK;
}

static enum gr_status merge_piece(struct encoder *e, const char *text, size_t len)
{
    const int32_t *ids;
    size_t n;
    GR_TRY(gr_bpe_encode(e->tok, e->bpe, text, len, &ids, &n));
    return emit(e, ids, n);
}

static bool mark_at(const char *text)
{
    return memcmp(text, GR_TOK_MARK, sizeof(GR_TOK_MARK) - 1) == 0;
}

/* One pre-token. It may be the whole text: then it is cut where no merge can go over. */
static enum gr_status encode_piece(void *user, const char *text, size_t len)
{
    struct encoder *e = user;
    const size_t n_mark = sizeof(GR_TOK_MARK) - 1;
    size_t begin = 0;
    for (size_t i = n_mark; e->tok->cut_at_mark && i + n_mark <= len; i++) {
        if (text[i] == GR_TOK_MARK[0] && mark_at(text + i) && !mark_at(text + i - n_mark) && i - begin > 0) {
            GR_TRY(merge_piece(e, text + begin, i - begin));
            begin = i;
        }
    }
    return merge_piece(e, text + begin, len - begin);
}

typedef enum gr_status gap_fn(struct encoder *e, const char *text, size_t len);

/* Emits the added tokens of one trie in [begin, end) of a text and hands what lies between them to gap. */
static enum gr_status encode_added(struct encoder *e, const struct gr_trie *trie, struct gr_added_scan scan,
                                   gap_fn *gap)
{
    const char *text = scan.text->text;
    size_t at = scan.at = scan.begin;
    struct gr_added_match m;
    while (gr_trie_find(e->tok, trie, &scan, &m)) {
        if (m.begin > at) {
            GR_TRY(gap(e, text + at, m.begin - at));
        }
        GR_TRY(emit(e, &m.token->id, 1));
        e->first = e->glued = false;
        at = m.end;
    }
    return at < scan.end ? gap(e, text + at, scan.end - at) : GR_OK;
}

static enum gr_status encode_plain(struct encoder *e, const char *text, size_t len)
{
    enum gr_status st = gr_splitter_run(e->splitter, text, len, e->first, e->glued);
    e->first = e->glued = false;
    return st;
}

/* Where text[at] is in the normalized text: after what the text before it becomes. */
static enum gr_status place_normalized(const struct encoder *e, const char *text, size_t at, size_t *out)
{
    char *owned = NULL;
    GR_TRY(gr_tok_normalize(e->tok, text, at, e->glued, &owned, out));
    free(owned);
    return GR_OK;
}

/* The plain spans of text[0, len), a part of the whole text, in its normalized form n. spans: room for all of the whole
 * text. */
static enum gr_status map_plain(const struct encoder *e, const char *text, size_t len, struct gr_marked_text *n,
                                struct gr_text_span *spans)
{
    const size_t begin = (size_t)(text - e->whole->text);
    for (size_t i = 0; i < e->whole->n_plain; i++) {
        const struct gr_text_span *w = &e->whole->plain[i];
        struct gr_text_span s = {0, n->len};
        if (w->end <= begin || w->begin >= begin + len) {
            continue;
        }
        if (w->begin > begin) {
            GR_TRY(place_normalized(e, text, w->begin - begin, &s.begin));
        }
        if (w->end < begin + len) {
            GR_TRY(place_normalized(e, text, w->end - begin, &s.end));
        }
        spans[n->n_plain++] = (struct gr_text_span){GR_MIN(s.begin, n->len), GR_MIN(s.end, n->len)};
    }
    n->plain = spans;
    return GR_OK;
}

static enum gr_status encode_normalized(struct encoder *e, const char *text, size_t len, struct gr_marked_text *n)
{
    struct gr_text_span *spans = NULL;
    enum gr_status st = GR_OK;
    if (e->tok->special_normalized && e->whole->n_plain > 0) {
        spans = calloc(e->whole->n_plain, sizeof(*spans));
        st = spans != NULL ? map_plain(e, text, len, n, spans) : GR_ENOMEM;
    }
    if (st == GR_OK) {
        st = encode_added(e, &e->tok->normalized_trie, (struct gr_added_scan){.text = n, .end = n->len}, encode_plain);
    }
    free(spans);
    return st;
}

static enum gr_status encode_unnormalized(struct encoder *e, const char *text, size_t len)
{
    char *owned = NULL;
    struct gr_marked_text n = {.text = text};
    GR_TRY(gr_tok_normalize(e->tok, text, len, e->glued, &owned, &n.len));
    if (owned != NULL) {
        n.text = owned;
    }
    const enum gr_status st = encode_normalized(e, text, len, &n);
    free(owned);
    return st;
}

/* A byte that is no UTF-8. */
static enum gr_status encode_byte(struct encoder *e, uint8_t byte)
{
    const struct gr_tokenizer *tok = e->tok;
    int32_t id = tok->byte_level ? tok->byte_id[byte] : tok->byte_fallback ? tok->fallback_id[byte] : -1;
    id = id >= 0 ? id : tok->unk_id;
    e->first = false;
    e->glued = true;
    return id >= 0 ? emit(e, &id, 1) : GR_OK;
}

/* A run of UTF-8. */
static enum gr_status encode_run(struct encoder *e, size_t begin, size_t end)
{
    const struct gr_added_scan scan = {.text = e->whole, .begin = begin, .end = end};
    return encode_added(e, &e->tok->raw_trie, scan, encode_unnormalized);
}

/* Runs of UTF-8 as text, other bytes as byte tokens. */
static enum gr_status encode_bytes(struct encoder *e)
{
    const uint8_t *p = (const uint8_t *)e->whole->text;
    const size_t len = e->whole->len;
    size_t run = 0; /* where the run of valid text began */
    for (size_t at = 0; at < len;) {
        size_t n = 1;
        if (p[at] < 0x80 || gr_utf8_next(p + at, len - at, &n) == GR_UTF8_CHAR) {
            at += n;
            continue;
        }
        if (at > run) {
            GR_TRY(encode_run(e, run, at));
        }
        for (size_t i = 0; i < n; i++) {
            GR_TRY(encode_byte(e, p[at + i]));
        }
        at += n;
        run = at;
    }
    return len > run ? encode_run(e, run, len) : GR_OK;
}

enum gr_status gr_tokenizer_encode_marked(const struct gr_tokenizer *tok, const struct gr_marked_text *text,
                                          unsigned flags, int32_t *ids, size_t cap, size_t *n_out)
{
    if (text->len > GR_TOKENIZER_TEXT_BYTES) {
        log_error("tokenizer: text of %zu bytes, limit %u", text->len, GR_TOKENIZER_TEXT_BYTES);
        return GR_ELIMIT;
    }
    const struct gr_text_span all = {0, text->len};
    struct gr_marked_text whole = *text;
    if ((flags & GR_ENCODE_NO_SPECIAL) != 0) {
        whole.plain = &all;
        whole.n_plain = 1;
    }
    struct encoder e = {.tok = tok, .ids = ids, .cap = cap, .whole = &whole, .first = true};
    e.bpe = gr_bpe_scratch_create();
    enum gr_status st = e.bpe != NULL ? GR_OK : GR_ENOMEM;
    if (st == GR_OK) {
        st = gr_splitter_create(tok, encode_piece, &e, &e.splitter);
    }
    if (st == GR_OK && (flags & GR_ENCODE_BOS) != 0 && tok->n_template > 0) {
        st = emit(&e, tok->template_ids, (size_t)tok->n_template);
    }
    if (st == GR_OK) {
        st = encode_bytes(&e);
    }
    gr_splitter_destroy(e.splitter);
    gr_bpe_scratch_destroy(e.bpe);
    if (st == GR_OK) {
        *n_out = e.n;
    }
    return st;
}

enum gr_status gr_tokenizer_encode(const struct gr_tokenizer *tok, const char *text, size_t len, unsigned flags,
                                   int32_t *ids, size_t cap, size_t *n_out)
{
    const struct gr_marked_text t = {.text = text, .len = len};
    return gr_tokenizer_encode_marked(tok, &t, flags, ids, cap, n_out);
}

size_t gr_tokenizer_encode_bound(const struct gr_tokenizer *tok, size_t len)
{
    return tok->n_id_per_byte * len + (size_t)tok->n_template;
}

int32_t gr_tokenizer_n_vocab(const struct gr_tokenizer *tok)
{
    return tok->n_vocab;
}

uint64_t gr_tokenizer_fingerprint(const struct gr_tokenizer *tok)
{
    return tok->fingerprint;
}

const char *gr_tokenizer_token_bytes(const struct gr_tokenizer *tok, int32_t id, size_t *len_out)
{
    if (id < 0 || id >= tok->n_vocab) {
        *len_out = 0;
        return NULL;
    }
    *len_out = tok->entries[id].len;
    return tok->entries[id].bytes;
}

bool gr_tokenizer_is_special(const struct gr_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->n_vocab && (tok->entries[id].flags & GR_TOK_SPECIAL) != 0;
}

int32_t gr_tokenizer_added_id(const struct gr_tokenizer *tok, const char *content)
{
    size_t len = strlen(content);
    for (int i = 0; i < tok->n_added; i++) {
        if (tok->added[i].len == len && memcmp(tok->added[i].content, content, len) == 0) {
            return tok->added[i].id;
        }
    }
    return -1;
}

int32_t gr_tokenizer_bos_id(const struct gr_tokenizer *tok)
{
    return tok->n_template > 0 ? tok->template_ids[0] : -1;
}

int32_t gr_tokenizer_eos_id(const struct gr_tokenizer *tok)
{
    return tok->eos_id;
}
