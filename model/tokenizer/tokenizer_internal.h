/* Shared by the tokenizer's own files; nobody else includes it.
 *
 * Reading order: tokenizer_parts.h (what a tokenizer is made of), tokenizer_json.c and tokenizer_steps.c
 * (tokenizer.json into parts), tokenizer_metadata.c and tokenizer_gguf.c (what a GGUF file says into parts),
 * tokenizer_build.c (parts into struct gr_tokenizer), normalize.c, split_regex.c, added_tokens.c, pre_split.c, bpe.c,
 * tokenizer.c (encode), detokenizer.c. */
#ifndef GR_MODEL_TOKENIZER_TOKENIZER_INTERNAL_H
#define GR_MODEL_TOKENIZER_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/base/utf8.h"
#include "model/files/json_util.h"
#include "model/files/str_table.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_parts.h"

#define GR_TOK_NORMALIZED_BYTES (4u * GR_TOKENIZER_TEXT_BYTES)

enum { GR_TOK_PRESENT = 1, GR_TOK_ADDED = 2, GR_TOK_SPECIAL = 4 };

struct gr_tok_entry {
    const char *bytes; /* what it decodes to, into the arena; NULL: the id has no token */
    uint32_t len;
    uint32_t flags;
};

/* left, right -> rank, merged id. Open addressing. */
struct gr_merge_slot {
    uint64_t key; /* left << 32 | right; UINT64_MAX: free */
    uint32_t rank;
    int32_t id;
};

struct gr_merge_table {
    struct gr_merge_slot *slots; /* owned */
    int log2_n_slot;
};

struct gr_added_token {
    const char *content; /* into the arena */
    uint32_t len;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

/* Byte trie over the contents of added tokens. Node 0 is the root. */
struct gr_trie_node {
    uint32_t child, sibling; /* 0: none */
    int32_t added;           /* index of the token that ends here, -1: none */
    uint8_t byte;
};

struct gr_trie {
    struct gr_trie_node *nodes; /* owned; NULL: empty */
    uint32_t n_node;
    uint32_t first[256]; /* child of the root by byte */
};

struct gr_norm {
    enum gr_norm_kind kind;
    char *content; /* owned; PREPEND, REPLACE */
    size_t len;
    char *literal; /* owned; REPLACE of a text */
    size_t literal_len;
    pcre2_code *code; /* owned; REPLACE of a regex */
};

struct gr_pre {
    enum gr_pre_kind kind;
    pcre2_code *code; /* owned; SPLIT */
    enum gr_split_behavior behavior;
    bool invert;
    char mark[5]; /* METASPACE */
    uint8_t mark_len;
    enum gr_prepend_scheme scheme;
    bool split;
};

struct gr_tokenizer {
    char *arena;                  /* owned: all token bytes and vocabulary strings */
    struct gr_tok_entry *entries; /* [n_vocab], owned */
    int32_t n_vocab;
    bool byte_level;             /* merging starts at bytes, else at characters */
    int32_t byte_id[256];        /* token of a byte (byte_level), or of an ASCII character; -1: none */
    int32_t fallback_id[256];    /* token <0xNN>; -1: none */
    struct gr_str_table by_text; /* tokens that BPE can give; byte_level: by their bytes */
    struct gr_merge_table merges;
    float *scores;      /* [n_vocab], owned; NULL: merges go by rank */
    uint32_t *text_len; /* [n_vocab], owned, where there are scores: length of the vocabulary's string */
    int32_t unk_id;     /* -1: what is unknown is dropped */
    bool fuse_unk, byte_fallback, ignore_merges;
    bool cut_at_mark; /* no token has a mark after another character: a piece may be cut there */
    uint8_t n_strip;  /* blanks at the start of decoded text that were put there */
    struct gr_norm norms[GR_TOK_N_NORM_MAX];
    int n_norm;
    struct gr_pre pres[GR_TOK_N_PRE_MAX];
    int n_pre;
    struct gr_added_token *added; /* [n_added], owned */
    int n_added;
    struct gr_trie raw_trie;        /* added tokens that match before the normalizer */
    struct gr_trie normalized_trie; /* added tokens that match after it */
    bool special_normalized;        /* some of the latter are special */
    int32_t template_ids[GR_TOK_N_TEMPLATE_MAX];
    int n_template;
    int32_t eos_id;       /* -1: none */
    size_t n_id_per_byte; /* no text gives more */
    uint64_t fingerprint;
};

#define GR_TOK_MARK "\xe2\x96\x81" /* U+2581, SentencePiece's blank */

/* ---- tokenizer_steps.c ---- */

/* The fields of tokenizer.json around the model. has_id says whether an id has a token. */
GR_NODISCARD enum gr_status gr_tok_parse_steps(struct gr_tokenizer_parts *parts, const json_t *root);

/* ---- normalize.c ---- */

GR_NODISCARD enum gr_status gr_norm_init(struct gr_norm *n, const char *name, const struct gr_norm_part *part);
void gr_norm_finish(struct gr_norm *n);

/* All steps over valid UTF-8. *out is NULL when the text stays as it is; else owned by the caller. glued: the text goes
 * on after other text, so that nothing is put in front. */
GR_NODISCARD enum gr_status gr_tok_normalize(const struct gr_tokenizer *tok, const char *text, size_t len, bool glued,
                                             char **out, size_t *len_out);

/* How much longer, in ids, a step can make a text. */
size_t gr_norm_growth(const struct gr_tokenizer *tok, const struct gr_norm *n);

/* ---- split_regex.c ---- */

/* `what' is the field, for messages. */
GR_NODISCARD enum gr_status gr_split_compile(const char *name, const char *what, const struct gr_tok_pattern *pattern,
                                             pcre2_code **out);

/* ---- added_tokens.c ---- */

GR_NODISCARD enum gr_status gr_tok_build_tries(struct gr_tokenizer *tok);
void gr_trie_finish(struct gr_trie *trie);

struct gr_added_match {
    size_t begin, end; /* with the white space that lstrip and rstrip take */
    const struct gr_added_token *token;
};
/* A search through bytes [begin, end) of a text, which are valid UTF-8; what lies beside them is not looked at. */
struct gr_added_scan {
    const struct gr_marked_text *text;
    size_t begin, end;
    size_t at;      /* the search goes on here: where the last match ended */
    size_t i_plain; /* the first plain span that ends after `at' */
};
/* The next added token; false: none. */
bool gr_trie_find(const struct gr_tokenizer *tok, const struct gr_trie *trie, struct gr_added_scan *scan,
                  struct gr_added_match *out);

/* ---- bpe.c ---- */

GR_NODISCARD enum gr_status gr_merge_table_init(struct gr_merge_table *t, size_t n_max);
void gr_merge_table_finish(struct gr_merge_table *t);
/* False: the pair is already there. */
bool gr_merge_table_add(struct gr_merge_table *t, int32_t left, int32_t right, uint32_t rank, int32_t id);

struct gr_bpe_scratch;
struct gr_bpe_scratch *gr_bpe_scratch_create(void); /* NULL: no memory */
void gr_bpe_scratch_destroy(struct gr_bpe_scratch *s);

/* Ids of one pre-token, len > 0. *ids_out lives in the scratch until the next call. */
GR_NODISCARD enum gr_status gr_bpe_encode(const struct gr_tokenizer *tok, struct gr_bpe_scratch *s, const char *bytes,
                                          size_t len, const int32_t **ids_out, size_t *n_out);

/* ---- pre_split.c ---- */

struct gr_splitter; /* what one encode call needs for the pre-tokenizer */

/* Takes one pre-token. */
typedef enum gr_status gr_piece_fn(void *user, const char *text, size_t len);

GR_NODISCARD enum gr_status gr_splitter_create(const struct gr_tokenizer *tok, gr_piece_fn *fn, void *user,
                                               struct gr_splitter **out);
void gr_splitter_destroy(struct gr_splitter *s);
/* Cuts a text between added tokens. first: it begins the whole text. glued: see gr_tok_normalize. */
GR_NODISCARD enum gr_status gr_splitter_run(struct gr_splitter *s, const char *text, size_t len, bool first,
                                            bool glued);

#endif
