/* BPE tokenizers, byte-level ones (Llama 3, Qwen, GPT-2, SmolLM) and ones of SentencePiece's kind (Llama 2, Mistral,
 * TinyLlama, Gemma), read from a Hugging Face tokenizer.json or made of parts (tokenizer_parts.h). A field that is not
 * understood is an error that names it. Immutable after load: any number of threads may encode and decode with one
 * tokenizer at a time; a gr_detok belongs to one thread.
 *
 * Bytes that are not UTF-8: the text is cut into maximal runs of valid UTF-8; each run is encoded as if it stood alone
 * (but gets no blank in front), each byte between runs becomes its own byte token. So where every byte has a token any
 * bytes can be encoded, and the concatenated gr_tokenizer_token_bytes() give them back (given no normalizer that
 * changes the text, no Split step with Removed and no lstrip/rstrip token in the text). A byte without a token becomes
 * the unk token, or nothing where there is none. Decoding to text replaces what is not UTF-8 by U+FFFD, one for each
 * maximal subpart, as Hugging Face's byte-level decoder does; its ByteFallback gives one for each byte of such a run.
 * gr_tokenizer_decode_bytes() replaces nothing.
 *
 * Ids without a token (holes, padded rows) decode to nothing. An added token decodes to its content; Hugging Face reads
 * a content such as "caf\u00e9" as byte-level characters and so gives U+FFFD. Normal forms are those of utf8proc's
 * Unicode; Hugging Face's know the combining classes of Unicode 9 and leave newer marks where they are. */
#ifndef GR_MODEL_TOKENIZER_TOKENIZER_H
#define GR_MODEL_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define GR_TOKENIZER_FILE_BYTES (64u << 20) /* bytes of tokenizer.json, at most */
#define GR_TOKENIZER_TEXT_BYTES (16u << 20) /* of one encode call */
#define GR_TOKENIZER_N_VOCAB (1 << 22)      /* ids are below */
#define GR_TOKEN_BYTES_MAX 1024             /* of one token */

struct gr_tokenizer;

/* dir: model folder with a tokenizer.json, and perhaps a tokenizer_config.json. */
GR_NODISCARD enum gr_status gr_tokenizer_load(const char *dir, struct gr_tokenizer **out);

/* tokenizer.json from memory; name stands for the file in messages. json is not kept. */
GR_NODISCARD enum gr_status gr_tokenizer_parse(const char *name, const char *json, size_t len,
                                               struct gr_tokenizer **out);

void gr_tokenizer_destroy(struct gr_tokenizer *tok); /* NULL is legal */

/* Flags of gr_tokenizer_encode(); true is GR_ENCODE_BOS. */
enum {
    GR_ENCODE_BOS = 1,       /* the template's tokens come first (none if the tokenizer has no template); a BOS that
                              * stands in the text stays as well */
    GR_ENCODE_NO_SPECIAL = 2 /* special tokens in the text are text like any other */
};

/* Added tokens in the text become their ids. GR_ELIMIT when more than cap ids are needed: ids[] is then garbage, *n_out
 * untouched. gr_tokenizer_encode_bound() is always enough. */
GR_NODISCARD enum gr_status gr_tokenizer_encode(const struct gr_tokenizer *tok, const char *text, size_t len,
                                                unsigned flags, int32_t *ids, size_t cap, size_t *n_out);
size_t gr_tokenizer_encode_bound(const struct gr_tokenizer *tok, size_t len);

/* Bytes [begin, end) of a text. */
struct gr_text_span {
    size_t begin, end;
};

/* A text that two hands wrote. In the plain spans, which rise, do not overlap and begin and end between characters,
 * special tokens are text like any other; one that stands outside of them becomes its id. All else sees one text:
 * merges go over the spans' edges. */
struct gr_marked_text {
    const char *text; /* borrowed */
    size_t len;
    const struct gr_text_span *plain; /* borrowed, [n_plain] */
    size_t n_plain;
};
/* As gr_tokenizer_encode(). */
GR_NODISCARD enum gr_status gr_tokenizer_encode_marked(const struct gr_tokenizer *tok,
                                                       const struct gr_marked_text *text, unsigned flags, int32_t *ids,
                                                       size_t cap, size_t *n_out);

/* Valid UTF-8, NUL-terminated, owned by the caller (free). skip_special: special tokens give no
 * text. */
GR_NODISCARD enum gr_status gr_tokenizer_decode(const struct gr_tokenizer *tok, const int32_t *ids, size_t n,
                                                bool skip_special, char **text_out, size_t *len_out);
/* The same with the tokens' bytes as they are. */
GR_NODISCARD enum gr_status gr_tokenizer_decode_bytes(const struct gr_tokenizer *tok, const int32_t *ids, size_t n,
                                                      bool skip_special, char **bytes_out, size_t *len_out);

int32_t gr_tokenizer_n_vocab(const struct gr_tokenizer *tok); /* highest id + 1 */

/* Equal for tokenizers with the same ids, token bytes, merges (or scores) and added tokens, however the file
 * spells them. Regexes, normalizer and template are left out: draft and target need the same ids,
 * no more. */
uint64_t gr_tokenizer_fingerprint(const struct gr_tokenizer *tok);

/* Raw bytes of a token (not NUL-terminated), borrowed; NULL and 0 for an id without a token. */
const char *gr_tokenizer_token_bytes(const struct gr_tokenizer *tok, int32_t id, size_t *len_out);
bool gr_tokenizer_is_special(const struct gr_tokenizer *tok, int32_t id); /* false for unknown ids */

/* Id of an added token ("<|eot_id|>") or -1. */
int32_t gr_tokenizer_added_id(const struct gr_tokenizer *tok, const char *content);
/* First token of the template, -1 when there is none. */
int32_t gr_tokenizer_bos_id(const struct gr_tokenizer *tok);
/* What tokenizer_config.json calls the end of a text, -1 when there is none. A GGUF file's are in its gr_hf_config. */
int32_t gr_tokenizer_eos_id(const struct gr_tokenizer *tok);

/* Incremental detokenizer: the texts of all pushes and the flush, put together, are
 * gr_tokenizer_decode() of the same ids with skip_special; each of them is complete UTF-8
 * characters. Where `goes_on` is set after init the ids go on after a text, so that a blank in front of them is the
 * text's own and stays. No allocation. */
#define GR_DETOK_OUT_MAX (3 * (GR_TOKEN_BYTES_MAX + 4)) /* one push never gives more */

struct gr_detok {
    const struct gr_tokenizer *tok; /* borrowed */
    uint8_t held[4];                /* start of a character whose rest has not come yet */
    uint8_t n_held;
    bool goes_on; /* some text is before what comes */
};

void gr_detok_init(struct gr_detok *d, const struct gr_tokenizer *tok);
/* Not NUL-terminated; *n_out may be 0. GR_ELIMIT (state unchanged) when cap is too small. */
GR_NODISCARD enum gr_status gr_detok_push(struct gr_detok *d, int32_t id, char *out, size_t cap, size_t *n_out);
/* End of text: a held start becomes U+FFFD. d is then as after init. */
GR_NODISCARD enum gr_status gr_detok_flush(struct gr_detok *d, char *out, size_t cap, size_t *n_out);

/* Oniguruma's \s, that is Unicode White_Space. */
bool gr_is_white_space(int32_t code_point);

#endif
