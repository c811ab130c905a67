/* The file that graft-bench tune writes and models read (model/files/tuned.h): an entry replaces that of the same
 * shape, all others stay. */
#ifndef GR_BENCH_TUNE_FILE_H
#define GR_BENCH_TUNE_FILE_H

#include "common/base/status.h"

#include <jansson.h>

/* What is in the file, or an empty one. A file that is wrong, or of another GPU, is refused. json_decref the result. */
GR_NODISCARD enum gr_status gr_tune_file_open(const char *path, const char *gpu, json_t **root_out);
/* section: linear or attention; entry: taken; its first n_key members name the shape. */
void gr_tune_file_put(json_t *root, const char *section, json_t *entry, int n_key);
/* By way of a file beside it, so that nobody reads half of it. */
GR_NODISCARD enum gr_status gr_tune_file_write(const char *path, const json_t *root);

#endif
