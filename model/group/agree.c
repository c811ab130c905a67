#include "model/group/agree.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

#define SAME_BYTES_MAX 256

static enum gr_status join_patiently(struct gr_group *g, float *out, size_t n)
{
    const uint64_t limit_ns = g->limit_ns;
    g->limit_ns = 0;
    const enum gr_status st = gr_group_join(g, out, n);
    g->limit_ns = limit_ns;
    return st;
}

enum gr_status gr_group_broadcast_patiently(struct gr_group *g, void *data, size_t bytes)
{
    const uint64_t limit_ns = g->limit_ns;
    g->limit_ns = 0;
    const enum gr_status st = gr_group_broadcast(g, data, bytes);
    g->limit_ns = limit_ns;
    return st;
}

/* Each rank has one value of the sum, the others add 0 there. */
enum gr_status gr_group_least(struct gr_group *g, int *n)
{
    float all[GR_GROUP_RANK_MAX];
    GR_ASSERT(*n >= 0 && *n <= 1 << 24);
    for (int r = 0; r < g->n_rank; r++) {
        g->part[r] = r == g->rank ? (float)*n : 0.0f;
    }
    GR_TRY(join_patiently(g, all, (size_t)g->n_rank));
    for (int r = 0; r < g->n_rank; r++) {
        *n = GR_MIN(*n, (int)all[r]);
    }
    return GR_OK;
}

/* Bytes are numbers here, of which all ranks but one add 0. */
enum gr_status gr_group_all_give(struct gr_group *g, const void *mine, size_t bytes, void *all)
{
    const size_t n = (size_t)g->n_rank * bytes, at = (size_t)g->rank * bytes;
    float *sum = calloc(n, sizeof(*sum));
    GR_ASSERT(n <= g->n_part_max);
    if (sum == NULL) {
        log_error("out of memory for a tensor-parallel group");
        return GR_ENOMEM; /* the others wait until this rank's process has ended */
    }
    memset(g->part, 0, n * sizeof(*sum));
    for (size_t i = 0; i < bytes; i++) {
        g->part[at + i] = (float)((const uint8_t *)mine)[i];
    }
    const enum gr_status st = join_patiently(g, sum, n);
    for (size_t i = 0; i < n && st == GR_OK; i++) {
        ((uint8_t *)all)[i] = (uint8_t)sum[i];
    }
    free(sum);
    return st;
}

enum gr_status gr_group_all_ok(struct gr_group *g, enum gr_status st)
{
    float n_failed = 0.0f;
    g->part[0] = st == GR_OK ? 0.0f : 1.0f;
    GR_TRY(join_patiently(g, &n_failed, 1));
    return st != GR_OK ? st : n_failed > 0.0f ? GR_ENOMEM : GR_OK;
}

enum gr_status gr_group_same(struct gr_group *g, const char *what, const void *data, size_t bytes)
{
    char of_0[SAME_BYTES_MAX];
    GR_ASSERT(bytes <= sizeof(of_0));
    memcpy(of_0, data, bytes);
    GR_TRY(gr_group_broadcast(g, of_0, bytes));
    enum gr_status st = GR_OK;
    if (memcmp(of_0, data, bytes) != 0) {
        log_error("tensor-parallel rank %d has another %s than rank 0: start all ranks with the same model and options",
                  g->rank, what);
        st = GR_EMISMATCH;
    }
    return gr_group_all_ok(g, st);
}
