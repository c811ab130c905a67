/* Encoding: text -> runs of valid UTF-8 -> added tokens -> NFC -> added tokens that match
 * normalized text
 * -> regex splits -> BPE. Everything a call needs is taken and given back by the call, so that one
 * tokenizer serves many threads. */
#include "model/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_internal.h"

#define JIT_STACK_MIN_BYTES (32u << 10) /* of PCRE2's compiled patterns, which ask for more as they need it */
#define JIT_STACK_MAX_BYTES (1u << 20)  /* beyond it the interpreter goes on, on the heap */

struct encoder {
    const struct gr_tokenizer *tok;
    int32_t *ids; /* caller's, [cap] */
    size_t cap, n;
    struct gr_bpe_scratch *bpe;
    pcre2_match_data *match[GR_TOK_N_SPLIT_MAX]; /* one for each Split step: the steps nest */
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
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

static enum gr_status encode_piece(struct encoder *e, const char *text, size_t len)
{
    const int32_t *ids;
    size_t n;
    GR_TRY(gr_bpe_encode(e->tok, e->bpe, text, len, &ids, &n));
    return emit(e, ids, n);
}

struct split_match {
    size_t begin, end; /* both the text's length: there is none */
};

/* Next match at or after `from`. Matches are never empty. */
static enum gr_status next_match(const struct encoder *e, int step, const char *text, size_t len, size_t from,
                                 struct split_match *out)
{
    const pcre2_code *code = e->tok->splits[step].code;
    int rc = pcre2_match(code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, e->match[step], e->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        /* The interpreter keeps its state on the heap, within PCRE2's limit. */
        rc = pcre2_match(code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match[step],
                         e->context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
        *out = (struct split_match){.begin = len, .end = len};
        return GR_OK;
    }
    if (rc < 0) {
        char message[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof(message));
        log_error("tokenizer: pre_tokenizer regex at byte %zu of %zu: %s", from, len, message);
        return rc == PCRE2_ERROR_NOMEMORY ? GR_ENOMEM : GR_ELIMIT;
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(e->match[step]);
    GR_ASSERT(range[0] >= from && range[1] > range[0]);
    *out = (struct split_match){.begin = range[0], .end = range[1]};
    return GR_OK;
}

/* Split steps from `step` on, then BPE. As deep as there are steps. */
static enum gr_status encode_split(struct encoder *e, int step, const char *text, size_t len)
{
    if (len == 0) {
        return GR_OK;
    }
    if (step == e->tok->n_split) {
        return encode_piece(e, text, len);
    }
    for (size_t at = 0; at < len;) {
        struct split_match m;
        GR_TRY(next_match(e, step, text, len, at, &m));
        if (!e->tok->splits[step].drop_gaps) {
            GR_TRY(encode_split(e, step + 1, text + at, m.begin - at));
        }
        GR_TRY(encode_split(e, step + 1, text + m.begin, m.end - m.begin));
        at = m.end;
    }
    return GR_OK;
}

typedef enum gr_status gap_fn(struct encoder *e, const char *text, size_t len);

/* Emits the added tokens of one trie and hands the text between them to gap. */
static enum gr_status encode_added(struct encoder *e, const struct gr_trie *trie, const char *text, size_t len,
                                   gap_fn *gap)
{
    size_t at = 0;
    struct gr_added_match m;
    while (gr_trie_find(e->tok, trie, text, len, at, &m)) {
        if (m.begin > at) {
            GR_TRY(gap(e, text + at, m.begin - at));
        }
        GR_TRY(emit(e, &m.token->id, 1));
        at = m.end;
    }
    return at < len ? gap(e, text + at, len - at) : GR_OK;
}

static enum gr_status encode_plain(struct encoder *e, const char *text, size_t len)
{
    return encode_split(e, 0, text, len);
}

static enum gr_status encode_unnormalized(struct encoder *e, const char *text, size_t len)
{
    char *nfc = NULL;
    size_t nfc_len = len;
    if (e->tok->nfc) {
        GR_TRY(gr_tok_nfc(text, len, &nfc, &nfc_len));
    }
    enum gr_status st = encode_added(e, &e->tok->normalized_trie, nfc != NULL ? nfc : text, nfc_len, encode_plain);
    free(nfc);
    return st;
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
            GR_TRY(emit(e, &e->tok->byte_id[p[at + i]], 1));
        }
        at += n;
        run = at;
    }
    if (len > run) {
        return encode_added(e, &e->tok->raw_trie, text + run, len - run, encode_unnormalized);
    }
    return GR_OK;
}

static enum gr_status encoder_init(struct encoder *e)
{
    e->bpe = gr_bpe_scratch_create();
    e->context = pcre2_match_context_create(NULL);
    e->jit_stack = pcre2_jit_stack_create(JIT_STACK_MIN_BYTES, JIT_STACK_MAX_BYTES, NULL);
    bool complete = e->bpe != NULL && e->context != NULL;
    for (int i = 0; i < e->tok->n_split; i++) {
        e->match[i] = pcre2_match_data_create(1, NULL);
        complete = complete && e->match[i] != NULL;
    }
    if (!complete) {
        log_error("tokenizer: no memory to encode");
        return GR_ENOMEM;
    }
    /* NULL where PCRE2 has no JIT: then the machine stack's 32 KB are not used either. */
    pcre2_jit_stack_assign(e->context, NULL, e->jit_stack);
    return GR_OK;
}

static void encoder_finish(struct encoder *e)
{
    for (int i = 0; i < e->tok->n_split; i++) {
        pcre2_match_data_free(e->match[i]);
    }
    pcre2_jit_stack_free(e->jit_stack);
    pcre2_match_context_free(e->context);
    gr_bpe_scratch_destroy(e->bpe);
}

enum gr_status gr_tokenizer_encode(const struct gr_tokenizer *tok, const char *text, size_t len, bool add_bos,
                                   int32_t *ids, size_t cap, size_t *n_out)
{
    if (len > GR_TOKENIZER_TEXT_BYTES) {
        log_error("tokenizer: text of %zu bytes, limit %u", len, GR_TOKENIZER_TEXT_BYTES);
        return GR_ELIMIT;
    }
    struct encoder e = {.tok = tok, .ids = ids, .cap = cap};
    enum gr_status st = encoder_init(&e);
    if (st == GR_OK && add_bos && tok->n_template > 0) {
        st = emit(&e, tok->template_ids, (size_t)tok->n_template);
    }
    if (st == GR_OK) {
        st = encode_bytes(&e, text, len);
    }
    encoder_finish(&e);
    if (st == GR_OK) {
        *n_out = e.n;
    }
    return st;
}

size_t gr_tokenizer_encode_bound(const struct gr_tokenizer *tok, size_t len)
{
    /* At least a byte a token; NFC makes UTF-8 at most three times as long. */
    return (tok->nfc ? 3 * len : len) + (size_t)tok->n_template;
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
