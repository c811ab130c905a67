/* Where a sweep's results come from: what all results say of themselves, what it ran on, and what it told the workers
 * and the clients. Two sweeps whose objects are equal have measured the same. */
#include "bench/sweep/cards.h"
#include "bench/sweep/sweep.h"
#include "bench/table.h"

#include <string.h>

/* Options that change nothing of a run: which there are, where they are put, how they are shown. */
static bool is_aside(int id)
{
    static const int aside[] = {GR_BENCH_OPTION_hosts,     GR_BENCH_OPTION_n_draft,      GR_BENCH_OPTION_n_target,
                                GR_BENCH_OPTION_tp,        GR_BENCH_OPTION_crowds,       GR_BENCH_OPTION_speed,
                                GR_BENCH_OPTION_sweep_dir, GR_BENCH_OPTION_sweep_repeat, GR_BENCH_OPTION_plots,
                                GR_BENCH_OPTION_report,    GR_BENCH_OPTION_dry_run,      GR_BENCH_OPTION_format,
                                GR_BENCH_OPTION_help,      GR_BENCH_OPTION_version,      GR_BENCH_OPTION_within,
                                GR_BENCH_OPTION_limit,     GR_BENCH_OPTION_launcher};
    for (size_t i = 0; i < GR_ARRAY_LEN(aside); i++) {
        if (aside[i] == id) {
            return true;
        }
    }
    return false;
}

static json_t *devices_of(const struct gr_sweep *s)
{
    json_t *list = json_array();
    for (int i = 0; i < s->o.devices.n; i++) {
        json_array_append_new(list, json_integer(s->o.devices.device[i]));
    }
    return list;
}

static json_t *options_of(const struct gr_sweep *s)
{
    json_t *o = json_object();
    for (int i = 0; i < GR_BENCH_N_OPTION; i++) {
        const struct gr_option *r = gr_bench_option((enum gr_bench_option_id)i);
        char number[GR_OPTION_TEXT_MAX];
        const char *value = gr_option_text(&s->o.values, r, number);
        if (gr_option_is_for(r, GR_BENCH_SWEEP) && !is_aside(i) && value != NULL) {
            json_object_set_new(o, r->name, json_string(value));
        }
    }
    if (s->o.draft == NULL) {
        json_object_set_new(o, "draft", json_string(s->draft_is_head ? "the demo head" : "the demo draft model"));
    }
    json_object_set_new(o, "devices", devices_of(s));
    json_object_set_new(o, "slots", json_integer(s->n_slot));
    json_object_set_new(o, "positions", json_integer(s->n_ctx_max));
    return o;
}

static json_t *hosts_of(const struct gr_sweep *s)
{
    json_t *list = json_array();
    for (int i = 0; s->launcher != GR_BENCH_BY_NONE && i < s->site.n_host; i++) {
        json_array_append_new(list, json_string(s->host[i]));
    }
    return list;
}

json_t *gr_sweep_about(const struct gr_sweep *s)
{
    static const char *const launchers[] = {"", "none", "mpirun", "srun"};
    json_t *about = gr_table_about();
    json_t *cards = gr_about_cards();
    json_object_update(about, cards);
    json_decref(cards);
    json_object_set_new(about, "nics", gr_about_nics());
    json_object_set_new(about, "launcher", json_string(launchers[s->launcher]));
    json_object_set_new(about, "hosts", hosts_of(s));
    json_object_set_new(about, "with", options_of(s));
    json_object_set_new(about, "prompts", json_integer((json_int_t)(s->prompt_hash >> 1)));
    return about;
}
