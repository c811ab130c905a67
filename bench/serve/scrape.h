/* Counters of speculation of a page of metrics, graft's or vLLM's, summed over their labels. Pure. */
#ifndef GR_BENCH_SERVE_SCRAPE_H
#define GR_BENCH_SERVE_SCRAPE_H

#include <stdbool.h>

struct gr_spec_counts {
    bool known; /* the page has them */
    double drafts, draft_tokens, accepted_tokens;
};

struct gr_spec_counts gr_spec_counts_read(const char *page);

#endif
