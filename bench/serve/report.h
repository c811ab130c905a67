/* The figures of a load under the keys of vLLM's `vllm bench serve', and a few of graft's own after them. */
#ifndef GR_BENCH_SERVE_REPORT_H
#define GR_BENCH_SERVE_REPORT_H

#include "bench/options/options.h"
#include "bench/serve/scrape.h"
#include "bench/serve/tally.h"

struct json_t;

struct gr_report_on {
    const struct gr_bench_options *options;
    const char *model;
    const struct gr_tally *tally;
    struct gr_spec_counts before, after; /* known in both: speculation is reported */
    bool texts_compared;
    int n_text_differs; /* answers of another text than their prompt's first */
};

/* An object whose members have the order of the report; owned by the caller. NULL: out of memory. */
struct json_t *gr_report_make(const struct gr_report_on *r);
/* To standard output: a row in CSV and JSON, a row for each figure in markdown. note: as gr_table_begin's. */
void gr_report_print(const struct gr_bench_options *o, const char *note, const struct json_t *report);
/* The object alone, as vLLM's --save-result does. GR_EIO: logged. */
GR_NODISCARD enum gr_status gr_report_save(const char *path, const struct json_t *report);

#endif
