/* A pass of the target: its memory, the walk along each tree, and what becomes of it. */
#include "target_worker/compute/verifier_internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/no_alloc.h"
#include "common/base/zeroed.h"

#include <stdlib.h>

enum gr_status gr_verifier_create(struct gr_lm *lm, int n_seq_max, struct gr_verifier **out)
{
    bool ok = true;
    struct gr_verifier *v = gr_zeroed(1, sizeof(*v), &ok);
    if (!ok) {
        log_error("no memory for verifying trees");
        return GR_ENOMEM;
    }
    const size_t n_row = (size_t)lm->n_row_max;
    const size_t n_out = (size_t)lm->n_out_max;
    v->lm = lm;
    v->n_seq_max = n_seq_max;
    v->n_thread = gr_team_size(lm->team);
    v->token = gr_zeroed(n_row, sizeof(int32_t), &ok);
    v->pos = gr_zeroed(n_row, sizeof(int32_t), &ok);
    v->cell = gr_zeroed(n_row, sizeof(int32_t), &ok);
    v->out_row = gr_zeroed(n_out, sizeof(int32_t), &ok);
    v->limit = gr_zeroed(n_row, sizeof(int32_t), &ok);
    v->n_anc = gr_zeroed(n_row, sizeof(int32_t), &ok);
    v->anc = gr_zeroed(n_row * GR_ATTN_ANC_MAX, sizeof(int16_t), &ok);
    v->seq = gr_zeroed((size_t)n_seq_max, sizeof(*v->seq), &ok);
    v->out = gr_zeroed(n_out, sizeof(*v->out), &ok);
    v->sampling = gr_zeroed(n_out, sizeof(*v->sampling), &ok);
    v->copy_src = gr_zeroed((size_t)n_seq_max * GR_TREE_MAX, sizeof(int32_t), &ok);
    v->copy_dst = gr_zeroed((size_t)n_seq_max * GR_TREE_MAX, sizeof(int32_t), &ok);
    v->scratch = gr_zeroed((size_t)v->n_thread * (size_t)lm->n_vocab, sizeof(float), &ok);
    v->work = gr_zeroed((size_t)v->n_thread * (size_t)lm->n_vocab, sizeof(int32_t), &ok);
    v->tree_out = gr_zeroed((size_t)n_seq_max, sizeof(int32_t), &ok);
    v->logprob = gr_zeroed(n_out * GR_LOGPROB_ROW, sizeof(*v->logprob), &ok);
    v->logprob_id = gr_zeroed(n_out * GR_LOGPROB_MAX, sizeof(*v->logprob_id), &ok);
    v->counts = gr_zeroed((size_t)v->n_thread, sizeof(*v->counts), &ok);
    for (int i = 0; i < v->n_thread && ok; i++) {
        struct gr_token_counts *c = &v->counts[i].of;
        c->all = gr_zeroed((size_t)lm->n_vocab, sizeof(*c->all), &ok);
        c->generated = gr_zeroed((size_t)lm->n_vocab, sizeof(*c->generated), &ok);
        c->id = gr_zeroed((size_t)lm->n_vocab, sizeof(*c->id), &ok);
    }
    if (lm->n_list_max > 0) {
        v->list = gr_zeroed(n_out, sizeof(*v->list), &ok);
        v->entry = gr_zeroed((size_t)lm->n_list_max, sizeof(*v->entry), &ok);
        v->place = gr_zeroed((size_t)lm->n_vocab, sizeof(*v->place), &ok);
    }
    if (lm->view != NULL) {
        v->refresh = gr_zeroed((size_t)n_seq_max, sizeof(*v->refresh), &ok);
        v->chain_out = gr_zeroed((size_t)n_seq_max, sizeof(int32_t), &ok);
        v->chain_pick = gr_zeroed(n_out, sizeof(int32_t), &ok);
    }
    if (lm->fused_width > 0) {
        const size_t n_kept = gr_lm_fuses(lm) ? (size_t)n_seq_max * GR_CAPTURE_KEEP : 0;
        v->n_feature_max = lm->n_row_max + (int)n_kept;
        v->row0 = gr_zeroed((size_t)n_seq_max, sizeof(int32_t), &ok);
        v->capture = gr_zeroed((size_t)v->n_feature_max, sizeof(*v->capture), &ok);
        if (gr_lm_fuses(lm)) {
            v->kept = gr_zeroed(n_kept * (size_t)(lm->n_capture * lm->capture_width), sizeof(float), &ok);
            v->fused = gr_zeroed((size_t)v->n_feature_max * (size_t)lm->fused_width, sizeof(float), &ok);
        }
        v->feature_width = gr_lm_ship_width(lm);
        v->feature_row = gr_zeroed((size_t)v->n_feature_max, sizeof(*v->feature_row), &ok);
        if (lm->shipped == NULL) {
            v->feature = gr_zeroed((size_t)v->n_feature_max * (size_t)v->feature_width, sizeof(uint16_t), &ok);
        }
    }
    if (!ok) {
        log_error("out of memory for a pass of %d rows", lm->n_row_max);
        gr_verifier_destroy(v);
        return GR_ENOMEM;
    }
    *out = v;
    return GR_OK;
}

void gr_verifier_destroy(struct gr_verifier *v)
{
    if (v == NULL) {
        return;
    }
    if (v->n_listed + v->n_unlisted > 0) {
        log_info("what was asked of logits: %llu rows where the model picks, %llu on the host",
                 (unsigned long long)v->n_listed, (unsigned long long)v->n_unlisted);
    }
    for (int i = 0; i < v->n_thread && v->counts != NULL; i++) {
        free(v->counts[i].of.all);
        free(v->counts[i].of.generated);
        free(v->counts[i].of.id);
    }
    void *all[] = {v->token,
                   v->pos,
                   v->cell,
                   v->out_row,
                   v->limit,
                   v->n_anc,
                   v->anc,
                   v->seq,
                   v->out,
                   v->copy_src,
                   v->copy_dst,
                   v->scratch,
                   v->work,
                   v->row0,
                   v->kept,
                   v->capture,
                   v->fused,
                   v->feature,
                   (void *)v->feature_row,
                   v->refresh,
                   v->chain_out,
                   v->chain_pick,
                   v->sampling,
                   v->list,
                   v->entry,
                   v->place,
                   v->counts,
                   v->tree_out,
                   v->logprob,
                   v->logprob_id,
                   v};
    for (size_t i = 0; i < GR_ARRAY_LEN(all); i++) {
        free(all[i]);
    }
}

/* ---- walk and commit ---- */

/* The rows to be copied, when the walk is done: the accepted ones move to their positions, in order, the tail first. */
static int copy_path(struct gr_verifier *v, const struct gr_pass_seq *s, int n_copy)
{
    v->copy_src[n_copy] = verifier_scratch_cell(s, 0);
    v->copy_dst[n_copy++] = gr_kv_table_cell(s->table, s->pos0);
    for (int i = 0; i < s->walk.n_path; i++) {
        v->copy_src[n_copy] = verifier_scratch_cell(s, s->walk.node[i] + 1);
        v->copy_dst[n_copy++] = gr_kv_table_cell(s->table, s->pos0 + 1 + i);
    }
    return n_copy;
}

/* How a pass ends whose chain rows have ended it. */
static enum gr_finish finish_of(const struct gr_pass_seq *s)
{
    if (s->correction == GR_PICK_NOT_FINITE) {
        return GR_FINISH_ERROR;
    }
    return s->correction >= 0 && gr_stop_hits(&s->stop.ids, s->correction) ? GR_FINISH_STOP : GR_FINISH_NONE;
}

static int walk_seq(struct gr_verifier *v, struct gr_pass_seq *s, int i, int n_copy)
{
    static const struct gr_token_tree no_tree;
    if (s->kind == GR_PASS_PREFILL) {
        if (s->want_pick) {
            s->odd_pos = s->pos0 + s->n_row - 1;
            gr_accept_walk(&no_tree, s->pick, &s->stop, &s->walk);
        }
        return n_copy;
    }
    s->odd_pos = s->pos0;
    verifier_judge_chain(v, s, i);
    verifier_corrupt(v, s);
    if (s->correction != GR_NO_CORRECTION || s->judge_only) {
        s->walk = (struct gr_walk){.bonus = s->correction, .finish = finish_of(s)};
        return n_copy;
    }
    gr_accept_walk(s->kind == GR_PASS_TREE ? &s->tree : &no_tree, s->pick, &s->stop, &s->walk);
    return s->kind == GR_PASS_TREE ? copy_path(v, s, n_copy) : n_copy;
}

/* ---- views ---- */

/* A view that rests on tokens which do not stand is cut. */
static void settle_view(const struct gr_verifier *v, struct gr_pass_seq *s)
{
    if (v->lm->view == NULL) {
        return;
    }
    struct gr_kv_view *view = &v->lm->view[s->session];
    if (s->n_chain > 0) {
        gr_kv_view_truncate(view, s->pos0 - s->n_chain + verifier_chain_rows(s));
    }
    s->dense_from = view->dense_from;
}

/* ---- a pass ---- */

/* The part of a block that a fork begins with. One copy a sequence, in their order: a cell that one has read may be
 * another's by now. */
static void copy_begun_block(struct gr_verifier *v, const struct gr_pass_seq *s)
{
    GR_ASSERT(s->n_copy < GR_KV_BLOCK_TOKENS && (s->n_copy == 0 || s->forked));
    for (int i = 0; i < s->n_copy; i++) {
        v->copy_src[i] = s->copy_from + i;
        v->copy_dst[i] = gr_kv_table_cell(s->table, s->pos0 - s->n_copy + i);
    }
    gr_lm_copy_cells(v->lm, s->n_copy, v->copy_src, v->copy_dst);
}

static void run_pass(struct gr_verifier *v, struct gr_pass *pass)
{
    GR_ASSERT(pass->n_seq <= v->n_seq_max);
    v->n_row = 0;
    v->n_out = 0;
    v->n_logprob = 0;
    v->n_refresh = 0;
    if (pass->n_seq > 0 && pass->seq[0].kind == GR_PASS_FUSE) {
        verifier_run_fuse_pass(v, pass);
        return;
    }
    for (int i = 0; i < pass->n_seq; i++) {
        verifier_add_seq(v, &pass->seq[i], i);
    }
    pass->n_row = v->n_row;
    const uint64_t t0 = gr_clock_ns();
    const struct gr_batch batch = {.n_row = v->n_row,
                                   .n_seq = pass->n_seq,
                                   .n_out = v->n_out,
                                   .token = v->token,
                                   .pos = v->pos,
                                   .cell = v->cell,
                                   .seq = v->seq,
                                   .out_row = v->out_row,
                                   .n_refresh = v->n_refresh,
                                   .refresh = v->refresh,
                                   .sampling = v->sampling,
                                   .list = verifier_list_rows(v),
                                   .want_capture = verifier_wants_capture(pass)};
    for (int i = 0; i < pass->n_seq; i++) {
        if (pass->seq[i].n_copy > 0) {
            copy_begun_block(v, &pass->seq[i]);
        }
    }
    pass->status = gr_lm_forward(v->lm, &batch);
    const uint64_t t1 = gr_clock_ns();
    pass->forward_ns = t1 - t0;
    if (pass->status != GR_OK) {
        return;
    }
    gr_team_run(gr_lm_pick_team(v->lm, v->n_out), verifier_pick_rows, v);
    const uint64_t t2 = gr_clock_ns();
    int n_copy = 0;
    for (int i = 0; i < pass->n_seq; i++) {
        n_copy = walk_seq(v, &pass->seq[i], i, n_copy);
        verifier_add_logprobs(v, &pass->seq[i], i);
        settle_view(v, &pass->seq[i]);
    }
    gr_lm_copy_cells(v->lm, n_copy, v->copy_src, v->copy_dst);
    if (v->lm->fused_width > 0) {
        verifier_fuse(v, pass);
    }
    pass->sample_ns = t2 - t1;
    pass->commit_ns = gr_clock_ns() - t2;
}

void gr_verifier_run(struct gr_verifier *v, struct gr_pass *pass)
{
    gr_no_alloc_begin();
    run_pass(v, pass);
    gr_no_alloc_end();
}
