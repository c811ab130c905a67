/* The sampler: processors against a plain reference in double, ties and boundaries, and 200,000 picks against exact
 * probabilities (chi-square). The speculative half of the latter is in tests/sim/test_pair.c. */
#include "common/rules/hash.h"
#include "common/rules/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_MAX 512

static uint64_t rng_state = 4711;

static uint64_t draw(uint64_t n)
{
    rng_state = gr_mix64(rng_state + GR_HASH_GOLDEN);
    return rng_state % n;
}

static float draw_logit(float spread)
{
    return spread * ((float)draw(1 << 20) / (float)(1 << 20) - 0.5f);
}

/* ---- reference ---- */

struct reference {
    int n_keep;
    int32_t rank[N_MAX]; /* kept ids, best first */
    bool keep[N_MAX];
    double p[N_MAX]; /* probabilities after all processors */
    bool doubtful;   /* a threshold lies within rounding */
};

static const double *sort_key;

static int by_rank(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a;
    const int32_t k = *(const int32_t *)b;
    if (sort_key[i] != sort_key[k]) {
        return sort_key[i] > sort_key[k] ? -1 : 1;
    }
    return i - k;
}

static void run_reference(const struct gr_sampling *s, const float *logits, int n, struct reference *r)
{
    double l[N_MAX];
    double max = -INFINITY;
    memset(r, 0, sizeof(*r));
    for (int i = 0; i < n; i++) {
        l[i] = (double)(logits[i] / s->temperature); /* rounded as the definition rounds: it decides ties */
        max = fmax(max, l[i]);
    }
    for (int i = 0; i < n; i++) {
        const double relative = exp(l[i] - max);
        r->doubtful = r->doubtful || fabs(relative - (double)s->min_p) < 1e-6 * (double)s->min_p;
        if (relative >= (double)s->min_p && isfinite(l[i])) {
            r->rank[r->n_keep++] = i;
        }
    }
    sort_key = l;
    qsort(r->rank, (size_t)r->n_keep, sizeof(r->rank[0]), by_rank);
    if (s->top_k > 0 && s->top_k < r->n_keep) {
        r->n_keep = s->top_k;
    }
    double sum = 0.0;
    for (int k = 0; k < r->n_keep; k++) {
        sum += exp(l[r->rank[k]] - max);
    }
    if (s->top_p < 1.0f) {
        double cumulated = 0.0;
        int n_keep = 0;
        do { /* the smallest set whose sum reaches top_p */
            cumulated += exp(l[r->rank[n_keep++]] - max) / sum;
            r->doubtful = r->doubtful || fabs(cumulated - (double)s->top_p) < 2e-6;
        } while (n_keep < r->n_keep && cumulated < (double)s->top_p);
        r->n_keep = n_keep;
        sum *= cumulated;
    }
    for (int k = 0; k < r->n_keep; k++) {
        r->keep[r->rank[k]] = true;
        r->p[r->rank[k]] = exp(l[r->rank[k]] - max) / sum;
    }
}

static void process(const struct gr_sampling *s, const float *logits, int n, float *out)
{
    int32_t work[N_MAX + 1];
    work[n] = 123456;
    gr_sampler_process(s, logits, out, n, work);
    assert_int_equal(work[n], 123456);
}

static void assert_as_reference(const struct gr_sampling *s, const float *logits, int n)
{
    struct reference r;
    float out[N_MAX];
    run_reference(s, logits, n, &r);
    process(s, logits, n, out);
    for (int i = 0; i < n; i++) {
        if ((out[i] > -INFINITY) != r.keep[i]) {
            fail_msg("n %d temperature %g min_p %g top_k %d top_p %g: id %d is %s", n, (double)s->temperature,
                     (double)s->min_p, s->top_k, (double)s->top_p, i, r.keep[i] ? "lost" : "kept");
        }
        if (r.keep[i]) {
            assert_true(out[i] == logits[i] / s->temperature);
        }
    }
    /* in place gives the same */
    float same[N_MAX];
    memcpy(same, logits, (size_t)n * sizeof(float));
    process(s, same, n, same);
    assert_memory_equal(same, out, (size_t)n * sizeof(float));
}

/* ---- processors ---- */

static void draw_logits(float *logits, int n)
{
    const float spread = (float[]){0.5f, 4.0f, 20.0f, 80.0f}[draw(4)];
    const bool coarse = draw(3) == 0; /* many ties */
    for (int i = 0; i < n; i++) {
        logits[i] = coarse ? roundf(draw_logit(8.0f)) : draw_logit(spread);
        if (draw(50) == 0) {
            logits[i] = -INFINITY; /* as a mask would leave it */
        }
    }
    logits[draw((uint64_t)n)] = draw_logit(spread); /* at least one is finite */
}

static struct gr_sampling draw_sampling(int n)
{
    struct gr_sampling s = {.temperature = 0.3f + (float)draw(20) * 0.1f, .top_p = 1.0f};
    if (draw(2) != 0) {
        s.min_p = (float)draw(1000) * 1e-3f;
    }
    if (draw(2) != 0) {
        s.top_k = 1 + (int32_t)draw((uint64_t)n + 3); /* n and more, too */
    }
    if (draw(2) != 0) {
        s.top_p = 0.001f + (float)draw(999) * 1e-3f;
    }
    return s;
}

static void test_random_settings(void **state)
{
    (void)state;
    int n_checked = 0;
    for (int round = 0; round < 30000; round++) {
        float logits[N_MAX];
        const int n = 1 + (int)draw(round % 10 == 0 ? N_MAX : 40);
        draw_logits(logits, n);
        const struct gr_sampling s = draw_sampling(n);
        struct reference r;
        run_reference(&s, logits, n, &r);
        if (!r.doubtful) {
            assert_as_reference(&s, logits, n);
            n_checked++;
        }
    }
    assert_true(n_checked > 25000);
}

static int kept(const struct gr_sampling *s, const float *logits, int n, const char *want)
{
    float out[N_MAX];
    char text[N_MAX + 1] = {0};
    process(s, logits, n, out);
    for (int i = 0; i < n; i++) {
        text[i] = out[i] > -INFINITY ? 'x' : '.';
    }
    assert_string_equal(text, want);
    return 0;
}

static void test_ties(void **state)
{
    (void)state;
    const float equal[] = {1, 1, 1, 1, 1, 1, 1, 1};
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .top_k = 3}, equal, 8, "xxx.....");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 0.5f}, equal, 8, "xxxx...."); /* exactly one half */
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 0.51f}, equal, 8, "xxxxx...");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 0.5f, .top_k = 4}, equal, 8, "xx......");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .min_p = 1}, equal, 8, "xxxxxxxx");
    const float mixed[] = {0, 2, 1, 2, 1, 0, 2, 1};
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .top_k = 2}, mixed, 8, ".x.x....");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .top_k = 4}, mixed, 8, ".xxx..x.");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .top_k = 5}, mixed, 8, ".xxxx.x.");
}

/* p = 1/2, 1/4, 1/8, 1/8: sums that floats hold, so the boundary is exact up to the exp's rounding. */
static void test_top_p_boundary(void **state)
{
    (void)state;
    const float l2 = 0.69314718f;
    const float logits[] = {0.0f, -l2, -2.0f * l2, -2.0f * l2};
    const struct gr_sampling base = {.temperature = 1, .top_p = 1};
    struct gr_sampling s = base;
    s.top_p = 0.4999f;
    kept(&s, logits, 4, "x...");
    s.top_p = 0.5001f;
    kept(&s, logits, 4, "xx..");
    s.top_p = 0.7499f;
    kept(&s, logits, 4, "xx..");
    s.top_p = 0.7501f;
    kept(&s, logits, 4, "xxx.");
    s.top_p = 0.9999f;
    kept(&s, logits, 4, "xxxx");
    s.top_p = 1e-9f; /* never empty */
    kept(&s, logits, 4, "x...");
    /* renormalised after top-k 2: 2/3, 1/3. Over the whole vocabulary 0.6 would need both. */
    s = (struct gr_sampling){.temperature = 1, .top_p = 0.6f, .top_k = 2};
    kept(&s, logits, 4, "x...");
    s.top_k = 0;
    kept(&s, logits, 4, "xx..");
    /* after min-p 0.3: 1/2, 1/4 are left, so 2/3 again */
    s = (struct gr_sampling){.temperature = 1, .top_p = 0.6f, .min_p = 0.3f};
    kept(&s, logits, 4, "x...");
}

/* Temperature comes before min-p (a hot row keeps more), and min-p before top-k. */
static void test_order(void **state)
{
    (void)state;
    const float logits[] = {0.0f, -1.0f, -2.0f, -3.0f};
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .min_p = 0.3f}, logits, 4, "xx..");
    kept(&(struct gr_sampling){.temperature = 2, .top_p = 1, .min_p = 0.3f}, logits, 4, "xxx.");
    kept(&(struct gr_sampling){.temperature = 0.5f, .top_p = 1, .min_p = 0.3f}, logits, 4, "x...");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .min_p = 0.3f, .top_k = 3}, logits, 4, "xx..");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .min_p = 0.01f, .top_k = 3}, logits, 4, "xxx.");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .min_p = 1.0f}, logits, 4, "x...");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1}, logits, 4, "xxxx");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .top_k = 4}, logits, 4, "xxxx");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 1, .top_k = 1000}, logits, 4, "xxxx");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 0.3f, .top_k = 1000}, logits, 4, "x...");
    kept(&(struct gr_sampling){.temperature = 1, .top_p = 0.5f, .top_k = 1}, logits, 1, "x");
}

/* ---- picks ---- */

static int32_t pick(const struct gr_sampling *s, const float *logits, int n, uint32_t pos)
{
    float scratch[N_MAX];
    int32_t work[N_MAX];
    return gr_sampler_pick(s, logits, n, pos, scratch, work);
}

static void test_greedy(void **state)
{
    (void)state;
    const float tie[] = {1, 3, 2, 3};
    const float low[] = {-3e38f, -1e30f, -3e38f};
    struct gr_sampling s = {.temperature = 0, .top_p = 0.1f, .top_k = 1, .min_p = 0.9f, .seed = 5};
    assert_int_equal(pick(&s, tie, 4, 9), 1); /* the lowest id, whatever the seed and the filters */
    assert_int_equal(pick(&s, low, 3, 9), 1);
    s.temperature = 1;
    s.top_k = 1;
    for (uint32_t pos = 0; pos < 100; pos++) {
        assert_int_equal(pick(&s, tie, 4, pos), 1); /* top-k 1 is greedy, noise or not */
    }
}

/* Temperatures below GR_TEMPERATURE_GREEDY are temperature 0, whatever the logits; from it on quotients stay finite. */
static void test_least_temperatures(void **state)
{
    (void)state;
    static const double greedy[] = {0.0, 1e-45, 1e-38, 7e-38, 1e-20, 1e-6, 9.9e-6};
    static const double warm[] = {1e-5, 1.1e-5, 1e-4, 1e-3};
    for (int round = 0; round < 200; round++) {
        float logits[N_MAX], out[N_MAX];
        int32_t work[N_MAX];
        const int n = 2 + (int)draw(60);
        for (int i = 0; i < n; i++) {
            logits[i] = round % 2 == 0 ? draw_logit(40.0f) : draw_logit(6e33f); /* those of models, and far beyond */
        }
        struct gr_sampling s = {.top_p = 1.0f, .seed = gr_mix64((uint64_t)round)};
        const int32_t best = pick(&s, logits, n, 7);
        for (size_t i = 0; i < sizeof(greedy) / sizeof(greedy[0]); i++) {
            s.temperature = (float)greedy[i];
            assert_true(gr_temperature_is_greedy(s.temperature));
            assert_int_equal(pick(&s, logits, n, 7), best);
        }
        for (size_t i = 0; i < sizeof(warm) / sizeof(warm[0]); i++) {
            s.temperature = (float)warm[i];
            assert_false(gr_temperature_is_greedy(s.temperature));
            gr_sampler_process(&s, logits, out, n, work);
            for (int k = 0; k < n; k++) {
                assert_true(isfinite(out[k]));
            }
        }
    }
    const float near[] = {0.0f, 1e-5f, 0.5e-5f, 0.0f};
    int n_other = 0;
    struct gr_sampling s = {.temperature = 1e-5f, .top_p = 1.0f, .seed = 3};
    for (uint32_t pos = 0; pos < 200; pos++) {
        n_other += pick(&s, near, 4, pos) != 1;
    }
    assert_true(n_other > 20); /* the first temperature that is not greedy does sample */
}

/* Raw logits, of which none is what a mask would leave. */
static void draw_raw(float *logits, int n)
{
    draw_logits(logits, n);
    for (int i = 0; i < n; i++) {
        logits[i] = isfinite(logits[i]) ? logits[i] : -40.0f;
    }
}

/* argmax(processed + g) from the definition; filtered ids are never picked. */
static void test_pick_definition(void **state)
{
    (void)state;
    for (int round = 0; round < 5000; round++) {
        float logits[N_MAX];
        const int n = 1 + (int)draw(60);
        draw_raw(logits, n);
        struct gr_sampling s = draw_sampling(n);
        s.seed = gr_mix64((uint64_t)round);
        s.choice = (uint32_t)draw(3);
        struct reference r;
        run_reference(&s, logits, n, &r);
        if (r.doubtful) {
            continue;
        }
        const uint32_t pos = (uint32_t)draw(100000);
        int32_t best = -1;
        float best_value = 0.0f;
        for (int i = 0; i < n; i++) {
            const float v = logits[i] / s.temperature + gr_gumbel(s.seed, pos, (uint32_t)i, s.choice);
            if (r.keep[i] && (best < 0 || v > best_value)) {
                best = i;
                best_value = v;
            }
        }
        assert_int_equal(pick(&s, logits, n, pos), best);
    }
}

/* ---- distribution ---- */

#define N_VOCAB 12
#define N_SAMPLE 200000

static const float small_vocab[N_VOCAB] = {1.5f, 0.2f, -0.7f, 2.1f, 0.0f, -3.0f, 1.1f, -1.2f, 0.9f, 2.0f, -0.1f, -3.4f};

/* Chi-square as a standard normal deviate (Wilson and Hilferty). */
static double chi_square_z(const int *count, const double *p, int n, int total)
{
    double chi2 = 0.0;
    int df = -1;
    for (int i = 0; i < n; i++) {
        if (p[i] == 0.0) {
            assert_int_equal(count[i], 0); /* a filtered id never comes */
            continue;
        }
        const double want = p[i] * total;
        assert_true(want > 5.0);
        chi2 += ((double)count[i] - want) * ((double)count[i] - want) / want;
        df++;
    }
    if (df < 1) {
        return 0.0;
    }
    const double c = 2.0 / (9.0 * df);
    return (cbrt(chi2 / df) - (1.0 - c)) / sqrt(c);
}

static const struct gr_sampling settings[] = {
    {.temperature = 1.0f, .top_p = 1.0f},
    {.temperature = 0.7f, .top_p = 1.0f},
    {.temperature = 1.3f, .top_p = 1.0f, .choice = 1},
    {.temperature = 1.0f, .top_p = 0.9f},
    {.temperature = 1.3f, .top_p = 1.0f, .top_k = 5},
    {.temperature = 1.0f, .top_p = 1.0f, .min_p = 0.1f},
    {.temperature = 1.3f, .top_p = 0.8f, .top_k = 7, .min_p = 0.05f},
};

static void test_distribution(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {0, 1, 0xdeadbeefcafef00dull};
    double worst = 0.0;
    for (size_t k = 0; k < sizeof(settings) / sizeof(settings[0]); k++) {
        for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++) {
            struct gr_sampling s = settings[k];
            s.seed = seeds[i];
            struct reference r;
            run_reference(&s, small_vocab, N_VOCAB, &r);
            assert_false(r.doubtful);
            int count[N_VOCAB] = {0};
            for (uint32_t pos = 0; pos < N_SAMPLE; pos++) {
                count[pick(&s, small_vocab, N_VOCAB, pos)]++;
            }
            const double z = chi_square_z(count, r.p, N_VOCAB, N_SAMPLE);
            worst = z > worst ? z : worst;
            assert_true(z < 4.0 && z > -4.0);
        }
    }
    print_message("# chi-square: worst deviate %.2f of %d runs\n", worst, 21);
}

/* One position, many seeds: the seed is a source of randomness as good as the position. */
static void test_distribution_over_seeds(void **state)
{
    (void)state;
    struct gr_sampling s = {.temperature = 1.0f, .top_p = 1.0f};
    struct reference r;
    int count[N_VOCAB] = {0};
    run_reference(&s, small_vocab, N_VOCAB, &r);
    for (uint64_t seed = 0; seed < N_SAMPLE; seed++) { /* neighbours, as users choose them */
        s.seed = seed;
        count[pick(&s, small_vocab, N_VOCAB, 17)]++;
    }
    const double z = chi_square_z(count, r.p, N_VOCAB, N_SAMPLE);
    assert_true(z < 4.0 && z > -4.0);
}

/* Successive picks are independent: pairs against the product of the probabilities. */
static void test_pairs(void **state)
{
    (void)state;
    struct gr_sampling s = {.temperature = 1.0f, .top_p = 1.0f, .top_k = 6, .seed = 31};
    struct reference r;
    static int count[N_VOCAB * N_VOCAB];
    double p[N_VOCAB * N_VOCAB];
    run_reference(&s, small_vocab, N_VOCAB, &r);
    for (int i = 0; i < N_VOCAB * N_VOCAB; i++) {
        p[i] = r.p[i / N_VOCAB] * r.p[i % N_VOCAB];
    }
    for (uint32_t pos = 0; pos < N_SAMPLE; pos++) {
        count[pick(&s, small_vocab, N_VOCAB, 2 * pos) * N_VOCAB + pick(&s, small_vocab, N_VOCAB, 2 * pos + 1)]++;
    }
    const double z = chi_square_z(count, p, N_VOCAB * N_VOCAB, N_SAMPLE);
    assert_true(z < 4.0 && z > -4.0);
}

/* The yardstick has teeth: a temperature that is off by 3 % is seen. */
static void test_chi_square_power(void **state)
{
    (void)state;
    struct gr_sampling s = {.temperature = 1.0f, .top_p = 1.0f, .seed = 3};
    struct reference r;
    int count[N_VOCAB] = {0};
    run_reference(&s, small_vocab, N_VOCAB, &r);
    s.temperature = 1.03f;
    for (uint32_t pos = 0; pos < N_SAMPLE; pos++) {
        count[pick(&s, small_vocab, N_VOCAB, pos)]++;
    }
    assert_true(chi_square_z(count, r.p, N_VOCAB, N_SAMPLE) > 6.0);
}

/* One raw logit that is no number, anywhere and of an id that no filter would keep: the row has no pick. */
static void test_not_finite(void **state)
{
    (void)state;
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int round = 0; round < 2000; round++) {
        float logits[N_MAX];
        const int n = 1 + (int)draw(60);
        draw_raw(logits, n);
        struct gr_sampling s = round % 3 == 0 ? (struct gr_sampling){.top_p = 1.0f} : draw_sampling(n);
        assert_true(gr_sampler_is_finite(logits, n));
        assert_in_range(pick(&s, logits, n, 5), 0, n - 1);
        const int at = round % 4 == 0 ? 0 : round % 4 == 1 ? n - 1 : (int)draw((uint64_t)n);
        logits[at] = odd[draw(4)];
        assert_false(gr_sampler_is_finite(logits, n));
        assert_int_equal(pick(&s, logits, n, 5), GR_PICK_NOT_FINITE);
    }
    const float large[] = {3.4028234e38f, -3.4028234e38f, 0.0f, 1e-45f};
    assert_true(gr_sampler_is_finite(large, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_settings), cmocka_unit_test(test_ties),
        cmocka_unit_test(test_top_p_boundary),  cmocka_unit_test(test_order),
        cmocka_unit_test(test_greedy),          cmocka_unit_test(test_least_temperatures),
        cmocka_unit_test(test_pick_definition), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_distribution),    cmocka_unit_test(test_distribution_over_seeds),
        cmocka_unit_test(test_pairs),           cmocka_unit_test(test_chi_square_power),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
