#include "target_worker/calibrate.h"

#include "common/clock.h"
#include "common/log.h"
#include "target_worker/pass.h"

#define SHORT_CTX 64
#define LONG_CTX 2048
#define FEW_ROWS 1
#define MANY_ROWS 16
#define N_RUN 3

struct measure {
    const struct gr_calibration *config;
    struct gr_pass_seq seq;
    struct gr_kv_table table;
    uint64_t end_ns;
};

/* One tree pass: a chain of n_row - 1 nodes below the last of `context` tokens. The KV it sees is whatever is there. */
static enum gr_status run_once(struct measure *m, int32_t n_row, int32_t context, double *ns)
{
    struct gr_pass_seq *q = &m->seq;
    *q = (struct gr_pass_seq){.kind = n_row > 1 ? GR_PASS_TREE : GR_PASS_ROOT, .pos0 = context - 1, .n_row = n_row,
                              .table = &m->table, .stop = {.n_new_max = GR_TREE_MAX}};
    q->token = &q->tail;
    q->tree.n = n_row - 1;
    for (int i = 0; i < q->tree.n; i++) {
        q->tree.token[i] = i % 2;
        q->tree.parent[i] = (int16_t)(i - 1);
    }
    for (int b = 0; b < GR_SCRATCH_BLOCKS; b++) {
        q->scratch_block[b] = m->config->n_pool_block + b;
    }
    struct gr_pass pass = {.n_seq = 1, .n_seq_max = 1, .seq = q};
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

static struct gr_pass_load load_of(int32_t n_row, int32_t context)
{
    const struct gr_pass_load none = {0};
    return gr_pass_load_add(&none, n_row, context);
}

static enum gr_status measure_rows(struct measure *m, struct gr_cost_table *out)
{
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32, 64};
    double ns[GR_ARRAY_LEN(rows)] = {0};
    double cold = 0.0;
    int n = 0;
    enum gr_status st = run_once(m, 1, SHORT_CTX, &cold); /* it touches the memory, for the first session, too */
    m->end_ns = gr_clock_ns() + m->config->budget_ns;
    for (int i = 0; i < (int)GR_ARRAY_LEN(rows) && st == GR_OK; i++) {
        st = run_some(m, rows[i], SHORT_CTX, &ns[i]);
        n = ns[i] > 0.0 ? i + 1 : n;
    }
    if (n >= 2) {
        gr_cost_table_calibrate(out, n, rows, ns);
    }
    return st == GR_AGAIN ? GR_OK : st;
}

static enum gr_status measure_context(struct measure *m, int32_t context, struct gr_cost_table *out)
{
    const struct gr_pass_load few = load_of(FEW_ROWS, context);
    const struct gr_pass_load many = load_of(MANY_ROWS, context);
    double few_ns = 0.0;
    double many_ns = 0.0;
    enum gr_status st = run_some(m, FEW_ROWS, context, &few_ns);
    if (st == GR_OK) {
        st = run_some(m, MANY_ROWS, context, &many_ns);
    }
    if (many_ns > 0.0) {
        gr_cost_table_set_context(out, &few, few_ns, &many, many_ns);
    }
    return st == GR_AGAIN ? GR_OK : st;
}

enum gr_status gr_calibrate(const struct gr_calibration *c, struct gr_cost_table *out)
{
    struct measure m = {.config = c};
    const int32_t n_token = GR_MIN(c->n_ctx_max, c->n_pool_block * GR_KV_BLOCK_TOKENS);
    const int32_t context = GR_MIN(LONG_CTX, n_token - GR_TREE_MAX);
    gr_cost_table_init(out);
    if (context < 2 * SHORT_CTX) {
        return GR_OK; /* too small a pool to learn from */
    }
    GR_TRY(gr_kv_table_init(&m.table, n_token / GR_KV_BLOCK_TOKENS));
    for (int32_t i = 0; i < m.table.n_block_max; i++) {
        m.table.block[m.table.n_block++] = i;
    }
    enum gr_status st = measure_rows(&m, out);
    if (st == GR_OK) {
        st = measure_context(&m, context, out);
    }
    gr_kv_table_finish(&m.table);
    log_info("calibrated: a pass of 1 row %.0f us, 8 rows %.0f us, 64 rows %.0f us", out->row_ns[0] / 1e3,
             out->row_ns[5] / 1e3, out->row_ns[11] / 1e3);
    return st;
}
