/* Recorded texts as a JSON file: what a draft model gave its children at each position of each text and level of a
 * tree, and which of them the target picked. docs/bench.md tells its form. */
#ifndef GR_BENCH_TEXTS_FILE_H
#define GR_BENCH_TEXTS_FILE_H

#include "bench/simulate/surmise.h"
#include "common/base/status.h"

/* Everything is checked; what is wrong is logged. out->row is the caller's to free, also where it fails.
 * GR_ENOTFOUND, GR_EFORMAT, GR_ENOMEM. */
GR_NODISCARD enum gr_status gr_texts_file_load(const char *path, struct gr_surmise_texts *out);

#endif
