/* A rank and its joins (rank.h). */
#include "tests/ranks/rank.h"

#include "common/base/clock.h"
#include "model/group/agree.h"
#include "model/group/group_memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_PART_MAX 65536 /* of the host's group, which agrees on what lies in GPUs */

/* ---- what is expected ---- */

float check_value(int rank, int turn, size_t i)
{
    const uint64_t h = ((uint64_t)rank * 1000003u + (uint64_t)turn * 7919u + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return ((float)(int32_t)(h >> 32) * 0x1p-31f) * exp2f((float)((h >> 8) % 12));
}

float check_tree(int n_rank, int turn, size_t i)
{
    float v[GR_GROUP_RANK_MAX];
    for (int r = 0; r < n_rank; r++) {
        v[r] = check_value(r, turn, i);
    }
    for (int apart = 1; apart < n_rank; apart *= 2) {
        for (int r = 0; r < n_rank; r += 2 * apart) {
            v[r] += v[r + apart];
        }
    }
    return v[0];
}

static bool is_right(bool exact, float got, float want)
{
    return exact ? memcmp(&got, &want, sizeof(got)) == 0 : fabsf(got - want) <= 1e-2f * (1.0f + fabsf(want));
}

/* ---- one rank ---- */

static struct gr_cuda_join_args join_of(const struct rank *k, int buffer, int n_row)
{
    return (struct gr_cuda_join_args){
        .buffer = buffer, .x = k->x, .n = k->of->hidden, .n_row = n_row, .n_row_true = k->n_true};
}

enum gr_status rank_enqueue_joins(void *arg, int n)
{
    struct rank *k = arg;
    for (int i = 0; i < k->n_join; i++) {
        const struct gr_cuda_join_args a = join_of(k, i % 2, n);
        GR_TRY(k->ranks->ops->enqueue_join(k->ranks, &a));
    }
    return GR_OK;
}

enum gr_status rank_put(struct rank *k, void *to, const void *from, size_t bytes)
{
    return gr_cuda_upload(&k->device, to, from, bytes, "what is joined");
}

enum gr_status rank_get(struct rank *k, void *to, const void *from, size_t bytes)
{
    GR_TRY(gr_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, k->device.stream), "a sum"));
    return gr_cuda_wait(&k->device, "a sum");
}

enum gr_status rank_finish_pass(struct rank *k)
{
    GR_TRY(gr_cuda_wait(&k->device, "joins"));
    return k->ranks->ops->status(k->ranks);
}

void rank_begin_pass(struct rank *k)
{
    if (k->ranks->ops->begin != NULL) {
        k->ranks->ops->begin(k->ranks);
    }
}

enum gr_status rank_fill(struct rank *k, int turn, int n_row)
{
    const size_t n = (size_t)n_row * (size_t)k->of->hidden;
    for (size_t i = 0; i < n; i++) {
        k->host[i] = check_value(k->group->rank, turn, i);
    }
    GR_TRY(rank_put(k, k->ranks->part[turn % 2], k->host, n * sizeof(float)));
    const int32_t n_true = n_row;
    return rank_put(k, k->n_true, &n_true, sizeof(n_true));
}

enum gr_status rank_check_sum(struct rank *k, int first, int n_turn, int n_row)
{
    const size_t n = (size_t)n_row * (size_t)k->of->hidden;
    GR_TRY(rank_get(k, k->host, k->x, n * sizeof(float)));
    for (size_t i = 0; i < n; i++) {
        float want = 0.0f;
        for (int t = 0; t < n_turn; t++) {
            want += check_tree(k->of->n_rank, first + t, i);
        }
        if (!is_right(k->of->exact, k->host[i], want) && k->n_bad++ < 3) {
            fprintf(stderr, "# rank %d: value %zu of %d rows is %a, and should be %a\n", k->group->rank, i, n_row,
                    (double)k->host[i], (double)want);
        }
    }
    return GR_OK;
}

enum gr_status rank_clear(struct rank *k)
{
    GR_TRY(gr_group_all_ok(k->group, GR_OK));
    const size_t bytes = (size_t)k->of->n_row_max * (size_t)k->of->hidden * sizeof(float);
    return gr_cuda_check(cudaMemsetAsync(k->x, 0, bytes, k->device.stream), "x");
}

enum gr_status rank_check_joins(struct rank *k, int turn, int n_row)
{
    GR_TRY(rank_clear(k));
    GR_TRY(rank_fill(k, turn, n_row));
    GR_TRY(rank_fill(k, turn + 1, n_row));
    rank_begin_pass(k);
    k->n_join = 2;
    GR_TRY(rank_enqueue_joins(k, n_row));
    GR_TRY(rank_finish_pass(k));
    return rank_check_sum(k, turn, 2, n_row);
}

enum gr_status rank_check_graph(struct rank *k, int n_row, int n_launch)
{
    cudaGraphExec_t graph;
    k->n_join = 2;
    GR_TRY(gr_cuda_graph_capture(&k->device, rank_enqueue_joins, k, n_row, &graph));
    GR_TRY(gr_group_all_ok(k->group, GR_OK));
    for (int i = 0; i < n_launch; i++) { /* parts are written anew: NCCL adds up in place */
        GR_TRY(rank_clear(k));
        GR_TRY(rank_fill(k, 2 * i, n_row));
        GR_TRY(rank_fill(k, 2 * i + 1, n_row));
        rank_begin_pass(k);
        GR_TRY(gr_cuda_check(cudaGraphLaunch(graph, k->device.stream), "graph"));
        GR_TRY(rank_finish_pass(k));
        GR_TRY(rank_check_sum(k, 2 * i, 2, n_row));
    }
    (void)cudaGraphExecDestroy(graph);
    return GR_OK;
}

/* ---- a process ---- */

enum gr_status rank_open(struct rank *k, const struct checked_group *of, void *memory, int rank)
{
    const int n_rank = of->n_rank;
    const size_t n = (size_t)of->n_row_max * (size_t)of->hidden;
    const struct gr_group_memory_config g = {
        .memory = memory, .rank = rank, .n_rank = n_rank, .n_part_max = N_PART_MAX, .limit_ns = of->limit_ns};
    void *p = NULL;
    k->of = of;
    GR_TRY(gr_group_memory_create(&g, &k->group));
    GR_TRY(gr_cuda_device_open(&k->device, rank));
    GR_TRY(gr_cuda_take(&k->device, "x", n * sizeof(float), &p));
    k->x = p;
    GR_TRY(gr_cuda_take(&k->device, "rows", sizeof(int32_t), &p));
    k->n_true = p;
    if (rank == 0) {
        GR_TRY(gr_cuda_take(&k->device, "logits", 1 << 20, &p));
        k->logits = p;
    }
    k->host = malloc(n * sizeof(float));
    struct gr_cuda_ranks_config c = {.group = k->group,
                                     .device = &k->device,
                                     .n_part = n,
                                     .hidden = of->hidden,
                                     .logits = k->logits,
                                     .n_out_max = CHECK_N_OUT,
                                     .logits_stride = n_rank * CHECK_COLUMNS};
    for (int r = 0; r <= n_rank; r++) {
        c.begin[r] = r * CHECK_COLUMNS;
    }
    return of->maker->create(of->maker, &c, &k->ranks);
}

/* Who is waited for goes last. */
void rank_close(struct rank *k)
{
    gr_cuda_ranks_destroy(k->ranks);
    gr_cuda_device_close(&k->device);
    gr_group_destroy(k->group);
    free(k->host);
}

size_t check_group_bytes(int n_rank)
{
    return gr_group_memory_bytes(n_rank, N_PART_MAX);
}
