/* For tests: the tokenizer of mini_tokenizer.h, and others that are made as JSON, opened. */
#ifndef GR_TESTS_MINI_TOKENIZER_OPEN_H
#define GR_TESTS_MINI_TOKENIZER_OPEN_H

#include <stdlib.h>

#include "model/tokenizer/tokenizer.h"
#include "tests/unit/mini_tokenizer.h"

/* Takes root over. name: for messages. */
static inline enum gr_status mini_tokenizer_open_json(const char *name, json_t *root, struct gr_tokenizer **out)
{
    char *text = json_dumps(root, 0);
    GR_ASSERT(text != NULL);
    const enum gr_status st = gr_tokenizer_parse(name, text, strlen(text), out);
    free(text);
    json_decref(root);
    return st;
}

static inline enum gr_status mini_tokenizer_open(struct gr_tokenizer **out)
{
    return mini_tokenizer_open_json("mini", mini_tokenizer(), out);
}

#endif
