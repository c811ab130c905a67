#include "orchestrator/cli/spawn.h"

#include "common/process/child_args.h"
#include "common/base/clock.h"
#include "common/process/program.h"
#include "transport/verbs/verbs.h"

#include <string.h>

/* Nothing works without a target: one that ends again and again without a token is given up. A drafter is optional at
 * every moment: once it has worked, it is tried again for ever. */
static const struct gr_child_rule target_rule = {.restart = {.pause_max_ns = 5 * GR_S, .fruitless_max = 5}};
static const struct gr_child_rule draft_rule = {.restart = {.pause_max_ns = 30 * GR_S}};

/* What both workers must be told alike. */
static void add_feature_options(struct gr_child_args *a, const struct gr_run_options *o)
{
    gr_child_args_add(a, "--ship-features", o->ship_features);
    gr_child_args_add(a, "--capture-layers", o->capture_layers);
}

static void add_tuned_options(struct gr_child_args *a, const struct gr_run_options *o)
{
    gr_child_args_add(a, "--tuned", o->tuned);
    gr_child_args_add_flag(a, "--require-tuned", o->require_tuned);
}

/* What is as it would be anyway is not passed on. */
static void add_rdma_options(struct gr_child_args *a, const struct gr_run_options *o, const char *hca)
{
    gr_child_args_add(a, "--ib-hca", hca);
    if (o->gid_index >= 0) {
        gr_child_args_add_number(a, "--gid-index", o->gid_index);
    }
    if (strcmp(o->verbs_mode, "one_sided") != 0) {
        gr_child_args_add(a, "--verbs-mode", o->verbs_mode);
    }
    if (o->verbs_spin_us != GR_VERBS_SPIN_US_DEFAULT) {
        gr_child_args_add_number(a, "--verbs-spin-us", o->verbs_spin_us);
    }
}

/* What the target makes views for; a session may ask for less. */
static void add_specpv_options(struct gr_child_args *a, const struct gr_run_options *o, const struct gr_plan *plan)
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
    gr_child_args_add(a, "--specpv", "on");
    gr_child_args_add(a, "--specpv-score-reduce", o->specpv_score_reduce);
    for (size_t i = 0; i < GR_ARRAY_LEN(numbers); i++) {
        if (numbers[i].value > 0) {
            gr_child_args_add_number(a, numbers[i].name, numbers[i].value);
        }
    }
}

static enum gr_status start_target(struct gr_children *children, const struct gr_run_options *o,
                                   const struct gr_plan *plan, const char *join, int64_t n_session, int *index_out)
{
    struct gr_child_args a;
    gr_child_args_begin(&a, gr_program_sibling("graft-target"));
    gr_child_args_add(&a, "--model", o->model);
    if (plan->with_head) {
        gr_child_args_add(&a, "--head", o->draft);
        gr_child_args_add_number(&a, "--feature-keep", o->feature_keep);
        add_feature_options(&a, o);
    }
    gr_child_args_add(&a, "--join", join);
    gr_child_args_add(&a, "--kv-blocks", o->kv_blocks);
    gr_child_args_add_number(&a, "--max-model-len", o->max_model_len);
    gr_child_args_add(&a, "--device", o->target_device);
    gr_child_args_add_number(&a, "--threads", o->threads);
    gr_child_args_add_number(&a, "--sessions", n_session);
    gr_child_args_add_number(&a, "--round-deadline-ms", o->round_deadline_ms);
    gr_child_args_add_real(&a, "--prefill-share", o->prefill_share); /* 0 says no limit, as `off' does */
    add_specpv_options(&a, o, plan);
    gr_child_args_add(&a, "--geometry", o->geometry);
    if (plan->target_tuned || (plan->draft_tuned && plan->colocated)) {
        add_tuned_options(&a, o);
    }
    if (plan->colocated && plan->with_draft) {
        gr_child_args_add(&a, "--colocate-draft", o->draft);
        gr_child_args_add(&a, "--draft-device", o->draft_device);
        gr_child_args_add_number(&a, "--draft-threads", o->draft_threads);
        gr_child_args_add_number(&a, "--draft-context", o->draft_context);
    } else if (o->transport[0] != '\0' && !plan->colocated) {
        gr_child_args_add(&a, "--transport", o->transport);
    }
    add_rdma_options(&a, o, o->target_ib_hca);
    return gr_children_start(children, "target", a.argv, &target_rule, index_out);
}

static enum gr_status start_draft(struct gr_children *children, const struct gr_run_options *o,
                                  const struct gr_plan *plan, const char *join, int64_t n_session, int *index_out)
{
    struct gr_child_args a;
    gr_child_args_begin(&a, gr_program_sibling("graft-draft"));
    gr_child_args_add(&a, "--model", o->draft);
    if (plan->with_head) {
        gr_child_args_add(&a, "--target", o->model);
        gr_child_args_add_number(&a, "--draft-context", o->draft_context);
        add_feature_options(&a, o);
    }
    gr_child_args_add(&a, "--join", join);
    gr_child_args_add(&a, "--device", o->draft_device);
    gr_child_args_add_number(&a, "--threads", o->draft_threads);
    gr_child_args_add_number(&a, "--sessions", n_session);
    gr_child_args_add(&a, "--geometry", o->geometry);
    if (plan->draft_tuned) {
        add_tuned_options(&a, o);
    }
    if (o->max_model_len > 0) {
        gr_child_args_add_number(&a, "--max-model-len", o->max_model_len);
    }
    if (o->transport[0] != '\0') {
        gr_child_args_add(&a, "--transport", o->transport);
    }
    add_rdma_options(&a, o, o->draft_ib_hca);
    return gr_children_start(children, "draft", a.argv, &draft_rule, index_out);
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
