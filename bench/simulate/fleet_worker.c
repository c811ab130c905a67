/* Targets and drafters: their machines and compute parts, on devices that take what was measured. */
#include "bench/simulate/fleet_internal.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

#define N_VOCAB 32000
#define PREFILL_CHUNK 256 /* as both workers have it */
#define ADMIT_TOKENS 320
#define PREFILL_SHARE 0.5
#define FEATURE_KEEP 2048
#define DRAFT_CONTEXT 2048
#define DEADLINE_NS 2000000000ull
#define DRAFT_ROWS_LEAST 512
#define DRAFT_ROWS_A_SESSION 16

/* ---- what things take ---- */

double fleet_pass_ns(const struct gr_target_costs *c, int n_row, int n_seq, double context)
{
    return gr_curve_at(&c->rows, n_row) + c->session_ns * n_seq + c->context_ns * context;
}

static double target_pass_ns(const struct gr_fleet *f, const struct gr_pass *p)
{
    double context = 0.0;
    for (int i = 0; i < p->n_seq; i++) {
        context += (double)p->seq[i].pos0;
    }
    return fleet_pass_ns(&f->config.costs->target, p->n_row, p->n_seq, context);
}

static double target_host_ns(const struct gr_fleet *f, const struct gr_pass *p)
{
    int n_tree = 0;
    for (int i = 0; i < p->n_seq; i++) {
        n_tree += p->seq[i].kind == GR_PASS_TREE;
    }
    return f->config.costs->target.host_ns + f->config.costs->target.host_tree_ns * n_tree;
}

/* Rows of a head that take a feature of the target's, and no state that the head has left. */
static int n_feature_row(const struct gr_batch *b)
{
    int n = 0;
    for (int i = 0; i < b->n_row && b->from_state != NULL; i++) {
        n += b->from_state[i] < 0;
    }
    return n;
}

/* The drafter's clock counts what the host does in a pass, and its device does not. */
static double draft_pass_ns(void *ctx, const struct gr_batch *b)
{
    struct fleet_worker *w = ctx;
    const struct gr_draft_costs *c = &w->fleet->config.costs->draft;
    const double host_ns = c->host_level_ns * b->n_seq + c->host_feature_ns * n_feature_row(b);
    int n_kv_only = 0;
    double context = 0.0;
    for (int i = 0; i < b->n_seq; i++) {
        n_kv_only += b->n_kv_only != NULL ? b->n_kv_only[i] : 0;
        context += b->seq[i].n_row > 0 ? (double)b->seq[i].limit[0] : 0.0;
    }
    w->job_host_ns += host_ns;
    return gr_curve_at(&c->rows, b->n_row - n_kv_only) + c->kv_row_ns * n_kv_only + c->session_ns * b->n_seq +
           c->context_ns * context + host_ns;
}

/* How long until work of ns is done that is to run on the worker's device, after what runs there. */
static uint64_t run_on_device(struct gr_fleet *f, const struct fleet_worker *w, double ns)
{
    struct fleet_device *d = &f->device[w->device];
    const uint64_t begin_ns = GR_MAX(f->now_ns, d->busy_until_ns);
    d->busy_until_ns = begin_ns + GR_MAX((uint64_t)ns, 1);
    d->busy_ns += ns;
    return d->busy_until_ns - f->now_ns;
}

/* ---- what the machines ask for ---- */

static void start_pass(void *ctx, struct gr_pass *pass)
{
    struct fleet_worker *w = ctx;
    struct gr_fleet *f = w->fleet;
    gr_verifier_run(w->verifier, pass);
    pass->forward_ns = run_on_device(f, w, target_pass_ns(f, pass));
    pass->sample_ns = pass->commit_ns = 0;
    w->pass = pass;
    f->result.n_pass++;
    f->result.n_pass_seq += (uint64_t)pass->n_seq;
    f->result.n_pass_row += (uint64_t)pass->n_row;
    const double host_ns = target_host_ns(f, pass);
    w->host_ns += host_ns;
    fleet_push(f, f->now_ns + pass->forward_ns + (uint64_t)host_ns,
               (struct fleet_event){.what = FLEET_PASS_DONE, .worker = w->index, .life = w->life});
}

static void start_job(void *ctx, struct gr_draft_job *job)
{
    struct fleet_worker *w = ctx;
    struct gr_fleet *f = w->fleet;
    const struct gr_draft_costs *c = &f->config.costs->draft;
    w->job_host_ns = 0.0;
    gr_grower_run(w->grower, job);
    const double host_ns = w->job_host_ns + c->host_ns + c->host_session_ns * job->n_seq;
    w->host_ns += host_ns;
    job->compute_ns = run_on_device(f, w, (double)job->compute_ns - w->job_host_ns) + (uint64_t)host_ns;
    w->job = job;
    f->result.n_job++;
    fleet_push(f, f->now_ns + job->compute_ns,
               (struct fleet_event){.what = FLEET_JOB_DONE, .worker = w->index, .life = w->life});
}

static uint8_t *frame_begin(void *ctx, uint32_t peer, enum gr_frame_class class, uint32_t bytes)
{
    struct fleet_worker *w = ctx;
    return fleet_frame_begin(w->fleet, w, peer, class, bytes);
}

static void frame_end(void *ctx, uint32_t peer, uint32_t bytes)
{
    struct fleet_worker *w = ctx;
    fleet_frame_end(w->fleet, w, peer, bytes);
}

static void send_msg(void *ctx, const struct gr_msg *m)
{
    struct fleet_worker *w = ctx;
    fleet_msg_to_orch(w->fleet, w, m);
}

static bool commit_room(void *ctx, int n)
{
    return fleet_commit_room(ctx, n);
}

static enum gr_status connect_target(void *ctx, const char *address, uint64_t incarnation, const char *transport,
                                     uint32_t *peer_out)
{
    struct fleet_worker *w = ctx;
    (void)incarnation;
    (void)transport;
    *peer_out = fleet_connect(w->fleet, w, address);
    return GR_OK;
}

/* ---- life ---- */

static int32_t n_ctx_of(const struct gr_fleet_config *c)
{
    const int32_t n = c->n_prompt + c->n_new + (c->run_ns > 0 ? c->n_new / 2 : 0) + 2;
    return (n + GR_TREE_MAX + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS * GR_KV_BLOCK_TOKENS;
}

static struct gr_sim_lm_config lm_config(const struct gr_fleet *f, struct fleet_worker *w)
{
    const struct gr_fleet_config *c = &f->config;
    const int32_t n_ctx = n_ctx_of(c);
    const int32_t n_draft_row = GR_MAX(DRAFT_ROWS_LEAST, DRAFT_ROWS_A_SESSION * c->n_slot);
    struct gr_sim_lm_config lm = {.n_vocab = N_VOCAB,
                                  .n_ctx_max = n_ctx,
                                  .n_pool_block = c->n_slot * (n_ctx / GR_KV_BLOCK_TOKENS + 1),
                                  .features = c->costs->feature_bytes > 0};
    if (w->is_target) {
        lm.n_row_max = c->n_slot * GR_TREE_MAX + PREFILL_CHUNK;
        lm.n_out_max = c->n_slot * GR_TREE_MAX + 1;
        lm.n_scratch_block = c->n_slot * GR_SCRATCH_BLOCKS;
        return lm;
    }
    lm.n_row_max = lm.n_out_max = n_draft_row;
    lm.n_scratch_block = c->n_slot * GR_DRAFT_SCRATCH_BLOCKS;
    lm.n_state = c->n_slot * GR_GROWER_STATES;
    lm.surmise = &c->costs->surmise;
    lm.texts = &c->costs->texts;
    lm.n_prompt = c->n_prompt;
    lm.pass_ns = draft_pass_ns;
    lm.pass_ctx = w;
    return lm;
}

static enum gr_status create_target(struct gr_fleet *f, struct fleet_worker *w)
{
    const struct gr_target_config c = {.n_session_max = f->config.n_slot,
                                       .n_ctx_max = w->lm->n_ctx_max,
                                       .n_vocab = w->lm->n_vocab,
                                       .n_row_max = w->lm->n_row_max,
                                       .n_out_max = w->lm->n_out_max,
                                       .prefill_chunk = PREFILL_CHUNK,
                                       .n_pool_block = w->lm->n_pool_block,
                                       .round_deadline_ns = DEADLINE_NS,
                                       .admit_tokens = ADMIT_TOKENS,
                                       .prefill_share = PREFILL_SHARE,
                                       .feature_width = gr_lm_ship_width(w->lm),
                                       .feature_keep = GR_MIN(FEATURE_KEEP, w->lm->n_ctx_max + PREFILL_CHUNK),
                                       .feature_window = GR_FEATURES_WINDOW,
                                       .shares_device = f->config.shared,
                                       .cost = &f->cost};
    const struct gr_target_io io = {.ctx = w,
                                    .frame_begin = frame_begin,
                                    .frame_end = frame_end,
                                    .send_msg = send_msg,
                                    .commit_room = commit_room,
                                    .start_pass = start_pass};
    GR_TRY(gr_verifier_create(w->lm, f->config.n_slot, &w->verifier));
    return gr_target_create(&c, &io, &w->target);
}

static enum gr_status create_drafter(struct gr_fleet *f, struct fleet_worker *w)
{
    const struct gr_drafter_config c = {.n_session_max = f->config.n_slot,
                                        .n_ctx_max = w->lm->n_ctx_max,
                                        .n_vocab = w->lm->n_vocab,
                                        .n_row_max = w->lm->n_row_max,
                                        .prefill_chunk = PREFILL_CHUNK,
                                        .n_pool_block = w->lm->n_pool_block,
                                        .feature_width = gr_lm_ship_width(w->lm),
                                        .feature_window = GR_FEATURES_WINDOW,
                                        .feature_context = w->lm->feature_width > 0 ? DRAFT_CONTEXT : 0};
    const struct gr_drafter_io io = {.ctx = w,
                                     .frame_begin = frame_begin,
                                     .frame_end = frame_end,
                                     .send_msg = send_msg,
                                     .start_job = start_job,
                                     .connect = connect_target};
    GR_TRY(gr_grower_create(w->lm, f->config.n_slot, &w->grower));
    gr_grower_use_clock(w->grower, gr_sim_lm_spent_ns, w->lm);
    return gr_drafter_create(&c, &io, &w->drafter);
}

enum gr_status fleet_worker_create(struct gr_fleet *f, struct fleet_worker *w)
{
    const struct gr_sim_lm_config lm = lm_config(f, w);
    w->fleet = f;
    w->life++;
    w->wake_ns = UINT64_MAX;
    w->to_orch_bytes = 0;
    w->first_conn = FLEET_NOBODY;
    w->held_up = false;
    w->lane_ns[GR_FRAME_SMALL] = w->lane_ns[GR_FRAME_BULK] = w->control_ns = 0;
    w->lm = gr_sim_lm_create(&lm);
    if (w->frame == NULL) {
        w->frame = malloc(FLEET_FRAME_BYTES);
    }
    if (w->lm == NULL || w->frame == NULL) {
        log_error("out of memory for worker %u", w->index);
        return GR_ENOMEM;
    }
    w->alive = true;
    return w->is_target ? create_target(f, w) : create_drafter(f, w);
}

void fleet_worker_destroy(struct fleet_worker *w)
{
    gr_target_destroy(w->target);
    gr_verifier_destroy(w->verifier);
    gr_drafter_destroy(w->drafter);
    gr_grower_destroy(w->grower);
    gr_lm_destroy(w->lm);
    w->target = NULL;
    w->verifier = NULL;
    w->drafter = NULL;
    w->grower = NULL;
    w->lm = NULL;
    w->pass = NULL;
    w->job = NULL;
    w->alive = false;
}

/* ---- what happens to it ---- */

static void take_frame(struct gr_fleet *f, struct fleet_worker *w, const struct fleet_event *e)
{
    const struct fleet_conn *c = &f->conn[e->conn];
    if (!(w->is_target ? c->open_at_target : c->open_at_draft)) {
        return; /* it was on its way when the connection broke */
    }
    const enum gr_status st = w->is_target ? gr_target_on_frame(w->target, e->conn, e->bytes, e->len, f->now_ns)
                                           : gr_drafter_on_frame(w->drafter, e->conn, e->bytes, e->len, f->now_ns);
    GR_ASSERT(st == GR_OK);
}

static void take_msg(struct gr_fleet *f, struct fleet_worker *w, const struct fleet_event *e)
{
    struct gr_msg m;
    const enum gr_status st = gr_msg_decode(e->bytes, e->len, &m);
    GR_ASSERT(st == GR_OK);
    if (w->is_target) {
        gr_target_on_msg(w->target, &m, f->now_ns);
    } else {
        gr_drafter_on_msg(w->drafter, &m, f->now_ns);
    }
    gr_msg_finish(&m);
}

static void take_loss(struct gr_fleet *f, struct fleet_worker *w, const struct fleet_event *e)
{
    struct fleet_conn *c = &f->conn[e->conn];
    if (w->is_target) {
        c->open_at_target = false;
        gr_target_on_peer_lost(w->target, e->conn);
    } else {
        c->open_at_draft = false;
        gr_drafter_on_peer_lost(w->drafter, e->conn, GR_ECLOSED, NULL);
    }
}

void fleet_worker_take(struct gr_fleet *f, struct fleet_worker *w, const struct fleet_event *e)
{
    switch (e->what) {
    case FLEET_FRAME:
        take_frame(f, w, e);
        break;
    case FLEET_MSG:
        take_msg(f, w, e);
        break;
    case FLEET_PASS_DONE:
        gr_target_on_pass_done(w->target, w->pass, f->now_ns);
        break;
    case FLEET_JOB_DONE:
        gr_drafter_on_job_done(w->drafter, w->job, f->now_ns);
        break;
    case FLEET_CONN_READY:
        gr_drafter_on_peer_ready(w->drafter, e->conn, "sim", f->now_ns);
        break;
    case FLEET_CONN_LOST:
        take_loss(f, w, e);
        break;
    default:
        break; /* a wake: it looks for something to do all the same */
    }
}

void fleet_worker_step(struct gr_fleet *f, struct fleet_worker *w)
{
    const uint64_t at_ns = w->is_target ? gr_target_step(w->target, f->now_ns) : gr_drafter_step(w->drafter, f->now_ns);
    if (at_ns == UINT64_MAX || at_ns >= w->wake_ns) {
        return;
    }
    w->wake_ns = GR_MAX(at_ns, f->now_ns + 1);
    fleet_push(f, w->wake_ns, (struct fleet_event){.what = FLEET_WAKE, .worker = w->index, .life = w->life});
}
