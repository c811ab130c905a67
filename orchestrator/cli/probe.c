/* `graft ping`, `graft wait` and `graft stop`: is it there, how far away, and no longer? */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/listing.h"
#include "orchestrator/cli/remote.h"
#include "orchestrator/cli/report.h"
#include "orchestrator/cli/yaml_config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_AGAIN_MS 50   /* between two questions who is there */
#define ANSWER_MS_MIN 1000 /* for an answer */

/* ---- ping ---- */

static int compare_ns(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* n round trips one after another; sorted. */
static enum gr_status measure(struct gr_remote *r, uint32_t worker, uint64_t *rtt_ns, int n)
{
    for (int i = 0; i < n; i++) {
        struct gr_msg pong;
        const uint64_t begin_ns = gr_clock_ns();
        const struct gr_msg ping = {.type = GR_MSG_PING, .ping = {.worker = worker}};
        GR_TRY(gr_remote_ask(r, &ping, GR_MSG_PONG, &pong));
        rtt_ns[i] = worker == 0 ? gr_clock_ns() - begin_ns : pong.pong.rtt_ns;
    }
    qsort(rtt_ns, (size_t)n, sizeof(*rtt_ns), compare_ns);
    return GR_OK;
}

static json_t *row_json(const char *name, uint32_t worker, const uint64_t *rtt_ns, int n)
{
    return json_pack("{s:s, s:I, s:i, s:f, s:f, s:f}", "peer", name, "worker", (json_int_t)worker, "count", n,
                     "median_ms", (double)rtt_ns[n / 2] / 1e6, "min_ms", (double)rtt_ns[0] / 1e6, "max_ms",
                     (double)rtt_ns[n - 1] / 1e6);
}

static enum gr_status ping_one(struct gr_remote *r, const char *name, uint32_t worker, uint64_t *rtt_ns, int n,
                               json_t *rows)
{
    GR_TRY(measure(r, worker, rtt_ns, n));
    if (rows != NULL) {
        json_array_append_new(rows, row_json(name, worker, rtt_ns, n));
    } else if (worker == 0) {
        printf("%-10s round trip %.3f ms (median of %d; %.3f to %.3f)\n", name, (double)rtt_ns[n / 2] / 1e6, n,
               (double)rtt_ns[0] / 1e6, (double)rtt_ns[n - 1] / 1e6);
    } else {
        printf("%-7s %2u round trip from the orchestrator %.3f ms (median of %d; %.3f to %.3f)\n", name, worker,
               (double)rtt_ns[n / 2] / 1e6, n, (double)rtt_ns[0] / 1e6, (double)rtt_ns[n - 1] / 1e6);
    }
    return GR_OK;
}

static enum gr_status ping_all(struct gr_remote *r, const struct gr_options *o)
{
    struct gr_listing l = {0};
    uint64_t *rtt_ns = calloc((size_t)o->count, sizeof(*rtt_ns));
    json_t *rows = o->json ? json_array() : NULL;
    enum gr_status st = rtt_ns == NULL ? GR_ENOMEM : gr_listing_read(r, GR_LISTING_MS, &l);
    if (st == GR_OK) {
        st = ping_one(r, "orchestrator", 0, rtt_ns, (int)o->count, rows);
    }
    for (int i = 0; st == GR_OK && i < l.n_worker; i++) {
        st = ping_one(r, gr_listing_role_name(l.worker[i].role), l.worker[i].worker, rtt_ns, (int)o->count, rows);
    }
    if (st == GR_OK && rows != NULL) {
        (void)json_dumpf(rows, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER);
        putchar('\n');
    }
    json_decref(rows);
    free(rtt_ns);
    gr_listing_finish(&l);
    return st;
}

int gr_command_ping(int argc, char **argv)
{
    struct gr_options o;
    struct gr_yaml_config *yaml = NULL;
    struct gr_remote r;
    gr_options_default(&o, GR_CMD_PING);
    int status = gr_options_load(&o, argc, argv, &yaml);
    if (status < 0) {
        const enum gr_status st = gr_remote_open(&o, (struct gr_remote_patience){0}, &r);
        status = gr_program_refused(st);
        if (st == GR_OK) {
            status = gr_remote_status(&r, ping_all(&r, &o));
            gr_remote_close(&r);
        }
        (void)gr_report_failure(&o, status);
    }
    gr_yaml_config_destroy(yaml);
    return status;
}

/* ---- wait ---- */

/* For the one answer of an orchestrator that is there, a moment remains whatever --timeout is. */
static int ms_until(uint64_t end_ns)
{
    return GR_MAX(gr_ms_left(end_ns, gr_clock_ns()), ANSWER_MS_MIN);
}

static bool has_role(const struct gr_listing *l, uint32_t role)
{
    for (int i = 0; i < l->n_worker; i++) {
        if (l->worker[i].role == role) {
            return true;
        }
    }
    return false;
}

/* The orchestrator tells who is there when asked; it is asked again every LOOK_AGAIN_MS. */
static enum gr_status wait_for_workers(struct gr_remote *r, bool with_draft, uint64_t end_ns, struct gr_listing *l)
{
    for (;;) {
        struct gr_msg m;
        GR_TRY(gr_listing_read(r, GR_MIN(ms_until(end_ns), GR_LISTING_MS), l));
        if (has_role(l, GR_ROLE_TARGET) && (!with_draft || has_role(l, GR_ROLE_DRAFT))) {
            return GR_OK;
        }
        if (gr_clock_ns() >= end_ns) {
            log_error("no %s worker has joined %s in time", has_role(l, GR_ROLE_TARGET) ? "draft" : "target",
                      r->address);
            return GR_ETIMEDOUT;
        }
        const enum gr_status st = gr_remote_recv(r, LOOK_AGAIN_MS, &m);
        if (st == GR_OK) {
            gr_msg_finish(&m);
        } else if (st != GR_AGAIN) {
            return st;
        }
    }
}

int gr_command_wait(int argc, char **argv)
{
    struct gr_options o;
    struct gr_yaml_config *yaml = NULL;
    struct gr_remote r;
    gr_options_default(&o, GR_CMD_WAIT);
    int status = gr_options_load(&o, argc, argv, &yaml);
    if (status < 0) {
        struct gr_listing l = {0};
        const uint64_t end_ns = gr_clock_ns() + (uint64_t)o.timeout;
        const bool with_draft = o.draft != NULL && !o.disable_multi_token;
        const struct gr_remote_patience p = {.listen_ms = (int)(o.timeout / (int64_t)GR_MS),
                                             .within_ms = ms_until(end_ns)};
        const enum gr_status st = gr_remote_open(&o, p, &r);
        status = gr_program_refused(st);
        if (st == GR_OK) {
            status = gr_remote_status(&r, wait_for_workers(&r, with_draft, end_ns, &l));
            gr_remote_close(&r);
        }
        gr_listing_finish(&l);
    }
    gr_yaml_config_destroy(yaml);
    return status;
}

/* ---- stop ---- */

/* What is said before it ends (answers to nobody's question) is read and dropped. */
static enum gr_status wait_for_end(struct gr_remote *r, uint64_t end_ns, int64_t timeout_ns)
{
    for (;;) {
        const uint64_t now_ns = gr_clock_ns();
        struct gr_msg m;
        const enum gr_status st =
            gr_remote_recv_until_end(r, now_ns < end_ns ? (int)((end_ns - now_ns) / GR_MS) : 0, &m);
        if (st == GR_AGAIN) {
            log_error(
                "the orchestrator at %s has not ended within %d s; it is finishing its turns (--now does not wait "
                "for them)",
                r->address, (int)(timeout_ns / (int64_t)GR_S));
            return GR_ETIMEDOUT;
        }
        if (st != GR_OK) {
            return st == GR_ECLOSED ? GR_OK : st;
        }
        gr_msg_finish(&m);
    }
}

static enum gr_status stop(struct gr_remote *r, const struct gr_options *o, uint64_t end_ns)
{
    const struct gr_msg m = {.type = GR_MSG_DRAIN};
    GR_TRY(gr_remote_send(r, &m));
    if (o->now) {
        GR_TRY(gr_remote_send(r, &m));
    }
    return wait_for_end(r, end_ns, o->timeout);
}

int gr_command_stop(int argc, char **argv)
{
    struct gr_options o;
    struct gr_yaml_config *yaml = NULL;
    struct gr_remote r;
    gr_options_default(&o, GR_CMD_STOP);
    int status = gr_options_load(&o, argc, argv, &yaml);
    if (status < 0) {
        const uint64_t end_ns = gr_clock_ns() + (uint64_t)o.timeout;
        const enum gr_status st = gr_remote_open(&o, (struct gr_remote_patience){.within_ms = ms_until(end_ns)}, &r);
        status = gr_program_refused(st);
        if (st == GR_OK) {
            status = gr_remote_status(&r, stop(&r, &o, end_ns));
            gr_remote_close(&r);
        }
    }
    gr_yaml_config_destroy(yaml);
    return status;
}
