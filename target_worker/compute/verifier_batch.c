/* The batch of a pass: which rows, at which positions, with which ancestors, and which are picked. */
#include "target_worker/compute/verifier_internal.h"

#include <string.h>

int32_t verifier_scratch_cell(const struct gr_pass_seq *s, int slot)
{
    return s->scratch_block[slot / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS + slot % GR_KV_BLOCK_TOKENS;
}

/* n rows that see committed tokens only, from position pos on: each sees everything up to itself, in the pool. */
static void add_chain_rows(struct gr_verifier *v, const struct gr_kv_table *table, const int32_t *token, int pos, int n)
{
    for (int r = 0; r < n; r++) {
        const int row = v->n_row + r;
        v->token[row] = token[r];
        v->pos[row] = pos + r;
        v->cell[row] = gr_kv_table_cell(table, pos + r);
        v->limit[row] = pos + r + 1;
        v->n_anc[row] = 0;
    }
}

/* Row 0 is the tail at pos0, row i + 1 node i; slot = row. A row sees the pool before pos0, then its ancestors. */
static void add_tree_rows(struct gr_verifier *v, const struct gr_pass_seq *s)
{
    for (int r = 0; r < s->n_row; r++) {
        const int row = v->n_row + r;
        int16_t *anc = v->anc + (size_t)row * GR_ATTN_ANC_MAX;
        int n_anc = 1;
        if (r == 0) {
            v->token[row] = s->tail;
            anc[0] = 0;
        } else {
            const int parent_row = s->tree.parent[r - 1] + 1;
            const int n_parent = v->n_anc[v->n_row + parent_row];
            v->token[row] = s->tree.token[r - 1];
            memcpy(anc, v->anc + (size_t)(v->n_row + parent_row) * GR_ATTN_ANC_MAX, (size_t)n_parent * sizeof(*anc));
            anc[n_parent] = (int16_t)r;
            n_anc = n_parent + 1;
        }
        v->pos[row] = s->pos0 + n_anc - 1;
        v->cell[row] = verifier_scratch_cell(s, r);
        v->limit[row] = s->pos0;
        v->n_anc[row] = n_anc;
    }
}

bool verifier_is_adjusted(const struct gr_pass_seq *s, int32_t pos)
{
    return s->adjust != NULL || pos + 1 < s->len_min;
}

/* Does the host need them, whatever the model picks? */
static bool needs_logits(const struct gr_pass_seq *s, int32_t pos)
{
    return verifier_is_adjusted(s, pos) || s->n_logprob > 0;
}

void verifier_want_pick(struct gr_verifier *v, struct gr_pass_seq *s, int r, int slot)
{
    GR_ASSERT(v->n_out < v->lm->n_out_max && slot < GR_TREE_MAX);
    v->out_row[v->n_out] = v->n_row + r;
    v->sampling[v->n_out] = needs_logits(s, v->pos[v->n_row + r]) ? NULL : &s->sampling;
    v->out[v->n_out++] = (struct row_pick){.seq = s, .slot = slot};
}

static void want_picks(struct gr_verifier *v, struct gr_pass_seq *s)
{
    if (s->kind == GR_PASS_PREFILL) {
        if (s->want_pick) {
            verifier_want_pick(v, s, s->n_row - 1, 0);
        }
        return;
    }
    for (int r = 0; r < s->n_row; r++) {
        verifier_want_pick(v, s, r, r);
    }
}

/* What the fields of SpecPV must be. */
static void check_specpv(const struct gr_verifier *v, const struct gr_pass_seq *s)
{
    const bool decodes = s->kind == GR_PASS_TREE || s->kind == GR_PASS_ROOT;
    const bool used = s->partial || s->refresh_view || s->judge_only || s->n_chain > 0;
    GR_ASSERT(!used || (decodes && v->lm->view != NULL && v->chain_pick != NULL));
    GR_ASSERT(!s->partial || (s->n_chain == 0 && !s->refresh_view && !s->judge_only));
    GR_ASSERT(s->n_chain >= 0 && s->n_chain <= s->pos0 && (s->n_chain == 0 || !s->keep_capture));
    GR_ASSERT(!s->judge_only || (s->kind == GR_PASS_ROOT && s->n_chain > 0 && s->n_row == 0));
}

/* The missing tokens, before the tail. */
static void add_missing(struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    v->chain_out[i] = v->n_out;
    add_chain_rows(v, s->table, s->chain_token, s->pos0 - s->n_chain, s->n_chain);
    for (int r = 0; r < s->n_chain; r++) {
        verifier_want_pick(v, s, r, SLOT_CHAIN);
    }
    v->n_row += s->n_chain;
}

/* Queries that choose the view: of tail and tree; without a tree, those of the last rows. */
static void add_refresh(struct gr_verifier *v, const struct gr_pass_seq *s, int i)
{
    const int n_row = s->kind == GR_PASS_TREE ? s->n_row : GR_MIN(s->n_chain + s->n_row, VIEW_QUERIES);
    v->refresh[v->n_refresh++] = (struct gr_kv_refresh){.view = s->session,
                                                        .i_seq = i,
                                                        .row0 = v->n_row + s->n_row - n_row,
                                                        .n_row = n_row,
                                                        .kv_len = s->pos0,
                                                        .budget = s->view_budget};
}

void verifier_add_seq(struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    const bool tree = s->kind == GR_PASS_TREE;
    const int row0 = v->n_row;
    s->list_limit = 0;
    GR_ASSERT(v->n_row + s->n_chain + s->n_row <= v->lm->n_row_max);
    check_specpv(v, s);
    if (s->n_chain > 0) {
        add_missing(v, s, i);
    }
    if (tree) {
        GR_ASSERT(s->n_row == s->tree.n + 1);
        add_tree_rows(v, s);
    } else {
        add_chain_rows(v, s->table, s->token, s->pos0, s->n_row);
    }
    v->seq[i] = (struct gr_attn_seq){
        .row0 = row0,
        .n_row = s->n_chain + s->n_row,
        .block = s->table->block,
        .limit = v->limit + row0,
        .scratch_block = s->scratch_block,
        .n_anc = v->n_anc + row0,
        .anc = v->anc + (size_t)row0 * GR_ATTN_ANC_MAX,
        .n_slot = tree ? s->n_row : 0,
    };
    if (v->lm->view != NULL) { /* these rows' KV will be another: what was summed of it is void */
        GR_ASSERT(s->session >= 0 && s->session < v->lm->n_view);
        gr_kv_view_truncate(&v->lm->view[s->session], s->forked ? 0 : s->pos0 - s->n_chain);
    }
    if (s->partial) {
        gr_kv_view_attend(&v->lm->view[s->session], &v->seq[i]);
    }
    if (s->refresh_view) {
        add_refresh(v, s, i);
    }
    v->tree_out[i] = v->n_out;
    want_picks(v, s);
    if (v->row0 != NULL) {
        v->row0[i] = row0;
    }
    v->n_row += s->n_row;
}
