/* Joins of ranks (kernels/cuda/group/join.h) for every number of rows that a pass of decoding has, and for a spread of
 * larger ones, in one shot and in two: each rank has the bits of the tree, and rows after the last are left alone. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_ranks_rig.h"

#include <cmath>
#include <cstring>
#include <string>

static constexpr uint64_t PATIENT = UINT64_C(60000000000);

/* Parts of all ranks and their sum, as many rows as the largest join has; a join of fewer takes the first ones. */
struct join_rows {
    int n, n_row_max;
    std::vector<float> part[GR_CUDA_PEER_MAX];
    std::vector<float> sum;

    /* Values of widely different sizes, so that an order of sums is seen. */
    void fill(std::vector<float> &v, uint64_t seed) const
    {
        rng g{seed};
        v.resize((size_t)n_row_max * n);
        for (float &x : v) {
            const float value = g.unit();
            x = std::ldexp(value, g.below(12));
        }
    }

    join_rows(int n_rank, int n_, int n_row_max_) : n(n_), n_row_max(n_row_max_)
    {
        std::vector<float> v[GR_CUDA_PEER_MAX];
        for (int r = 0; r < n_rank; r++) {
            fill(part[r], 77 + (uint64_t)r);
            v[r] = part[r];
        }
        for (int apart = 1; apart < n_rank; apart *= 2) {
            for (int r = 0; r < n_rank; r += 2 * apart) {
                for (size_t i = 0; i < v[r].size(); i++) {
                    v[r][i] += v[r + apart][i];
                }
            }
        }
        sum = v[0];
    }
};

/* Whether rank r's x is the sum in both buffers' joins, and 0 where there are no rows. */
static bool join_one(rank_gpu &r, const join_rows &all, dev<float> &x, int n_row)
{
    const size_t n_value = (size_t)n_row * all.n;
    const dev<int32_t> n_true(std::vector<int32_t>{n_row});
    bool ok = true;
    for (int buffer = 0; buffer < 2; buffer++) {
        float *const part = r.part->p + (size_t)buffer * r.peers.n_part;
        CUDA_OK(cudaMemset(x.p, 0, x.n * sizeof(float)));
        CUDA_OK(cudaMemcpy(part, all.part[r.rank].data(), n_value * sizeof(float), cudaMemcpyHostToDevice));
        CUDA_OK(cudaDeviceSynchronize());
        gr_cuda_join_args j{};
        j.buffer = buffer, j.x = x.p, j.n = all.n;
        j.n_row = std::min(n_row + 3, all.n_row_max), j.n_row_true = n_true.p;
        ok = ok && gr_cuda_join(&r.peers, &j, r.stream) == GR_OK;
        CUDA_OK(cudaStreamSynchronize(r.stream));
        std::vector<float> got(std::min(n_value + (size_t)all.n, x.n));
        CUDA_OK(cudaMemcpy(got.data(), x.p, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
        ok = ok && memcmp(got.data(), all.sum.data(), n_value * sizeof(float)) == 0;
        for (size_t i = n_value; i < got.size(); i++) {
            ok = ok && got[i] == 0.0f;
        }
    }
    return ok;
}

static std::vector<int> row_counts()
{
    if (quick) {
        return {1, 2, 7, 33};
    }
    std::vector<int> rows;
    for (int n = 1; n <= 64; n++) {
        rows.push_back(n);
    }
    for (int n : {65, 96, 127, 128, 200, 255, 256, 333, 512, 777, 1000, 1024, 1365, 1500, 2047, 2048}) {
        rows.push_back(n);
    }
    return rows;
}

static void check_row_counts(int n_rank, int n, bool two_shots)
{
    const std::vector<int> rows = row_counts();
    const join_rows all(n_rank, n, rows.back());
    rank_gpus ranks(n_rank, (size_t)all.n_row_max * n, PATIENT);
    int first_bad[GR_CUDA_PEER_MAX] = {};
    ranks.run([&](rank_gpu &r) {
        dev<float> x((size_t)all.n_row_max * n);
        r.peers.two_shots_from = two_shots ? 0 : SIZE_MAX;
        for (const int n_row : rows) {
            if (!join_one(r, all, x, n_row) && first_bad[r.rank] == 0) {
                first_bad[r.rank] = n_row;
            }
        }
    });
    std::string said;
    for (int r = 0; r < n_rank; r++) {
        said += first_bad[r] != 0 ? " rank " + std::to_string(r) + " from " + std::to_string(first_bad[r]) : "";
    }
    char what[120], s[120];
    snprintf(what, sizeof(what), "%d ranks, joins of %zu numbers of rows up to %d, of %d%s", n_rank, rows.size(),
             all.n_row_max, n, two_shots ? ", two shots" : "");
    snprintf(s, sizeof(s), "differ:%s; error %08x", said.empty() ? " none" : said.c_str(), ranks.error());
    report(what, said.empty() && ranks.error() == 0, s);
}

void check_joins()
{
    for (int n_rank = 2; n_rank <= count_peer_gpus(); n_rank *= 2) {
        for (const int n : {quick ? 192 : 4096, quick ? 512 : 8192}) {
            check_row_counts(n_rank, n, false);
            if (n_rank > 2) {
                check_row_counts(n_rank, n, true);
            }
        }
    }
}
