/* graft-bench serve: a load on a running endpoint of OpenAI's kind. */
#include "bench/bench.h"
#include "bench/serve/arrivals.h"
#include "bench/serve/bodies.h"
#include "bench/serve/client.h"
#include "bench/serve/report.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "orchestrator/http/secret_file.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_NAME_MAX 512
#define ERROR_LINES 10 /* failures that are told one by one */

struct bench {
    struct gr_bench_options o;
    struct gr_secret_text key_file;
    struct gr_client *client;
    char base_url[1024];
    char model[MODEL_NAME_MAX];
    struct gr_bodies bodies;
    double *at_s;             /* owned, (num_prompts) */
    struct gr_answer *answer; /* owned, (num_prompts) */
    struct gr_gaps gaps;
};

/* ---- the endpoint ---- */

/* The first key of the file, cut out in place. NULL: there is none. */
static const char *first_key(char *text)
{
    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");
        const bool more = text[n] == '\n';
        text[n] = '\0';
        text += strspn(text, " \t\r");
        if (*text != '#' && *text != '\0') {
            text[strcspn(text, " \t\r")] = '\0';
            return text;
        }
        text += strlen(text) + (more ? 1 : 0);
    }
    return NULL;
}

static enum gr_status read_key(struct bench *b, const char **key_out)
{
    *key_out = NULL;
    if (b->o.api_key_file == NULL) {
        return GR_OK;
    }
    GR_TRY(gr_secret_file_read("--api-key-file", b->o.api_key_file, true, &b->key_file));
    *key_out = first_key(b->key_file.text);
    if (*key_out == NULL) {
        log_error("--api-key-file %s has no key", b->o.api_key_file);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status open_client(struct bench *b)
{
    struct gr_client_config c = {.base_url = b->base_url, .authority = b->o.cacert};
    GR_TRY(read_key(b, &c.key));
    snprintf(b->base_url, sizeof(b->base_url), "%s", b->o.base_url);
    const size_t n = strlen(b->base_url);
    if (n > 0 && b->base_url[n - 1] == '/') {
        b->base_url[n - 1] = '\0';
    }
    return gr_client_open(&c, &b->client);
}

static bool take_model(struct bench *b, const char *page)
{
    json_t *o = json_loads(page, 0, NULL);
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    const bool good = id != NULL && strlen(id) < sizeof(b->model);
    snprintf(b->model, sizeof(b->model), "%s", good ? id : "");
    json_decref(o);
    return good;
}

/* By default the first that the endpoint serves. Asked in any case: it tells whether the endpoint is there. */
static enum gr_status find_model(struct bench *b)
{
    char why[GR_ANSWER_SAID_MAX];
    char *page = NULL;
    const enum gr_status st = gr_client_get(b->client, "/v1/models", &page, why);
    if (st != GR_OK) {
        log_error("%s: %s", b->base_url, why);
        return st;
    }
    const bool good = take_model(b, page);
    free(page);
    if (b->o.serve_model != NULL) {
        snprintf(b->model, sizeof(b->model), "%s", b->o.serve_model);
    } else if (!good) {
        log_error("%s/v1/models names no model; --model NAME does", b->base_url);
        return GR_EFORMAT;
    }
    return GR_OK;
}

/* Endpoints without such a page are measured without it. */
static struct gr_spec_counts read_counts(const struct bench *b)
{
    struct gr_spec_counts c = {.known = false};
    char why[GR_ANSWER_SAID_MAX];
    char *page = NULL;
    if (gr_client_get(b->client, "/metrics", &page, why) == GR_OK) {
        c = gr_spec_counts_read(page);
    } else {
        log_info("no figures of speculation: %s", why);
    }
    free(page);
    return c;
}

/* ---- loads ---- */

static const char *path_of(const struct gr_bench_options *o)
{
    const bool chat = o->serve_backend == GR_BENCH_OPENAI_CHAT;
    return o->endpoint != NULL ? o->endpoint : chat ? "/v1/chat/completions" : "/v1/completions";
}

static int at_once(const struct gr_bench_options *o)
{
    const int64_t most = o->max_concurrency != 0 ? o->max_concurrency : GR_SERVE_AT_ONCE_MAX;
    return (int)GR_MIN(most, o->serve_num_prompts);
}

static struct gr_load load_of(const struct bench *b, int n)
{
    return (struct gr_load){.path = path_of(&b->o),
                            .body = (const char *const *)b->bodies.body,
                            .n_body = b->bodies.n,
                            .at_s = b->at_s,
                            .n = n,
                            .at_once = at_once(&b->o),
                            .stop_ns = b->o.serve_duration == 0 ? UINT64_MAX : (uint64_t)b->o.serve_duration * GR_S,
                            .timeout_ms = b->o.serve_timeout * 1000};
}

static void tell_failures(const struct gr_answer *answer, int n)
{
    int n_told = 0;
    int n_failed = 0;
    for (int i = 0; i < n; i++) {
        const bool failed = answer[i].end > GR_ANSWER_DONE;
        n_failed += failed;
        if (failed && n_told < ERROR_LINES) {
            log_warn("request %d failed: %s", i, answer[i].said);
            n_told++;
        }
    }
    if (n_failed > n_told) {
        log_warn("%d more requests failed", n_failed - n_told);
    }
}

static void forget(struct bench *b, int n)
{
    for (int i = 0; i < n; i++) {
        gr_answer_free(&b->answer[i]);
        b->answer[i] = (struct gr_answer){.end = GR_ANSWER_NONE};
    }
    b->gaps.n = 0;
}

/* Requests that do not count, all at once; the endpoint has to answer them. */
static enum gr_status warm_up(struct bench *b)
{
    uint64_t ns = 0;
    const int n = (int)GR_MIN(b->o.num_warmups, b->o.serve_num_prompts);
    struct gr_load load = load_of(b, n);
    bool good = true;
    load.stop_ns = UINT64_MAX;
    if (n == 0) {
        return GR_OK;
    }
    GR_TRY(gr_client_load(b->client, &load, b->answer, &b->gaps, &ns));
    for (int i = 0; i < n; i++) {
        good = good && b->answer[i].end == GR_ANSWER_DONE;
    }
    if (!good) {
        tell_failures(b->answer, n);
        log_error("the warm-up failed: nothing was measured");
        return GR_EPROTO;
    }
    forget(b, n);
    return GR_OK;
}

/* ---- texts ---- */

static bool is_same(const struct gr_answer *a, const struct gr_answer *b)
{
    return a->n_text == b->n_text && (a->n_text == 0 || memcmp(a->text, b->text, a->n_text) == 0);
}

/* Answers of another text than the first whole one to the same body. */
static int count_other_texts(const struct bench *b)
{
    int n_other = 0;
    for (int body = 0; body < b->bodies.n; body++) {
        const struct gr_answer *first = NULL;
        for (int64_t i = body; i < b->o.serve_num_prompts; i += b->bodies.n) {
            const struct gr_answer *a = &b->answer[i];
            if (a->end != GR_ANSWER_DONE) {
                continue;
            }
            if (first != NULL && !is_same(first, a)) {
                log_warn("request %lld has another text than request %d of the same prompt", (long long)i,
                         (int)(first - b->answer));
                n_other++;
            }
            first = first != NULL ? first : a;
        }
    }
    return n_other;
}

/* ---- all of it ---- */

static enum gr_status report(struct bench *b, const struct gr_report_on *r)
{
    char note[2048];
    json_t *o = gr_report_make(r);
    if (o == NULL) {
        return GR_ENOMEM;
    }
    snprintf(note, sizeof(note), "%d prompts for %s%.512s; keys and formulas as vllm bench serve's", b->bodies.n,
             b->base_url, path_of(&b->o));
    gr_report_print(&b->o, note, o);
    const enum gr_status st = b->o.result_filename != NULL ? gr_report_save(b->o.result_filename, o) : GR_OK;
    json_decref(o);
    return st;
}

static enum gr_status measure(struct bench *b, bool *good_out)
{
    const int n = (int)b->o.serve_num_prompts;
    const struct gr_load load = load_of(b, n);
    struct gr_report_on r = {.options = &b->o, .model = b->model, .before = read_counts(b)};
    struct gr_tally t;
    uint64_t ns = 0;
    gr_arrivals_draw(&(struct gr_arrivals){.rate = b->o.request_rate == 0.0 ? INFINITY : b->o.request_rate,
                                           .burstiness = b->o.burstiness,
                                           .seed = (uint64_t)b->o.serve_seed},
                     n, b->at_s);
    GR_TRY(gr_client_load(b->client, &load, b->answer, &b->gaps, &ns));
    GR_TRY(gr_tally_make(b->answer, n, &b->gaps, ns, &t));
    r.after = read_counts(b);
    r.tally = &t;
    r.texts_compared = b->o.check_texts;
    r.n_text_differs = b->o.check_texts ? count_other_texts(b) : 0;
    tell_failures(b->answer, n);
    *good_out = t.failed == 0 && t.completed > 0 && r.n_text_differs == 0;
    return report(b, &r);
}

static enum gr_status prepare(struct bench *b)
{
    GR_TRY(open_client(b));
    GR_TRY(find_model(b));
    GR_TRY(gr_bodies_make(&b->o, b->model, &b->bodies));
    b->at_s = calloc((size_t)b->o.serve_num_prompts, sizeof(*b->at_s));
    b->answer = calloc((size_t)b->o.serve_num_prompts, sizeof(*b->answer));
    if (b->at_s == NULL || b->answer == NULL) {
        log_error("out of memory for %lld requests", (long long)b->o.serve_num_prompts);
        return GR_ENOMEM;
    }
    return GR_OK;
}

static void finish(struct bench *b)
{
    if (b->answer != NULL) {
        forget(b, (int)b->o.serve_num_prompts);
    }
    free(b->answer);
    free(b->at_s);
    free(b->gaps.s);
    gr_bodies_free(&b->bodies);
    gr_client_close(b->client);
    gr_secret_text_finish(&b->key_file);
}

int gr_bench_serve(int argc, char **argv)
{
    static struct bench b;
    const int status = gr_bench_options_read(&b.o, GR_BENCH_SERVE, argc, argv);
    if (status >= 0) {
        return status;
    }
    bool good = false;
    enum gr_status st = prepare(&b);
    st = st == GR_OK ? warm_up(&b) : st;
    st = st == GR_OK ? measure(&b, &good) : st;
    finish(&b);
    return st != GR_OK ? gr_program_refused(st) : good ? 0 : 1;
}
