/* Shared by the tokenizer's own files; nobody else includes it.
 *
 * Reading order: tokenizer_load.c (tokenizer.json into struct gr_tokenizer), tokenizer_steps.c (its
 * normalizer, pre_tokenizer, post_processor, decoder), split_regex.c, added_tokens.c, bpe.c,
 * tokenizer.c (encode), detokenizer.c. */
#ifndef GR_MODEL_TOKENIZER_TOKENIZER_INTERNAL_H
#define GR_MODEL_TOKENIZER_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8 /* texts are UTF-8 */
#include <jansson.h>
#include <pcre2.h>

#include "common/base/utf8.h"
#include "model/files/str_table.h"
#include "model/tokenizer/tokenizer.h"

#define GR_TOK_N_SPLIT_MAX 8      /* split steps of a pre-tokenizer, at most */
#define GR_TOK_N_TEMPLATE_MAX 8   /* ids that are put before and after a text, at most */
#define GR_TOK_N_ADDED_MAX 65536  /* added tokens, at most */
#define GR_TOK_PATTERN_BYTES 4096 /* bytes of a regular expression, at most */

enum { GR_TOK_PRESENT = 1, GR_TOK_ADDED = 2, GR_TOK_SPECIAL = 4 };

struct gr_tok_entry {
    const char *bytes; /* into the arena; NULL: the id has no token */
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

struct gr_split {
    pcre2_code *code; /* owned */
    bool drop_gaps;   /* behavior Removed with invert: only the matches stay */
};

struct gr_tokenizer {
    char *arena;                  /* owned: all token bytes */
    struct gr_tok_entry *entries; /* [n_vocab], owned */
    int32_t n_vocab;
    int32_t byte_id[256];
    struct gr_str_table by_bytes; /* tokens that BPE can give */
    struct gr_merge_table merges;
    bool ignore_merges;
    bool nfc;
    struct gr_split splits[GR_TOK_N_SPLIT_MAX];
    int n_split;
    struct gr_added_token *added; /* [n_added], owned */
    int n_added;
    struct gr_trie raw_trie;        /* added tokens that match before the normalizer */
    struct gr_trie normalized_trie; /* added tokens that match after it */
    int32_t template_ids[GR_TOK_N_TEMPLATE_MAX];
    int n_template;
    uint64_t fingerprint;
};

/* Oniguruma's \s, that is Unicode White_Space. */
bool gr_is_white_space(int32_t code_point);

/* ---- tokenizer_steps.c ---- */

/* The fields of tokenizer.json around the model; need entries and added tokens. */
GR_NODISCARD enum gr_status gr_tok_parse_steps(struct gr_tokenizer *tok, const char *name, const json_t *root);

/* NFC of valid UTF-8. *out is NULL when the text is NFC as it is; else owned by the caller. */
GR_NODISCARD enum gr_status gr_tok_nfc(const char *text, size_t len, char **out, size_t *len_out);

/* ---- split_regex.c ---- */

/* pattern is in Oniguruma's syntax, as Hugging Face's library reads it. */
GR_NODISCARD enum gr_status gr_split_compile(const char *name, const char *pattern, bool literal, pcre2_code **out);

/* ---- added_tokens.c ---- */

GR_NODISCARD enum gr_status gr_tok_build_tries(struct gr_tokenizer *tok);
void gr_trie_finish(struct gr_trie *trie);

struct gr_added_match {
    size_t begin, end; /* with the white space that lstrip and rstrip take */
    const struct gr_added_token *token;
};
/* Next added token in text[from, len); false: none. The text is valid UTF-8. */
bool gr_trie_find(const struct gr_tokenizer *tok, const struct gr_trie *trie, const char *text, size_t len, size_t from,
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

#endif
