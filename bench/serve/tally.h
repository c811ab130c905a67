/* What a load's answers come to, by the formulas of vLLM's benchmark (vllm bench serve): latencies are of whole
 * answers, tokens those of `usage'; a time per output token is (end - first piece) / (tokens - 1), a gap is between
 * pieces, and a piece may have several tokens; standard deviations divide by n, percentiles are interpolated. Pure. */
#ifndef GR_BENCH_SERVE_TALLY_H
#define GR_BENCH_SERVE_TALLY_H

#include "bench/serve/answer.h"

/* In milliseconds. */
struct gr_spread {
    double mean, median, std, p99;
};

struct gr_tally {
    int n_end[GR_N_ANSWER_END]; /* answers by how they ended */
    int completed, failed;
    double duration_s;
    uint64_t total_input_tokens, total_output_tokens;
    double request_throughput, output_throughput, total_token_throughput; /* a second of the duration */
    int max_concurrent_requests;
    struct gr_spread ttft, tpot, itl, e2el, client_queue_time;
    double longest_gap_ms, max_ttft_ms; /* over all answers that are whole */
    double median_longest_gap_ms;    /* each answer's longest gap: far below the longest of all, one stream starved */
    double decode_tokens_per_second; /* from the first piece to the last one; the mean of the same answers */
};

/* gaps->s is sorted. GR_ENOMEM. */
GR_NODISCARD enum gr_status gr_tally_make(const struct gr_answer *answer, int n, struct gr_gaps *gaps,
                                          uint64_t duration_ns, struct gr_tally *out);
/* sample: (n) seconds; sorts. Zeroes where there is none. */
struct gr_spread gr_spread_of(double *sample, size_t n);

#endif
