/* What a sweep shows: a table of all points, the headline (clients at a stated speed), and pictures. */
#include "bench/bench.h"
#include "bench/sweep/draw.h"
#include "bench/sweep/point.h"
#include "bench/sweep/sweep.h"
#include "common/base/log.h"
#include "common/base/out_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOGETHER_MIN \
    50.0 /* percent, as clients.c's: with fewer tokens that came while all decoded a figure is marked */

struct report {
    const struct gr_sweep *s;
    struct gr_point *point; /* owned, (n): by fleet, mode, sessions */
    int n;
};

/* ---- the points ---- */

/* Of a fleet that cannot run one point of each mode says why. */
static void read_fleet(struct report *r, const struct gr_fleet *f)
{
    const int n = f->why[0] == '\0' ? r->s->axes.sessions.n : 1;
    for (int mode = 0; mode < GR_POINT_N_MODE; mode++) {
        for (int i = 0; gr_point_has_mode(f, (enum gr_point_mode)mode) && i < n; i++) {
            gr_point_read(&r->s->store, f, (enum gr_point_mode)mode, (int)r->s->axes.sessions.value[i],
                          (int)r->s->o.sweep_repeat, &r->point[r->n++]);
        }
    }
}

static enum gr_status read_points(struct report *r)
{
    const struct gr_sweep_plan *plan = &r->s->plan;
    r->point = calloc((size_t)plan->n * (GR_POINT_N_MODE - 1) * (size_t)r->s->axes.sessions.n + 1, sizeof(*r->point));
    if (r->point == NULL) {
        log_error("out of memory for the points of %d fleets", plan->n);
        return GR_ENOMEM;
    }
    for (int i = 0; i < plan->n; i++) {
        read_fleet(r, &plan->fleet[i]);
    }
    return GR_OK;
}

/* The same prompts give the same texts, whatever generates them. */
static enum gr_status check_texts(const struct report *r)
{
    const struct gr_point *first = NULL;
    for (int i = 0; i < r->n; i++) {
        const struct gr_point *p = &r->point[i];
        char a[GR_FLEET_NAME_MAX], b[GR_FLEET_NAME_MAX];
        if (p->n_run == 0) {
            continue;
        }
        first = first == NULL ? p : first;
        if (strcmp(p->texts, first->texts) != 0) {
            gr_fleet_name(p->fleet, a);
            gr_fleet_name(first->fleet, b);
            log_error("the texts of %s (%s, %d sessions) are others than those of %s (%s, %d sessions)", a,
                      gr_point_mode_name(p->mode), p->n_session, b, gr_point_mode_name(first->mode), first->n_session);
            return GR_EMISMATCH;
        }
    }
    return GR_OK;
}

/* ---- tables ---- */

static void print_text(struct gr_table *t, const char *text)
{
    if (text[0] != '\0') {
        gr_table_text(t, text);
    } else {
        gr_table_none(t);
    }
}

/* Of a fleet that does not come out even there are the devices alone. */
static void print_fleet(struct gr_table *t, const struct gr_fleet *f)
{
    gr_table_number(t, f->n_host, 0);
    gr_table_number(t, gr_fleet_devices(f), 0);
    gr_table_number(t, f->n_target > 0 ? (double)f->n_target : NAN, 0);
    gr_table_number(t, !f->whole ? (double)f->n_draft : NAN, 0);
    gr_table_number(t, f->tp, 0);
}

static double over_rival(const struct report *r, const struct gr_point *p, enum gr_point_mode mode)
{
    const struct gr_point *rival = gr_point_rival(r->point, r->n, p, mode);
    return rival != NULL && p->n_run > 0 ? p->speed / rival->speed : NAN;
}

struct note {
    char text[GR_FLEET_WHY_MAX + 500];
};

static void add_note(struct note *n, const char *text)
{
    const size_t at = strlen(n->text);
    snprintf(n->text + at, sizeof(n->text) - at, "%s%s", at > 0 ? "; " : "", text);
}

/* The note of a row: what a reader has to know of its figures. */
static void print_note(struct gr_table *t, const struct gr_point *p)
{
    struct note n = {""};
    char text[120];
    if (p->why[0] != '\0') {
        add_note(&n, p->why);
    }
    if (p->n_run > 0 && p->together < TOGETHER_MIN) {
        snprintf(text, sizeof(text), "%.0f %% of the tokens came while all decoded: speed is over all time",
                 p->together);
        add_note(&n, text);
    }
    if (p->waited > 0.0) {
        snprintf(text, sizeof(text), "bound by admission: %.0f sessions began when others had ended", ceil(p->waited));
        add_note(&n, text);
    }
    if (p->reopened > 0.0) {
        snprintf(text, sizeof(text), "%.0f prompts were computed again: KV was short, or a worker was lost",
                 ceil(p->reopened));
        add_note(&n, text);
    }
    if (p->undrafted > 0.0) {
        snprintf(text, sizeof(text), "%.0f sessions had no drafter", p->undrafted);
        add_note(&n, text);
    }
    print_text(t, n.text);
}

static void print_point(struct gr_table *t, const struct report *r, const struct gr_point *p)
{
    print_fleet(t, p->fleet);
    gr_table_text(t, gr_point_mode_name(p->mode));
    gr_table_number(t, p->fleet->why[0] == '\0' ? (double)p->n_session : NAN, 0);
    gr_table_number(t, p->n_run, 0);
    gr_table_number(t, p->speed, 1);
    gr_table_number(t, p->low, 1);
    gr_table_number(t, p->high, 1);
    gr_table_number(t, p->client, 2);
    gr_table_number(t, p->least, 2);
    gr_table_number(t, gr_point_per_device(p), 1);
    gr_table_number(t, over_rival(r, p, GR_POINT_PLAIN), 2);
    gr_table_number(t, over_rival(r, p, GR_POINT_COLOCATED), 2);
    gr_table_number(t, p->ttft_ms, 1);
    gr_table_number(t, p->acceptance, 2);
    gr_table_number(t, p->round_ms, 3);
    gr_table_number(t, p->verify_ms, 3);
    gr_table_number(t, gr_point_transport_share(p), 1);
    print_text(t, p->transport);
    print_text(t, p->shares);
    print_note(t, p);
}

static const char *const point_columns[] = {
    "hosts",   "devices",    "targets",  "drafters",       "tp",           "mode",           "sessions", "runs",
    "tok/s",   "low",        "high",     "tok/s a client", "least client", "tok/s a device", "x plain",  "x co-located",
    "ttft ms", "acceptance", "round ms", "verify ms",      "transport %",  "transport",      "shares",   "note"};

static void print_points(const struct report *r, FILE *out, enum gr_table_format format)
{
    struct gr_table t;
    char note[400], runs[64] = "one repetition, so that no spread is known";
    if (r->s->o.sweep_repeat > 1) {
        snprintf(runs, sizeof(runs), "medians of up to %d repetitions, low and high over them",
                 (int)r->s->o.sweep_repeat);
    }
    snprintf(note, sizeof(note),
             "%s; tok/s of all clients while all decode, a device: "
             "over all devices, the drafters' too; x plain, x co-located: against the fastest such fleet of as many "
             "devices on as many hosts with as many clients; transport %%: of a round, waits for trees beyond the "
             "drafter's own time",
             runs);
    gr_table_begin(&t, format, out, "sweep", note, point_columns, (int)GR_ARRAY_LEN(point_columns));
    for (int i = 0; i < r->n; i++) {
        print_point(&t, r, &r->point[i]);
    }
    gr_table_end(&t);
}

/* The first of the points of each fleet and mode stands for them. */
static bool is_first(const struct report *r, int i)
{
    return i == 0 || r->point[i].fleet != r->point[i - 1].fleet || r->point[i].mode != r->point[i - 1].mode;
}

/* Of the whole fleets of as many devices the one that serves the most; NAN: there is none, or the most that was
 * measured is less than what it serves. */
static double capacity_of_rival(const struct report *r, const struct gr_point *p, enum gr_point_mode mode)
{
    struct gr_capacity most = {.kind = GR_CAPACITY_NONE};
    for (int i = 0; i < r->n; i++) {
        const struct gr_point *q = &r->point[i];
        const bool equal = q->mode == mode && q->fleet->n_host == p->fleet->n_host &&
                           gr_fleet_devices(q->fleet) == gr_fleet_devices(p->fleet);
        if (is_first(r, i) && equal) {
            const struct gr_capacity c = gr_point_capacity(r->point, r->n, q, r->s->o.speed);
            most = c.kind > most.kind || (c.kind == most.kind && c.n_client > most.n_client) ? c : most;
        }
    }
    return most.kind == GR_CAPACITY_BETWEEN ? most.n_client : NAN;
}

static void print_capacity_note(struct gr_table *t, const struct gr_point *p, const struct gr_capacity *c)
{
    char text[128];
    switch (c->kind) {
    case GR_CAPACITY_NONE:
        print_text(t, p->why);
        return;
    case GR_CAPACITY_BELOW:
        snprintf(text, sizeof(text), "%.0f client%s too many: below the range that was measured", c->n_client,
                 c->n_client > 1.0 ? "s are" : " is");
        break;
    case GR_CAPACITY_BETWEEN:
        snprintf(text, sizeof(text), "interpolated");
        break;
    case GR_CAPACITY_AT_LEAST:
        snprintf(text, sizeof(text), "at least: beyond the range that was measured");
        break;
    }
    gr_table_text(t, text);
}

static void print_capacity(struct gr_table *t, const struct report *r, const struct gr_point *p)
{
    const struct gr_capacity c = gr_point_capacity(r->point, r->n, p, r->s->o.speed);
    const bool known = c.kind == GR_CAPACITY_BETWEEN || c.kind == GR_CAPACITY_AT_LEAST;
    const double n = known ? c.n_client : NAN;
    const double exact = c.kind == GR_CAPACITY_BETWEEN ? n : NAN;
    print_fleet(t, p->fleet);
    gr_table_text(t, gr_point_mode_name(p->mode));
    gr_table_number(t, n, 1);
    gr_table_number(t, n / (p->fleet->n_target * p->fleet->tp), 2);
    gr_table_number(t, n / gr_fleet_devices(p->fleet), 2);
    gr_table_number(t, exact / capacity_of_rival(r, p, GR_POINT_PLAIN), 2);
    gr_table_number(t, exact / capacity_of_rival(r, p, GR_POINT_COLOCATED), 2);
    print_capacity_note(t, p, &c);
}

static void print_capacities(const struct report *r, FILE *out, enum gr_table_format format)
{
    static const char *const columns[] = {"hosts",   "devices",         "targets",  "drafters", "tp",           "mode",
                                          "clients", "a target device", "a device", "x plain",  "x co-located", "note"};
    struct gr_table t;
    char note[256];
    snprintf(note, sizeof(note),
             "clients that get %g tokens/s each, at once; a target device: over those of the targets; a device: over "
             "all, the drafters' too; x: against such fleets of as many devices, where both are interpolated",
             r->s->o.speed);
    gr_table_begin(&t, format, out, "sweep", note, columns, (int)GR_ARRAY_LEN(columns));
    for (int i = 0; i < r->n; i++) {
        if (is_first(r, i)) {
            print_capacity(&t, r, &r->point[i]);
        }
    }
    gr_table_end(&t);
}

/* ---- files ---- */

static enum gr_status write_file(const struct report *r, const char *name, enum gr_table_format format,
                                 void (*print)(const struct report *r, FILE *out, enum gr_table_format format))
{
    static const char *const endings[] = {"md", "csv", "json", "jsonl"};
    struct gr_out_file o;
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/%s.%s", r->s->o.sweep_dir, name, endings[format]) >= (int)sizeof(path)) {
        log_error("--save: the name of the folder is too long");
        return GR_EINVAL;
    }
    GR_TRY(gr_out_file_open("--save", path, 0666, false, &o));
    gr_table_quiet(true);
    print(r, o.f, format);
    gr_table_quiet(false);
    return gr_out_file_close(&o, ferror(o.f) == 0, NULL);
}

/* That of the rows, for those who read CSV. */
static void print_provenance(const struct report *r, FILE *out, enum gr_table_format format)
{
    (void)format;
    json_dumpf(gr_store_about(&r->s->store), out, JSON_INDENT(1));
    fputc('\n', out);
}

static enum gr_status write_files(const struct report *r)
{
    static const enum gr_table_format formats[] = {GR_TABLE_MD, GR_TABLE_CSV, GR_TABLE_JSON};
    for (size_t i = 0; i < GR_ARRAY_LEN(formats); i++) {
        GR_TRY(write_file(r, "points", formats[i], print_points));
        GR_TRY(write_file(r, "capacity", formats[i], print_capacities));
    }
    return write_file(r, "provenance", GR_TABLE_JSON, print_provenance);
}

static enum gr_status show(const struct report *r)
{
    const enum gr_table_format format = gr_bench_format(&r->s->o);
    GR_TRY(write_files(r));
    print_points(r, stdout, format);
    if (format == GR_TABLE_MD) {
        putchar('\n');
        print_capacities(r, stdout, format);
    }
    GR_TRY(gr_sweep_draw(r->s, r->point, r->n));
    return check_texts(r);
}

enum gr_status gr_sweep_report(const struct gr_sweep *s)
{
    struct report r = {.s = s};
    gr_table_also(gr_store_about(&s->store));
    enum gr_status st = read_points(&r);
    st = st == GR_OK ? show(&r) : st;
    gr_table_also(NULL);
    free(r.point);
    return st;
}
