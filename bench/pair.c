#include "bench/pair.h"
#include "bench/paths.h"

#include "common/process/child_args.h"
#include "common/base/clock.h"
#include "common/rules/hash.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "common/base/device.h"
#include "model/files/hf_config.h"
#include "model/files/model_path.h"

#include <stdio.h>
#include <string.h>

#define PUMP_MS 1000  /* a turn of the hub's loop waits so long at most */
#define STOP_MS 10000 /* workers that have not ended so long after they were told to are killed */

/* ---- what to start ---- */

static const struct gr_child_rule rule; /* a benchmark ends with the first worker that does */

static void add_common(struct gr_child_args *a, const struct gr_pair *p, const struct gr_pair_config *c)
{
    gr_child_args_add(a, "--join", gr_hub_address(p->hub));
    gr_child_args_add_number(a, "--sessions", c->n_session);
    gr_child_args_add_number(a, "--max-model-len", c->n_ctx_max);
    gr_child_args_add(a, "--geometry", c->geometry);
    gr_child_args_add(a, "--transport", c->transport[0] != '\0' && !c->colocated ? c->transport : NULL);
}

static const char *given(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

static bool on_gpu(const char *device)
{
    return strncmp(device, "cuda:", 5) == 0;
}

static void add_tuned(struct gr_child_args *a, const struct gr_pair_config *c)
{
    gr_child_args_add(a, "--tuned", c->tuned);
    gr_child_args_add_flag(a, "--require-tuned", c->require_tuned);
}

static enum gr_status start_target(struct gr_pair *p, const struct gr_pair_config *c)
{
    struct gr_child_args a;
    gr_child_args_begin(&a, c->target_program != NULL ? c->target_program : gr_program_sibling("graft-target"));
    gr_child_args_add(&a, "--model", c->target);
    gr_child_args_add(&a, "--device", given(c->target_device));
    add_common(&a, p, c);
    if (c->n_rank > 1) {
        gr_child_args_add_number(&a, "--tensor-parallel-size", c->n_rank);
        gr_child_args_add(&a, "--tp-transport", c->tp_transport);
        gr_child_args_add(&a, "--tp-allreduce", c->tp_allreduce);
    }
    if (c->n_block > 0) {
        gr_child_args_add_number(&a, "--kv-blocks", c->n_block);
    }
    gr_child_args_add(&a, "--prefix-cache", "off"); /* a prompt that is measured twice is computed twice */
    gr_child_args_add(&a, "--prefill-share", c->prefill_share);
    gr_child_args_add(&a, "--head", c->draft_is_head ? c->draft : NULL);
    if (on_gpu(c->target_device) || (c->colocated && c->draft != NULL && on_gpu(c->draft_device))) {
        add_tuned(&a, c);
    }
    if (c->colocated) {
        gr_child_args_add(&a, "--colocate-draft", c->draft);
        gr_child_args_add(&a, "--draft-device", given(c->draft_device));
        gr_child_args_add(&a, "--draft-context", given(c->draft_context));
    }
    for (int i = 0; c->target_options != NULL && c->target_options[i] != NULL; i++) {
        gr_child_args_add_flag(&a, c->target_options[i], true);
    }
    return gr_children_start(&p->children, "target worker", a.argv, &rule, &p->target);
}

static enum gr_status start_draft(struct gr_pair *p, const struct gr_pair_config *c)
{
    struct gr_child_args a;
    gr_child_args_begin(&a, c->draft_program != NULL ? c->draft_program : gr_program_sibling("graft-draft"));
    gr_child_args_add(&a, "--model", c->draft);
    gr_child_args_add(&a, "--device", given(c->draft_device));
    add_common(&a, p, c);
    gr_child_args_add(&a, "--target", c->draft_is_head ? c->target : NULL);
    gr_child_args_add(&a, "--draft-context", given(c->draft_context));
    if (on_gpu(c->draft_device)) {
        add_tuned(&a, c);
    }
    return gr_children_start(&p->children, "draft worker", a.argv, &rule, &p->draft);
}

enum gr_status gr_pair_draft_is_head(const char *draft, bool *is_head_out)
{
    struct gr_hf_config hf;
    GR_TRY(gr_model_path_config(draft, &hf));
    *is_head_out = gr_hf_is_eagle3(&hf);
    return GR_OK;
}

/* An option's value as the workers take it. */
static void put_text(const struct gr_bench_options *o, enum gr_bench_option_id id, char *out, size_t cap)
{
    char text[GR_OPTION_TEXT_MAX];
    snprintf(out, cap, "%s", gr_option_text(&o->values, gr_bench_option(id), text));
}

enum gr_status gr_pair_config_of(const struct gr_bench_options *o, struct gr_pair_config *c_out,
                                 const struct gr_geometry **geometry_out)
{
    const char *transport = gr_bench_choice(o, GR_BENCH_OPTION_transport);
    const bool on_gpu = gr_devices_on_gpu(&o->target_device) || o->draft_device != GR_DEVICE_CPU;
    struct gr_pair_config c = {.target = gr_bench_path_of(o, GR_BENCH_OPTION_model),
                               .draft = o->draft,
                               .geometry = o->geometry,
                               .tuned = o->tuned,
                               .require_tuned = o->require_tuned,
                               .transport = transport != NULL ? transport : "",
                               .n_rank = (int)o->tensor_parallel_size,
                               .tp_transport = gr_bench_choice(o, GR_BENCH_OPTION_tp_transport),
                               .tp_allreduce = gr_bench_choice(o, GR_BENCH_OPTION_tp_allreduce)};
    GR_TRY(gr_devices_check("--target-device", &o->target_device, o->tensor_parallel_size));
    GR_TRY(gr_devices_beside(&o->target_device, "--draft-device", o->draft_device));
    GR_TRY(gr_geometry_find(c.geometry, geometry_out));
    if (c.draft == NULL) {
        c.draft = gr_bench_path(*geometry_out != NULL ? "models/demo/eagle3" : "models/demo/draft");
    }
    put_text(o, GR_BENCH_OPTION_target_device, c.target_device, sizeof(c.target_device));
    put_text(o, GR_BENCH_OPTION_draft_device, c.draft_device, sizeof(c.draft_device));
    put_text(o, GR_BENCH_OPTION_draft_context, c.draft_context, sizeof(c.draft_context));
    struct gr_tuned tuned; /* before the workers say what is wrong with it, both */
    GR_TRY(gr_tuned_open(c.tuned, c.require_tuned, on_gpu, &tuned));
    GR_TRY(gr_pair_draft_is_head(c.draft, &c.draft_is_head));
    *c_out = c;
    return GR_OK;
}

bool gr_pair_on_one_gpu(const struct gr_pair_config *c)
{
    const size_t first = strcspn(c->target_device, ","); /* rank 0's, whose process a drafter may share */
    return on_gpu(c->target_device) && strlen(c->draft_device) == first &&
           strncmp(c->target_device, c->draft_device, first) == 0;
}

/* ---- running ---- */

int gr_pair_worker(const struct gr_pair *p, enum gr_worker_role role)
{
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        const struct gr_worker_info *info = gr_orch_worker(gr_hub_orch(p->hub), i, NULL);
        if (info != NULL && info->role == role) {
            return (int)i;
        }
    }
    return -1;
}

enum gr_status gr_pair_start(struct gr_pair *p, const struct gr_pair_config *c)
{
    char key_hex[2 * GR_KEY_BYTES + 1];
    struct gr_hub_config hub = {.listen = "127.0.0.1:0", .io = c->io};
    *p = (struct gr_pair){.target = -1, .draft = -1};
    GR_TRY(gr_key_random(hub.key, key_hex));
    GR_TRY(gr_hub_create(&hub, &p->hub));
    GR_TRY(gr_children_init(&p->children, key_hex));
    GR_TRY(start_target(p, c));
    if (c->draft != NULL && !c->colocated) {
        GR_TRY(start_draft(p, c));
    }
    while (gr_pair_worker(p, GR_WORKER_TARGET) < 0 || (c->draft != NULL && gr_pair_worker(p, GR_WORKER_DRAFT) < 0)) {
        GR_TRY(gr_pair_pump(p));
    }
    return GR_OK;
}

enum gr_status gr_pair_ask_again(struct gr_pair *p, uint64_t session, const int32_t *id, uint32_t n_id,
                                 uint32_t max_tokens)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i + 1 < n_id; i++) {
        hash = gr_hash_extend(hash, id[i]);
    }
    const struct gr_turn_request turn = {
        .keep_len = n_id - 1, .hash = hash, .ids = id + n_id - 1, .n_ids = 1, .wishes = {.max_tokens = max_tokens}};
    return gr_orch_append(gr_hub_orch(p->hub), session, &turn, gr_clock_ns());
}

static int interrupted; /* the signal that cut this process's benchmark short; 0: none */

int gr_pair_interrupted(void)
{
    return interrupted;
}

enum gr_status gr_pair_pump(struct gr_pair *p)
{
    int signal_number = 0;
    int index = 0;
    gr_hub_pump(p->hub, PUMP_MS, p->children.signal_fd);
    const enum gr_child_event e = gr_children_poll(&p->children, &signal_number, &index);
    if (e == GR_CHILD_NONE && signal_number == 0) {
        return GR_OK;
    }
    interrupted = signal_number;
    log_error("%s", signal_number != 0 ? "interrupted" : "a worker ended before its sessions did");
    return GR_ECLOSED;
}

void gr_pair_stop(struct gr_pair *p)
{
    if (p->hub == NULL) {
        return;
    }
    const bool all =
        gr_pair_worker(p, GR_WORKER_TARGET) >= 0 && (p->draft < 0 || gr_pair_worker(p, GR_WORKER_DRAFT) >= 0);
    gr_hub_end(p->hub, &p->children, all, STOP_MS);
    p->hub = NULL;
}
