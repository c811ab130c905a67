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
    bool plain; /* special tokens in the text are text */
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

/* Emits the added tokens of one trie and hands the text between them to gap. */
static enum gr_status encode_added(struct encoder *e, const struct gr_trie *trie, const char *text, size_t len,
                                   gap_fn *gap)
{
    size_t at = 0;
    struct gr_added_match m;
    while (gr_trie_find(e->tok, trie, text, len, at, e->plain, &m)) {
        if (m.begin > at) {
            GR_TRY(gap(e, text + at, m.begin - at));
        }
        GR_TRY(emit(e, &m.token->id, 1));
        e->first = e->glued = false;
        at = m.end;
    }
    return at < len ? gap(e, text + at, len - at) : GR_OK;
}

static enum gr_status encode_plain(struct encoder *e, const char *text, size_t len)
{
    enum gr_status st = gr_splitter_run(e->splitter, text, len, e->first, e->glued);
    e->first = e->glued = false;
    return st;
}

static enum gr_status encode_unnormalized(struct encoder *e, const char *text, size_t len)
{
    char *owned = NULL;
    size_t n = len;
    GR_TRY(gr_tok_normalize(e->tok, text, len, e->glued, &owned, &n));
    enum gr_status st = encode_added(e, &e->tok->normalized_trie, owned != NULL ? owned : text, n, encode_plain);
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

/* Runs of UTF-8 as text, other bytes as byte tokens. */
static enum gr_status encode_bytes(struct encoder *e, const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t run = 0; /* where the run of valid text began */
    for (size_t at = 0; at < len;) {
        size_t n = 1;
        if (p[at] < 0x80 || gr_utf8_next(p + at, len - at, &n) == GR_UTF8_CHAR) {
            at += n;
            continue;
        }
        if (at > run) {
            GR_TRY(encode_added(e, &e->tok->raw_trie, text + run, at - run, encode_unnormalized));
        }
        for (size_t i = 0; i < n; i++) {
            GR_TRY(encode_byte(e, p[at + i]));
        }
        at += n;
        run = at;
    }
    if (len > run) {
        return encode_added(e, &e->tok->raw_trie, text + run, len - run, encode_unnormalized);
    }
    return GR_OK;
}

enum gr_status gr_tokenizer_encode(const struct gr_tokenizer *tok, const char *text, size_t len, unsigned flags,
                                   int32_t *ids, size_t cap, size_t *n_out)
{
    if (len > GR_TOKENIZER_TEXT_BYTES) {
        log_error("tokenizer: text of %zu bytes, limit %u", len, GR_TOKENIZER_TEXT_BYTES);
        return GR_ELIMIT;
    }
    struct encoder e = {
        .tok = tok, .ids = ids, .cap = cap, .first = true, .plain = (flags & GR_ENCODE_NO_SPECIAL) != 0};
    e.bpe = gr_bpe_scratch_create();
    enum gr_status st = e.bpe != NULL ? GR_OK : GR_ENOMEM;
    if (st == GR_OK) {
        st = gr_splitter_create(tok, encode_piece, &e, &e.splitter);
    }
    if (st == GR_OK && (flags & GR_ENCODE_BOS) != 0 && tok->n_template > 0) {
        st = emit(&e, tok->template_ids, (size_t)tok->n_template);
    }
    if (st == GR_OK) {
        st = encode_bytes(&e, text, len);
    }
    gr_splitter_destroy(e.splitter);
    gr_bpe_scratch_destroy(e.bpe);
    if (st == GR_OK) {
        *n_out = e.n;
    }
    return st;
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
