/* The tokenizer that belongs to a model, wherever its files keep it. Start only; one thread. */
#ifndef GR_MODEL_TOKENIZER_TOKENIZER_OF_MODEL_H
#define GR_MODEL_TOKENIZER_TOKENIZER_OF_MODEL_H

#include "model/tokenizer/tokenizer.h"

struct gr_gguf;

#define GR_TOKENIZER_PLACES "tokenizer (a folder's tokenizer.json, a GGUF file's tokenizer.ggml.model)"

/* path: a model folder or a GGUF file. *out is NULL (one info line) where there is none: such a model takes and gives
 * token ids only. */
GR_NODISCARD enum gr_status gr_tokenizer_of_model(const char *path, struct gr_tokenizer **out);
/* The same of a model whose files are known: gguf is its metadata, NULL for a folder. */
GR_NODISCARD enum gr_status gr_tokenizer_of_files(const char *path, const struct gr_gguf *gguf,
                                                  struct gr_tokenizer **out);
/* GR_ENOTFOUND where there is none. */
GR_NODISCARD enum gr_status gr_tokenizer_of_model_required(const char *path, struct gr_tokenizer **out);

/* Of a worker, which reads no text: its fingerprint (0: there is none) and how many ids may be sampled (INT32_MAX: all
 * that the model has). Warnings about it are left to who reads text. */
GR_NODISCARD enum gr_status gr_tokenizer_of_worker(const char *path, uint64_t *fingerprint_out, int32_t *n_token_out);

/* 0 where there is none. */
static inline uint64_t gr_tokenizer_fingerprint_or_0(const struct gr_tokenizer *tok)
{
    return tok != NULL ? gr_tokenizer_fingerprint(tok) : 0;
}
/* Ids below may be sampled: all that the model has where there is no tokenizer. */
static inline int32_t gr_tokenizer_n_vocab_or_all(const struct gr_tokenizer *tok)
{
    return tok != NULL ? gr_tokenizer_n_vocab(tok) : INT32_MAX;
}

#endif
