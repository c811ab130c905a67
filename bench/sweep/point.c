#include "bench/sweep/point.h"

#include "bench/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool gr_point_has_mode(const struct gr_fleet *f, enum gr_point_mode mode)
{
    return f->whole == (mode != GR_POINT_SPLIT);
}

const char *gr_point_mode_name(enum gr_point_mode mode)
{
    static const char *const names[GR_POINT_N_MODE] = {"split", "co-located", "plain"};
    return names[mode];
}

const char *gr_point_run_mode(enum gr_point_mode mode)
{
    return mode == GR_POINT_PLAIN ? "plain" : "trees";
}

/* ---- from rows of clients ---- */

struct rows {
    const json_t *row[GR_SWEEP_REPEAT_MAX];
    int n;
};

static struct rows rows_of(const struct gr_store *s, struct gr_run_id id, int n_repeat)
{
    struct rows r = {.n = 0};
    for (id.repeat = 0; id.repeat < n_repeat; id.repeat++) {
        const json_t *row = gr_store_row(s, &id);
        if (row != NULL) {
            r.row[r.n++] = row;
        }
    }
    return r;
}

static double median(const struct rows *r, const char *column)
{
    double value[GR_SWEEP_REPEAT_MAX];
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        const json_t *v = json_object_get(r->row[i], column);
        if (json_is_number(v)) {
            value[n++] = json_number_value(v);
        }
    }
    return n > 0 ? gr_median(value, n) : NAN;
}

static void extremes(const struct rows *r, const char *column, double *low, double *high)
{
    *low = *high = NAN;
    for (int i = 0; i < r->n; i++) {
        const json_t *v = json_object_get(r->row[i], column);
        if (json_is_number(v)) {
            *low = fmin(*low, json_number_value(v));
            *high = fmax(*high, json_number_value(v));
        }
    }
}

static void text(const struct rows *r, const char *column, char *out, size_t cap)
{
    const char *t = r->n > 0 ? json_string_value(json_object_get(r->row[r->n - 1], column)) : NULL;
    snprintf(out, cap, "%s", t != NULL ? t : "");
}

static void say_missing(const struct gr_store *s, struct gr_run_id id, int n_repeat, struct gr_point *p)
{
    const char *failure = NULL;
    for (id.repeat = 0; id.repeat < n_repeat && failure == NULL; id.repeat++) {
        failure = gr_store_failure(s, &id);
    }
    snprintf(p->why, sizeof(p->why), "%s", failure != NULL ? failure : "not run yet");
}

void gr_point_read(const struct gr_store *s, const struct gr_fleet *f, enum gr_point_mode mode, int n_session,
                   int n_repeat, struct gr_point *out)
{
    char name[GR_FLEET_NAME_MAX], why[GR_FLEET_WHY_MAX];
    const struct gr_run_id id = {.fleet = name, .mode = gr_point_run_mode(mode), .n_session = n_session};
    gr_fleet_name(f, name);
    const struct rows r = rows_of(s, id, n_repeat);
    *out = (struct gr_point){.fleet = f, .mode = mode, .n_session = n_session, .n_run = r.n};
    out->speed = median(&r, "tok/s");
    extremes(&r, "tok/s", &out->low, &out->high);
    out->client = median(&r, "tok/s a client");
    out->least = median(&r, "least client");
    out->ttft_ms = median(&r, "ttft ms");
    out->together = median(&r, "all decode %");
    out->acceptance = median(&r, "acceptance");
    out->round_ms = median(&r, "round ms");
    out->transport_ms = median(&r, "transport ms");
    out->draft_ms = median(&r, "draft ms");
    out->verify_ms = median(&r, "verify ms");
    out->undrafted = median(&r, "undrafted");
    out->waited = median(&r, "waited");
    out->reopened = median(&r, "reopened");
    text(&r, "transport", out->transport, sizeof(out->transport));
    text(&r, "shares", out->shares, sizeof(out->shares));
    text(&r, "texts", out->texts, sizeof(out->texts));
    gr_fleet_refuses(f, n_session, why);
    if (r.n == 0 && (f->why[0] != '\0' || why[0] != '\0')) {
        snprintf(out->why, sizeof(out->why), "%s", f->why[0] != '\0' ? f->why : why);
    } else if (r.n < n_repeat) {
        say_missing(s, id, n_repeat, out);
    }
}

/* ---- what follows ---- */

double gr_point_per_device(const struct gr_point *p)
{
    return p->speed / gr_fleet_devices(p->fleet);
}

double gr_point_transport_share(const struct gr_point *p)
{
    return p->mode == GR_POINT_PLAIN ? NAN : 100.0 * p->transport_ms / p->round_ms;
}

const struct gr_point *gr_point_rival(const struct gr_point *point, int n, const struct gr_point *p,
                                      enum gr_point_mode mode)
{
    const struct gr_point *best = NULL;
    for (int i = 0; i < n; i++) {
        const struct gr_point *q = &point[i];
        const bool equal =
            q->mode == mode && q->n_session == p->n_session && q->n_run > 0 && gr_fleet_is_beside(p->fleet, q->fleet);
        if (equal && (best == NULL || q->speed > best->speed)) {
            best = q;
        }
    }
    return best;
}

struct gr_capacity gr_point_capacity(const struct gr_point *point, int n, const struct gr_point *p, double speed)
{
    struct gr_capacity_point at[64];
    int n_at = 0;
    for (int i = 0; i < n && n_at < (int)GR_ARRAY_LEN(at); i++) {
        const struct gr_point *q = &point[i];
        if (q->fleet == p->fleet && q->mode == p->mode && q->n_run > 0 && q->client > 0.0) {
            at[n_at++] = (struct gr_capacity_point){.n_client = q->n_session, .speed = q->client};
        }
    }
    return gr_capacity_at(at, n_at, speed);
}
