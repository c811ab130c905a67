#include "orchestrator/cli/trace_file.h"

#include "common/base/grow.h"
#include "common/base/log.h"
#include "common/base/out_file.h"
#include "common/base/session_id.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct round {
    uint64_t session, wait_ns, draft_ns, verify_ns, host_ns, arrived_ns, shown_ns;
    uint32_t epoch, round, n_draft, n_accepted, n_token, n_row;
};

struct gr_trace_file {
    struct gr_out_file out;
    struct round *round; /* owned */
    uint32_t n;
    size_t cap;
};

enum track { TRACK_DRAFT = 1, TRACK_WIRE, TRACK_VERIFY, TRACK_WALK, TRACK_COMMIT, TRACK_END };
static const char *const track_names[TRACK_END] = {"", "draft", "wire", "verify", "walk", "commit"};

enum gr_status gr_trace_file_create(const char *path, struct gr_trace_file **out)
{
    struct gr_trace_file *t = calloc(1, sizeof(*t));
    if (t == NULL) {
        log_error("--trace-file %s: out of memory", path);
        return GR_ENOMEM;
    }
    const enum gr_status st = gr_out_file_open("--trace-file", path, 0666, false, &t->out);
    if (st != GR_OK) {
        free(t);
        return st;
    }
    *out = t;
    return GR_OK;
}

void gr_trace_file_destroy(struct gr_trace_file *t)
{
    if (t == NULL) {
        return;
    }
    gr_out_file_drop(&t->out);
    free(t->round);
    free(t);
}

void gr_trace_file_round(struct gr_trace_file *t, const struct gr_msg *m, uint64_t arrived_ns, uint64_t shown_ns)
{
    if (t->n == GR_TRACE_ROUND_MAX) {
        return; /* said when the file is written */
    }
    struct round *bigger = gr_grow(t->round, &t->cap, t->n + 1u, sizeof(*bigger));
    if (bigger == NULL) {
        log_error("out of memory for the trace of %u rounds", t->n + 1u);
        return;
    }
    t->round = bigger;
    t->round[t->n++] = (struct round){.session = m->session,
                                      .wait_ns = m->commit.wait_ns,
                                      .draft_ns = m->commit.draft_ns,
                                      .verify_ns = m->commit.verify_ns,
                                      .host_ns = m->commit.host_ns,
                                      .arrived_ns = arrived_ns,
                                      .shown_ns = shown_ns,
                                      .epoch = m->commit.epoch,
                                      .round = m->commit.round,
                                      .n_draft = m->commit.n_draft,
                                      .n_accepted = m->commit.n_accepted,
                                      .n_token = m->commit.ids.n,
                                      .n_row = m->commit.n_row};
}

static void add_span(json_t *events, const struct round *r, enum track track, uint64_t begin_ns, uint64_t end_ns)
{
    if (end_ns <= begin_ns) {
        return;
    }
    char id[GR_SESSION_ID_DIGITS + 1];
    gr_session_id_spell(r->session, id);
    json_array_append_new(
        events, json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:{s:s, s:I, s:I, s:I, s:I, s:I, s:I}}", "name",
                          track_names[track], "cat", "round", "ph", "X", "pid", 1, "tid", (int)track, "ts",
                          (double)begin_ns / 1e3, "dur", (double)(end_ns - begin_ns) / 1e3, "args", "session", id,
                          "epoch", (json_int_t)r->epoch, "round", (json_int_t)r->round, "draft_tokens",
                          (json_int_t)r->n_draft, "accepted_tokens", (json_int_t)r->n_accepted, "tokens",
                          (json_int_t)r->n_token, "rows", (json_int_t)r->n_row));
}

static uint64_t before(uint64_t at_ns, uint64_t span_ns)
{
    return at_ns > span_ns ? at_ns - span_ns : 0;
}

/* end_ns: of the walk. */
static void add_round(json_t *events, const struct round *r, uint64_t end_ns)
{
    const uint64_t walk_ns = before(end_ns, r->host_ns);
    const uint64_t verify_ns = before(walk_ns, r->verify_ns);
    const uint64_t wait_ns = before(verify_ns, r->wait_ns);
    const uint64_t draft_len_ns = GR_MIN(r->draft_ns, verify_ns - wait_ns);
    const uint64_t draft_ns = wait_ns + (verify_ns - wait_ns - draft_len_ns) / 2;
    if (draft_len_ns > 0) {
        add_span(events, r, TRACK_WIRE, wait_ns, draft_ns);
        add_span(events, r, TRACK_DRAFT, draft_ns, draft_ns + draft_len_ns);
        add_span(events, r, TRACK_WIRE, draft_ns + draft_len_ns, verify_ns);
    } else {
        add_span(events, r, TRACK_WIRE, wait_ns, verify_ns);
    }
    add_span(events, r, TRACK_VERIFY, verify_ns, walk_ns);
    add_span(events, r, TRACK_WALK, walk_ns, end_ns);
    add_span(events, r, TRACK_COMMIT, r->arrived_ns, r->shown_ns);
}

static json_t *track_name(enum track track)
{
    return json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", "thread_name", "ph", "M", "pid", 1, "tid", (int)track,
                     "args", "name", track_names[track]);
}

enum gr_status gr_trace_file_write(struct gr_trace_file *t)
{
    json_t *events = json_array();
    json_t *root = json_object();
    for (int track = TRACK_DRAFT; track < TRACK_END; track++) {
        json_array_append_new(events, track_name((enum track)track));
    }
    uint64_t last_ns = 0;
    for (uint32_t i = 0; i < t->n; i++) { /* COMMITs that came in a bunch: one round begins when the other is over */
        const struct round *r = &t->round[i];
        const uint64_t earliest_ns = last_ns + r->wait_ns + r->verify_ns + r->host_ns;
        last_ns = GR_MAX(r->arrived_ns, earliest_ns);
        add_round(events, r, last_ns);
    }
    if (t->n == GR_TRACE_ROUND_MAX) {
        log_warn("--trace-file: only the first %u rounds are in it", GR_TRACE_ROUND_MAX);
    }
    json_object_set_new(root, "traceEvents", events);
    json_object_set_new(root, "displayTimeUnit", json_string("ms"));
    const bool whole = json_dumpf(root, t->out.f, JSON_COMPACT | JSON_PRESERVE_ORDER) == 0;
    json_decref(root);
    return gr_out_file_close(&t->out, whole, NULL);
}
