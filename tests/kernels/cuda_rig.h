/* For the checks of the CUDA kernels: device memory, random values, sessions of logical keys and their places in a
 * pool, the definition of attention in double. C++ host code. A CUDA error ends the program. */
#ifndef GR_TESTS_KERNELS_CUDA_RIG_H
#define GR_TESTS_KERNELS_CUDA_RIG_H

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/tiles.h"
#include "kernels/cuda/device/cuda_status.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

struct rng {
    uint64_t s;
    uint32_t next()
    {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        return (uint32_t)(s >> 32);
    }
    int below(int n)
    {
        return (int)((uint64_t)next() * (uint64_t)n >> 32);
    }
    float unit() /* [-1, 1) */
    {
        return (float)next() * 0x1p-31f - 1.0f;
    }
};

/* Owned device memory of n values. */
template <class T> struct dev {
    T *p = nullptr;
    size_t n = 0;
    explicit dev(size_t count) : n(count)
    {
        CUDA_OK(cudaMalloc(&p, std::max<size_t>(n, 1) * sizeof(T)));
    }
    explicit dev(const std::vector<T> &v) : dev(v.size())
    {
        put(v);
    }
    dev(const dev &) = delete;
    dev(dev &&o) : p(o.p), n(o.n)
    {
        o.p = nullptr;
    }
    ~dev()
    {
        cudaFree(p);
    }
    void put(const std::vector<T> &v)
    {
        CUDA_OK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> get() const
    {
        std::vector<T> v(n);
        CUDA_OK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
    void poison() /* every value a NaN, or -1 */
    {
        CUDA_OK(cudaMemset(p, 0xff, n * sizeof(T)));
    }
};

struct shape {
    int n_head, n_kv_head, head_dim;
    size_t kv_size() const /* of a key */
    {
        return (size_t)n_kv_head * head_dim;
    }
    size_t q_size() const
    {
        return (size_t)n_head * head_dim;
    }
};

/* Keys 0 .. n_base - 1 are the base, n_base + r is row r's own. parent[r]: a row, or -1 (the base). */
struct session {
    shape m;
    int n_base, n_row;
    std::vector<int> parent;
    std::vector<uint16_t> k, v; /* (n_base + n_row, n_kv_head, head_dim) */
    std::vector<uint16_t> q;    /* (n_row, n_head, head_dim) */
    std::vector<int> path(int r) const
    {
        std::vector<int> p;
        for (int i = r; i >= 0; i = parent[i]) {
            p.push_back(i);
        }
        std::reverse(p.begin(), p.end());
        return p;
    }
};
/* n_branch 1: a chain; more: a row's parent is up to so many rows before it. */
session make_session(shape m, int n_base, int n_row, int n_branch, float q_scale, uint64_t seed);

/* Blocks in random order; all cells that hold nothing are NaN. */
struct pool {
    shape m;
    std::vector<uint16_t> kv;
    std::vector<int32_t> order;
    size_t n_used = 0;
    pool(shape m, int n_block, uint64_t seed);
    int32_t take()
    {
        return order.at(n_used++);
    }
    void put(int32_t cell, const uint16_t *k, const uint16_t *v);
};

/* A session's rows as an attention call sees them. */
struct placed {
    const session *s;
    std::vector<int> row; /* of the session */
    std::vector<int32_t> block, limit, scratch_block, n_anc;
    std::vector<int16_t> anc;
    int n_slot = 0;
    std::vector<int32_t> sparse; /* (n_list, sparse_stride); empty: all is visible */
    int n_sparse = 0, dense_from = 0, sparse_stride = 0;
    int window = 0; /* 0: none; the same of all sequences of a call */
};
/* The base in the pool, all rows in scratch, in n_slot slots (0: few more than rows); the first n_row of them are asked
 * for. */
placed place_tree(pool &p, const session &s, int n_row, uint64_t seed, int n_slot = 0);
/* Row r as a chain row: its path lies in the pool after the base. */
placed place_path(pool &p, const session &s, int r);
/* All rows of a chain as chain rows. */
placed place_chain(pool &p, const session &s);
/* A view of n_sparse of the blocks below dense_from, different ones for each KV head; for two layers. */
void add_view(placed &t, int n_sparse, int dense_from, uint64_t seed);

/* One call, layer 1 of lists. Returns (rows, n_head * head_dim); guard bands are checked. */
struct call {
    shape m;
    std::vector<placed> seq;
    bool refused = false; /* the plan noted an error */
    int n_split_max = GR_CUDA_SPLIT_MAX;
    std::vector<uint16_t> run(const dev<uint16_t> &kv, int n_repeat = 1);
};

/* Largest ||out - ref|| / ||ref|| over the rows of t (every `step`-th) and all heads. */
double worst_error(const placed &t, const uint16_t *out, int step);

float bf16_value(uint16_t h);
uint16_t bf16_of(float x);

#endif
