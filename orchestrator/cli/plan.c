#include "orchestrator/cli/plan.h"

#include "common/base/log.h"
#include "common/base/parse.h"
#include "model/files/capture.h"
#include "common/base/device.h"
#include "model/files/head_fit.h"
#include "model/files/hf_config.h"
#include "model/files/tuned.h"
#include "model/files/model_path.h"
#include "transport/verbs/verbs.h"

#include <assert.h>
#include <string.h>

static enum gr_status not_built(const char *what)
{
    log_error("%s is not part of this build", what);
    return GR_EUNSUPPORTED;
}

static enum gr_status choose_method(struct gr_options *o, struct gr_plan *p)
{
    struct gr_hf_config draft;
    if (o->draft != NULL && strcmp(o->draft, "none") == 0) { /* a folder of that name is ./none */
        o->draft = NULL;
    }
    if (o->method == GR_UNSET && o->draft == NULL) {
        o->method = GR_METHOD_NONE;
    }
    if (o->draft != NULL) {
        GR_TRY(gr_model_path_config(o->draft, &draft));
        const bool eagle = gr_hf_is_eagle3(&draft);
        const int inferred = eagle ? GR_METHOD_EAGLE3 : GR_METHOD_DRAFT_MODEL;
        if (o->method != GR_UNSET && o->method != GR_METHOD_NONE && o->method != inferred) {
            log_error("--method %s: %s holds %s (architecture %s): --method %s is for it",
                      gr_option_choice(o, GR_OPTION_method), o->draft, eagle ? "an EAGLE-3 head" : "a draft model",
                      draft.architecture, gr_option_rows[GR_OPTION_method].choices[inferred]);
            return GR_EINVAL;
        }
        o->method = o->method != GR_UNSET ? o->method : inferred;
    }
    p->wishes.want_draft = o->method != GR_METHOD_NONE && !o->disable_multi_token;
    p->with_head = p->wishes.want_draft && o->method == GR_METHOD_EAGLE3;
    if (p->wishes.want_draft && o->draft == NULL) {
        log_error("--method %s needs --draft DIR", gr_option_choice(o, GR_OPTION_method));
        return GR_EINVAL;
    }
    return GR_OK;
}

static int64_t ranks_of(const struct gr_options *o, int tp)
{
    return tp > 0 ? tp : o->tensor_parallel_size;
}

static enum gr_status check_placed(const struct gr_options *o, const struct gr_crew *c)
{
    for (int i = 0; i < c->target.n; i++) {
        GR_TRY(gr_devices_check("--target-device", &c->target.devices[i], ranks_of(o, c->target.tp[i])));
    }
    for (int i = 0; i < c->draft.n; i++) {
        GR_TRY(gr_device_placed("--draft-device", gr_devices_of(&c->draft.devices[i], 0)));
    }
    return GR_OK;
}

static bool is_on_gpu(const struct gr_crew_role *r)
{
    bool on_gpu = false;
    for (int i = 0; i < r->n; i++) {
        on_gpu = on_gpu || gr_devices_on_gpu(&r->devices[i]);
    }
    return on_gpu;
}

/* Two processes take turns on one GPU: the drafter of a pair that shares one is to be in the target's process. Of a
 * group that is rank 0's, and the GPUs of the others are theirs alone. */
static enum gr_status share_gpu(const struct gr_options *o, struct gr_plan *p)
{
    const int gpu = gr_crew_shared_gpu(&p->crew);
    if (gpu < 0 || p->colocated) {
        return GR_OK;
    }
    if (!gr_crew_is_pair(&p->crew)) {
        log_warn("cuda:%d is shared by several workers, which take turns on it", gpu);
        return GR_OK;
    }
    GR_TRY(gr_devices_beside(&p->crew.target.devices[0], "--draft-device", gpu));
    if (o->transport != GR_UNSET) {
        log_error("--transport %s: both workers are to be on cuda:%d, where two processes would take turns; leave it "
                  "out, or take loop",
                  gr_option_choice(o, GR_OPTION_transport), gpu);
        return GR_EINVAL;
    }
    p->colocated = true;
    return GR_OK;
}

static enum gr_status check_devices(const struct gr_options *o, struct gr_plan *p)
{
    GR_TRY(check_placed(o, &p->crew));
    GR_TRY(share_gpu(o, p));
    p->target_tuned = o->tuned != NULL && is_on_gpu(&p->crew.target);
    p->draft_tuned = o->tuned != NULL && is_on_gpu(&p->crew.draft);
    /* Checked here, so that one line tells it, and not one of each worker. */
    struct gr_tuned tuned;
    return gr_tuned_open(o->tuned, o->require_tuned, p->target_tuned || p->draft_tuned, &tuned);
}

static enum gr_status check_features(const struct gr_options *o)
{
    int n = 0;
    int layer[GR_CAPTURE_MAX];
    return o->capture_layers != NULL ? gr_capture_parse(o->capture_layers, &n, layer) : GR_OK;
}

static void choose_specpv(const struct gr_options *o, struct gr_plan *p)
{
    static_assert((int)GR_CHOICE_SPECPV_LOSSY == (int)GR_SPECPV_LOSSY &&
                      (int)GR_CHOICE_SPECPV_AUTO == (int)GR_SPECPV_AUTO,
                  "--specpv's choices begin with enum gr_specpv_mode's");
    const int mode = o->specpv == GR_CHOICE_SPECPV_ON ? GR_SPECPV_LOSSY + o->specpv_mode : o->specpv;
    p->wishes.specpv = o->disable_specpv ? GR_SPECPV_OFF : (enum gr_specpv_mode)mode;
    p->wishes.specpv_params = (struct gr_specpv_params){.n_sink = (uint32_t)o->specpv_n_sink,
                                                        .n_retrieval = (uint32_t)o->specpv_n_retrieval,
                                                        .n_window = (uint32_t)o->specpv_n_window,
                                                        .n_buffer = (uint32_t)o->specpv_n_buffer,
                                                        .threshold = (uint32_t)o->specpv_threshold,
                                                        .interval = (uint32_t)o->specpv_interval,
                                                        .max_provisional = (uint32_t)o->specpv_max_provisional,
                                                        .refresh_fraction = o->specpv_fraction};
}

static enum gr_status choose_transport(const struct gr_options *o, struct gr_plan *p)
{
    if (o->transport != GR_UNSET && (gr_transport_built_mask() >> o->transport & 1) == 0) {
        return not_built("--transport verbs");
    }
    p->colocated = o->transport == GR_CHOICE_LOOP;
    return GR_OK;
}

/* What of --require-gpudirect can be said before workers start; the target tells the rest. It wants RDMA as well. */
static enum gr_status check_gpudirect(struct gr_options *o)
{
    const char *why = !gr_devices_on_gpu(&o->target_device) ? "the target is on CPUs (--target-device cuda:N)"
                      : o->verbs_mode == GR_VERBS_TWO_SIDED ? "--verbs-mode two_sided receives into the host's memory"
                      : o->disable_gpudirect                ? "it contradicts --disable-gpudirect"
                                                            : NULL;
    if (o->require_gpudirect && why != NULL) {
        log_error("--require-gpudirect: %s", why);
        return GR_EINVAL;
    }
    o->require_rdma = o->require_rdma || o->require_gpudirect;
    return GR_OK;
}

/* Both workers start on this host: what is wrong with a device is known before they load. Nothing else than RDMA is
 * offered under --require-rdma, so there is nothing to fall back to; a device that is named is to be there. --transport
 * verbs alone is a wish: where it cannot be had, the workers tell why and the text is generated without drafts. */
static enum gr_status check_rdma(struct gr_options *o, struct gr_plan *p)
{
    GR_TRY(check_gpudirect(o));
    p->require_rdma = o->require_rdma;
    if (o->require_rdma && o->transport != GR_UNSET && o->transport != GR_CHOICE_VERBS) {
        log_error("--require-rdma: --transport %s is not RDMA", gr_option_choice(o, GR_OPTION_transport));
        return GR_EINVAL;
    }
    if (o->require_rdma) {
        GR_TRY(gr_option_set(&o->values, &gr_option_rows[GR_OPTION_transport], "--require-rdma", "verbs", GR_FROM_CLI));
    }
    const bool named = o->target_ib_hca != NULL || o->draft_ib_hca != NULL;
    if (!p->wishes.want_draft || o->transport != GR_CHOICE_VERBS || (!o->require_rdma && !named)) {
        return GR_OK;
    }
    struct gr_verbs_options v = {.hca = o->target_ib_hca, .gid_index = (int)o->gid_index};
    GR_TRY(gr_verbs_check(&v));
    v.hca = o->draft_ib_hca;
    return gr_verbs_check(&v);
}

/* What the options say literally. Method, SpecPV and transport, which take more than that, are chosen by now. */
static void take_wishes(const struct gr_options *o, struct gr_plan *p)
{
    struct gr_wishes *w = &p->wishes;
    w->sampling = (struct gr_sampling){.temperature = (float)o->temperature,
                                       .top_p = (float)o->top_p,
                                       .min_p = (float)o->min_p,
                                       .top_k = (int32_t)o->top_k,
                                       .choice = (uint32_t)o->choice};
    w->single_token = o->force_single_token;
    w->keep_open = o->keep;
    w->auto_tree = o->num_speculative_tokens == GR_AUTO;
    w->n_node = w->auto_tree ? GR_NODE_MAX : (uint32_t)o->num_speculative_tokens;
    static_assert((int)GR_CHOICE_CHAIN == (int)GR_SHAPE_CHAIN && (int)GR_CHOICE_AHEAD_AUTO == (int)GR_AHEAD_AUTO &&
                      (int)GR_CHOICE_AHEAD_ON == (int)GR_AHEAD_ON,
                  "choices of --tree-shape and --draft-ahead are the enums of requests");
    w->tree_shape = (uint32_t)o->tree_shape;
    w->draft_depth = (uint32_t)o->draft_depth;
    w->draft_top_k = (uint32_t)o->draft_top_k;
    w->draft_ahead = (enum gr_ahead)o->draft_ahead;
    const char *transport = p->colocated ? NULL : gr_option_choice(o, GR_OPTION_transport);
    snprintf(w->transport, sizeof(w->transport), "%s", transport != NULL ? transport : "");
    w->turn.max_tokens = (uint32_t)o->max_tokens;
    w->turn.min_tokens = (uint32_t)o->min_tokens;
    w->turn.want_trace = o->trace;
    w->turn.timeout_ns = (uint64_t)o->turn_timeout;
}

/* How many workers, and where; of drafters none where nobody wants one. */
static enum gr_status choose_crew(const struct gr_options *o, struct gr_plan *p)
{
    const bool asked = o->drafts.n > 0 || o->values.source[GR_OPTION_n_draft] != GR_FROM_DEFAULT;
    GR_TRY(gr_crew_read(o, o->values.called->command == GR_CMD_SERVE, &p->crew));
    if (asked && o->draft == NULL) {
        log_error("%s: draft workers are asked for, and no draft model is named (--draft, draft.model)",
                  o->drafts.n > 0 ? "drafts" : "--n-draft");
        return GR_EINVAL;
    }
    p->crew.draft.n = p->wishes.want_draft ? p->crew.draft.n : 0;
    if (p->colocated && !gr_crew_is_pair(&p->crew)) {
        log_error("--transport loop is one target with its drafter in one process, and %d and %d are asked for",
                  p->crew.target.n, p->crew.draft.n);
        return GR_EINVAL;
    }
    return GR_OK;
}

enum gr_status gr_plan_local(struct gr_options *o, struct gr_plan *plan_out)
{
    struct gr_plan p = {0};
    if (o->model == NULL) {
        log_error("the model is needed: --model DIR, GRAFT_MODEL or target.model of the YAML file; see graft %s --help",
                  o->values.called->word);
        return GR_EINVAL;
    }
    choose_specpv(o, &p);
    GR_TRY(check_features(o));
    GR_TRY(choose_transport(o, &p));
    GR_TRY(choose_method(o, &p));
    GR_TRY(choose_crew(o, &p));
    GR_TRY(check_devices(o, &p));
    GR_TRY(check_rdma(o, &p));
    take_wishes(o, &p);
    *plan_out = p;
    return GR_OK;
}

/* Options that would have no effect, by their rows. */
static enum gr_status refuse(const struct gr_options *o, enum gr_option_refusal refusal, const char *reason)
{
    for (int i = 0; i < GR_N_OPTION; i++) {
        const struct gr_option *r = &gr_option_rows[i];
        if ((r->refused & refusal) != 0 && gr_option_from_cli(o, (enum gr_option_id)i)) {
            log_error("--%s is about workers, and %s", r->name, reason);
            return GR_EINVAL;
        }
    }
    return GR_OK;
}

enum gr_status gr_plan_no_workers(const struct gr_options *o)
{
    GR_TRY(refuse(o, GR_WITHOUT_SPAWN, "without --spawn they are started elsewhere"));
    return GR_OK;
}

enum gr_status gr_plan_remote(const struct gr_options *o, struct gr_plan *plan_out)
{
    struct gr_plan p = {.remote = true};
    char shown[96], reason[160]; /* who did not give --connect has it in the environment */
    snprintf(reason, sizeof(reason), "the orchestrator at %s has its own",
             gr_option_shown(o, GR_OPTION_connect, shown, sizeof(shown)));
    GR_TRY(refuse(o, GR_WITH_CONNECT, reason));
    if (o->model == NULL) {
        log_error(
            "the model is needed: --model DIR, GRAFT_MODEL or target.model of the YAML file; the prompt is tokenized "
            "here, with the target's tokenizer");
        return GR_EINVAL;
    }
    choose_specpv(o, &p);
    GR_TRY(choose_transport(o, &p));
    p.wishes.want_draft = o->method != GR_METHOD_NONE && !o->disable_multi_token;
    take_wishes(o, &p);
    *plan_out = p;
    return GR_OK;
}
