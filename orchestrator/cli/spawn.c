#include "orchestrator/cli/spawn.h"

#include "common/options/options.h"
#include "common/process/child_args.h"
#include "common/base/clock.h"
#include "common/base/device.h"
#include "common/base/log.h"
#include "common/process/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nothing works without a target: one that ends again and again without a token is given up. A drafter is optional at
 * every moment: once it has worked, it is tried again for ever. */
static const struct gr_child_rule target_rule = {.restart = {.pause_max_ns = 5 * GR_S, .fruitless_max = 5}};
static const struct gr_child_rule draft_rule = {.restart = {.pause_max_ns = 30 * GR_S}};

/* Whom a command line is for. PAIR: for a target, what its co-located drafter is to know. */
enum role { TARGET, DRAFT, PAIR };

static bool is_wanted(const struct gr_option *r, enum role role, const struct gr_plan *plan)
{
    switch (r->when) {
    case GR_WHEN_ALWAYS:
        return true;
    case GR_WHEN_HEAD:
        return plan->with_head;
    case GR_WHEN_VIEWS:
        return plan->wishes.specpv != GR_SPECPV_OFF;
    case GR_WHEN_TUNED:
        return role == DRAFT ? plan->draft_tuned : plan->target_tuned || (plan->draft_tuned && plan->colocated);
    case GR_WHEN_APART:
        return !plan->colocated;
    }
    return false;
}

static void add(struct gr_worker_line *l, const char *name, const struct gr_options *o, const struct gr_option *r)
{
    char *dashed = l->name[l->n];
    const char *value = gr_option_text(&o->values, r, l->value[l->n++]);
    snprintf(dashed, sizeof(l->name[0]), "--%s", name);
    if (r->kind == GR_KIND_FLAG) {
        gr_child_args_add_flag(&l->args, dashed, strcmp(value, "true") == 0);
    } else {
        gr_child_args_add(&l->args, dashed, value);
    }
}

/* What was asked for, under the names that the worker has for it. What nobody asked for is left to the worker, whose
 * defaults are those of the same rows. */
static void hand_on(struct gr_worker_line *l, enum role role, const struct gr_options *o, const struct gr_plan *plan)
{
    for (int i = 0; i < GR_N_OPTION; i++) {
        const struct gr_option *r = &gr_option_rows[i];
        const char *name = role == TARGET ? r->target_as : role == DRAFT ? r->draft_as : r->pair_as;
        if (name != NULL && o->values.source[i] != GR_FROM_DEFAULT && is_wanted(r, role, plan)) {
            add(l, name, o, r);
        }
    }
}

void gr_worker_line_target(struct gr_worker_line *l, const struct gr_options *o, const struct gr_plan *plan,
                           const char *join, int64_t n_session)
{
    *l = (struct gr_worker_line){.n = 0};
    gr_child_args_begin(&l->args, gr_program_sibling("graft-target"));
    gr_child_args_add(&l->args, "--join", join);
    gr_child_args_add_number(&l->args, "--sessions", n_session);
    hand_on(l, TARGET, o, plan);
    if (plan->wishes.specpv != GR_SPECPV_OFF) {
        gr_child_args_add(&l->args, "--specpv", "on");
    }
    if (plan->with_head) {
        gr_child_args_add(&l->args, "--head", o->draft);
    }
    if (plan->colocated && plan->wishes.want_draft) {
        gr_child_args_add(&l->args, "--colocate-draft", o->draft);
        hand_on(l, PAIR, o, plan);
    }
}

void gr_worker_line_draft(struct gr_worker_line *l, const struct gr_options *o, const struct gr_plan *plan,
                          const char *join, int64_t n_session)
{
    *l = (struct gr_worker_line){.n = 0};
    gr_child_args_begin(&l->args, gr_program_sibling("graft-draft"));
    gr_child_args_add(&l->args, "--join", join);
    gr_child_args_add_number(&l->args, "--sessions", n_session);
    hand_on(l, DRAFT, o, plan);
    if (plan->with_head) {
        gr_child_args_add(&l->args, "--target", o->model);
    }
}

/* Its devices, and how many ranks it has, stand where the command line of a worker takes them from. */
static enum gr_status set_place(struct gr_options *o, enum gr_option_id row, const struct gr_crew_role *crew, int i)
{
    char text[GR_DEVICES_TEXT];
    if (i >= crew->n) {
        return GR_OK;
    }
    if (crew->tp[i] > 0) {
        snprintf(text, sizeof(text), "%d", crew->tp[i]);
        GR_TRY(gr_option_set(&o->values, &gr_option_rows[GR_OPTION_tensor_parallel_size], "tp", text, GR_FROM_CLI));
    }
    gr_devices_text(&crew->devices[i], text, sizeof(text));
    return gr_option_set(&o->values, &gr_option_rows[row], "device", text, GR_FROM_CLI);
}

/* The i-th of a role. */
static enum gr_status start_one(struct gr_children *children, struct gr_options *o, const struct gr_plan *plan,
                                const char *join, enum role role, int i)
{
    const struct gr_crew_role *crew = role == TARGET ? &plan->crew.target : &plan->crew.draft;
    struct gr_worker_line l;
    char name[32];
    int index = 0;
    GR_TRY(set_place(o, GR_OPTION_target_device, &plan->crew.target, i));
    GR_TRY(set_place(o, GR_OPTION_draft_device, &plan->crew.draft, i));
    snprintf(name, sizeof(name), crew->n == 1 ? "%s worker" : "%s worker %d", role == TARGET ? "target" : "draft",
             i + 1);
    if (role == TARGET) {
        gr_worker_line_target(&l, o, plan, join, o->n_session);
    } else {
        gr_worker_line_draft(&l, o, plan, join, o->n_session);
    }
    return gr_children_start(children, name, l.args.argv, role == TARGET ? &target_rule : &draft_rule, &index);
}

enum gr_status gr_spawn_workers(struct gr_children *children, const struct gr_options *o, const struct gr_plan *plan,
                                const char *join, int64_t n_session)
{
    struct gr_options *own = malloc(sizeof(*own)); /* each worker's device stands in it in turn */
    if (own == NULL) {
        log_error("no memory for the options of workers");
        return GR_ENOMEM;
    }
    *own = *o;
    own->n_session = n_session;
    gr_options_clear_environment();
    enum gr_status st = GR_OK;
    for (int i = 0; i < plan->crew.target.n && st == GR_OK; i++) {
        st = start_one(children, own, plan, join, TARGET, i);
    }
    for (int i = 0; i < plan->crew.draft.n && !plan->colocated && st == GR_OK; i++) {
        st = start_one(children, own, plan, join, DRAFT, i);
    }
    free(own);
    return st;
}
