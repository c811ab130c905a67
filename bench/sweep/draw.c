#include "bench/sweep/draw.h"

#include "bench/plot.h"
#include "common/base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_SERIES_MAX 64 /* lines of a picture; further ones are left out, and a message says so */

struct xy {
    double x, y;
};

struct series {
    char name[N_SERIES_MAX][96];
    const struct gr_point *of[N_SERIES_MAX]; /* the first point of each */
    int n;
};

static const char *ending(const struct gr_sweep *s)
{
    return s->o.plots == GR_BENCH_PLOTS_PNG ? "png" : "svg";
}

static enum gr_status path_of(const struct gr_sweep *s, const char *name, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/%s.%s", s->o.sweep_dir, name, ending(s)) < PATH_MAX) {
        return GR_OK;
    }
    log_error("--save: the name of the folder is too long");
    return GR_EINVAL;
}

enum gr_status gr_sweep_draw_check(const struct gr_sweep *s)
{
    char path[PATH_MAX];
    if (s->o.plots == GR_BENCH_PLOTS_NONE || !gr_bench_is_given(&s->o, GR_BENCH_OPTION_plots)) {
        return GR_OK;
    }
    GR_TRY(path_of(s, "speed", path));
    return gr_plot_check("--plots", path);
}

/* ---- lines ---- */

static bool same_line(const struct gr_point *a, const struct gr_point *b)
{
    return a->fleet == b->fleet && a->mode == b->mode;
}

static void name_of(const struct gr_point *p, char name[static 96])
{
    const struct gr_fleet *f = p->fleet;
    const int n =
        snprintf(name, 96, "%s: %d target%s", gr_point_mode_name(p->mode), f->n_target, f->n_target == 1 ? "" : "s");
    char *rest = name + n;
    const size_t left = 96 - (size_t)n;
    char tp[24] = "", hosts[24] = "";
    if (f->tp > 1) {
        snprintf(tp, sizeof(tp), ", tp %d", f->tp);
    }
    if (f->n_host > 1) {
        snprintf(hosts, sizeof(hosts), ", %d hosts", f->n_host);
    }
    if (f->whole) {
        snprintf(rest, left, "%s%s", tp, hosts);
    } else {
        snprintf(rest, left, " + %d drafter%s%s%s", f->n_draft, f->n_draft == 1 ? "" : "s", tp, hosts);
    }
}

/* Lines that have a point: of the split fleets alone, or of all. */
static void find_series(const struct gr_point *point, int n, bool split_alone, struct series *out)
{
    out->n = 0;
    for (int i = 0; i < n; i++) {
        const bool wanted = point[i].n_run > 0 && (!split_alone || point[i].mode == GR_POINT_SPLIT);
        if (!wanted || (out->n > 0 && same_line(&point[i], out->of[out->n - 1]))) {
            continue;
        }
        if (out->n == N_SERIES_MAX) {
            log_warn("--plots: more than %d lines; the others are in the tables alone", N_SERIES_MAX);
            return;
        }
        name_of(&point[i], out->name[out->n]);
        out->of[out->n++] = &point[i];
    }
}

static struct xy speed_at(const struct gr_point *p)
{
    return (struct xy){p->client, gr_point_per_device(p)};
}

static struct xy transport_at(const struct gr_point *p)
{
    return (struct xy){p->n_session, gr_point_transport_share(p)};
}

static enum gr_status draw(const struct gr_sweep *s, const struct gr_point *point, int n, struct gr_plot_config *c,
                           struct xy (*at)(const struct gr_point *p))
{
    static struct series lines;
    const char *names[N_SERIES_MAX];
    char path[PATH_MAX];
    struct gr_plot plot;
    find_series(point, n, at == transport_at, &lines);
    if (lines.n == 0) {
        return GR_OK;
    }
    for (int i = 0; i < lines.n; i++) {
        names[i] = lines.name[i];
    }
    GR_TRY(path_of(s, c->path, path));
    c->path = path;
    c->series = names;
    c->n_series = lines.n;
    GR_TRY(gr_plot_begin(c, &plot));
    for (int i = 0; i < lines.n; i++) {
        for (const struct gr_point *p = lines.of[i]; p < point + n && same_line(p, lines.of[i]); p++) {
            const struct xy v = at(p);
            if (p->n_run > 0 && isfinite(v.x) && isfinite(v.y)) {
                fprintf(plot.to, "%g %g\n", v.x, v.y);
            }
        }
        fputs("e\n", plot.to);
    }
    return gr_plot_end(&plot);
}

/* ---- cost by hosts ---- */

/* Device seconds of a thousand tokens, of the cheapest fleet with that number of hosts; NAN: none was measured. */
static double cost_at(const struct gr_point *point, int n, enum gr_point_mode mode, int n_host, int n_session)
{
    double least = NAN;
    for (int i = 0; i < n; i++) {
        const struct gr_point *p = &point[i];
        if (p->mode == mode && p->n_run > 0 && p->fleet->n_host == n_host && p->n_session == n_session) {
            least = fmin(least, 1000.0 / gr_point_per_device(p));
        }
    }
    return least;
}

/* What was measured: the most sessions, and on how many different numbers of hosts. */
static int measured(const struct gr_sweep *s, const struct gr_point *point, int n, int *n_host_out)
{
    int most = 0;
    for (int i = 0; i < n; i++) {
        most = point[i].n_run > 0 ? GR_MAX(most, point[i].n_session) : most;
    }
    *n_host_out = 0;
    for (int h = 0; h < s->axes.hosts.n; h++) {
        bool any = false;
        for (int i = 0; i < n; i++) {
            any = any || (point[i].n_run > 0 && point[i].fleet->n_host == s->axes.hosts.value[h]);
        }
        *n_host_out += any;
    }
    return most;
}

struct costs {
    const char *name[GR_POINT_N_MODE];
    struct xy at[GR_POINT_N_MODE][GR_SWEEP_AXIS_MAX];
    int n_at[GR_POINT_N_MODE];
    int n; /* modes that have any */
};

static void find_costs(const struct gr_sweep *s, const struct gr_point *point, int n, int n_session, struct costs *out)
{
    out->n = 0;
    for (int mode = 0; mode < GR_POINT_N_MODE; mode++) {
        out->name[out->n] = gr_point_mode_name((enum gr_point_mode)mode);
        out->n_at[out->n] = 0;
        for (int i = 0; i < s->axes.hosts.n && i < GR_SWEEP_AXIS_MAX; i++) {
            const int n_host = (int)s->axes.hosts.value[i];
            const double cost = cost_at(point, n, (enum gr_point_mode)mode, n_host, n_session);
            if (isfinite(cost)) {
                out->at[out->n][out->n_at[out->n]++] = (struct xy){n_host, cost};
            }
        }
        out->n += out->n_at[out->n] > 0;
    }
}

/* One number of hosts is no line. */
static enum gr_status draw_hosts(const struct gr_sweep *s, const struct gr_point *point, int n)
{
    char path[PATH_MAX], title[96];
    struct gr_plot plot;
    struct costs costs;
    int n_host = 0;
    const int n_session = measured(s, point, n, &n_host);
    if (n_host < 2) {
        return GR_OK;
    }
    find_costs(s, point, n, n_session, &costs);
    GR_TRY(path_of(s, "hosts", path));
    snprintf(title, sizeof(title), "cost by hosts, %d clients, cheapest fleet of each kind", n_session);
    GR_TRY(
        gr_plot_begin(&(struct gr_plot_config){.path = path,
                                               .title = title,
                                               .x_label = "hosts",
                                               .y_label = s->site.n_device > 0 ? "cost of 1000 tokens [GPU seconds]"
                                                                               : "cost of 1000 tokens [device seconds]",
                                               .log_x = true,
                                               .series = costs.name,
                                               .n_series = costs.n},
                      &plot));
    for (int mode = 0; mode < costs.n; mode++) {
        for (int i = 0; i < costs.n_at[mode]; i++) {
            fprintf(plot.to, "%g %g\n", costs.at[mode][i].x, costs.at[mode][i].y);
        }
        fputs("e\n", plot.to);
    }
    return gr_plot_end(&plot);
}

/* Where pictures were asked for, gr_sweep_draw_check() has refused the sweep. */
static bool can_draw(const struct gr_sweep *s)
{
    const bool there = s->o.plots != GR_BENCH_PLOTS_NONE && gr_plot_is_there();
    if (s->o.plots != GR_BENCH_PLOTS_NONE && !there) {
        log_warn("no pictures were drawn: the program gnuplot is not installed (Debian, Ubuntu: apt-get install "
                 "gnuplot-nox); --report draws them later");
    }
    return there;
}

/* "TITLE, 8, 32, 64 clients": the points of each line. */
static void title_of_speeds(const struct gr_sweep *s, const char *title, char out[static 256])
{
    const struct gr_option_list *n = &s->axes.sessions;
    int at = snprintf(out, 256, "%s,", title);
    for (int i = 0; i < n->n; i++) {
        at += snprintf(out + at, 256 - (size_t)at, "%s %d", i > 0 ? "," : "", (int)n->value[i]);
    }
    snprintf(out + at, 256 - (size_t)at, " client%s", n->n == 1 && n->value[0] == 1 ? "" : "s");
}

static enum gr_status draw_speeds(const struct gr_sweep *s, const struct gr_point *point, int n)
{
    const bool on_gpu = s->site.n_device > 0;
    char title[256];
    title_of_speeds(
        s, on_gpu ? "speed of a client and throughput of a GPU" : "speed of a client and throughput of a device",
        title);
    return draw(s, point, n,
                &(struct gr_plot_config){.path = "speed",
                                         .title = title,
                                         .x_label = "speed of a client [tokens/s]",
                                         .y_label = on_gpu ? "throughput of a GPU [tokens/s]"
                                                           : "throughput of a device [tokens/s]"},
                speed_at);
}

enum gr_status gr_sweep_draw(const struct gr_sweep *s, const struct gr_point *point, int n)
{
    struct gr_plot_config transport = {.path = "transport",
                                       .title = "share of the transport in a round",
                                       .x_label = "clients",
                                       .y_label = "waits for trees, without the time of drafting [% of a round]",
                                       .log_x = true};
    if (!can_draw(s)) {
        return GR_OK;
    }
    GR_TRY(draw_speeds(s, point, n));
    GR_TRY(draw(s, point, n, &transport, transport_at));
    return draw_hosts(s, point, n);
}
