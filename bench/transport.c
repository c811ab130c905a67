/* graft-bench transport: what a connection of each transport costs, without models. ping: a frame of that size there
 * and one back; the time is RTT/2, as perftest's. per_s of a ping: frames one way as fast as credits allow. round: what
 * a round of speculative decoding moves, whole: a DRAFT of 63 nodes there, a VERDICT of 6 nodes and FEATURES of its 6
 * rows back. The two ends are processes, of loop threads. bench/exchange.h says what flows. */
#include "bench/bench.h"
#include "bench/link.h"
#include "common/base/address.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/protocol/wire.h"
#include "transport/verbs/verbs.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_SIZE_MAX 16
#define ITERS_DEFAULT 1000
#define WARMUP_DEFAULT 100
#define RATE_BYTES_MAX (256u << 20) /* of a rate measurement: it has fewer frames of large sizes */
#define RATE_ITERS_MIN 16
#define N_PATH 6       /* accepted nodes of the round, and rows of its features */
#define ROW_BYTES 8192 /* of a feature: 4096 bf16 */

struct bench {
    const char *transports, *tests, *sizes, *iters, *warmup, *row_bytes, *listen, *peer;
    bool busy, json, ping, round;
    enum gr_transport_kind kind[GR_N_TRANSPORT];
    uint32_t size[N_SIZE_MAX];
    int n_kind, n_size;
    uint32_t n_iter, n_warmup, n_row_byte;
    double *sample; /* (n_warmup + n_iter) owned: microseconds */
    struct gr_table table;
    struct gr_links links;
};

/* ---- one row ---- */

static void print_row(struct bench *b, const char *transport, const char *test, uint32_t bytes, double scale,
                      double per_second)
{
    double *s = b->sample + b->n_warmup;
    const int n = (int)b->n_iter;
    const double median = gr_median(s, n); /* sorts */
    gr_table_text(&b->table, transport);
    gr_table_text(&b->table, test);
    gr_table_number(&b->table, bytes, 0);
    gr_table_number(&b->table, n, 0);
    gr_table_number(&b->table, scale * s[0], 2);
    gr_table_number(&b->table, scale * median, 2);
    gr_table_number(&b->table, scale * s[(int)ceil(0.99 * n) - 1], 2);
    gr_table_number(&b->table, per_second, 0);
}

/* Frames a second, one way, the answer to the last one included. */
static enum gr_status measure_rate(struct bench *b, struct gr_end *e, uint32_t bytes, double *per_second_out)
{
    double seconds = 0.0;
    const uint32_t n = GR_MIN(b->n_iter, GR_MAX(RATE_BYTES_MAX / bytes, RATE_ITERS_MIN));
    const struct gr_step s = {.n = n, .up = bytes, .down = GR_STEP_BYTES_MIN, .busy = b->busy};
    GR_TRY(gr_near_run(e, &s, NULL, &seconds));
    *per_second_out = n / seconds;
    return GR_OK;
}

static enum gr_status measure_size(struct bench *b, struct gr_end *e, uint32_t bytes)
{
    double seconds = 0.0, rate = 0.0;
    const struct gr_step s = {.n = b->n_warmup + b->n_iter, .up = bytes, .down = bytes, .each = true, .busy = b->busy};
    GR_TRY(gr_near_run(e, &s, b->sample, &seconds));
    GR_TRY(measure_rate(b, e, bytes, &rate));
    print_row(b, e->conn->ops->name, "ping", bytes, 0.5, rate);
    return GR_OK;
}

static enum gr_status measure_round(struct bench *b, struct gr_end *e)
{
    double seconds = 0.0;
    const struct gr_step s = {.n = b->n_warmup + b->n_iter,
                              .up = GR_WIRE_HEADER_BYTES + GR_WIRE_DRAFT_BYTES(GR_NODE_MAX),
                              .down = GR_WIRE_HEADER_BYTES + GR_WIRE_VERDICT_BYTES(N_PATH),
                              .bulk = (uint32_t)(GR_WIRE_HEADER_BYTES + GR_WIRE_FEATURES_BYTES(N_PATH, b->n_row_byte)),
                              .each = true,
                              .busy = b->busy};
    GR_TRY(gr_near_run(e, &s, b->sample, &seconds));
    print_row(b, e->conn->ops->name, "round", s.up + s.down + s.bulk, 1.0, s.n / seconds);
    return GR_OK;
}

/* ---- one transport ---- */

static enum gr_status measure(struct bench *b, struct gr_conn *conn, bool more)
{
    struct gr_end e = {.conn = conn, .busy = b->busy};
    for (int i = 0; b->ping && i < b->n_size; i++) {
        GR_TRY(measure_size(b, &e, b->size[i]));
    }
    if (b->round) {
        GR_TRY(measure_round(b, &e));
    }
    return gr_near_bye(&e, more);
}

static enum gr_status measure_kind(struct bench *b, int i)
{
    struct gr_link link;
    bool more = false; /* loop needs no connection of the far process */
    for (int k = i + 1; k < b->n_kind; k++) {
        more = more || b->kind[k] != GR_TRANSPORT_LOOP;
    }
    GR_TRY(gr_link_open(&b->links, b->kind[i], &link));
    const enum gr_status st = measure(b, link.conn, more);
    gr_link_close(&link);
    return st;
}

static enum gr_status run(struct bench *b, enum gr_table_format format)
{
    static const char *const columns[] = {"transport", "test", "bytes", "n", "min_us", "median_us", "p99_us", "per_s"};
    char note[160];
    b->sample = calloc((size_t)b->n_warmup + b->n_iter, sizeof(*b->sample));
    if (b->sample == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    GR_TRY(gr_links_start(&b->links, b->peer));
    snprintf(note, sizeof(note),
             "ping: RTT/2; round: %d nodes there, verdict and %d x %u bytes of features back, whole; "
             "per_s: frames one way (round: rounds); %s",
             GR_NODE_MAX, N_PATH, b->n_row_byte, b->busy ? "busy-polled" : "asleep in poll");
    gr_table_begin(&b->table, format, stdout, "transport", note, columns, (int)GR_ARRAY_LEN(columns));
    enum gr_status st = GR_OK;
    for (int i = 0; i < b->n_kind && st == GR_OK; i++) {
        st = measure_kind(b, i);
    }
    gr_table_end(&b->table);
    return st;
}

/* ---- options ---- */

static bool take_kind(struct bench *b, const char *name)
{
    enum gr_transport_kind kind;
    if (gr_transport_by_name(name, &kind) != GR_OK) {
        return false; /* logged */
    }
    if ((gr_transport_built_mask() & 1u << kind) == 0) {
        log_error("--transport: %s is not in this build", name);
        return false;
    }
    if (kind == GR_TRANSPORT_LOOP && b->peer != NULL) {
        log_error("--transport: loop is within one process and has no --peer");
        return false;
    }
    if (b->n_kind == GR_N_TRANSPORT) {
        log_error("--transport: more than %d names", GR_N_TRANSPORT);
        return false;
    }
    b->kind[b->n_kind++] = kind;
    return true;
}

static bool take_size(struct bench *b, const char *text)
{
    int64_t v;
    if (!gr_parse_int(text, GR_STEP_BYTES_MIN, GR_WIRE_BULK_BYTES_MAX, &v) || b->n_size == N_SIZE_MAX) {
        log_error("--sizes: `%s': up to %d sizes of %d .. %u bytes, as 64,1024", text, N_SIZE_MAX, GR_STEP_BYTES_MIN,
                  GR_WIRE_BULK_BYTES_MAX);
        return false;
    }
    b->size[b->n_size++] = (uint32_t)v;
    return true;
}

static bool take_test(struct bench *b, const char *name)
{
    const bool ping = strcmp(name, "ping") == 0, round = strcmp(name, "round") == 0;
    if (!ping && !round) {
        log_error("--tests: `%s' is neither ping nor round", name);
    }
    b->ping = b->ping || ping;
    b->round = b->round || round;
    return ping || round;
}

/* Each part of a list between commas. */
static bool take_list(struct bench *b, const char *list, bool (*take)(struct bench *b, const char *item))
{
    char item[32];
    for (const char *at = list;; at++) {
        const size_t n = strcspn(at, ",");
        snprintf(item, sizeof(item), "%.*s", (int)GR_MIN(n, sizeof(item) - 1), at);
        if (!take(b, item)) {
            return false;
        }
        at += n;
        if (*at == '\0') {
            return true;
        }
    }
}

static bool take_count(const char *name, const char *text, int64_t min, int64_t max, uint32_t *out)
{
    int64_t v = *out;
    if (text != NULL && !gr_parse_int(text, min, max, &v)) {
        log_error("--%s: `%s' is not a number of %lld .. %lld", name, text, (long long)min, (long long)max);
        return false;
    }
    *out = (uint32_t)v;
    return true;
}

static bool is_address(const char *what, const char *text, unsigned port_min)
{
    struct gr_address address;
    return text == NULL || gr_address_parse(what, text, port_min, &address) == GR_OK;
}

static bool take_options(struct bench *b)
{
    if (!is_address("--listen", b->listen, 0) || !is_address("--peer", b->peer, 1)) {
        return false;
    }
    if (b->listen != NULL) {
        if (b->peer != NULL || b->transports != NULL || b->tests != NULL || b->sizes != NULL || b->iters != NULL ||
            b->busy) {
            log_error("--listen is the far end: the one with --peer says what is measured");
            return false;
        }
        return true;
    }
    const char *transports = b->peer != NULL ? "tcp" : "loop,shm,tcp";
    b->n_iter = ITERS_DEFAULT;
    b->n_warmup = WARMUP_DEFAULT;
    b->n_row_byte = ROW_BYTES;
    return take_list(b, b->transports != NULL ? b->transports : transports, take_kind) &&
           take_list(b, b->tests != NULL ? b->tests : "ping,round", take_test) &&
           take_list(b, b->sizes != NULL ? b->sizes : "64,1024,8192,131072,1048576", take_size) &&
           take_count("iters", b->iters, 1, GR_STEP_ITERS_MAX / 2, &b->n_iter) &&
           take_count("warmup", b->warmup, 0, GR_STEP_ITERS_MAX / 2, &b->n_warmup) &&
           take_count("row-bytes", b->row_bytes, 2, GR_FEATURES_ROW_BYTES_MAX / N_PATH, &b->n_row_byte);
}

/* Before the other end is asked: one line says what is lacking here. */
static bool devices_are_there(const struct bench *b)
{
    bool there = true;
    for (int i = 0; i < b->n_kind; i++) {
        there = there && (b->kind[i] != GR_TRANSPORT_VERBS || gr_verbs_check(gr_verbs_configured()) == GR_OK);
    }
    return there;
}

int gr_bench_transport(int argc, char **argv)
{
    const char *flag = NULL; /* their rows are for --help */
    struct bench b = {.busy = gr_bench_flag(&argc, argv, "busy"), .json = gr_bench_flag(&argc, argv, "json")};
    const struct gr_bench_option options[] = {
        {"transport", &b.transports, "loop | shm | tcp | verbs, a list (default loop,shm,tcp; with --peer tcp)"},
        {"tests", &b.tests, "ping | round, a list (default ping,round)"},
        {"sizes", &b.sizes, "bytes of ping and rate, a list (default 64,1024,8192,131072,1048576)"},
        {"iters", &b.iters, "of each measurement (default 1000)"},
        {"warmup", &b.warmup, "before them, not counted (default 100)"},
        {"row-bytes", &b.row_bytes, "of a feature in the round (default 8192: 4096 bf16)"},
        {"busy", &flag, "both ends look for frames in a loop (default: they sleep in poll)"},
        {"listen", &b.listen, "HOST:PORT of this end: it answers one --peer and ends (key: GRAFT_KEY_FILE)"},
        {"peer", &b.peer, "HOST:PORT of a --listen on this or another machine (key: GRAFT_KEY_FILE)"},
        {"json", &flag, "the same as -o json"},
    };
    enum gr_table_format format;
    const int status = gr_bench_options("transport", argc, argv, &format, options, (int)GR_ARRAY_LEN(options));
    if (status >= 0) {
        return status;
    }
    if (!take_options(&b)) {
        return 2;
    }
    if (!devices_are_there(&b)) {
        return 1;
    }
    if (b.busy && sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        log_warn("--busy on one CPU: the ends take turns as the scheduler lets them");
    }
    gr_verbs_prepare();
    enum gr_status st = GR_EIO;
    if (sodium_init() >= 0) {
        st = b.listen != NULL ? gr_far_listen(b.listen) : run(&b, b.json ? GR_TABLE_JSON : format);
    }
    gr_links_stop(&b.links);
    free(b.sample);
    return st == GR_OK ? 0 : 1;
}
