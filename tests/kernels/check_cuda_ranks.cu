/* Layers whose sums several GPUs share out and join (kernels/cuda/group/join.h): residual stream, tiles, squares and
 * captures have the bits of the layer on one GPU, on every rank. Ranks are threads, as many as there are GPUs. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_linear_rig.h"
#include "tests/kernels/cuda_ranks_rig.h"

#include <atomic>

static constexpr uint64_t PATIENT = UINT64_C(60000000000);

/* What a residual layer writes besides x. */
struct stream_memory {
    int n_row, n;
    dev<float> x, w, bias;
    dev<uint16_t> tiles, capture;
    dev<gr_cuda_square> square[2];
    dev<int32_t> n_true;

    static std::vector<float> values(size_t count, uint64_t seed)
    {
        rng g{seed};
        std::vector<float> v(count);
        for (float &x : v) {
            x = g.unit();
        }
        return v;
    }

    stream_memory(int bucket, int n_true_, int n_)
        : n_row(bucket), n(n_), x(values((size_t)bucket * n_, 11)), w(values((size_t)n_, 12)),
          bias(values((size_t)n_, 13)), tiles(gr_cuda_tile_bytes(bucket, n_) / 2),
          capture(gr_cuda_tile_bytes(bucket, 2 * n_) / 2), square{dev<gr_cuda_square>(
                                                                      std::vector<gr_cuda_square>((size_t)bucket)),
                                                                  dev<gr_cuda_square>(
                                                                      std::vector<gr_cuda_square>((size_t)bucket))},
          n_true(std::vector<int32_t>{n_true_})
    {
        tiles.poison(), capture.poison();
    }

    gr_cuda_linear_next next(int turn)
    {
        return {w.p, tiles.p, square[turn].p, capture.p, 2 * n, turn == 0 ? 0 : n};
    }

    /* All of it. */
    std::vector<uint8_t> bytes() const
    {
        std::vector<uint8_t> all;
        add(all, x.get()), add(all, tiles.get()), add(all, capture.get());
        add(all, square[0].get()), add(all, square[1].get());
        return all;
    }

    template <class T> static void add(std::vector<uint8_t> &to, const std::vector<T> &v)
    {
        const uint8_t *from = (const uint8_t *)v.data();
        to.insert(to.end(), from, from + v.size() * sizeof(T));
    }
};

/* A layer that is added to a residual stream n_step times, alternately with other squares and another part buffer. */
struct residual {
    layer whole;
    int unit, n_row, bucket, n_step;
    bool norm;

    gr_cuda_linear_args args(const layer &l, const dev<uint16_t> &in, stream_memory &m, gr_cuda_linear_out out) const
    {
        gr_cuda_linear_args a{l.packed.p, l.n_out, l.n_in, in.p,       nullptr, m.x.p,
                              out,        l.n_out, bucket, m.n_true.p, l.cut};
        a.segments = l.segments;
        return a;
    }

    std::vector<uint8_t> alone(bool &ok)
    {
        stream_memory m(bucket, n_row, whole.n_out);
        const dev<uint16_t> in(tiles_of(whole, rows(n_row)));
        whole.segments = gr_segments_of(whole.n_in, unit, GR_SEGMENT_MAX);
        for (int i = 0; i < n_step; i++) {
            gr_cuda_linear_args a = args(whole, in, m, GR_CUDA_OUT_ADD);
            a.clear = m.square[1 - i % 2].p;
            if (norm) {
                a.next = m.next(i % 2);
            } else {
                a.bias = m.bias.p;
            }
            ok = ok && gr_cuda_linear(&a, nullptr) == GR_OK;
        }
        return m.bytes();
    }

    layer part(const rank_gpu &r) const
    {
        const int n_rank = r.peers.n_rank, n_unit = (whole.n_in + unit - 1) / unit;
        const int begin = gr_segment_begin(n_unit, n_rank, r.rank) * unit,
                  end = std::min(gr_segment_begin(n_unit, n_rank, r.rank + 1) * unit, whole.n_in);
        layer l = part_of(whole, begin, end, {});
        l.segments = gr_segments_of(end - begin, unit, GR_SEGMENT_MAX / n_rank);
        return l;
    }

    gr_cuda_join_args join_args(stream_memory &m, int i) const
    {
        gr_cuda_join_args j{};
        j.buffer = i % 2, j.x = m.x.p, j.n = whole.n_out, j.clear = m.square[1 - i % 2].p;
        j.square_columns = gr_cuda_square_columns(whole.cut);
        j.n_row = bucket, j.n_row_true = m.n_true.p;
        if (norm) {
            j.next = m.next(i % 2);
        } else {
            j.bias = m.bias.p;
        }
        return j;
    }

    std::vector<uint8_t> of_rank(rank_gpu &r, bool &ok) const
    {
        const layer l = part(r);
        stream_memory m(bucket, n_row, whole.n_out);
        const dev<uint16_t> in(tiles_of(l, rows(n_row)));
        CUDA_OK(cudaDeviceSynchronize());
        for (int i = 0; i < n_step; i++) {
            gr_cuda_linear_args a = args(l, in, m, GR_CUDA_OUT_PART);
            a.y = r.part->p + (size_t)(i % 2) * r.peers.n_part;
            const gr_cuda_join_args j = join_args(m, i);
            ok = ok && gr_cuda_linear(&a, r.stream) == GR_OK && gr_cuda_join(&r.peers, &j, r.stream) == GR_OK;
        }
        ok = ok && gr_cuda_meet(&r.peers, r.stream) == GR_OK;
        CUDA_OK(cudaStreamSynchronize(r.stream));
        return m.bytes();
    }
};

static void check_residual(residual &c, int n_rank, bool two_shots)
{
    bool ok = true, oks[GR_CUDA_PEER_MAX];
    std::vector<uint8_t> got[GR_CUDA_PEER_MAX];
    const std::vector<uint8_t> want = c.alone(ok);
    rank_gpus ranks(n_rank, (size_t)c.bucket * c.whole.n_out, PATIENT);
    ranks.run([&](rank_gpu &r) {
        r.peers.two_shots_from = two_shots ? 0 : SIZE_MAX;
        oks[r.rank] = true;
        got[r.rank] = c.of_rank(r, oks[r.rank]);
    });
    size_t n = 0;
    for (int r = 0; r < n_rank; r++) {
        n += got[r] != want;
        ok = ok && oks[r];
    }
    const std::string what = std::to_string(n_rank) + " ranks, " + std::to_string(c.n_row) + " of " +
                             std::to_string(c.bucket) + " rows" + (c.norm ? "" : ", a bias") +
                             (two_shots ? ", two shots" : "");
    char s[100];
    snprintf(s, sizeof(s), "%zu ranks differ; error %08x", n, ranks.error());
    report((what + " " + shape_of(c.whole)).c_str(), ok && n == 0 && ranks.error() == 0, s);
}

static void check_residuals(int n_out, int n_in, int unit, gr_cuda_cut cut, int n_rank)
{
    static const int rows_of[][2] = {{1, 1}, {5, 8}, {64, 64}, {70, 128}, {200, 256}};
    if (cut.width == 0) {
        cut = gr_cuda_linear_cut(n_out, n_in);
    }
    for (const auto &r : rows_of) {
        if (!quick || r[0] == 5 || r[0] == 70) {
            for (bool norm : {true, false}) {
                residual c{packed_layer(n_out, n_in, cut), unit, r[0], r[1], quick ? 3 : 40, norm};
                check_residual(c, n_rank, false);
                if (n_rank > 2 && norm == (r[0] != 5)) {
                    check_residual(c, n_rank, true);
                }
            }
        }
    }
}

/* A rank that does not come, and one that is told to stop: the stream ends, and says why. */
static void check_given_up(bool aborts)
{
    rank_gpus ranks(2, 1024, aborts ? PATIENT : UINT64_C(20000000));
    bool ok = true;
    ranks.run([&](rank_gpu &r) {
        if (r.rank == 1) {
            r.word[0] = 0;
            return;
        }
        r.word[0] = aborts;
        for (int i = 0; i < 3; i++) {
            ok = ok && gr_cuda_meet(&r.peers, r.stream) == GR_OK;
        }
        CUDA_OK(cudaStreamSynchronize(r.stream));
    });
    const uint32_t want = 1u << 16 | (aborts ? GR_CUDA_JOIN_ABORTED : GR_CUDA_JOIN_LATE);
    char s[60];
    snprintf(s, sizeof(s), "error %08x, expected %08x", ranks.error(), want);
    report(aborts ? "a group that is told to stop" : "a rank that does not come", ok && ranks.error() == want, s);
}

static void check_refused()
{
    dev<float> f(4096);
    dev<int32_t> n(std::vector<int32_t>{1});
    gr_cuda_peers p{};
    p.n_rank = 1, p.part[0] = f.p, p.n_part = 1024;
    gr_cuda_join_args good{};
    good.x = f.p + 2048, good.n = 64, good.n_row = 1, good.n_row_true = n.p;
    gr_cuda_join_args bad[5] = {good, good, good, good, good};
    bad[0].buffer = 2, bad[1].n = 96, bad[2].n_row = 17, bad[3].x = f.p + 1, bad[4].next.tiles = (uint16_t *)f.p;
    int n_wrong = gr_cuda_join(&p, &good, nullptr) != GR_OK;
    for (const gr_cuda_join_args &a : bad) {
        n_wrong += gr_cuda_join(&p, &a, nullptr) != GR_EINVAL;
    }
    p.n_rank = 3;
    n_wrong += gr_cuda_join(&p, &good, nullptr) != GR_EINVAL;
    CUDA_OK(cudaDeviceSynchronize());
    report("joins: bad arguments", n_wrong == 0, n_wrong == 0 ? "refused" : "one passed, or with another status");
}

void check_ranks()
{
    const int n_gpu = count_peer_gpus();
    printf("# %d GPUs that see each other\n", n_gpu);
    check_refused();
    for (int n_rank = 1; n_rank <= n_gpu; n_rank *= 2) {
        if (quick) {
            check_residuals(192, 1024, 64, {32, 2}, n_rank);
            check_residuals(512, 512, 64, {248, 1}, n_rank);
            continue;
        }
        check_residuals(4096, 4096, 512, {}, n_rank); /* Llama-3.1-8B */
        check_residuals(4096, 14336, 64, {}, n_rank);
        check_residuals(4096, 4096, 512, {224, 1}, n_rank);
        check_residuals(8192, 8192, 1024, {}, n_rank); /* Llama-3.3-70B */
    }
    if (n_gpu >= 2) {
        check_given_up(false);
        check_given_up(true);
    }
}

/* ---- time ---- */

static constexpr int N_TIMED = 200;

/* Microseconds of a join among so many one after another, on rank 0. */
static float time_joins(rank_gpus &ranks, int n_row, int n, bool two_shots)
{
    float us = 0;
    std::atomic<bool> ok{true};
    ranks.run([&](rank_gpu &r) {
        stream_memory m(n_row, n_row, n);
        r.peers.two_shots_from = two_shots ? 0 : SIZE_MAX;
        cudaEvent_t begin, end;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        float ms = 0;
        CUDA_OK(cudaMemset(r.part->p, 0, r.part->n * sizeof(float)));
        CUDA_OK(cudaDeviceSynchronize());
        CUDA_OK(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < N_TIMED; i++) {
            gr_cuda_join_args j{};
            j.buffer = i % 2, j.x = m.x.p, j.n = n, j.clear = m.square[1 - i % 2].p, j.square_columns = 64;
            j.n_row = n_row, j.n_row_true = m.n_true.p, j.next = m.next(i % 2), j.next.capture = nullptr;
            ok = ok && gr_cuda_join(&r.peers, &j, r.stream) == GR_OK;
        }
        CUDA_OK(cudaStreamEndCapture(r.stream, &graph));
        CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
        CUDA_OK(cudaEventCreate(&begin));
        CUDA_OK(cudaEventCreate(&end));
        for (int i = 0; i < 3; i++) {
            CUDA_OK(cudaEventRecord(begin, r.stream));
            CUDA_OK(cudaGraphLaunch(exec, r.stream));
            CUDA_OK(cudaEventRecord(end, r.stream));
            CUDA_OK(cudaStreamSynchronize(r.stream));
        }
        CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
        if (r.rank == 0) {
            us = ms * 1000.0f / N_TIMED;
        }
        CUDA_OK(cudaGraphExecDestroy(exec));
        CUDA_OK(cudaGraphDestroy(graph));
        CUDA_OK(cudaEventDestroy(begin));
        CUDA_OK(cudaEventDestroy(end));
    });
    return ok ? us : -1.0f;
}

void time_ranks()
{
    const int n_gpu = count_peer_gpus();
    for (int n_rank = 1; n_rank <= n_gpu; n_rank *= 2) {
        for (int n : {4096, 8192}) {
            for (int n_row : {1, 8, 16, 32, 64, 128, 256, 512, 2048}) {
                rank_gpus ranks(n_rank, (size_t)n_row * n, PATIENT);
                const float one = time_joins(ranks, n_row, n, false);
                const float two = n_rank > 2 ? time_joins(ranks, n_row, n, true) : 0.0f;
                printf("# join of %d ranks, %d rows x %d: one shot %.2f us, two %.2f%s\n", n_rank, n_row, n, one, two,
                       ranks.error() == 0 ? "" : " AND AN ERROR");
                fflush(stdout);
            }
        }
    }
}
