/* graft-bench sweep: many clients on fleets of workers, over counts of hosts, targets, drafters, ranks of a target and
 * sessions; beside each split fleet whole ones of as many devices, co-located and plain (plan.h). Repetition by
 * repetition it goes through all fleets, so that a slow minute of the machine hits one repetition of each, and so that
 * a sweep that is cut short has something of everything. A fleet lives once in a repetition: its workers start, the
 * clients measure all numbers of sessions, after a warm-up each, and the workers end. What was measured goes into a
 * file at once (store.h); a sweep that finds its points there goes on after them. */
#include "bench/sweep/sweep.h"

#include "bench/bench.h"
#include "bench/pair.h"
#include "bench/paths.h"
#include "bench/prompt_set.h"
#include "bench/sweep/draw.h"
#include "bench/sweep/line.h"
#include "bench/sweep/point.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "common/rules/hash.h"
#include "model/files/model_path.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one life ---- */

static struct gr_run_id id_of(const struct gr_sweep_life *l, const char *fleet, bool trees, int n_session)
{
    return (struct gr_run_id){
        .fleet = fleet, .mode = trees ? "trees" : "plain", .n_session = n_session, .repeat = l->repeat};
}

static bool is_done(const struct gr_sweep *s, const struct gr_sweep_life *l, bool trees, int n_session)
{
    char name[GR_FLEET_NAME_MAX], why[GR_FLEET_WHY_MAX];
    gr_fleet_name(l->fleet, name);
    gr_fleet_refuses(l->fleet, n_session, why);
    const struct gr_run_id id = id_of(l, name, trees, n_session);
    return why[0] != '\0' || gr_store_row(&s->store, &id) != NULL;
}

/* What of the fleet's points has not been measured in this repetition. False: nothing. */
static bool choose(const struct gr_sweep *s, struct gr_sweep_life *l)
{
    const bool modes[] = {l->fleet->whole, !l->bare}; /* plain, trees */
    l->sessions.n = 0;
    for (int i = 0; i < s->axes.sessions.n; i++) {
        const int n = (int)s->axes.sessions.value[i];
        const bool plain = modes[0] && !is_done(s, l, false, n);
        const bool trees = modes[1] && !is_done(s, l, true, n);
        l->plain = l->plain || plain;
        l->trees = l->trees || trees;
        if (plain || trees) {
            l->sessions.value[l->sessions.n++] = n;
        }
    }
    return l->sessions.n > 0;
}

static const json_t *row_of(const struct gr_sweep_life *l, bool trees, int n_session)
{
    size_t i;
    json_t *row;
    json_array_foreach(l->rows, i, row)
    {
        const char *mode = json_string_value(json_object_get(row, "mode"));
        if (mode != NULL && strcmp(mode, trees ? "trees" : "plain") == 0 &&
            json_integer_value(json_object_get(row, "sessions")) == n_session) {
            return row;
        }
    }
    return NULL;
}

static enum gr_status keep_one(struct gr_sweep *s, const struct gr_sweep_life *l, bool trees, int n_session)
{
    char name[GR_FLEET_NAME_MAX];
    if (is_done(s, l, trees, n_session)) {
        return GR_OK;
    }
    gr_fleet_name(l->fleet, name);
    const struct gr_run_id id = id_of(l, name, trees, n_session);
    const json_t *row = row_of(l, trees, n_session);
    fprintf(stderr, "#   %s, %d sessions: ", id.mode, n_session);
    if (row != NULL) {
        fprintf(stderr, "%.1f tokens/s\n", json_number_value(json_object_get(row, "tok/s")));
    } else {
        fprintf(stderr, "%s\n", l->why[0] != '\0' ? l->why : "nothing");
    }
    return gr_store_add(&s->store, &id, row, l->why);
}

static enum gr_status keep(struct gr_sweep *s, const struct gr_sweep_life *l)
{
    for (int i = 0; i < l->sessions.n; i++) {
        const int n = (int)l->sessions.value[i];
        if (l->plain) {
            GR_TRY(keep_one(s, l, false, n));
        }
        if (l->trees) {
            GR_TRY(keep_one(s, l, true, n));
        }
    }
    return GR_OK;
}

/* The rows that the clients have printed, whole lines of them. */
static enum gr_status read_rows(struct gr_sweep_life *l)
{
    char path[PATH_MAX], line[1 << 14];
    snprintf(path, sizeof(path), "%s/clients.out", l->dir);
    FILE *f = fopen(path, "re");
    l->rows = json_array();
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        json_error_t error;
        json_t *row = strchr(line, '\n') != NULL ? json_loads(line, 0, &error) : NULL;
        if (json_is_object(row) && json_object_get(row, "sessions") != NULL) {
            json_array_append(l->rows, row);
        }
        json_decref(row);
    }
    if (f != NULL) {
        fclose(f);
    }
    return l->rows != NULL ? GR_OK : GR_ENOMEM;
}

/* DIR/logs/split-h1-t1-d1-tp1.0 */
static enum gr_status make_place(const struct gr_sweep *s, struct gr_sweep_life *l)
{
    char name[GR_FLEET_NAME_MAX];
    gr_fleet_name(l->fleet, name);
    for (char *p = name; *p != '\0'; p++) {
        *p = *p == ' ' ? '-' : *p;
    }
    const int n = snprintf(l->dir, sizeof(l->dir), "%s/logs", s->o.sweep_dir);
    if (n + (int)strlen(name) + 8 >= (int)sizeof(l->dir)) {
        log_error("--save: the name of the folder is too long");
        return GR_EINVAL;
    }
    GR_TRY(gr_bench_make_folder(l->dir));
    snprintf(l->dir + n, sizeof(l->dir) - (size_t)n, "/%s.%d", name, l->repeat);
    GR_TRY(gr_bench_make_folder(l->dir));
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/clients.out", l->dir);
    (void)unlink(path); /* of a life that was killed: its rows are not this one's */
    return GR_OK;
}

/* *came_out: something was measured. */
static enum gr_status live(struct gr_sweep *s, struct gr_sweep_life *l, bool *came_out)
{
    char name[GR_FLEET_NAME_MAX];
    gr_fleet_name(l->fleet, name);
    fprintf(stderr, "# %s, repetition %d of %d\n", name, l->repeat + 1, (int)s->o.sweep_repeat);
    GR_TRY(make_place(s, l));
    GR_TRY(s->launcher == GR_BENCH_BY_NONE ? gr_sweep_live_here(s, l) : gr_sweep_live_launched(s, l));
    GR_TRY(read_rows(l));
    *came_out = json_array_size(l->rows) > 0;
    const enum gr_status st = keep(s, l);
    json_decref(l->rows);
    return st;
}

/* ---- all of them ---- */

/* What has become of a fleet so far: it came up, or with its drafters it did not, or not at all. */
enum fate { WELL, BARE, LOST };

/* A whole fleet that does not come up with its drafters is tried without, for plain decoding. */
static enum gr_status live_once(struct gr_sweep *s, int i, int rep, enum fate *fate)
{
    while (*fate != LOST) {
        struct gr_sweep_life l = {.fleet = &s->plan.fleet[i], .repeat = rep, .bare = *fate == BARE};
        bool came = true;
        if (!choose(s, &l)) {
            return GR_OK;
        }
        GR_TRY(live(s, &l, &came));
        if (came) {
            return GR_OK;
        }
        *fate = l.fleet->whole && !l.bare ? BARE : LOST;
    }
    return GR_OK;
}

/* A fleet that gave no result is not started again in the next repetition. */
static enum gr_status run(struct gr_sweep *s)
{
    static enum fate fate[GR_FLEET_MAX];
    for (int rep = 0; rep < (int)s->o.sweep_repeat; rep++) {
        for (int i = 0; i < s->plan.n; i++) {
            if (s->plan.fleet[i].why[0] == '\0') {
                GR_TRY(live_once(s, i, rep, &fate[i]));
            }
        }
    }
    return GR_OK;
}

static void tell(const struct gr_sweep *s)
{
    for (int i = 0; i < s->plan.n; i++) {
        struct gr_sweep_life l = {.fleet = &s->plan.fleet[i], .sessions = s->axes.sessions, .trees = true};
        char name[GR_FLEET_NAME_MAX];
        gr_fleet_name(l.fleet, name);
        l.plain = l.fleet->whole;
        if (l.fleet->why[0] != '\0') {
            printf("# %s: %s\n", name, l.fleet->why);
            continue;
        }
        printf("# %s, %d devices\n", name, gr_fleet_devices(l.fleet));
        if (s->launcher == GR_BENCH_BY_NONE) {
            gr_sweep_tell_here(s, &l);
        } else {
            gr_sweep_tell_launched(s, &l);
        }
    }
}

/* ---- options ---- */

static enum gr_status load_prompts(struct gr_sweep *s)
{
    static struct gr_prompt_set set;
    struct gr_prompt_set_options of = gr_prompt_set_options_of(&s->o);
    of.model = s->model;
    of.max_tokens = (uint32_t)s->o.max_tokens;
    const enum gr_status st = gr_prompt_set_load(&of, &set);
    for (int i = 0; i < set.n; i++) {
        for (uint32_t k = 0; set.prompt[i].id != NULL && k < set.prompt[i].n; k++) {
            s->prompt_hash = gr_hash_extend(s->prompt_hash, set.prompt[i].id[k]);
        }
    }
    s->n_ctx_max = (int)(set.n_id_max + set.max_tokens + GR_TREE_MAX);
    gr_prompt_set_free(&set);
    return st;
}

static enum gr_status find_models(struct gr_sweep *s)
{
    const struct gr_geometry *geometry = NULL;
    struct gr_hf_config hf;
    s->model = gr_bench_path_of(&s->o, GR_BENCH_OPTION_model);
    GR_TRY(gr_geometry_find(s->o.geometry, &geometry));
    s->draft =
        s->o.draft != NULL ? s->o.draft : gr_bench_path(geometry != NULL ? "models/demo/eagle3" : "models/demo/draft");
    GR_TRY(gr_pair_draft_is_head(s->draft, &s->draft_is_head));
    GR_TRY(gr_model_path_config(s->model, &hf));
    s->site.n_kv_head = geometry != NULL ? geometry->n_kv_head : hf.n_kv_head;
    return load_prompts(s);
}

/* On CPUs there are as many devices as anybody asks for, unless each has CPUs of its own. */
static enum gr_status find_devices(struct gr_sweep *s)
{
    const struct gr_devices *d = &s->o.devices;
    cpu_set_t own;
    CPU_ZERO(&own);
    (void)sched_getaffinity(0, sizeof(own), &own);
    for (int i = 0; i < d->n; i++) {
        for (int k = 0; k < i; k++) {
            if (d->device[i] == d->device[k] || d->device[k] == GR_DEVICE_CPU || d->device[i] == GR_DEVICE_CPU) {
                log_error("--devices: `cpu' alone, or different GPUs, are wanted");
                return GR_EINVAL;
            }
        }
    }
    s->site.n_device = d->device[0] == GR_DEVICE_CPU ? 0 : d->n;
    s->site.n_cpu = CPU_COUNT(&own);
    s->site.device_cpu = (int)s->o.device_cpus;
    return GR_OK;
}

static int ascending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void take_axes(struct gr_sweep *s)
{
    s->axes = (struct gr_sweep_axes){.hosts = s->o.hosts,
                                     .n_draft = s->o.n_draft,
                                     .n_target = s->o.n_target,
                                     .tp = s->o.tp,
                                     .sessions = s->o.crowds};
    struct gr_option_list *n = &s->axes.sessions;
    qsort(n->value, (size_t)n->n, sizeof(n->value[0]), ascending); /* the headline goes from few to many */
    s->n_slot = GR_MIN((int)n->value[n->n - 1], GR_FLEET_SESSION_MAX);
}

static enum gr_status check_words(const char *name, const char *words)
{
    int n = 0;
    for (const char *p = words; p != NULL && *p != '\0'; p += strcspn(p, " ")) {
        p += strspn(p, " ");
        n += *p != '\0';
    }
    if (n > GR_LINE_N_WORD || (words != NULL && strlen(words) > GR_LINE_WORDS_MAX)) {
        log_error("--%s: more than %d words, or than %d bytes", name, GR_LINE_N_WORD, GR_LINE_WORDS_MAX);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status prepare(struct gr_sweep *s)
{
    take_axes(s);
    GR_TRY(check_words("worker-options", s->o.worker_options));
    GR_TRY(check_words("launcher-options", s->o.launcher_options));
    GR_TRY(find_devices(s));
    GR_TRY(gr_sweep_find_hosts(s));
    GR_TRY(find_models(s));
    return gr_sweep_draw_check(s);
}

/* What was measured elsewhere could run there: its hosts and devices count, not this machine's. */
static void take_site(struct gr_sweep *s, const json_t *about)
{
    const size_t n_host = json_array_size(json_object_get(about, "hosts"));
    const json_t *devices = json_object_get(json_object_get(about, "with"), "devices");
    const bool on_cpu = json_integer_value(json_array_get(devices, 0)) == GR_DEVICE_CPU;
    s->site.n_host = GR_MAX((int)n_host, 1);
    s->site.n_device = on_cpu ? 0 : (int)json_array_size(devices);
    s->site.device_cpu = 0;
}

static enum gr_status report_alone(struct gr_sweep *s)
{
    GR_TRY(gr_store_open(s->o.sweep_dir, NULL, &s->store));
    take_site(s, gr_store_about(&s->store));
    GR_TRY(gr_sweep_plan(&s->axes, &s->site, &s->plan));
    return gr_sweep_report(s);
}

static enum gr_status open_store(struct gr_sweep *s)
{
    json_t *about = gr_sweep_about(s);
    if (about == NULL) {
        log_error("out of memory, or an option is no text in UTF-8");
        return GR_ENOMEM;
    }
    const enum gr_status st = gr_store_open(s->o.sweep_dir, about, &s->store);
    json_decref(about);
    return st;
}

/* A sweep that is cut short reports what it has. */
static enum gr_status measure(struct gr_sweep *s)
{
    GR_TRY(gr_sweep_plan(&s->axes, &s->site, &s->plan));
    if (s->o.dry_run) {
        tell(s);
        return GR_OK;
    }
    GR_TRY(open_store(s));
    const enum gr_status st = run(s);
    if (st != GR_OK && st != GR_ECANCELED) {
        return st;
    }
    const enum gr_status reported = gr_sweep_report(s);
    return st != GR_OK ? st : reported;
}

/* Options that the older benchmark of this name does not have ask for this one. */
static bool asks_for_fleets(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *word = strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "";
        const size_t len = strcspn(word, "=");
        const bool is_own = gr_option_find(&gr_bench_option_table, GR_BENCH_SWEEP, word, len) != NULL &&
                            gr_option_find(&gr_bench_option_table, GR_BENCH_TREE_SIZES, word, len) == NULL;
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0 || is_own) {
            return true;
        }
    }
    return false;
}

int gr_bench_sweep(int argc, char **argv)
{
    static struct gr_sweep s;
    if (!asks_for_fleets(argc, argv)) {
        fprintf(stderr, "# sweep without --hosts, --n-target, --n-draft, --tp, --sessions or --devices is `graft-bench "
                        "trees'\n");
        return gr_bench_trees(argc, argv);
    }
    const int status = gr_bench_options_read(&s.o, GR_BENCH_SWEEP, argc, argv);
    if (status >= 0) {
        return status;
    }
    s.store.lock_fd = -1;
    enum gr_status st = prepare(&s);
    st = st != GR_OK ? st : s.o.report ? report_alone(&s) : measure(&s);
    gr_store_close(&s.store);
    if (st == GR_ECANCELED && gr_crew_signal() != 0) {
        log_error("interrupted; the same command goes on after what it has measured");
        return GR_EXIT_SIGNAL + gr_crew_signal();
    }
    return st == GR_OK ? 0 : gr_program_refused(st);
}
