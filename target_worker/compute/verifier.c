#include "target_worker/compute/verifier.h"

#include "common/rules/bf16.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/no_alloc.h"
#include "common/base/zeroed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_CHAIN (-1) /* in place of a tree's slot: the pick is a chain row's */
#define VIEW_QUERIES 16 /* rows whose queries choose a view where there is no tree: the last ones */

struct gr_verifier {
    struct gr_lm *lm; /* borrowed */
    int n_seq_max;
    /* the batch of one pass */
    int32_t *token, *pos, *cell; /* (n_row_max) */
    int32_t *out_row;            /* (n_out_max) */
    int32_t *limit, *n_anc;      /* (n_row_max) */
    int16_t *anc;                /* (n_row_max, GR_ATTN_ANC_MAX) */
    struct gr_attn_seq *seq;     /* (n_seq_max) */
    struct row_pick {
        struct gr_pass_seq *seq;
        int32_t slot;                    /* in seq->pick; SLOT_CHAIN: in chain_pick */
    } * out;                             /* (n_out_max) */
    const struct gr_sampling **sampling; /* (n_out_max): of the rows that are picked */
    /* with a model that adjusts: what is asked of rows' logits, as lists */
    struct gr_adjust_list *list;   /* (n_out_max) */
    struct gr_adjust_entry *entry; /* (lm->n_list_max): of this pass's lists, n_entry of them */
    int32_t *place;                /* (n_vocab), zero between lists */
    int32_t n_entry;
    uint64_t n_listed, n_unlisted; /* rows so far of which something was asked: as lists, and on the host */
    int32_t *copy_src, *copy_dst;  /* (n_seq_max * GR_TREE_MAX) */
    int n_thread;
    float *scratch; /* (n_thread, n_vocab) */
    int32_t *work;  /* (n_thread, n_vocab) */
    /* (n_thread): counts of the text that the thread's last row had, of the session in `counted` */
    struct row_counts {
        struct gr_token_counts of;
        const struct gr_pass_seq *counted; /* NULL: nothing is counted */
        int32_t len;                       /* tokens of it, without a path */
    } * counts;
    int n_row, n_out;
    /* log-probabilities of the pass */
    int32_t *tree_out;   /* (n_seq_max): where the picks of a sequence's rows begin, but chain rows' */
    float *logprob;      /* (n_out_max, GR_LOGPROB_ROW) */
    int32_t *logprob_id; /* (n_out_max, GR_LOGPROB_MAX) */
    int n_logprob;       /* tokens whose log-probabilities are there */
    /* with SpecPV */
    struct gr_kv_refresh *refresh; /* (n_seq_max) */
    int n_refresh;
    int32_t *chain_out;  /* (n_seq_max): where the picks of a sequence's chain rows begin */
    int32_t *chain_pick; /* (n_out_max) */
    /* for a draft head */
    int32_t *row0;                /* (n_seq_max): of the pass's sequences in the batch, chain rows included */
    float *kept;                  /* (n_seq_max, GR_CAPTURE_KEEP, capture): by the machine's slot */
    int n_feature_max;            /* n_row_max and all that is kept */
    int n_feature;                /* of this pass */
    const float **capture;        /* (n_feature_max): captured states whose features are wanted */
    float *fused;                 /* (n_feature_max, fused_width), where the model does not fuse in its pass */
    int feature_width;            /* fused, or captured states where they are shipped as they are */
    uint16_t *feature;            /* (n_feature_max, feature_width) bf16; not where the model makes such rows */
    const uint16_t **feature_row; /* (n_feature_max): what sequences point into */
};

enum gr_status gr_verifier_create(struct gr_lm *lm, int n_seq_max, struct gr_verifier **out)
{
    bool ok = true;
    struct gr_verifier *v = gr_zeroed(1, sizeof(*v), &ok);
    if (!ok) {
        log_error("out of memory");
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

/* ---- building the batch ---- */

static int32_t scratch_cell(const struct gr_pass_seq *s, int slot)
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
        v->cell[row] = scratch_cell(s, r);
        v->limit[row] = s->pos0;
        v->n_anc[row] = n_anc;
    }
}

/* Is something asked of the logits of the session's row at pos before they are sampled? */
static bool is_adjusted(const struct gr_pass_seq *s, int32_t pos)
{
    return s->adjust != NULL || pos + 1 < s->len_min;
}

/* Does the host need them, whatever the model picks? */
static bool needs_logits(const struct gr_pass_seq *s, int32_t pos)
{
    return is_adjusted(s, pos) || s->n_logprob > 0;
}

/* The pick after row r goes to pick[slot]: the row itself in a tree, 0 for the last row of a prompt. */
static void want_pick(struct gr_verifier *v, struct gr_pass_seq *s, int r, int slot)
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
            want_pick(v, s, s->n_row - 1, 0);
        }
        return;
    }
    for (int r = 0; r < s->n_row; r++) {
        want_pick(v, s, r, r);
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
        want_pick(v, s, r, SLOT_CHAIN);
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

static void add_seq(struct gr_verifier *v, struct gr_pass_seq *s, int i)
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

/* ---- picking ---- */

/* The best value less the second best: how close the pick was. */
static float gap_of(const float *l, int32_t n, int32_t pick)
{
    float second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        second = i != pick && l[i] > second ? l[i] : second;
    }
    return second > -INFINITY ? l[pick] - second : 0.0f;
}

static bool wants_gap(const struct row_pick *o)
{
    return o->seq->want_gap && o->slot != SLOT_CHAIN;
}

static int32_t finish_pick(const struct gr_kernels *k, const struct row_pick *o, const float *l, int32_t n,
                           bool filtered)
{
    const int32_t pick = k->argmax(l, n, filtered);
    if (wants_gap(o) && pick >= 0) {
        o->seq->gap = gap_of(l, n, pick);
    }
    return pick;
}

/* ---- what a request asks of logits ---- */

/* The thread's counts become those of the first len tokens of s. */
static struct gr_token_counts *count_text(struct gr_verifier *v, int ith, const struct gr_pass_seq *s, int32_t len)
{
    struct row_counts *c = &v->counts[ith];
    if (c->counted != s) {
        gr_token_counts_clear(&c->of);
        c->counted = s;
        c->len = 0;
    }
    for (; c->len < len; c->len++) {
        gr_token_counts_push(&c->of, s->text[c->len], c->len >= s->generated_from);
    }
    for (; c->len > len; c->len--) {
        gr_token_counts_pop(&c->of, s->text[c->len - 1], c->len - 1 >= s->generated_from);
    }
    return &c->of;
}

/* Tokens of the tree from its root to the node of row r, in order. Returns how many. */
static int32_t path_to(const struct gr_pass_seq *s, int r, int32_t path[GR_NODE_MAX])
{
    int32_t n = 0;
    for (int node = r - 1; node >= 0; node = s->tree.parent[node]) {
        n++;
    }
    for (int node = r - 1, k = n; node >= 0; node = s->tree.parent[node]) {
        path[--k] = s->tree.token[node];
    }
    return n;
}

/* What is asked of a row, with the text that it looks at. */
struct row_asked {
    struct gr_adjust_asked asked;
    struct gr_row_text text;
    struct gr_token_counts *counts; /* of all of that text; NULL: nothing is penalised */
    int32_t path[GR_NODE_MAX];
};

/* The thread's counts have the row's path until asked_end(). */
static void asked_begin(struct gr_verifier *v, int ith, int i_out, struct row_asked *r)
{
    static const struct gr_adjust off;
    const struct row_pick *o = &v->out[i_out];
    const struct gr_pass_seq *s = o->seq;
    const struct gr_adjust *a = s->adjust != NULL ? s->adjust : &off;
    const bool in_tree = s->kind == GR_PASS_TREE && o->slot != SLOT_CHAIN;
    const int32_t pos = v->pos[v->out_row[i_out]];
    r->text = (struct gr_row_text){.token = s->text, .path = r->path, .n = in_tree ? s->pos0 + 1 : pos + 1};
    r->text.n_path = in_tree ? path_to(s, o->slot, r->path) : 0;
    r->counts = gr_adjust_penalises(a) ? count_text(v, ith, s, r->text.n) : NULL;
    for (int32_t i = 0; r->counts != NULL && i < r->text.n_path; i++) {
        gr_token_counts_push(r->counts, r->path[i], true);
    }
    r->asked = (struct gr_adjust_asked){.adjust = a,
                                        .ends = pos + 1 < s->len_min ? &s->stop.ids : NULL,
                                        .text = &r->text,
                                        .counts = r->counts,
                                        .n_vocab = v->lm->n_vocab};
}

static void asked_end(struct row_asked *r)
{
    for (int32_t i = r->text.n_path; r->counts != NULL && i > 0; i--) {
        gr_token_counts_pop(r->counts, r->path[i - 1], true);
    }
}

/* Bans, biases and penalties on the row's logits, in l. */
static void adjust_row(struct gr_verifier *v, int ith, int i_out, float *l)
{
    struct row_asked r;
    asked_begin(v, ith, i_out, &r);
    gr_adjust_row(r.asked.adjust, r.asked.ends, &r.text, r.counts, l, v->lm->n_vocab);
    asked_end(&r);
}

/* Can the model adjust and pick the row? */
static bool may_be_listed(const struct gr_verifier *v, int i_out)
{
    const struct gr_pass_seq *s = v->out[i_out].seq;
    return v->lm->n_list_max > 0 && s->n_logprob == 0 && !gr_sampling_needs_row(&s->sampling);
}

/* False: the list is too long, or has an id with two biases. */
static bool list_row(struct gr_verifier *v, int i_out)
{
    const int32_t n_max = GR_MIN(GR_ADJUST_LIST_MAX, v->lm->n_list_max - v->n_entry);
    struct row_asked r;
    asked_begin(v, 0, i_out, &r);
    const bool fits = gr_adjust_list_make(&r.asked, v->place, v->entry + v->n_entry, n_max, &v->list[i_out]);
    asked_end(&r);
    if (!fits) {
        v->list[i_out].n = 0;
        v->out[i_out].seq->list_limit = n_max;
        return false;
    }
    v->n_entry += v->list[i_out].n;
    v->sampling[i_out] = &v->out[i_out].seq->sampling;
    return true;
}

/* Before the pass. Returns the lists; NULL: there are none, or all of them are empty. */
static const struct gr_adjust_list *list_rows(struct gr_verifier *v)
{
    v->n_entry = 0;
    v->counts[0].counted = NULL; /* texts are others than in the last pass */
    for (int i = 0; i < v->n_out; i++) {
        if (v->list != NULL) {
            v->list[i].n = 0;
        }
        if (is_adjusted(v->out[i].seq, v->pos[v->out_row[i]])) {
            const bool listed = may_be_listed(v, i) && list_row(v, i);
            *(listed ? &v->n_listed : &v->n_unlisted) += 1;
        }
    }
    return v->n_entry > 0 ? v->list : NULL;
}

/* ---- a pick ---- */

/* The same steps as gr_sampler_pick(), the last two by the kernels. */
static int32_t pick_row(struct gr_verifier *v, int ith, int i_out)
{
    const struct row_pick *o = &v->out[i_out];
    const struct gr_sampling *s = &o->seq->sampling;
    const struct gr_kernels *k = v->lm->kernels;
    const int32_t n = v->lm->n_vocab;
    const float *logits = gr_lm_logits(v->lm, i_out);
    float *scratch = v->scratch + (size_t)ith * (size_t)n;
    int32_t *work = v->work + (size_t)ith * (size_t)n;
    const uint32_t pos = (uint32_t)v->pos[v->out_row[i_out]] + 1;
    const bool adjusted = is_adjusted(o->seq, v->pos[v->out_row[i_out]]);
    const bool greedy = gr_temperature_is_greedy(s->temperature);
    if (gr_lm_has_picked(v->lm, i_out)) {
        if (wants_gap(o)) {
            o->seq->gap = v->lm->picked[i_out].gap;
        }
        return v->lm->picked[i_out].id;
    }
    if (k != NULL && greedy && !adjusted) { /* it finds what is not finite by itself */
        return finish_pick(k, o, logits, n, false);
    }
    if (!gr_lm_row_is_finite(v->lm, i_out)) {
        return GR_PICK_NOT_FINITE;
    }
    if (adjusted) {
        memcpy(scratch, logits, (size_t)n * sizeof(*scratch));
        adjust_row(v, ith, i_out, scratch);
        logits = scratch;
    }
    if (k == NULL) {
        return gr_sampler_choose(s, logits, n, pos, scratch, work);
    }
    if (!greedy) {
        gr_sampler_process(s, logits, scratch, n, work);
        k->add_gumbel(scratch, scratch, n, s->seed, pos, s->choice);
    }
    return finish_pick(k, o, scratch, n, true);
}

static void pick_rows(const struct gr_exec *x, void *arg)
{
    struct gr_verifier *v = arg;
    v->counts[x->ith].counted = NULL; /* texts are others than in the last pass */
    for (int i = x->ith; i < v->n_out; i += x->nth) {
        const struct row_pick *o = &v->out[i];
        *(o->slot == SLOT_CHAIN ? &v->chain_pick[i] : &o->seq->pick[o->slot]) = pick_row(v, x->ith, i);
    }
}

/* ---- judging tokens that were accepted under a view ---- */

/* The committed token that chain row r's pick is compared with. */
static int32_t judged_token(const struct gr_pass_seq *s, int r)
{
    if (r + 1 < s->n_chain) {
        return s->chain_token[r + 1];
    }
    return s->kind == GR_PASS_ROOT && !s->judge_only ? s->token[0] : s->tail;
}

static void judge_chain(const struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    s->n_chain_ok = 0;
    s->correction = GR_NO_CORRECTION;
    for (int r = 0; r < s->n_chain; r++) {
        const int32_t pick = v->chain_pick[v->chain_out[i] + r];
        if (pick == judged_token(s, r)) {
            s->n_chain_ok++;
        } else if (s->exact || pick == GR_PICK_NOT_FINITE) {
            s->correction = pick;
            s->odd_pos = s->pos0 - s->n_chain + r;
            return;
        }
    }
}

/* Chain rows whose KV stands: up to the first mismatch, whose own row is right. */
static int chain_rows(const struct gr_pass_seq *s)
{
    return s->correction != GR_NO_CORRECTION ? s->n_chain_ok + 1 : s->n_chain;
}

static void corrupt(const struct gr_verifier *v, struct gr_pass_seq *s)
{
    if (s->partial && s->corrupt_at >= 0 && s->corrupt_at < s->n_row && s->pick[s->corrupt_at] >= 0) {
        s->pick[s->corrupt_at] = (s->pick[s->corrupt_at] + 1) % v->lm->n_vocab;
    }
}

/* ---- walk and commit ---- */

/* The rows to be copied, when the walk is done: the accepted ones move to their positions, in order, the tail first. */
static int copy_path(struct gr_verifier *v, const struct gr_pass_seq *s, int n_copy)
{
    v->copy_src[n_copy] = scratch_cell(s, 0);
    v->copy_dst[n_copy++] = gr_kv_table_cell(s->table, s->pos0);
    for (int i = 0; i < s->walk.n_path; i++) {
        v->copy_src[n_copy] = scratch_cell(s, s->walk.node[i] + 1);
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
    judge_chain(v, s, i);
    corrupt(v, s);
    if (s->correction != GR_NO_CORRECTION || s->judge_only) {
        s->walk = (struct gr_walk){.bonus = s->correction, .finish = finish_of(s)};
        return n_copy;
    }
    gr_accept_walk(s->kind == GR_PASS_TREE ? &s->tree : &no_tree, s->pick, &s->stop, &s->walk);
    return s->kind == GR_PASS_TREE ? copy_path(v, s, n_copy) : n_copy;
}

/* ---- log-probabilities ---- */

/* Of `token` after out row i_out. */
static void add_logprob(struct gr_verifier *v, struct gr_pass_seq *s, int i_out, int32_t token)
{
    const int32_t n_top = s->n_logprob - 1;
    float *to = s->logprob + (size_t)s->n_logprob_token * (size_t)s->n_logprob;
    struct gr_logprob_row row;
    gr_logprob_row(gr_lm_logits(v->lm, i_out), v->lm->n_vocab, token, n_top, &row);
    GR_ASSERT(row.n == n_top);
    to[0] = row.chosen;
    memcpy(to + 1, row.value, (size_t)n_top * sizeof(*to));
    memcpy(s->logprob_id + (size_t)s->n_logprob_token * (size_t)n_top, row.id, (size_t)n_top * sizeof(*row.id));
    s->n_logprob_token++;
}

/* Tokens that chain rows have judged, and what stands in place of one. */
static void add_judged_logprobs(struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    s->logprob_from = s->pos0 - s->n_chain + 1;
    for (int r = 0; r < s->n_chain_ok; r++) {
        add_logprob(v, s, v->chain_out[i] + r, judged_token(s, r));
    }
    if (s->correction >= 0) {
        add_logprob(v, s, v->chain_out[i] + s->n_chain_ok, s->correction);
    }
}

/* The walk's: out row k is the row's of the same number. */
static void add_walked_logprobs(struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    int row = 0;
    for (int k = 0; k < s->walk.n_path; k++) {
        const int node = s->walk.node[k];
        add_logprob(v, s, v->tree_out[i] + row, s->tree.token[node]);
        row = node + 1;
    }
    if (s->walk.bonus >= 0) {
        add_logprob(v, s, v->tree_out[i] + row, s->walk.bonus);
    }
}

/* After the walk, of the tokens alone that it has made final. */
static void add_logprobs(struct gr_verifier *v, struct gr_pass_seq *s, int i)
{
    const bool picked = s->kind != GR_PASS_PREFILL || s->want_pick;
    s->n_logprob_token = 0;
    if (s->n_logprob == 0 || !picked) {
        return;
    }
    s->logprob = v->logprob + (size_t)v->n_logprob * GR_LOGPROB_ROW;
    s->logprob_id = v->logprob_id + (size_t)v->n_logprob * GR_LOGPROB_MAX;
    s->logprob_from = s->kind == GR_PASS_PREFILL ? s->pos0 + s->n_row : s->pos0 + 1;
    if (s->n_chain > 0 && s->exact) {
        add_judged_logprobs(v, s, i);
    }
    if (s->correction == GR_NO_CORRECTION && !s->judge_only) {
        add_walked_logprobs(v, s, i);
    }
    v->n_logprob += s->n_logprob_token;
}

/* A view that rests on tokens which do not stand is cut. */
static void settle_view(const struct gr_verifier *v, struct gr_pass_seq *s)
{
    if (v->lm->view == NULL) {
        return;
    }
    struct gr_kv_view *view = &v->lm->view[s->session];
    if (s->n_chain > 0) {
        gr_kv_view_truncate(view, s->pos0 - s->n_chain + chain_rows(s));
    }
    s->dense_from = view->dense_from;
}

/* ---- features ---- */

static float *kept_capture(const struct gr_verifier *v, const struct gr_pass_seq *s, int i)
{
    const size_t width = (size_t)(v->lm->n_capture * v->lm->capture_width);
    GR_ASSERT(v->kept != NULL && i >= 0 && i < GR_CAPTURE_KEEP);
    return v->kept + ((size_t)s->session * GR_CAPTURE_KEEP + (size_t)i) * width;
}

/* The captured states of sequence i's committed rows, after those that were kept; the list goes on at n. */
static int add_captures(struct gr_verifier *v, struct gr_pass_seq *s, int i, int n)
{
    const int n_chain = s->n_chain > 0 ? chain_rows(s) : 0;
    const bool path = s->kind == GR_PASS_TREE;
    const int n_row = n_chain > 0 && s->correction != GR_NO_CORRECTION ? 0 : path ? 1 + s->walk.n_path : s->n_row;
    s->n_feature = s->n_kept + n_chain + n_row;
    s->feature = v->feature_row + n;
    GR_ASSERT(n + s->n_feature <= v->n_feature_max);
    for (int k = 0; k < s->n_kept; k++) {
        v->capture[n++] = kept_capture(v, s, k);
    }
    for (int r = 0; r < n_chain; r++) {
        v->capture[n++] = gr_lm_capture(v->lm, v->row0[i] + r);
    }
    for (int r = 0; r < n_row; r++) {
        const int row = path && r > 0 ? s->walk.node[r - 1] + 1 : r;
        v->capture[n++] = gr_lm_capture(v->lm, v->row0[i] + s->n_chain + row);
    }
    return n;
}

/* What is shipped of row i is v->capture[i] now; rows that are bf16 stay where they are until the next pass. */
static void ship_rows(struct gr_verifier *v)
{
    for (int i = 0; i < v->n_feature; i++) {
        const float *from = v->capture[i];
        if (v->lm->shipped != NULL) {
            v->feature_row[i] = (const uint16_t *)(const void *)from;
            continue;
        }
        uint16_t *to = v->feature + (size_t)i * (size_t)v->feature_width;
        for (int k = 0; k < v->feature_width; k++) {
            to[k] = gr_bf16_from_f32(from[k]);
        }
        v->feature_row[i] = to;
    }
}

static void fuse_captures(struct gr_verifier *v)
{
    const size_t width = (size_t)v->lm->fused_width;
    for (int at = 0; at < v->n_feature; at += v->lm->n_row_max) {
        const int n = GR_MIN(v->n_feature - at, v->lm->n_row_max);
        gr_lm_fuse(v->lm, n, v->capture + at, v->fused + (size_t)at * width);
        for (int i = at; i < at + n; i++) {
            v->capture[i] = v->fused + (size_t)i * width;
        }
    }
}

static void fuse(struct gr_verifier *v, struct gr_pass *pass)
{
    int n = 0;
    for (int i = 0; i < pass->n_seq; i++) {
        struct gr_pass_seq *s = &pass->seq[i];
        if (s->want_features && s->keep_capture) {
            memcpy(kept_capture(v, s, s->n_kept), gr_lm_capture(v->lm, v->row0[i]), gr_lm_capture_bytes(v->lm));
        } else if (s->want_features) {
            n = add_captures(v, s, i, n);
        }
    }
    v->n_feature = n;
    if (gr_lm_fuses(v->lm)) {
        fuse_captures(v);
    }
    ship_rows(v);
}

static bool wants_capture(const struct gr_pass *pass)
{
    bool wanted = false;
    for (int i = 0; i < pass->n_seq; i++) {
        wanted = wanted || pass->seq[i].want_features;
    }
    return wanted;
}

/* No rows: what was kept is wanted now. */
static void run_fuse_pass(struct gr_verifier *v, struct gr_pass *pass)
{
    const uint64_t t0 = gr_clock_ns();
    fuse(v, pass);
    pass->status = GR_OK;
    pass->n_row = 0;
    pass->forward_ns = pass->sample_ns = 0;
    pass->commit_ns = gr_clock_ns() - t0;
}

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
        run_fuse_pass(v, pass);
        return;
    }
    for (int i = 0; i < pass->n_seq; i++) {
        add_seq(v, &pass->seq[i], i);
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
                                   .list = list_rows(v),
                                   .want_capture = wants_capture(pass)};
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
    gr_team_run(gr_lm_pick_team(v->lm, v->n_out), pick_rows, v);
    const uint64_t t2 = gr_clock_ns();
    int n_copy = 0;
    for (int i = 0; i < pass->n_seq; i++) {
        n_copy = walk_seq(v, &pass->seq[i], i, n_copy);
        add_logprobs(v, &pass->seq[i], i);
        settle_view(v, &pass->seq[i]);
    }
    gr_lm_copy_cells(v->lm, n_copy, v->copy_src, v->copy_dst);
    if (v->lm->fused_width > 0) {
        fuse(v, pass);
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
