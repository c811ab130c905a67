/* Linear layers of the CUDA kernels whose sums are cut for a group of ranks (common/rules/segments.h): a sum is what
 * its segments, each a layer by itself, give when they are joined; so it is in every cut of the matrix, for all numbers
 * of rows, and from what 2, 4 and 8 ranks add. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_linear_rig.h"

/* Sums, as they are added to zeros. */
static std::vector<float> added(const layer &l, const std::vector<int> &row, int bucket, bool &sound)
{
    linear_call<float> c{l, GR_CUDA_OUT_ADD, l.n_out, bucket};
    c.before.assign((size_t)bucket * (size_t)l.n_out, 0.0f);
    std::vector<float> y = c.run(row);
    sound = sound && c.ok && c.intact;
    y.resize(row.size() * (size_t)l.n_out);
    return y;
}

/* Parts [i, i + n) of n_part, each the sums of `sum`; empty: it has no units. By recursion, where the kernels have a
 * stack. */
static std::vector<float> joined(const std::vector<std::vector<float>> &sum, size_t i, size_t n)
{
    if (n == 1) {
        return sum[i];
    }
    std::vector<float> left = joined(sum, i, n / 2);
    const std::vector<float> right = joined(sum, i + n / 2, n / 2);
    for (size_t k = 0; k < right.size(); k++) {
        left[k] += right[k];
    }
    return left;
}

static size_t differing(const std::vector<float> &a, const std::vector<float> &b)
{
    size_t n = a.size() != b.size();
    for (size_t i = 0; i < std::min(a.size(), b.size()); i++) {
        n += memcmp(&a[i], &b[i], sizeof(float)) != 0;
    }
    return n;
}

/* What n_rank ranks give together; of 8 each has one segment, a chain. */
static std::vector<float> of_ranks(const layer &whole, int unit, int n_rank, gr_cuda_cut cut, bool &sound)
{
    const int n_unit = (whole.n_in + unit - 1) / unit;
    std::vector<std::vector<float>> sum((size_t)n_rank);
    for (int i = 0; i < n_rank; i++) {
        const int begin = gr_segment_begin(n_unit, n_rank, i) * unit,
                  end = std::min(gr_segment_begin(n_unit, n_rank, i + 1) * unit, whole.n_in);
        if (begin < end) {
            layer part = part_of(whole, begin, end, cut);
            part.segments = gr_segments_of(end - begin, unit, GR_SEGMENT_MAX / n_rank);
            sum[(size_t)i] = added(part, rows(ROW_MAX), ROW_MAX, sound);
        }
    }
    return joined(sum, 0, (size_t)n_rank);
}

static size_t count_other_rows(const layer &l, bool &sound)
{
    size_t n = 0;
    for (int n_row : {1, 2, 9, 16, 17, 33, 64, 65, 129, 200}) {
        if (quick && n_row != 1 && n_row != 33 && n_row != 129) {
            continue;
        }
        const std::vector<int> row = rows(n_row, 3 * n_row);
        const std::vector<float> y = added(l, row, n_row % 2 ? std::max(n_row, 64) : n_row, sound);
        for (size_t i = 0; i < row.size(); i++) {
            n += memcmp(&y[i * (size_t)l.n_out], &l.sum[(size_t)row[i] * l.n_out], (size_t)l.n_out * 4) != 0;
        }
    }
    return n;
}

static void check_segments(int n_out, int n_in, int unit, const std::vector<gr_cuda_cut> &cuts)
{
    bool sound = true;
    layer first = packed_layer(n_out, n_in, cuts[0]);
    first.segments = gr_segments_of(n_in, unit, GR_SEGMENT_MAX);
    first.sum = added(first, rows(ROW_MAX), ROW_MAX, sound);
    const std::string what = " in units of " + std::to_string(unit);
    for (int n_rank : {8, 4, 2}) {
        const size_t n = differing(of_ranks(first, unit, n_rank, {16, 1}, sound), first.sum);
        report_count((std::to_string(n_rank) + " ranks" + what).c_str(), first, n, sound);
    }
    for (const gr_cuda_cut &cut : cuts) {
        layer l = packed_layer(n_out, n_in, cut);
        l.segments = first.segments;
        l.sum = added(l, rows(ROW_MAX), ROW_MAX, sound);
        const size_t n = differing(l.sum, first.sum), n_row = count_other_rows(l, sound);
        report_count(("segments" + what).c_str(), l, n, sound);
        report_count(("rows of segments" + what).c_str(), l, n_row, sound);
    }
}

static std::vector<gr_cuda_cut> all_cuts(int n_in)
{
    std::vector<gr_cuda_cut> cuts;
    for (int width : gr_cuda_cut_width) {
        for (int parts : {1, 2}) {
            if (gr_cuda_cut_allowed(n_in, {width, parts})) {
                cuts.push_back({width, parts});
            }
        }
    }
    return cuts;
}

/* Some of a matrix's rows are a matrix of their own on a rank, of the same parts in whatever widths: the bits of these
 * rows are those of the whole. */
static void check_parts(int n_out, int n_in, int parts)
{
    const std::vector<int> row = rows(70);
    std::vector<float> first;
    for (const gr_cuda_cut &cut : all_cuts(n_in)) {
        if (cut.parts != parts || (quick && cut.width % 64 != 0 && cut.width != 248)) {
            continue;
        }
        bool sound = true;
        const layer l = packed_layer(n_out, n_in, cut);
        linear_call<float> c{l, GR_CUDA_OUT_F32, n_out, 128};
        const std::vector<float> y = c.run(row);
        sound = c.ok && c.intact;
        first = first.empty() ? y : first;
        report_count("parts decide alone", l, memcmp(y.data(), first.data(), row.size() * (size_t)n_out * 4), sound);
    }
}

static void check_refused()
{
    const layer l = packed_layer(64, 256, {});
    dev<uint16_t> x(tiles_of(l, rows(1)));
    dev<float> y(64);
    dev<int32_t> n(std::vector<int32_t>{1});
    gr_cuda_linear_args good{l.packed.p, 64, 256, x.p, nullptr, y.p, GR_CUDA_OUT_ADD, 64, 1, n.p};
    good.segments = gr_segments_of(256, 64, GR_SEGMENT_MAX);
    gr_cuda_linear_args bad[5] = {good, good, good, good, good};
    bad[0].out = GR_CUDA_OUT_F32, bad[1].segments = gr_segments_of(192, 64, GR_SEGMENT_MAX);
    bad[2].segments = gr_segments_of(256, 32, GR_SEGMENT_MAX), bad[3].segments.n_join[0] = 1;
    bad[4].segments.n = GR_SEGMENT_MAX + 1;
    int n_wrong = gr_cuda_linear(&good, nullptr) != GR_OK;
    for (const gr_cuda_linear_args &a : bad) {
        n_wrong += gr_cuda_linear(&a, nullptr) != GR_EINVAL;
    }
    CUDA_OK(cudaDeviceSynchronize());
    report("segments: bad arguments", n_wrong == 0, n_wrong == 0 ? "refused" : "one passed, or with another status");
}

void check_linear_segments()
{
    check_refused();
    for (int parts : {1, 2}) {
        check_parts(quick ? 320 : 1040, quick ? 448 : 4096, parts);
    }
    if (quick) {
        check_segments(64, 832, 64, {{16, 1}, {32, 2}, {64, 2}, {96, 1}, {128, 2}, {248, 1}});
        check_segments(384, 384, 192, {{16, 1}, {64, 2}}); /* the demo model's o: two units */
        check_segments(128, 256, 256, {{16, 1}, {32, 2}}); /* one: a part without any */
        check_segments(16 * 136, 128, 64, {{16, 2}});      /* several tiles a block */
        return;
    }
    check_segments(640, 2112, 64, all_cuts(2112));
    check_segments(1040, 5760, 64, all_cuts(5760)); /* 90 units */
    check_segments(320, 960, 192, all_cuts(960));   /* 3 | 2 */
    check_segments(384, 384, 192, all_cuts(384));
    check_segments(256, 384, 384, all_cuts(384));
    check_segments(16 * 136, 1088, 64, {{16, 1}, {16, 2}});
    check_segments(4096, 4096, 512, {{0, 0}, {64, 1}, {32, 1}, {128, 2}}); /* Llama-3.1-8B */
    check_segments(4096, 14336, 64, {{0, 0}, {64, 1}, {32, 1}, {128, 2}});
}
