/* What `graft top` shows: one summary line, a table of workers and a table of sessions. */
#include "orchestrator/cli/top_view.h"

#include "common/base/grow.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "common/base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CELL_BYTES 64

/* ---- lines ---- */

static struct gr_top_line *add_line(struct gr_top_view *v, enum gr_top_kind kind, uint64_t subject)
{
    struct gr_top_line *grown = gr_grow(v->line, &v->max, (size_t)v->n + 1, sizeof(*grown));
    if (grown == NULL) {
        log_error("out of memory for a view of %d lines", v->n + 1);
        return NULL;
    }
    v->line = grown;
    struct gr_top_line *line = &v->line[v->n++];
    *line = (struct gr_top_line){.kind = kind, .subject = subject};
    return line;
}

void gr_top_view_finish(struct gr_top_view *v)
{
    free(v->line);
    *v = (struct gr_top_view){0};
}

/* A name from elsewhere, of which each byte takes one column: controls are spelled, what is not ASCII is `?'. */
static void put_name(const char *name, char *out)
{
    (void)gr_utf8_show(name, strlen(name), out, CELL_BYTES);
    for (char *c = out; *c != '\0'; c++) {
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    }
}

/* ---- cells ---- */

static const struct gr_msg_pong *pong_of(const struct gr_top_snapshot *s, int i)
{
    return s->pong != NULL && s->pong[i].worker != 0 ? &s->pong[i] : NULL;
}

struct row {
    const struct gr_top_snapshot *s;
    int i; /* of its list */
};

struct column {
    const char *title;
    int width;
    bool left;
    void (*cell)(const struct row *r, char *out);
};

static const struct gr_msg_listed_worker *worker_at(const struct row *r)
{
    return &r->s->now->worker[r->i];
}

static const struct gr_listing_session *session_at(const struct row *r)
{
    return &r->s->now->session[r->i];
}

static void put_count(uint64_t n, char *out)
{
    snprintf(out, CELL_BYTES, "%" PRIu64, n);
}

/* 0 is the wire's word for "not known". */
static void put_known(uint64_t n, char *out)
{
    snprintf(out, CELL_BYTES, n > 0 ? "%" PRIu64 : "-", n);
}

static void put_ms(uint64_t ns, char *out)
{
    if (ns > 0) {
        snprintf(out, CELL_BYTES, "%.2f", (double)ns / 1e6);
    } else {
        snprintf(out, CELL_BYTES, "-");
    }
}

static void worker_number(const struct row *r, char *out)
{
    put_count(worker_at(r)->worker, out);
}

static void worker_role(const struct row *r, char *out)
{
    snprintf(out, CELL_BYTES, "%s", gr_listing_role_name(worker_at(r)->role));
}

static void worker_state(const struct row *r, char *out)
{
    snprintf(out, CELL_BYTES, "%s", gr_listing_worker_state(worker_at(r)));
}

static void worker_turns(const struct row *r, char *out)
{
    put_count(worker_at(r)->n_active, out);
}

static void worker_held(const struct row *r, char *out)
{
    put_count(worker_at(r)->n_session, out);
}

static void worker_slots(const struct row *r, char *out)
{
    put_known(worker_at(r)->n_slot, out);
}

static void worker_kv(const struct row *r, char *out)
{
    const struct gr_msg_pong *p = pong_of(r->s, r->i);
    if (p == NULL || p->n_block == 0 || p->n_free_block > p->n_block) {
        snprintf(out, CELL_BYTES, "-");
    } else {
        snprintf(out, CELL_BYTES, "%.0f%%", 100.0 * (p->n_block - p->n_free_block) / p->n_block);
    }
}

static void worker_round(const struct row *r, char *out)
{
    const struct gr_msg_pong *p = pong_of(r->s, r->i);
    put_ms(p != NULL ? p->round_ns : 0, out);
}

static void worker_rtt(const struct row *r, char *out)
{
    put_ms(worker_at(r)->rtt_ns, out);
}

static void worker_host(const struct row *r, char *out)
{
    put_name(worker_at(r)->host, out);
}

static void worker_model(const struct row *r, char *out)
{
    put_name(worker_at(r)->model, out);
}

static const struct column worker_columns[] = {
    {"worker", 6, false, worker_number}, {"role", 6, true, worker_role},       {"state", 10, true, worker_state},
    {"in turn", 7, false, worker_turns}, {"held", 5, false, worker_held},      {"slots", 5, false, worker_slots},
    {"KV", 4, false, worker_kv},         {"round ms", 8, false, worker_round}, {"rtt ms", 7, false, worker_rtt},
    {"host", 16, true, worker_host},     {"model", 24, true, worker_model},
};

static void session_id(const struct row *r, char *out)
{
    gr_session_id_spell(session_at(r)->id, out);
}

static void session_state(const struct row *r, char *out)
{
    snprintf(out, CELL_BYTES, "%s", gr_listing_session_state(&session_at(r)->is));
}

static void session_tokens(const struct row *r, char *out)
{
    put_count(session_at(r)->is.n_token, out);
}

static void session_speed(const struct row *r, char *out)
{
    const double speed = gr_top_speed(r->s, r->i);
    if (speed < 0) {
        snprintf(out, CELL_BYTES, "-");
    } else {
        snprintf(out, CELL_BYTES, "%.1f", speed);
    }
}

static void session_acceptance(const struct row *r, char *out)
{
    snprintf(out, CELL_BYTES, "%.2f", gr_listing_acceptance(&session_at(r)->is));
}

/* Of a round: a dash where there was none. */
static void put_part(const struct gr_top_round *round, double part, char *out)
{
    if (round->n > 0) {
        snprintf(out, CELL_BYTES, "%.2f", part);
    } else {
        snprintf(out, CELL_BYTES, "-");
    }
}

static void session_draft(const struct row *r, char *out)
{
    const struct gr_top_round round = gr_top_round(r->s, r->i);
    put_part(&round, round.draft_ms, out);
}

static void session_wait(const struct row *r, char *out)
{
    const struct gr_top_round round = gr_top_round(r->s, r->i);
    put_part(&round, round.wait_ms, out);
}

static void session_verify(const struct row *r, char *out)
{
    const struct gr_top_round round = gr_top_round(r->s, r->i);
    put_part(&round, round.verify_ms, out);
}

static void session_host(const struct row *r, char *out)
{
    const struct gr_top_round round = gr_top_round(r->s, r->i);
    put_part(&round, round.host_ms, out);
}

static void session_place(const struct row *r, char *out)
{
    put_known(session_at(r)->is.place, out);
}

static void session_target(const struct row *r, char *out)
{
    put_known(session_at(r)->is.target, out);
}

static void session_drafter(const struct row *r, char *out)
{
    put_known(session_at(r)->is.drafter, out);
}

static void session_idle(const struct row *r, char *out)
{
    snprintf(out, CELL_BYTES, "%.1f", (double)session_at(r)->is.idle_ns / 1e9);
}

static void session_rounds(const struct row *r, char *out)
{
    put_count(session_at(r)->is.n_round, out);
}

/* A session has its target's model. */
static void session_model(const struct row *r, char *out)
{
    const struct gr_listing *l = r->s->now;
    out[0] = '\0';
    for (int i = 0; i < l->n_worker; i++) {
        if (l->worker[i].worker == session_at(r)->is.target) {
            put_name(l->worker[i].model, out);
        }
    }
}

static const struct column session_columns[] = {
    {"session", GR_SESSION_ID_DIGITS, true, session_id},
    {"state", 8, true, session_state},
    {"queue", 5, false, session_place},
    {"tokens", 7, false, session_tokens},
    {"tokens/s", 8, false, session_speed},
    {"accept", 6, false, session_acceptance},
    {"target", 6, false, session_target},
    {"drafter", 7, false, session_drafter},
    {"draft ms", 8, false, session_draft},
    {"wait ms", 8, false, session_wait},
    {"verify ms", 9, false, session_verify},
    {"host ms", 8, false, session_host},
    {"idle s", 8, false, session_idle},
    {"rounds", 8, false, session_rounds},
    {"model", 24, true, session_model},
};

/* ---- rows ---- */

struct table {
    const struct column *column;
    int n;     /* columns that there are */
    int width; /* 0: no limit */
};

/* Appends one cell; false: the line is full. */
static bool put_cell(struct gr_top_line *line, const struct table *t, int i, const char *cell)
{
    const struct column *c = &t->column[i];
    const int len = (int)strlen(line->text);
    const int gap = i > 0 ? 2 : 0;
    if ((t->width > 0 && len + gap + c->width > t->width) || len + gap + c->width >= GR_TOP_LINE_BYTES) {
        return false;
    }
    snprintf(line->text + len, sizeof(line->text) - (size_t)len, c->left ? "%*s%-*.*s" : "%*s%*.*s", gap, "", c->width,
             c->width, cell);
    return true;
}

/* NULL as the row: the titles. */
static void fill(struct gr_top_line *line, const struct table *t, const struct row *r)
{
    for (int i = 0; i < t->n; i++) {
        char cell[CELL_BYTES];
        if (r != NULL) {
            t->column[i].cell(r, cell);
        }
        if (!put_cell(line, t, i, r != NULL ? cell : t->column[i].title)) {
            return;
        }
    }
}

static bool matches(const struct table *t, const struct row *r, const char *pattern)
{
    const struct table whole = {.column = t->column, .n = t->n};
    struct gr_top_line line = {0};
    if (pattern == NULL || pattern[0] == '\0') {
        return true;
    }
    fill(&line, &whole, r);
    return strcasestr(line.text, pattern) != NULL;
}

static enum gr_status add_titles(struct gr_top_view *v, const struct table *t)
{
    struct gr_top_line *line = add_line(v, GR_TOP_HEADING, 0);
    if (line == NULL) {
        return GR_ENOMEM;
    }
    fill(line, t, NULL);
    return GR_OK;
}

static enum gr_status add_row(struct gr_top_view *v, const struct table *t, const struct row *r,
                              const struct gr_top_line *as)
{
    struct gr_top_line *line = add_line(v, as->kind, as->subject);
    if (line == NULL) {
        return GR_ENOMEM;
    }
    fill(line, t, r);
    return GR_OK;
}

/* ---- the order ---- */

struct ranked {
    double key; /* the largest comes first */
    uint64_t id;
    int i;
};

static double key_of(const struct gr_top_snapshot *s, int i, enum gr_top_sort sort)
{
    const struct gr_msg_listed_session *m = &s->now->session[i].is;
    switch (sort) {
    case GR_TOP_BY_TOKENS:
        return m->n_token;
    case GR_TOP_BY_ACCEPTANCE:
        return gr_listing_acceptance(m);
    case GR_TOP_BY_IDLE:
        return (double)m->idle_ns;
    case GR_TOP_BY_TARGET:
        return -(double)m->target;
    case GR_TOP_BY_SPEED:
        break;
    }
    return gr_top_speed(s, i);
}

/* Equal keys go by id, so that rows do not jump between two looks. */
static int compare(const void *a, const void *b)
{
    const struct ranked *x = a;
    const struct ranked *y = b;
    if (x->key != y->key) {
        return x->key > y->key ? -1 : 1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

static struct ranked *rank(const struct gr_top_snapshot *s, enum gr_top_sort sort)
{
    const int n = s->now->n_session;
    struct ranked *order = calloc((size_t)GR_MAX(n, 1), sizeof(*order));
    if (order == NULL) {
        log_error("out of memory for the order of %d sessions", n);
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        order[i] = (struct ranked){.key = key_of(s, i, sort), .id = s->now->session[i].id, .i = i};
    }
    qsort(order, (size_t)n, sizeof(*order), compare);
    return order;
}

/* ---- the whole ---- */

struct summary {
    int n_target, n_draft, n_running, n_waiting, n_idle;
    double speed, acceptance;
};

static struct summary sum_up(const struct gr_top_snapshot *s)
{
    struct summary sum = {0};
    uint64_t n_tree = 0;
    uint64_t n_hit = 0;
    for (int i = 0; i < s->now->n_worker; i++) {
        const bool is_target = s->now->worker[i].role == GR_ROLE_TARGET;
        sum.n_target += is_target;
        sum.n_draft += !is_target;
    }
    for (int i = 0; i < s->now->n_session; i++) {
        const struct gr_msg_listed_session *m = &s->now->session[i].is;
        const char *state = gr_listing_session_state(m);
        sum.n_running += strcmp(state, "running") == 0;
        sum.n_waiting += strcmp(state, "waiting") == 0;
        sum.n_idle += strcmp(state, "idle") == 0;
        sum.speed += GR_MAX(gr_top_speed(s, i), 0.0);
        n_tree += m->n_tree;
        n_hit += m->n_hit_token;
    }
    sum.acceptance = n_tree > 0 ? 1.0 + (double)n_hit / (double)n_tree : 1.0;
    return sum;
}

static enum gr_status add_summary(struct gr_top_view *v, const struct gr_top_snapshot *s, int width)
{
    const struct summary sum = sum_up(s);
    struct gr_top_line *line = add_line(v, GR_TOP_TEXT, 0);
    if (line == NULL) {
        return GR_ENOMEM;
    }
    snprintf(line->text, sizeof(line->text),
             "%stargets %d, drafters %d; sessions %d: %d running, %d waiting, %d idle; %.1f tokens/s, acceptance %.2f",
             s->now->journal_failed ? "the journal has failed; " : "", sum.n_target, sum.n_draft, s->now->n_session,
             sum.n_running, sum.n_waiting, sum.n_idle, sum.speed, sum.acceptance);
    if (width > 0 && width < GR_TOP_LINE_BYTES) {
        line->text[width] = '\0';
    }
    return GR_OK;
}

static enum gr_status add_workers(struct gr_top_view *v, const struct gr_top_snapshot *s,
                                  const struct gr_top_settings *settings)
{
    const struct table t = {worker_columns, (int)GR_ARRAY_LEN(worker_columns), settings->width};
    GR_TRY(add_titles(v, &t));
    for (int i = 0; i < s->now->n_worker; i++) {
        const struct row r = {s, i};
        const struct gr_top_line as = {.kind = GR_TOP_WORKER, .subject = s->now->worker[i].worker};
        if (matches(&t, &r, settings->pattern)) {
            GR_TRY(add_row(v, &t, &r, &as));
        }
    }
    return GR_OK;
}

static enum gr_status add_ranked(struct gr_top_view *v, const struct gr_top_snapshot *s,
                                 const struct gr_top_settings *settings, const struct ranked *order)
{
    const struct table t = {session_columns, (int)GR_ARRAY_LEN(session_columns), settings->width};
    GR_TRY(add_titles(v, &t));
    for (int i = 0; i < s->now->n_session; i++) {
        const struct row r = {s, order[i].i};
        const struct gr_top_line as = {.kind = GR_TOP_SESSION, .subject = order[i].id};
        if (matches(&t, &r, settings->pattern)) {
            GR_TRY(add_row(v, &t, &r, &as));
        }
    }
    return GR_OK;
}

enum gr_status gr_top_view_make(const struct gr_top_snapshot *s, const struct gr_top_settings *settings,
                                struct gr_top_view *v)
{
    struct ranked *order = rank(s, settings->sort);
    if (order == NULL) {
        return GR_ENOMEM;
    }
    v->n = 0;
    enum gr_status st = add_summary(v, s, settings->width);
    if (st == GR_OK) {
        st = add_workers(v, s, settings);
    }
    if (st == GR_OK) {
        st = add_ranked(v, s, settings, order);
    }
    free(order);
    return st;
}

/* ---- JSON ---- */

static json_t *worker_json(const struct gr_top_snapshot *s, int i)
{
    json_t *row = gr_listing_worker_json(&s->now->worker[i]);
    const struct gr_msg_pong *p = pong_of(s, i);
    if (p != NULL) {
        json_object_set_new(row, "kv_blocks", json_integer((json_int_t)p->n_block));
        json_object_set_new(row, "free_kv_blocks", json_integer((json_int_t)p->n_free_block));
        json_object_set_new(row, "round_ms", json_real((double)p->round_ns / 1e6));
    }
    return row;
}

static json_t *session_json(const struct gr_top_snapshot *s, int i)
{
    json_t *row = gr_listing_session_json(&s->now->session[i]);
    const double speed = gr_top_speed(s, i);
    json_object_set_new(row, "tokens_per_second", speed < 0 ? json_null() : json_real(speed));
    const struct gr_top_round round = gr_top_round(s, i);
    if (round.n > 0) {
        json_object_set_new(row, "round",
                            json_pack("{s:f, s:f, s:f, s:f}", "draft_ms", round.draft_ms, "wait_ms", round.wait_ms,
                                      "verify_ms", round.verify_ms, "host_ms", round.host_ms));
    }
    return row;
}

json_t *gr_top_json(const struct gr_top_snapshot *s)
{
    const struct summary sum = sum_up(s);
    json_t *workers = json_array();
    json_t *sessions = json_array();
    for (int i = 0; i < s->now->n_worker; i++) {
        json_array_append_new(workers, worker_json(s, i));
    }
    for (int i = 0; i < s->now->n_session; i++) {
        json_array_append_new(sessions, session_json(s, i));
    }
    return json_pack("{s:{s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b}, s:o, s:o}", "summary", "targets", sum.n_target,
                     "drafters", sum.n_draft, "sessions", s->now->n_session, "running", sum.n_running, "waiting",
                     sum.n_waiting, "idle", sum.n_idle, "tokens_per_second", sum.speed, "mean_acceptance_length",
                     sum.acceptance, "journal_failed", s->now->journal_failed, "workers", workers, "sessions",
                     sessions);
}
