/* /metrics as text: escapes, buckets, and a table whose rows are as Prometheus wants them. */
#include "orchestrator/http/metrics.h"
#include "orchestrator/http/pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct gr_expo_family strange = {
    .kind = GR_EXPO_COUNTER, .name = "x_total", .help = "a \"b\"\\c\nd", .label = {"one", "two"}};

struct page {
    FILE *out;
    char *text;
    size_t len;
};

static void begin(struct page *p)
{
    *p = (struct page){0};
    p->out = open_memstream(&p->text, &p->len);
    assert_non_null(p->out);
}

static const char *end(struct page *p)
{
    assert_int_equal(fclose(p->out), 0);
    return p->text;
}

static void test_escapes(void **state)
{
    (void)state;
    struct page p;
    begin(&p);
    gr_expo_begin(p.out, &strange);
    gr_expo_count(p.out, &strange, (const char *const[]){"a\"b\\c\nd", "\xc3\xa9{}"}, UINT64_MAX);
    assert_string_equal(end(&p), "# HELP graft_x_total a \"b\"\\\\c\\nd\n# TYPE graft_x_total counter\n"
                                 "graft_x_total{one=\"a\\\"b\\\\c\\nd\",two=\"\xc3\xa9{}\"} 18446744073709551615\n");
    free(p.text);
}

static void test_a_plain_number_has_no_braces(void **state)
{
    (void)state;
    struct gr_expo_family f = strange;
    struct page p;
    f.label[0] = f.label[1] = NULL;
    begin(&p);
    gr_expo_number(p.out, &f, NULL, 0.25);
    f.label[0] = "only";
    gr_expo_count(p.out, &f, (const char *const[]){"v"}, 7);
    assert_string_equal(end(&p), "graft_x_total 0.25\ngraft_x_total{only=\"v\"} 7\n");
    free(p.text);
}

static void test_buckets(void **state)
{
    (void)state;
    struct gr_histogram h = {0};
    assert_int_equal(gr_histogram_ceiling_ns(0), 100000);
    assert_int_equal(gr_histogram_ceiling_ns(GR_HISTOGRAM_CEILINGS - 1), 500000000000);
    for (int i = 1; i < GR_HISTOGRAM_CEILINGS; i++) {
        assert_true(gr_histogram_ceiling_ns(i) > gr_histogram_ceiling_ns(i - 1));
    }
    gr_histogram_add(&h, 0, 1);
    gr_histogram_add(&h, 100000, 2); /* a ceiling is part of its bucket */
    gr_histogram_add(&h, 100001, 1);
    gr_histogram_add(&h, 500000000001, 1);
    assert_int_equal(h.n[0], 3);
    assert_int_equal(h.n[1], 1);
    assert_int_equal(h.n[GR_HISTOGRAM_CEILINGS], 1);
    assert_int_equal(h.sum_ns, 500000300002);
}

static void test_buckets_are_written_as_sums(void **state)
{
    (void)state;
    const struct gr_expo_family f = {.kind = GR_EXPO_HISTOGRAM, .name = "t_seconds", .help = "h"};
    struct gr_histogram h = {0};
    struct page p;
    gr_histogram_add(&h, 150000, 2);
    gr_histogram_add(&h, 600000000000, 1);
    begin(&p);
    gr_expo_histogram(p.out, &f, &h);
    const char *text = end(&p);
    assert_non_null(strstr(text, "_bucket{le=\"0.0001\"} 0\n"));
    assert_non_null(strstr(text, "_bucket{le=\"0.0002\"} 2\n"));
    assert_non_null(strstr(text, "_bucket{le=\"500\"} 2\ngraft_t_seconds_bucket{le=\"+Inf\"} 3\n"));
    assert_non_null(strstr(text, "graft_t_seconds_sum 600.0003\ngraft_t_seconds_count 3\n"));
    free(p.text);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* Counters end in _total and no other does, names are of few characters, and none comes twice. */
static void test_the_table(void **state)
{
    (void)state;
    int n = 0;
    for (const struct gr_expo_family *f = gr_metrics_family(0); f != NULL; f = gr_metrics_family(++n)) {
        assert_int_equal(strspn(f->name, "abcdefghijklmnopqrstuvwxyz0123456789_"), strlen(f->name));
        assert_true(ends_with(f->name, "_total") == (f->kind == GR_EXPO_COUNTER));
        assert_true(f->kind != GR_EXPO_HISTOGRAM || ends_with(f->name, "_seconds"));
        assert_true(ends_with(f->help, "."));
        for (int k = 0; k < n; k++) {
            assert_string_not_equal(f->name, gr_metrics_family(k)->name);
        }
    }
    assert_true(n > 40);
}

static void test_requests_by_path_and_status(void **state)
{
    (void)state;
    static struct gr_http_state s;
    struct gr_http_counts http = {0};
    struct page p;
    gr_http_count(&http, gr_page_number(gr_page_find("/v1/completions")), 200);
    gr_http_count(&http, gr_page_number(gr_page_find("/v1//completions")), 200);
    gr_http_count(&http, gr_page_number(gr_page_find("/none")), 404);
    gr_http_count(&http, gr_page_number(gr_page_find("/metrics")), 418);
    gr_http_count(&http, gr_page_number(gr_page_find("/health")), 0);
    s.totals.turns_ended[GR_FINISH_CLOSED] = 3;
    s.worker[0] = (struct gr_http_worker){
        .number = 7, .role = GR_WORKER_DRAFT, .status = {.n_block = 8, .n_free_block = 2, .n_session = 5}};
    s.n_worker = 1;
    begin(&p);
    gr_metrics_write(p.out, &(struct gr_metrics_from){.state = &s, .http = &http, .path = gr_page_path});
    const char *text = end(&p);
    assert_non_null(strstr(text, "graft_http_requests_total{path=\"/v1/completions\",code=\"200\"} 2\n"));
    assert_non_null(strstr(text, "graft_http_requests_total{path=\"other\",code=\"404\"} 1\n"));
    assert_non_null(strstr(text, "graft_http_requests_total{path=\"/metrics\",code=\"other\"} 1\n"));
    assert_non_null(strstr(text, "graft_http_requests_total{path=\"/health\",code=\"none\"} 1\n"));
    assert_non_null(strstr(text, "graft_request_success_total{finished_reason=\"abort\"} 3\n"));
    assert_non_null(strstr(text, "graft_kv_cache_usage_perc{worker=\"7\",role=\"draft\"} 0.75\n"));
    assert_non_null(strstr(text, "graft_workers{role=\"draft\",state=\"serving\"} 1\n"));
    assert_null(strstr(text, "graft_worker_ping_seconds{"));
    free(p.text);
}

/* The lines of a family but for its help and type. */
static void has_sample(const struct gr_metrics_from *from, const char *name, const char *want)
{
    struct page p;
    char type[128], line[128];
    begin(&p);
    gr_metrics_write(p.out, from);
    const char *text = end(&p);
    snprintf(type, sizeof(type), "# TYPE %s gauge\n", name);
    snprintf(line, sizeof(line), "\n%s ", name);
    assert_non_null(strstr(text, type));
    const char *at = strstr(text, line);
    if (want == NULL) {
        assert_null(at);
    } else {
        assert_non_null(at);
        at += strlen(line);
        assert_int_equal(strcspn(at, "\n"), strlen(want));
        assert_memory_equal(at, want, strlen(want));
    }
    free(p.text);
}

static void test_what_not_every_server_has(void **state)
{
    (void)state;
    static const char failed[] = "graft_journal_failed", age[] = "graft_journal_sync_age_seconds",
                      end_of_tls[] = "graft_tls_not_after_seconds";
    static struct gr_http_state s;
    const struct gr_http_counts http = {0};
    struct gr_metrics_from from = {.state = &s, .http = &http, .path = gr_page_path, .now_ns = 5000000000};
    has_sample(&from, failed, NULL);
    has_sample(&from, age, NULL);
    has_sample(&from, end_of_tls, NULL);
    s.has_journal = true;
    from.tls_end_s = 4102444801; /* more digits than a measured number has */
    has_sample(&from, failed, "0");
    has_sample(&from, age, "0");
    has_sample(&from, end_of_tls, "4102444801");
    s.journal_failed = true;
    s.journal_since_ns = 2750000000;
    has_sample(&from, failed, "1");
    has_sample(&from, age, "2.25");
    s.journal_since_ns = 5000000001; /* added since the clock was read */
    has_sample(&from, age, "0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_a_plain_number_has_no_braces),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_buckets_are_written_as_sums),
        cmocka_unit_test(test_the_table),
        cmocka_unit_test(test_requests_by_path_and_status),
        cmocka_unit_test(test_what_not_every_server_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
