/* graft-bench transport: what a connection of each transport costs, without models. ping: a frame of that size there
 * and one back; the time is RTT/2, as perftest's. per_s of a ping: frames one way as fast as credits allow. round: what
 * a round of speculative decoding moves, whole: a DRAFT of 63 nodes there, a VERDICT of 6 nodes and FEATURES of its 6
 * rows back. The two ends are processes, of loop threads. bench/exchange.h says what flows. */
#include "bench/bench.h"
#include "bench/fabric.h"
#include "bench/link.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "common/protocol/wire.h"
#include "transport/verbs/verbs.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RATE_BYTES_MAX (256u << 20) /* of a rate measurement: it has fewer frames of large sizes */
#define RATE_ITERS_MIN 16

struct bench {
    struct gr_bench_options o;
    bool busy, ping, round;
    enum gr_transport_kind kind[GR_N_TRANSPORT];
    int n_kind;
    uint32_t n_iter, n_warmup, n_row_byte;
    double *sample; /* (n_warmup + n_iter) owned: microseconds */
    struct gr_table table;
    struct gr_links links;
    struct gr_rows rows;
    char path[48];                  /* of the connection that is measured */
    struct gr_fabric_counts before; /* the row that is being measured */
};

/* ---- one row ---- */

/* Empty where the row has gone over no RDMA device, or over one that does not count. */
static void print_losses(struct bench *b, const char *transport)
{
    struct gr_fabric_counts now;
    char text[GR_FABRIC_TEXT];
    gr_fabric_read(GR_FABRIC_ROOT, &now);
    if (now.known && strcmp(transport, gr_transport_name(GR_TRANSPORT_VERBS)) == 0) {
        gr_table_number(&b->table, (double)gr_fabric_lost(&b->before, &now, text), 0);
    } else {
        gr_table_none(&b->table);
    }
    b->before = now;
}

static void print_row(struct bench *b, const char *transport, const char *test, uint32_t bytes, double scale,
                      double per_second)
{
    double *s = b->sample + b->n_warmup;
    const int n = (int)b->n_iter;
    const double median = gr_median(s, n); /* sorts */
    gr_table_text(&b->table, transport);
    gr_table_text(&b->table, b->path);
    gr_table_text(&b->table, test);
    gr_table_number(&b->table, bytes, 0);
    gr_table_number(&b->table, n, 0);
    gr_table_number(&b->table, scale * s[0], 2);
    gr_table_number(&b->table, scale * median, 2);
    gr_table_number(&b->table, scale * s[(int)ceil(0.99 * n) - 1], 2);
    gr_table_number(&b->table, per_second, 0);
    print_losses(b, transport);
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
    const struct gr_step s = {
        .n = b->n_warmup + b->n_iter,
        .up = GR_WIRE_HEADER_BYTES + GR_WIRE_DRAFT_BYTES(GR_NODE_MAX),
        .down = GR_WIRE_HEADER_BYTES + GR_WIRE_VERDICT_BYTES(GR_STEP_PATH),
        .bulk = (uint32_t)(GR_WIRE_HEADER_BYTES + GR_WIRE_FEATURES_BYTES(GR_STEP_PATH, b->n_row_byte)),
        .each = true,
        .busy = b->busy};
    GR_TRY(gr_near_run(e, &s, b->sample, &seconds));
    print_row(b, e->conn->ops->name, "round", s.up + s.down + s.bulk, 1.0, s.n / seconds);
    return GR_OK;
}

/* ---- one transport ---- */

static enum gr_status measure(struct bench *b, struct gr_conn *conn, bool more)
{
    struct gr_end e = {.conn = conn, .rows = b->rows, .busy = b->busy};
    gr_fabric_read(GR_FABRIC_ROOT, &b->before);
    gr_rows_path(&b->rows, conn, b->path);
    for (int i = 0; b->ping && i < b->o.frames.n; i++) {
        GR_TRY(measure_size(b, &e, (uint32_t)b->o.frames.value[i]));
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
    static const char *const columns[] = {"transport", "rows",      "test",   "bytes", "n",
                                          "min_us",    "median_us", "p99_us", "per_s", "lost"};
    char note[240];
    b->sample = calloc((size_t)b->n_warmup + b->n_iter, sizeof(*b->sample));
    if (b->sample == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    GR_TRY(gr_links_start(&b->links, &b->o));
    snprintf(note, sizeof(note),
             "ping: RTT/2; round: %d nodes there, verdict and %d x %u bytes of features back, whole; "
             "per_s: frames one way (round: rounds); %s%s",
             GR_NODE_MAX, GR_STEP_PATH, b->n_row_byte, b->busy ? "busy-polled" : "asleep in poll",
             gr_devices_on_gpu(&b->o.device) ? "; rows of bulk frames begin and end in that memory" : "");
    GR_TRY(gr_rows_open(&b->o, &b->rows));
    gr_table_begin(&b->table, format, stdout, "transport", note, columns, (int)GR_ARRAY_LEN(columns));
    enum gr_status st = GR_OK;
    for (int i = 0; i < b->n_kind && st == GR_OK; i++) {
        st = measure_kind(b, i);
    }
    gr_table_end(&b->table);
    return st;
}

/* ---- options ---- */

static bool take_kind(struct bench *b, enum gr_transport_kind kind)
{
    if ((gr_transport_built_mask() & 1u << kind) == 0) {
        log_error("--transport: %s is not in this build", gr_transport_name(kind));
        return false;
    }
    if (kind == GR_TRANSPORT_LOOP && b->o.peer != NULL) {
        log_error("--transport: loop is within one process and has no --peer");
        return false;
    }
    if (kind == GR_TRANSPORT_LOOP && gr_devices_on_gpu(&b->o.device)) {
        log_error("--transport: loop is within one process, whose rows stay where they are: not with --device");
        return false;
    }
    b->kind[b->n_kind++] = kind;
    return true;
}

static bool take_kinds(struct bench *b)
{
    static const enum gr_transport_kind usual[] = {GR_TRANSPORT_LOOP, GR_TRANSPORT_SHM, GR_TRANSPORT_TCP};
    const struct gr_option_list *list = &b->o.transports;
    bool fits = true;
    for (int i = 0; i < list->n && fits; i++) {
        fits = take_kind(b, (enum gr_transport_kind)list->value[i]);
    }
    if (list->n == 0 && b->o.peer != NULL) {
        return take_kind(b, GR_TRANSPORT_TCP);
    }
    const bool on_device = gr_devices_on_gpu(&b->o.device);
    for (size_t i = on_device ? 1 : 0; list->n == 0 && i < GR_ARRAY_LEN(usual); i++) {
        fits = take_kind(b, usual[i]) && fits;
    }
    if (list->n == 0 && on_device && (b->o.require_gpudirect || gr_verbs_worth_offering(gr_verbs_configured()))) {
        fits = take_kind(b, GR_TRANSPORT_VERBS) && fits;
    }
    return fits;
}

static bool is_alone(const struct gr_bench_options *o)
{
    static const enum gr_bench_option_id other[] = {GR_BENCH_OPTION_peer,  GR_BENCH_OPTION_transports,
                                                    GR_BENCH_OPTION_tests, GR_BENCH_OPTION_frames,
                                                    GR_BENCH_OPTION_iters, GR_BENCH_OPTION_busy};
    for (size_t i = 0; i < GR_ARRAY_LEN(other); i++) {
        if (gr_bench_is_given(o, other[i])) {
            log_error("--listen is the far end: the one with --peer says what is measured");
            return false;
        }
    }
    return true;
}

static bool prepare(struct bench *b)
{
    const struct gr_bench_options *o = &b->o;
    gr_rows_configure(o);
    if (o->require_gpudirect && !gr_devices_on_gpu(&o->device)) {
        log_error("--require-gpudirect: --device cpu has no memory of a GPU");
        return false;
    }
    if (o->listen != NULL) {
        return is_alone(o);
    }
    b->busy = o->busy;
    b->n_iter = (uint32_t)o->iters;
    b->n_warmup = (uint32_t)o->warmup;
    b->n_row_byte = (uint32_t)o->row_bytes;
    for (int i = 0; i < o->tests.n; i++) {
        b->ping = b->ping || o->tests.value[i] == GR_BENCH_PING;
        b->round = b->round || o->tests.value[i] == GR_BENCH_ROUND;
    }
    return take_kinds(b);
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
    static struct bench b;
    const int status = gr_bench_options_read(&b.o, GR_BENCH_TRANSPORT, argc, argv);
    if (status >= 0 || !prepare(&b)) {
        return status >= 0 ? status : 2;
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
        st = b.o.listen != NULL ? gr_far_listen(&b.o) : run(&b, gr_bench_format(&b.o));
    }
    gr_links_stop(&b.links);
    gr_rows_close(&b.rows);
    free(b.sample);
    return st == GR_OK ? 0 : gr_program_refused(st);
}
