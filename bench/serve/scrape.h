/* Counters of speculation of a page of metrics, graft's or vLLM's, summed over their labels. Pure. */
#ifndef GR_BENCH_SERVE_SCRAPE_H
#define GR_BENCH_SERVE_SCRAPE_H

#include <stdbool.h>

#define GR_SPEC_POSITION_MAX 64 /* samples of more are not read */

struct gr_spec_counts {
    bool known; /* the page has them */
    double drafts, draft_tokens, accepted_tokens;
    int n_position; /* that have a sample */
    double accepted_per_position[GR_SPEC_POSITION_MAX];
};

struct gr_spec_counts gr_spec_counts_read(const char *page);

#endif
