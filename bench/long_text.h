/* Long contexts for benchmarks: texts as ids, one after the other, and windows of them. */
#ifndef GR_BENCH_LONG_TEXT_H
#define GR_BENCH_LONG_TEXT_H

#include "common/base/status.h"

#include <stdint.h>

struct gr_long_text {
    int32_t *id; /* owned, (n) */
    int32_t n;
    int32_t bos; /* -1: the tokenizer has none */
};

/* model: folder of the tokenizer. prompts, kind: texts as graft_run.h's; NULL: the files that `pattern` (glob) matches,
 * in alphabetic order. */
GR_NODISCARD enum gr_status gr_long_text_load(const char *model, const char *prompts, const char *kind,
                                              const char *pattern, struct gr_long_text *out);
void gr_long_text_free(struct gr_long_text *t);
/* Window i of n_window of them, of n_id ids with BOS; they begin as far apart as the text allows. GR_ELIMIT: the text
 * is shorter (logged). */
GR_NODISCARD enum gr_status gr_long_text_window(const struct gr_long_text *t, int i, int n_window, int32_t n_id,
                                                int32_t *id_out);

#endif
