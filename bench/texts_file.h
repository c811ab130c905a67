/* Recorded texts as a JSON file: what a draft model gave its children at each position of each text and level of a
 * tree, and which of them the target picked. docs/bench.md tells its form. */
#ifndef GR_BENCH_TEXTS_FILE_H
#define GR_BENCH_TEXTS_FILE_H

#include "bench/simulate/surmise.h"
#include "common/base/status.h"

/* Checks everything, and logs the first error. The caller frees out->row, also after a failure.
 * GR_ENOTFOUND, GR_EFORMAT, GR_ENOMEM. */
GR_NODISCARD enum gr_status gr_texts_file_load(const char *path, struct gr_surmise_texts *out);

#endif
