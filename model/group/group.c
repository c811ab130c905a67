#include "model/group/group.h"

#include "common/base/log.h"

#include <inttypes.h>

static const char *kind_name(uint32_t kind)
{
    switch (kind) {
    case GR_GROUP_JOIN:
        return "a sum";
    case GR_GROUP_GATHER:
        return "a gathering";
    case GR_GROUP_BROADCAST:
        return "a broadcast";
    default:
        return "nothing that is known";
    }
}

enum gr_status gr_group_check_call(struct gr_group *g, int peer, const struct gr_group_call *mine,
                                   const struct gr_group_call *its)
{
    if (mine->kind == its->kind && mine->number == its->number && mine->n == its->n &&
        (mine->step == its->step || mine->kind == GR_GROUP_BROADCAST)) {
        return GR_OK;
    }
    log_error("tensor-parallel rank %d is in step %" PRIu64 " at call %" PRIu32 ", %s of %" PRIu64
              ", and rank %d in step %" PRIu64 " at call %" PRIu32 ", %s of %" PRIu64 ": the group ends",
              g->rank, mine->step, mine->number, kind_name(mine->kind), mine->n, peer, its->step, its->number,
              kind_name(its->kind), its->n);
    g->status = GR_EPROTO;
    return g->status;
}

enum gr_status gr_group_late(struct gr_group *g, int peer)
{
    log_error("tensor-parallel rank %d: rank %d has not come to step %" PRIu64 " within %.1f s: the group ends",
              g->rank, peer, g->step, (double)g->limit_ns / 1e9);
    g->status = GR_ETIMEDOUT;
    return g->status;
}

enum gr_status gr_group_lost(struct gr_group *g, int peer)
{
    log_error("tensor-parallel rank %d: rank %d is gone in step %" PRIu64 ": the group ends", g->rank, peer, g->step);
    g->status = GR_ECLOSED;
    return g->status;
}

static void sum_2(const float *const *p, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = p[0][i] + p[1][i];
    }
}

static void sum_4(const float *const *p, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (p[0][i] + p[1][i]) + (p[2][i] + p[3][i]);
    }
}

static void sum_8(const float *const *p, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const float left = (p[0][i] + p[1][i]) + (p[2][i] + p[3][i]);
        const float right = (p[4][i] + p[5][i]) + (p[6][i] + p[7][i]);
        out[i] = left + right;
    }
}

void gr_group_sum(const float *const *part, int n_rank, size_t n, float *out)
{
    switch (n_rank) {
    case 1:
        for (size_t i = 0; i < n; i++) {
            out[i] = part[0][i];
        }
        break;
    case 2:
        sum_2(part, n, out);
        break;
    case 4:
        sum_4(part, n, out);
        break;
    default:
        GR_ASSERT(n_rank == 8);
        sum_8(part, n, out);
    }
}
