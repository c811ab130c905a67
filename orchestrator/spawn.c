#include "orchestrator/spawn.h"

#include "common/program.h"
#include "transport/verbs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct arguments {
    const char *argv[GR_CHILD_ARG_MAX + 1];
    char number[24][32];
    int n, n_number;
};

static void add(struct arguments *a, const char *name, const char *value)
{
    a->argv[a->n++] = name;
    a->argv[a->n++] = value;
}

static void add_number(struct arguments *a, const char *name, int64_t value)
{
    char *text = a->number[a->n_number++];
    snprintf(text, sizeof(a->number[0]), "%" PRId64, value);
    add(a, name, text);
}

/* To the last bit; 0 says no limit, as `off' does. */
static void add_share(struct arguments *a, const char *name, double value)
{
    char *text = a->number[a->n_number++];
    snprintf(text, sizeof(a->number[0]), "%.17g", value);
    add(a, name, text);
}

/* What both workers must be told alike. */
static void add_feature_options(struct arguments *a, const struct gr_run_options *o)
{
    if (o->ship_features != NULL) {
        add(a, "--ship-features", o->ship_features);
    }
    if (o->capture_layers != NULL) {
        add(a, "--capture-layers", o->capture_layers);
    }
}

static void add_tuned_options(struct arguments *a, const struct gr_run_options *o)
{
    add(a, "--tuned", o->tuned);
    if (o->require_tuned) {
        a->argv[a->n++] = "--require-tuned";
    }
}

/* What is as it would be anyway is not passed on. */
static void add_rdma_options(struct arguments *a, const struct gr_run_options *o, const char *hca)
{
    if (hca != NULL) {
        add(a, "--ib-hca", hca);
    }
    if (o->gid_index >= 0) {
        add_number(a, "--gid-index", o->gid_index);
    }
    if (strcmp(o->verbs_mode, "one_sided") != 0) {
        add(a, "--verbs-mode", o->verbs_mode);
    }
    if (o->verbs_spin_us != GR_VERBS_SPIN_US_DEFAULT) {
        add_number(a, "--verbs-spin-us", o->verbs_spin_us);
    }
}

/* What the target makes views for; a session may ask for less. */
static void add_specpv_options(struct arguments *a, const struct gr_run_options *o, const struct gr_plan *plan)
{
    const struct gr_specpv_params *p = &plan->specpv_params;
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {{"--specpv-n-sink-blocks", p->n_sink},
                   {"--specpv-n-retrieval-blocks", p->n_retrieval},
                   {"--specpv-n-window-blocks", p->n_window},
                   {"--specpv-n-spec-tokens-buf", p->n_buffer}};
    if (plan->specpv == GR_SPECPV_OFF) {
        return;
    }
    add(a, "--specpv", "on");
    add(a, "--specpv-score-reduce", o->specpv_score_reduce);
    for (size_t i = 0; i < GR_ARRAY_LEN(numbers); i++) {
        if (numbers[i].value > 0) {
            add_number(a, numbers[i].name, numbers[i].value);
        }
    }
}

static enum gr_status start_target(struct gr_children *children, const struct gr_run_options *o,
                                   const struct gr_plan *plan, const char *join, int64_t n_session, int *index_out)
{
    struct arguments a = {.n = 1};
    add(&a, "--model", o->model);
    if (plan->with_head) {
        add(&a, "--head", o->draft);
        add_number(&a, "--feature-keep", o->feature_keep);
        add_feature_options(&a, o);
    }
    add(&a, "--join", join);
    add(&a, "--kv-blocks", o->kv_blocks);
    add_number(&a, "--max-model-len", o->max_model_len);
    add(&a, "--device", o->target_device);
    add_number(&a, "--threads", o->threads);
    add_number(&a, "--sessions", n_session);
    add_number(&a, "--round-deadline-ms", o->round_deadline_ms);
    add_share(&a, "--prefill-share", o->prefill_share);
    add_specpv_options(&a, o, plan);
    if (o->geometry != NULL) {
        add(&a, "--geometry", o->geometry);
    }
    if (plan->target_tuned || (plan->draft_tuned && plan->colocated)) {
        add_tuned_options(&a, o);
    }
    if (plan->colocated && plan->with_draft) {
        add(&a, "--colocate-draft", o->draft);
        add(&a, "--draft-device", o->draft_device);
        add_number(&a, "--draft-threads", o->draft_threads);
    } else if (o->transport[0] != '\0' && !plan->colocated) {
        add(&a, "--transport", o->transport);
    }
    add_rdma_options(&a, o, o->target_ib_hca);
    a.argv[0] = gr_program_sibling("graft-target");
    return gr_children_start(children, "target", a.argv, index_out);
}

static enum gr_status start_draft(struct gr_children *children, const struct gr_run_options *o,
                                  const struct gr_plan *plan, const char *join, int64_t n_session, int *index_out)
{
    struct arguments a = {.n = 1};
    add(&a, "--model", o->draft);
    if (plan->with_head) {
        add(&a, "--target", o->model);
        add_feature_options(&a, o);
    }
    add(&a, "--join", join);
    add(&a, "--device", o->draft_device);
    add_number(&a, "--threads", o->draft_threads);
    add_number(&a, "--sessions", n_session);
    if (o->geometry != NULL) {
        add(&a, "--geometry", o->geometry);
    }
    if (plan->draft_tuned) {
        add_tuned_options(&a, o);
    }
    if (o->max_model_len > 0) {
        add_number(&a, "--max-model-len", o->max_model_len);
    }
    if (o->transport[0] != '\0') {
        add(&a, "--transport", o->transport);
    }
    add_rdma_options(&a, o, o->draft_ib_hca);
    a.argv[0] = gr_program_sibling("graft-draft");
    return gr_children_start(children, "draft", a.argv, index_out);
}

enum gr_status gr_spawn_workers(struct gr_children *children, const struct gr_run_options *o,
                                const struct gr_plan *plan, const char *join, int64_t n_session, int *target_out,
                                int *draft_out)
{
    *draft_out = -1;
    GR_TRY(start_target(children, o, plan, join, n_session, target_out));
    if (plan->with_draft && !plan->colocated) {
        return start_draft(children, o, plan, join, n_session, draft_out);
    }
    return GR_OK;
}
