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
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

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
        const bool eagle = strcmp(draft.architecture, GR_EAGLE3_ARCHITECTURE) == 0;
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

/* Two processes take turns on one GPU: a drafter on the target's is to be in its process. */
static enum gr_status check_devices(const struct gr_options *o, struct gr_plan *p)
{
    const int target = o->target_device;
    const int draft = o->draft_device;
    GR_TRY(gr_device_placed("--target-device", target));
    GR_TRY(gr_device_placed("--draft-device", draft));
    if (p->wishes.want_draft && target != GR_DEVICE_CPU && target == draft && !p->colocated) {
        if (o->transport != GR_UNSET) {
            log_error(
                "--transport %s: both workers are to be on cuda:%d, where two processes would take turns; leave it "
                "out, or take loop",
                gr_option_choice(o, GR_OPTION_transport), target);
            return GR_EINVAL;
        }
        p->colocated = true;
    }
    p->target_tuned = o->tuned != NULL && target != GR_DEVICE_CPU;
    p->draft_tuned = o->tuned != NULL && p->wishes.want_draft && draft != GR_DEVICE_CPU;
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

/* Both workers start on this host: what is wrong with a device is known before they load. Nothing else than RDMA is
 * offered under --require-rdma, so there is nothing to fall back to; a device that is named is to be there. --transport
 * verbs alone is a wish: where it cannot be had, the workers tell why and the text is generated without drafts. */
static enum gr_status check_rdma(struct gr_options *o, struct gr_plan *p)
{
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
}

static bool is_this_host(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "::1"};
    char own[256] = "";
    bool found = host == NULL || (gethostname(own, sizeof(own) - 1) == 0 && strcmp(host, own) == 0);
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        found = found || strcmp(host, names[i]) == 0;
    }
    return found;
}

/* A list of workers of the YAML file may name what this version can start: one, on this host. Its device is that of the
 * section's key. */
static enum gr_status take_workers(struct gr_options *o, enum gr_option_id list, const struct gr_option_workers *w,
                                   enum gr_option_id device)
{
    const char *name = gr_option_rows[list].yaml;
    int64_t n = 0;
    char text[64];
    for (int i = 0; i < w->n; i++) {
        n += w->item[i].count;
        if (!is_this_host(w->item[i].host)) {
            log_error("%s: host %s is not this one, and this version starts workers on its own host alone", name,
                      w->item[i].host);
            return GR_EINVAL;
        }
    }
    if (n > 1) {
        log_error("%s: %" PRId64 " workers are asked for, and this version starts one", name, n);
        return GR_EINVAL;
    }
    if (n == 0 || !w->item[0].has_device) {
        return GR_OK;
    }
    if (o->values.source[device] == GR_FROM_YAML) {
        log_error("%s: its device is said by %s, too; one of them is enough", name, gr_option_rows[device].yaml);
        return GR_EINVAL;
    }
    snprintf(text, sizeof(text), w->item[0].device == GR_DEVICE_CPU ? "cpu" : "cuda:%d", w->item[0].device);
    return gr_option_set(&o->values, &gr_option_rows[device], name, text, GR_FROM_YAML);
}

static enum gr_status take_lists(struct gr_options *o)
{
    GR_TRY(take_workers(o, GR_OPTION_targets, &o->targets, GR_OPTION_target_device));
    return take_workers(o, GR_OPTION_drafts, &o->drafts, GR_OPTION_draft_device);
}

enum gr_status gr_plan_local(struct gr_options *o, struct gr_plan *plan_out)
{
    struct gr_plan p = {0};
    if (o->model == NULL) {
        log_error("the model is needed: --model DIR, GRAFT_MODEL or target.model of the YAML file; see graft %s --help",
                  o->values.called->word);
        return GR_EINVAL;
    }
    GR_TRY(take_lists(o));
    choose_specpv(o, &p);
    GR_TRY(check_features(o));
    GR_TRY(choose_transport(o, &p));
    GR_TRY(choose_method(o, &p));
    if (o->drafts.n > 0 && o->draft == NULL) {
        log_error("drafts: draft workers are asked for, and no draft model is named (--draft, draft.model)");
        return GR_EINVAL;
    }
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
    struct gr_plan p = {0};
    GR_TRY(refuse(o, GR_WITH_CONNECT, "the orchestrator at --connect has its own"));
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
