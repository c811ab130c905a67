/* Programs of graft as children of a benchmark, and the prompts that it is given. */
#ifndef GR_BENCH_GRAFT_RUN_H
#define GR_BENCH_GRAFT_RUN_H

#include "bench/options/options.h"

#include <jansson.h>

/* Runs argv[0] and reads the JSON that it prints; argv: NULL after the last. NULL: it could not be started, ended with
 * another status than 0 or printed no JSON (logged, after what it says itself). Owned by the caller. */
json_t *gr_bench_run_json(const char *const *argv);
double gr_bench_metric(const json_t *metrics, const char *key);
/* prompt: (GR_BENCH_PROMPT_MAX), of a file with a JSON array of texts, or with JSON lines {"text": ..., "kind": ...},
 * of which kind, unless NULL, chooses. path NULL: four short ones. Texts past the most are left out. Returns how many;
 * 0: logged. */
int gr_bench_load_prompts(const char *path, const char *kind, const char **prompt);

#endif
