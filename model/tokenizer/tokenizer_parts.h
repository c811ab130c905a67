/* What a tokenizer is made of, however its file spells it: the reader of tokenizer.json fills this struct, and so can
 * the reader of another format. Everything in it is borrowed for the call of gr_tokenizer_build() and is not kept. */
#ifndef GR_MODEL_TOKENIZER_TOKENIZER_PARTS_H
#define GR_MODEL_TOKENIZER_TOKENIZER_PARTS_H

#include "model/tokenizer/tokenizer.h"

#define GR_TOK_N_NORM_MAX 8
#define GR_TOK_N_PRE_MAX 12
#define GR_TOK_N_DECODE_MAX 4
#define GR_TOK_N_TEMPLATE_MAX 8
#define GR_TOK_N_ADDED_MAX 65536
#define GR_TOK_N_MERGE_MAX (1u << 23)
#define GR_TOK_PATTERN_BYTES 8192

struct gr_tok_text {
    const char *text; /* NULL: none */
    uint32_t len;
};

struct gr_tok_merge {
    struct gr_tok_text left, right;
};

struct gr_tok_added {
    struct gr_tok_text content;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

/* A regex in Oniguruma's syntax, as Hugging Face's library reads it, or a text that is searched for as it is. */
struct gr_tok_pattern {
    const char *text;
    bool literal;
};

enum gr_norm_kind { GR_NORM_NFC, GR_NORM_NFD, GR_NORM_NFKC, GR_NORM_NFKD, GR_NORM_PREPEND, GR_NORM_REPLACE };

struct gr_norm_part {
    enum gr_norm_kind kind;
    struct gr_tok_pattern pattern; /* REPLACE: what is replaced */
    const char *content;           /* PREPEND, REPLACE */
};

/* What becomes of the places that match, as Hugging Face names it. */
enum gr_split_behavior {
    GR_SPLIT_ISOLATED,
    GR_SPLIT_REMOVED,
    GR_SPLIT_CONTIGUOUS,
    GR_SPLIT_MERGED_WITH_PREVIOUS,
    GR_SPLIT_MERGED_WITH_NEXT
};

enum gr_pre_kind {
    GR_PRE_SPLIT,
    GR_PRE_PREFIX_SPACE, /* a blank in front of every piece that has none there */
    GR_PRE_METASPACE     /* blanks become marks, which begin the pieces */
};

enum gr_prepend_scheme { GR_PREPEND_ALWAYS, GR_PREPEND_FIRST, GR_PREPEND_NEVER };

struct gr_pre_part {
    enum gr_pre_kind kind;
    struct gr_tok_pattern pattern; /* SPLIT */
    enum gr_split_behavior behavior;
    bool invert;
    const char *mark; /* METASPACE: one character */
    enum gr_prepend_scheme scheme;
    bool split;
};

/* How a token's string becomes bytes. */
struct gr_decode_part {
    bool byte_level; /* the characters of the byte-level alphabet; nothing else is done then */
    struct {
        const char *from, *to;
    } replace[GR_TOK_N_DECODE_MAX];
    int n_replace;
    bool byte_fallback; /* <0x0A> is a byte */
    bool fused;         /* the steps that follow see the whole text */
    uint8_t n_strip;    /* so many blanks at the text's start are not the text's own */
};

struct gr_tokenizer_parts {
    const char *name;                       /* the file, for messages */
    const char *tokens_field, *merge_field; /* names for messages: "model.vocab", "model.merges" */

    const struct gr_tok_text *tokens;  /* [n_vocab] by id; text NULL: the id has no token */
    int32_t n_vocab;                   /* added tokens may lie above */
    const struct gr_tok_merge *merges; /* [n_merge] by rank */
    size_t n_merge;
    const float *scores; /* [n_vocab]: merges go by the score of what they give, highest first; NULL: by rank */
    const struct gr_tok_added *added; /* [n_added] */
    size_t n_added;

    const char *unk; /* NULL: what is unknown is dropped */
    bool fuse_unk, byte_fallback, ignore_merges;

    struct gr_norm_part norms[GR_TOK_N_NORM_MAX];
    int n_norm;
    struct gr_pre_part pres[GR_TOK_N_PRE_MAX];
    int n_pre;
    bool byte_level; /* the vocabulary is spelled in the byte-level alphabet, and merging starts at bytes */
    struct gr_decode_part decode;
    int32_t template_ids[GR_TOK_N_TEMPLATE_MAX]; /* in front of the text */
    int n_template;
};

GR_NODISCARD enum gr_status gr_tokenizer_build(const struct gr_tokenizer_parts *parts, struct gr_tokenizer **out);

/* What a GGUF file says of its tokenizer (tokenizer.ggml.*), for the kinds `gpt2` and `llama`. */
enum { GR_GGUF_NORMAL = 1, GR_GGUF_UNKNOWN, GR_GGUF_CONTROL, GR_GGUF_USER_DEFINED, GR_GGUF_UNUSED, GR_GGUF_BYTE };

struct gr_gguf_vocab {
    const char *name;                 /* the file, for messages */
    const char *kind;                 /* .model */
    const char *pre;                  /* .pre; NULL: missing */
    const struct gr_tok_text *tokens; /* [n_token] */
    const int32_t *types;             /* [n_token]; NULL: all normal */
    const float *scores;              /* [n_token]; NULL: none */
    int32_t n_token;
    const struct gr_tok_text *merges; /* [n_merge] "left right" */
    size_t n_merge;
    int32_t bos_id, unk_id; /* -1: missing */
    int add_bos;            /* -1: missing */
    bool add_space_prefix;  /* kind llama: true where the key is missing */
};

GR_NODISCARD enum gr_status gr_tokenizer_from_gguf(const struct gr_gguf_vocab *v, struct gr_tokenizer **out);

/* The same from a file's metadata, every key of which is checked. name: the file, for messages. */
struct gr_gguf;
bool gr_gguf_has_tokenizer(const struct gr_gguf *g);
GR_NODISCARD enum gr_status gr_tokenizer_from_metadata(const char *name, const struct gr_gguf *g,
                                                       struct gr_tokenizer **out);

/* The steps that a name under tokenizer.ggml.pre stands for; false: not known. */
bool gr_tok_pre_by_name(const char *pre, struct gr_tokenizer_parts *parts);

#endif
