#include "target_worker/compute/calibrate.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "target_worker/machine/pass.h"

#define PASSES 20.0       /* passes of one row that calibration of a large model may take as long as */
#define BUDGET_MAX_NS 3e9 /* the most time that it takes, in ns */
#define CONTEXT 64        /* tokens that the rows see */
#define N_RUN 2
#define FLAT 2.0    /* where 32 rows take less than this many times one row, larger passes are measured, too */
#define N_SEQ_MAX 4 /* of up to GR_TREE_MAX rows each */

struct measure {
    const struct gr_calibration *config;
    struct gr_pass_seq seq[N_SEQ_MAX];
    struct gr_kv_table table;
    uint64_t end_ns;
};

/* A chain of n_row - 1 nodes below the last of `context` tokens. The KV it sees is whatever is there. */
static void fill_seq(struct measure *m, int slot, int32_t n_row, int32_t context)
{
    struct gr_pass_seq *q = &m->seq[slot];
    *q = (struct gr_pass_seq){.session = slot,
                              .kind = n_row > 1 ? GR_PASS_TREE : GR_PASS_ROOT,
                              .pos0 = context - 1,
                              .n_row = n_row,
                              .table = &m->table,
                              .stop = {.n_new_max = GR_TREE_MAX}};
    q->token = &q->tail;
    q->tree.n = n_row - 1;
    for (int i = 0; i < q->tree.n; i++) {
        q->tree.token[i] = i % 2;
        q->tree.parent[i] = (int16_t)(i - 1);
    }
    for (int b = 0; b < GR_SCRATCH_BLOCKS; b++) {
        q->scratch_block[b] = m->config->n_pool_block + slot * GR_SCRATCH_BLOCKS + b;
    }
}

/* One pass of as few sessions as can have so many rows. */
static enum gr_status run_once(struct measure *m, int32_t n_row, int32_t context, double *ns)
{
    struct gr_pass pass = {.n_seq_max = N_SEQ_MAX, .seq = m->seq};
    for (int32_t left = n_row; left > 0; left -= GR_TREE_MAX) {
        fill_seq(m, pass.n_seq++, GR_MIN(left, GR_TREE_MAX), context);
    }
    gr_verifier_run(m->config->verifier, &pass);
    *ns = (double)(pass.forward_ns + pass.sample_ns + pass.commit_ns);
    return pass.status;
}

/* The shortest of a few in a row: the first has the caches of another size. GR_AGAIN: the time is used up. */
static enum gr_status run_some(struct measure *m, int32_t n_row, int32_t context, double *ns)
{
    for (int i = 0; i < N_RUN; i++) {
        double once = 0.0;
        if (gr_clock_ns() >= m->end_ns) {
            return GR_AGAIN;
        }
        GR_TRY(run_once(m, n_row, context, &once));
        *ns = *ns > 0.0 && *ns < once ? *ns : once;
    }
    return GR_OK;
}

/* Each size in turn, as far as time goes. n_out: sizes that were measured. */
static enum gr_status measure(struct measure *m, int32_t context, const int32_t *n_row, int n, double *ns, int *n_out)
{
    enum gr_status st = GR_OK;
    *n_out = 0;
    for (int i = 0; i < n && st == GR_OK; i++) {
        ns[i] = 0.0;
        st = run_some(m, n_row[i], context, &ns[i]);
        *n_out = ns[i] > 0.0 ? i + 1 : *n_out;
    }
    return st == GR_AGAIN ? GR_OK : st;
}

/* Of n sizes, those that there are sessions for. */
static int n_possible(const struct measure *m, const int32_t *n_row, int n)
{
    const int32_t most = GR_MIN(m->config->n_session_max, N_SEQ_MAX) * GR_TREE_MAX;
    int n_more = 0;
    while (n_more < n && n_row[n_more] <= most) {
        n_more++;
    }
    return n_more;
}

static enum gr_status measure_sizes(struct measure *m, struct gr_cost_table *out)
{
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 72, 96, 128, 136, 192, 256};
    const int n_always = 6; /* up to 32 */
    double ns[GR_ARRAY_LEN(rows)];
    double cold = 0.0;
    int n = 0;
    GR_TRY(run_once(m, 1, CONTEXT, &cold)); /* it touches the memory, for the first session, too */
    /* A large model needs more: its prices are worth some twenty passes, which loading it took a multiple of. */
    const uint64_t some_ns = (uint64_t)GR_MIN(PASSES * cold, BUDGET_MAX_NS);
    m->end_ns = gr_clock_ns() + GR_MAX(m->config->budget_ns, some_ns);
    GR_TRY(measure(m, CONTEXT, rows, n_always, ns, &n));
    /* A GPU: passes get dearer by steps, where the weights are read once more. Elsewhere these would be the dearest
     * passes of all, in proportion to their rows. */
    if (n == n_always && ns[n - 1] < FLAT * ns[0]) {
        int n_more = 0;
        const int n_wanted = n_possible(m, rows + n, (int)GR_ARRAY_LEN(rows) - n);
        GR_TRY(measure(m, CONTEXT, rows + n, n_wanted, ns + n, &n_more));
        n += n_more;
    }
    if (n >= 2) {
        gr_cost_table_calibrate(out, n, rows, ns);
    }
    return GR_OK;
}

enum gr_status gr_calibrate(const struct gr_calibration *c, struct gr_cost_table *out)
{
    struct measure m = {.config = c};
    const int32_t n_token = GR_MIN(c->n_ctx_max, c->n_pool_block * GR_KV_BLOCK_TOKENS);
    gr_cost_table_init(out);
    if (n_token < CONTEXT + GR_TREE_MAX) {
        return GR_OK; /* too small a pool to learn from */
    }
    GR_TRY(gr_kv_table_init(&m.table, n_token / GR_KV_BLOCK_TOKENS));
    for (int32_t i = 0; i < m.table.n_block_max; i++) {
        m.table.block[m.table.n_block++] = i;
    }
    const enum gr_status st = measure_sizes(&m, out);
    gr_kv_table_finish(&m.table);
    log_info("calibrated: a pass of 1 row %.0f us, 8 rows %.0f us, 64 rows %.0f us, 128 rows %.0f us, 256 rows %.0f us",
             out->row_ns[0] / 1e3, out->row_ns[5] / 1e3, out->row_ns[11] / 1e3, out->row_ns[14] / 1e3,
             out->row_ns[17] / 1e3);
    return st;
}
