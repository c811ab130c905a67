/* Rows of expanded tensors against the CPU's (model/load/expand.c), bit by bit: every kind of tensor of a target and of
 * a head, of layers that are there and of extra ones, in the geometries that GPUs run. Outputs begin as poison and are
 * longer than what may be written. */
#include "tests/kernels/check_cuda.h"
#include "tests/kernels/cuda_rig.h"

#include "kernels/cuda/rows/expand.h"

extern "C" {
#include "model/load/expand.h"
}

static constexpr size_t GUARD = 256; /* values before and after the output */

struct source {
    const gr_geometry *to;
    gr_expand e;
    gr_hf_config from, large;
};

/* The demo pair's sizes, without its folder. */
static source make_source(const char *geometry, bool head)
{
    source s{};
    gr_hf_config &c = s.from;
    c.hidden = 384, c.n_layer = head ? 1 : 8, c.n_head = 6, c.n_kv_head = 2, c.head_dim = 64, c.ffn = 1024;
    c.n_vocab = 4096, c.max_pos = 32768, c.rms_eps = 1e-5f;
    c.draft_n_vocab = head ? 3072 : 0, c.target_hidden = head ? 384 : 0;
    s.large = c;
    if (gr_geometry_find(geometry, &s.to) != GR_OK || gr_expand_init(&s.e, s.to, "check", &s.large) != GR_OK) {
        printf("FAIL: geometry %s\n", geometry);
        exit(1);
    }
    return s;
}

/* Rows [row0, row0 + n_row), on both sides. */
static size_t wrong_values(const gr_expand_tensor &t, const std::vector<uint16_t> &from, const dev<uint16_t> &d_from,
                           int row0, int n_row)
{
    const size_t n = (size_t)n_row * (size_t)t.rule.n_in;
    const bool has = t.rule.n_out_from > 0;
    std::vector<uint16_t> want(n + 2 * GUARD, 0xffff);
    dev<uint16_t> out(want.size());
    out.poison();
    gr_expand_rows(&t, has ? from.data() : nullptr, row0, n_row, &want[GUARD]);
    const gr_cuda_expand_args a{t.rule, has ? d_from.p : nullptr, out.p + GUARD, row0, n_row};
    const bool launched = gr_cuda_expand(&a, nullptr) == GR_OK;
    CUDA_OK(cudaDeviceSynchronize());
    const std::vector<uint16_t> got = out.get();
    size_t n_bad = launched ? 0 : n;
    for (size_t i = 0; i < want.size(); i++) {
        n_bad += got[i] != want[i];
    }
    return n_bad;
}

static void check_tensor(const source &s, const char *tensor, int n_out, int n_in, bool table)
{
    gr_expand_tensor t;
    char name[120], detail[80];
    if (gr_expand_tensor_init(&s.e, tensor, n_out, n_in, &t) != GR_OK) {
        report(tensor, false, "no rule");
        return;
    }
    t.rule.zero = t.rule.zero || table;
    rng g{(uint64_t)n_out * 31 + (uint64_t)n_in};
    std::vector<uint16_t> from((size_t)t.rule.n_out_from * (size_t)t.rule.n_in_from);
    for (auto &x : from) {
        x = (uint16_t)g.next(); /* all bits, NaN too */
    }
    const dev<uint16_t> d_from(from);
    const int some = std::min(n_out, 333), many = std::min(n_out - n_out / 2, 1500); /* more than there are strips */
    const int pieces[][2] = {{0, 1}, {0, some}, {n_out / 2, many}, {n_out - some, some}, {n_out - 1, 1}};
    size_t n_bad = 0, n = 0;
    for (auto &p : pieces) {
        n_bad += wrong_values(t, from, d_from, p[0], p[1]);
        n += (size_t)p[1] * (size_t)n_in;
    }
    snprintf(name, sizeof(name), "%s: %s", s.to->name, tensor);
    snprintf(detail, sizeof(detail), "(%d, %d): %zu of %zu differ", n_out, n_in, n_bad, n);
    report(name, n_bad == 0, detail);
    gr_expand_tensor_finish(&t);
}

static void check_layer(const source &s, const char *prefix, int n_in)
{
    const gr_geometry &g = *s.to;
    const int q = g.n_head * g.head_dim, kv = g.n_kv_head * g.head_dim;
    const struct {
        const char *name;
        int n_out, n_in;
    } parts[] = {{"self_attn.q_proj", q, n_in},      {"self_attn.k_proj", kv, n_in},
                 {"self_attn.v_proj", kv, n_in},     {"self_attn.o_proj", g.hidden, q},
                 {"mlp.gate_proj", g.ffn, g.hidden}, {"mlp.up_proj", g.ffn, g.hidden},
                 {"mlp.down_proj", g.hidden, g.ffn}};
    for (auto &p : parts) {
        char name[120];
        snprintf(name, sizeof(name), "%s.%s.weight", prefix, p.name);
        if (p.n_in % 8 == 0) { /* test-128 has a width that no GPU runs */
            check_tensor(s, name, p.n_out, p.n_in, false);
        }
    }
}

static void check_geometry(const char *name)
{
    const source target = make_source(name, false), head = make_source(name, true);
    const gr_geometry &g = *target.to;
    check_layer(target, "model.layers.0", g.hidden);
    check_layer(target, "model.layers.1", g.hidden); /* an extra one, but for test-64 and test-128 */
    check_layer(head, "midlayer", 2 * g.hidden);
    check_tensor(target, "model.embed_tokens.weight", target.from.n_vocab, g.hidden, true);
    check_tensor(target, "lm_head.weight", g.n_vocab, g.hidden, false);
    check_tensor(head, "lm_head.weight", g.draft_n_vocab, g.hidden, false);
    check_tensor(head, "fc.weight", g.hidden, 3 * g.hidden, false);
}

static void check_refused()
{
    const source s = make_source("test-64", false);
    gr_expand_tensor t;
    dev<uint16_t> from(384 * 384), out(4 * 512 + 8);
    out.poison();
    bool ok = gr_expand_tensor_init(&s.e, "model.layers.0.self_attn.q_proj.weight", 512, 512, &t) == GR_OK;
    const gr_cuda_expand_args good{t.rule, from.p, out.p, 508, 4};
    gr_cuda_expand_args bad[6] = {good, good, good, good, good, good};
    bad[0].row0 = 509, bad[1].n_row = 0, bad[2].rule.n_in = 508, bad[3].out = out.p + 4, bad[4].from = nullptr;
    bad[5].rule.n_out_from = 0; /* with a source */
    for (const gr_cuda_expand_args &b : bad) {
        ok = ok && gr_cuda_expand(&b, nullptr) == GR_EINVAL;
    }
    CUDA_OK(cudaDeviceSynchronize());
    const std::vector<uint16_t> got = out.get();
    ok = ok && std::all_of(got.begin(), got.end(), [](uint16_t x) { return x == 0xffff; });
    report("expand: what is refused", ok, "six of six, nothing written");
    gr_expand_tensor_finish(&t);
}

void check_expand(void)
{
    for (const char *name : {"test-64", "test-tp8", "test-128", "llama-3.2-1b", "llama-3.1-8b", "llama-3.3-70b"}) {
        if (!quick || strcmp(name, "test-64") == 0) {
            check_geometry(name);
        }
    }
    check_refused();
}
