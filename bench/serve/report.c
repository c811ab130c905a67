#include "bench/serve/report.h"

#include "bench/bench.h"
#include "common/base/out_file.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

/* ---- figures ---- */

static void add_number(json_t *o, const char *key, double x)
{
    json_object_set_new(o, key, json_real(x));
}

static void add_count(json_t *o, const char *key, uint64_t n)
{
    json_object_set_new(o, key, json_integer((json_int_t)n));
}

static void add_spread(json_t *o, const char *name, const struct gr_spread *s)
{
    const struct {
        const char *what;
        double value;
    } rows[] = {{"mean", s->mean}, {"median", s->median}, {"std", s->std}, {"p99", s->p99}};
    for (size_t i = 0; i < GR_ARRAY_LEN(rows); i++) {
        char key[64];
        snprintf(key, sizeof(key), "%s_%s_ms", rows[i].what, name);
        add_number(o, key, rows[i].value);
    }
}

static void add_setting(json_t *o, const struct gr_report_on *r)
{
    const char *backend = gr_bench_choice(r->options, GR_BENCH_OPTION_serve_backend);
    const double rate = r->options->request_rate;
    const int64_t at_once = r->options->max_concurrency;
    char date[32];
    const time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(date, sizeof(date), "%Y%m%d-%H%M%S", &tm);
    json_object_set_new(o, "date", json_string(date));
    json_object_set_new(o, "endpoint_type", json_string(backend));
    json_object_set_new(o, "backend", json_string(backend));
    json_object_set_new(o, "label", json_null());
    json_object_set_new(o, "model_id", json_string(r->model));
    json_object_set_new(o, "tokenizer_id", json_null());
    add_count(o, "num_prompts", (uint64_t)r->options->serve_num_prompts);
    json_object_set_new(o, "request_rate", rate == 0.0 ? json_string("inf") : json_real(rate));
    add_number(o, "burstiness", r->options->burstiness);
    json_object_set_new(o, "max_concurrency", at_once == 0 ? json_null() : json_integer(at_once));
}

static void add_totals(json_t *o, const struct gr_tally *t)
{
    add_number(o, "duration", t->duration_s);
    add_count(o, "completed", (uint64_t)t->completed);
    add_count(o, "failed", (uint64_t)t->failed);
    add_count(o, "total_input_tokens", t->total_input_tokens);
    add_count(o, "total_output_tokens", t->total_output_tokens);
    add_number(o, "request_throughput", t->request_throughput);
    json_object_set_new(o, "request_goodput", json_null());
    add_number(o, "output_throughput", t->output_throughput);
    add_number(o, "total_token_throughput", t->total_token_throughput);
    add_count(o, "max_concurrent_requests", (uint64_t)t->max_concurrent_requests);
}

static void add_latencies(json_t *o, const struct gr_tally *t)
{
    add_spread(o, "ttft", &t->ttft);
    add_spread(o, "tpot", &t->tpot);
    add_spread(o, "itl", &t->itl);
    add_spread(o, "e2el", &t->e2el);
    add_spread(o, "client_queue_time", &t->client_queue_time);
}

/* Shares of the trees. */
static json_t *per_position(const struct gr_spec_counts *a, const struct gr_spec_counts *b, double drafts)
{
    json_t *list = json_array();
    for (int i = 0; i < b->n_position; i++) {
        json_array_append_new(list, json_real((b->accepted_per_position[i] - a->accepted_per_position[i]) / drafts));
    }
    return list;
}

/* Differences of counters that other clients may have moved, too. */
static void add_speculation(json_t *o, const struct gr_spec_counts *a, const struct gr_spec_counts *b)
{
    const double drafts = b->drafts - a->drafts;
    const double tokens = b->draft_tokens - a->draft_tokens;
    const double accepted = b->accepted_tokens - a->accepted_tokens;
    const bool any = a->known && b->known && drafts > 0.0 && tokens > 0.0;
    json_object_set_new(o, "spec_decode_acceptance_rate", any ? json_real(100.0 * accepted / tokens) : json_null());
    json_object_set_new(o, "spec_decode_acceptance_length", any ? json_real(1.0 + accepted / drafts) : json_null());
    json_object_set_new(o, "spec_decode_num_drafts", any ? json_integer((json_int_t)drafts) : json_null());
    json_object_set_new(o, "spec_decode_draft_tokens", any ? json_integer((json_int_t)tokens) : json_null());
    json_object_set_new(o, "spec_decode_accepted_tokens", any ? json_integer((json_int_t)accepted) : json_null());
    json_object_set_new(o, "spec_decode_per_position_acceptance_rates",
                        any && b->n_position > 0 ? per_position(a, b, drafts) : json_null());
}

static void add_own(json_t *o, const struct gr_report_on *r)
{
    static const char *const kinds[] = {[GR_ANSWER_CONNECT] = "errors_connect", [GR_ANSWER_STATUS] = "errors_status",
                                        [GR_ANSWER_EVENT] = "errors_event",     [GR_ANSWER_CUT] = "errors_cut",
                                        [GR_ANSWER_TIMEOUT] = "errors_timeout", [GR_ANSWER_FORM] = "errors_form"};
    add_number(o, "longest_gap_ms", r->tally->longest_gap_ms);
    add_number(o, "median_longest_gap_ms", r->tally->median_longest_gap_ms);
    add_number(o, "max_ttft_ms", r->tally->max_ttft_ms);
    add_number(o, "decode_tokens_per_second", r->tally->decode_tokens_per_second);
    for (int i = GR_ANSWER_CONNECT; i < GR_N_ANSWER_END; i++) {
        add_count(o, kinds[i], (uint64_t)r->tally->n_end[i]);
    }
    json_object_set_new(o, "texts_differ", r->texts_compared ? json_integer(r->n_text_differs) : json_null());
}

json_t *gr_report_make(const struct gr_report_on *r)
{
    json_t *o = json_object();
    if (o != NULL) {
        add_setting(o, r);
        add_totals(o, r->tally);
        add_latencies(o, r->tally);
        add_speculation(o, &r->before, &r->after);
        add_own(o, r);
    }
    return o;
}

/* ---- what is written ---- */

static void print_numbers(struct gr_table *t, const json_t *list)
{
    double x[GR_SPEC_POSITION_MAX];
    const int n = GR_MIN((int)json_array_size(list), GR_SPEC_POSITION_MAX);
    for (int i = 0; i < n; i++) {
        x[i] = json_number_value(json_array_get(list, (size_t)i));
    }
    gr_table_numbers(t, x, n, 3);
}

static void print_value(struct gr_table *t, const json_t *value)
{
    if (json_is_string(value)) {
        gr_table_text(t, json_string_value(value));
    } else if (json_is_number(value)) {
        gr_table_number(t, json_number_value(value), json_is_integer(value) ? 0 : 3);
    } else if (json_is_array(value)) {
        print_numbers(t, value);
    } else {
        gr_table_none(t);
    }
}

static void print_list(const char *note, json_t *report)
{
    static const char *const columns[] = {"figure                          ", "value"};
    const char *key = NULL;
    json_t *value = NULL;
    struct gr_table t;
    gr_table_begin(&t, GR_TABLE_MD, stdout, "serve", note, columns, 2);
    json_object_foreach(report, key, value)
    {
        gr_table_text(&t, key);
        print_value(&t, value);
    }
    gr_table_end(&t);
}

static void print_row(enum gr_table_format format, const char *note, json_t *report)
{
    const char *columns[GR_TABLE_COLUMN_MAX];
    const char *key = NULL;
    json_t *value = NULL;
    int n = 0;
    struct gr_table t;
    json_object_foreach(report, key, value)
    {
        GR_ASSERT(n < GR_TABLE_COLUMN_MAX);
        columns[n++] = key;
    }
    gr_table_begin(&t, format, stdout, "serve", note, columns, n);
    json_object_foreach(report, key, value)
    {
        print_value(&t, value);
    }
    gr_table_end(&t);
}

void gr_report_print(const struct gr_bench_options *o, const char *note, const json_t *report)
{
    json_t *rows = (json_t *)(uintptr_t)report; /* foreach wants it so, and changes nothing */
    if (gr_bench_format(o) == GR_TABLE_MD) {
        print_list(note, rows);
    } else {
        print_row(gr_bench_format(o), note, rows);
    }
}

enum gr_status gr_report_save(const char *path, const json_t *report)
{
    struct gr_out_file file;
    GR_TRY(gr_out_file_open("--result-filename", path, 0644, false, &file));
    const bool good = json_dumpf(report, file.f, JSON_PRESERVE_ORDER | JSON_INDENT(1)) == 0 && fputc('\n', file.f) >= 0;
    return gr_out_file_close(&file, good, NULL);
}
