/* `graft run` as a child of a benchmark, and the prompts it is given. */
#ifndef GR_BENCH_GRAFT_RUN_H
#define GR_BENCH_GRAFT_RUN_H

#include <jansson.h>

#define GR_BENCH_PROMPT_MAX 64

/* Runs graft and reads its JSON. NULL: it failed (its error is on standard error). */
json_t *gr_bench_run_graft(char **argv);
double gr_bench_metric(const json_t *metrics, const char *key);
/* prompt: (GR_BENCH_PROMPT_MAX). From a JSON array of texts; path NULL: four short ones. Returns how many; 0: logged.
 */
int gr_bench_load_prompts(const char *path, const char **prompt);

#endif
