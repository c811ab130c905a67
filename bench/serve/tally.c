#include "bench/serve/tally.h"

#include "bench/table.h"

#include <math.h>
#include <stdlib.h>

/* Between the two nearest, linearly. */
static double percentile(const double *sorted, size_t n, double share)
{
    const double at = share * (double)(n - 1);
    const size_t below = (size_t)at;
    const size_t above = GR_MIN(below + 1, n - 1);
    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

struct gr_spread gr_spread_of(double *sample, size_t n)
{
    if (n == 0) {
        return (struct gr_spread){.mean = 0.0};
    }
    double sum = 0.0;
    double squares = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += sample[i];
    }
    for (size_t i = 0; i < n; i++) {
        squares += (sample[i] - sum / (double)n) * (sample[i] - sum / (double)n);
    }
    gr_sort(sample, n);
    return (struct gr_spread){.mean = 1e3 * sum / (double)n,
                              .median = 1e3 * percentile(sample, n, 0.5),
                              .std = 1e3 * sqrt(squares / (double)n),
                              .p99 = 1e3 * percentile(sample, n, 0.99)};
}

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? 1e-9 * (double)(to_ns - from_ns) : 0.0;
}

/* ---- spreads over answers ---- */

/* What an answer adds to a spread; false: nothing. */
typedef bool figure_fn(const struct gr_answer *a, double *out);

static bool ttft_of(const struct gr_answer *a, double *out)
{
    *out = seconds(a->sent_ns, a->first_ns);
    return a->first_ns != 0;
}

static bool tpot_of(const struct gr_answer *a, double *out)
{
    *out = a->n_out > 1 ? seconds(a->first_ns, a->end_ns) / (a->n_out - 1) : 0.0;
    return a->n_out > 1 && a->first_ns != 0;
}

static bool e2el_of(const struct gr_answer *a, double *out)
{
    *out = seconds(a->sent_ns, a->end_ns);
    return true;
}

static bool queue_of(const struct gr_answer *a, double *out)
{
    *out = seconds(a->due_ns, a->sent_ns);
    return true;
}

static bool longest_gap_of(const struct gr_answer *a, double *out)
{
    *out = 1e-9 * (double)a->longest_gap_ns;
    return a->longest_gap_ns != 0;
}

static struct gr_spread spread(const struct gr_answer *answer, int n, figure_fn *figure, double *scratch)
{
    size_t n_sample = 0;
    for (int i = 0; i < n; i++) {
        if (answer[i].end == GR_ANSWER_DONE && figure(&answer[i], &scratch[n_sample])) {
            n_sample++;
        }
    }
    return gr_spread_of(scratch, n_sample);
}

/* As `graft run' counts it: what follows the last piece is no decoding. */
static double mean_decode_rate(const struct gr_answer *answer, int n)
{
    double sum = 0.0;
    int n_rate = 0;
    for (const struct gr_answer *a = answer; a < answer + n; a++) {
        if (a->end == GR_ANSWER_DONE && a->n_out > 1 && a->last_ns > a->first_ns) {
            sum += (a->n_out - 1) / seconds(a->first_ns, a->last_ns);
            n_rate++;
        }
    }
    return n_rate > 0 ? sum / n_rate : 0.0;
}

/* ---- requests at a time ---- */

/* The most whole answers that were on their way at one time; one that ends as another begins is not with it. */
static int most_at_once(const struct gr_answer *answer, int n, double *from, double *to)
{
    int n_sample = 0;
    for (int i = 0; i < n; i++) {
        if (answer[i].end == GR_ANSWER_DONE) {
            from[n_sample] = (double)answer[i].sent_ns;
            to[n_sample++] = (double)answer[i].end_ns;
        }
    }
    gr_sort(from, (size_t)n_sample);
    gr_sort(to, (size_t)n_sample);
    int most = 0;
    for (int begun = 0, ended = 0; begun < n_sample; begun++) {
        while (ended < n_sample && to[ended] <= from[begun]) {
            ended++;
        }
        most = GR_MAX(most, begun + 1 - ended);
    }
    return most;
}

/* ---- all of it ---- */

static void add_answer(struct gr_tally *t, const struct gr_answer *a)
{
    t->n_end[a->end]++;
    if (a->end != GR_ANSWER_DONE) {
        t->failed += a->end != GR_ANSWER_NONE;
        return;
    }
    t->completed++;
    t->total_input_tokens += a->n_in;
    t->total_output_tokens += a->n_out;
    t->longest_gap_ms = fmax(t->longest_gap_ms, 1e-6 * (double)a->longest_gap_ns);
    t->max_ttft_ms = fmax(t->max_ttft_ms, 1e3 * seconds(a->sent_ns, a->first_ns));
}

enum gr_status gr_tally_make(const struct gr_answer *answer, int n, struct gr_gaps *gaps, uint64_t duration_ns,
                             struct gr_tally *out)
{
    double *scratch = calloc(2 * (size_t)n + 1, sizeof(*scratch));
    if (scratch == NULL) {
        return GR_ENOMEM;
    }
    struct gr_tally t = {.duration_s = 1e-9 * (double)duration_ns};
    for (int i = 0; i < n; i++) {
        add_answer(&t, &answer[i]);
    }
    if (t.duration_s > 0.0) {
        t.request_throughput = t.completed / t.duration_s;
        t.output_throughput = (double)t.total_output_tokens / t.duration_s;
        t.total_token_throughput = (double)(t.total_input_tokens + t.total_output_tokens) / t.duration_s;
    }
    t.max_concurrent_requests = most_at_once(answer, n, scratch, scratch + n);
    t.ttft = spread(answer, n, ttft_of, scratch);
    t.tpot = spread(answer, n, tpot_of, scratch);
    t.e2el = spread(answer, n, e2el_of, scratch);
    t.client_queue_time = spread(answer, n, queue_of, scratch);
    t.median_longest_gap_ms = spread(answer, n, longest_gap_of, scratch).median;
    t.decode_tokens_per_second = mean_decode_rate(answer, n);
    t.itl = gr_spread_of(gaps->s, gaps->n);
    free(scratch);
    *out = t;
    return GR_OK;
}
