/* The target's own pick at each row, and what requests ask of its logits. */
#include "target_worker/compute/verifier_internal.h"

#include <math.h>
#include <string.h>

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

const struct gr_adjust_list *verifier_list_rows(struct gr_verifier *v)
{
    v->n_entry = 0;
    v->counts[0].counted = NULL; /* texts are others than in the last pass */
    for (int i = 0; i < v->n_out; i++) {
        if (v->list != NULL) {
            v->list[i].n = 0;
        }
        if (verifier_is_adjusted(v->out[i].seq, v->pos[v->out_row[i]])) {
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
    const bool adjusted = verifier_is_adjusted(o->seq, v->pos[v->out_row[i_out]]);
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

void verifier_pick_rows(const struct gr_exec *x, void *arg)
{
    struct gr_verifier *v = arg;
    v->counts[x->ith].counted = NULL; /* texts are others than in the last pass */
    for (int i = x->ith; i < v->n_out; i += x->nth) {
        const struct row_pick *o = &v->out[i];
        *(o->slot == SLOT_CHAIN ? &v->chain_pick[i] : &o->seq->pick[o->slot]) = pick_row(v, x->ith, i);
    }
}
