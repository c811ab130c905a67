/* Bans, biases and penalties against transformers 5.24's processors (values made once by it, torch 2.15, in f32) and,
 * where it has none, against OpenAI's formula; counts along the branches of a tree; log-probabilities against torch. */
#include "common/base/status.h"
#include "common/rules/adjust.h"
#include "common/rules/adjust_list.h"
#include "common/rules/hash.h"
#include "common/rules/logprob.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N 12

static const float logits[N] = {-2.03500009f, 0.555000007f, -1.29500008f, 1.29500008f,   -0.555000007f, 2.03500009f,
                                0.185000002f, -1.66499996f, 0.925000012f, -0.925000012f, 1.66499996f,   -0.185000002f};
static const int32_t text[] = {3, 3, 7, 1, 9, 4, 7};
#define N_TEXT ((int32_t)GR_ARRAY_LEN(text))

static uint32_t all[N], generated[N];
static int32_t ids[N];
static struct gr_token_counts counts = {.all = all, .generated = generated, .id = ids};

/* The text's tokens from `from` on are generated. */
static void count(int32_t from)
{
    gr_token_counts_clear(&counts);
    for (int32_t i = 0; i < N_TEXT; i++) {
        gr_token_counts_push(&counts, text[i], i >= from);
    }
}

/* The text: its first n tokens committed, the rest a path. */
static void adjust(const struct gr_adjust *a, const struct gr_stop_ids *ends, int32_t n, float out[N])
{
    const struct gr_row_text t = {.token = text, .n = n, .path = text + n, .n_path = N_TEXT - n};
    memcpy(out, logits, sizeof(logits));
    gr_adjust_row(a, ends, &t, gr_adjust_penalises(a) ? &counts : NULL, out, N);
}

/* Wherever the committed text ends. */
static void assert_near(const struct gr_adjust *a, const struct gr_stop_ids *ends, const float want[N], float tolerance)
{
    for (int32_t n = 1; n <= N_TEXT; n++) {
        float out[N];
        adjust(a, ends, n, out);
        for (int i = 0; i < N; i++) {
            if (isinf(want[i])) {
                assert_true(out[i] <= -INFINITY);
            } else {
                assert_true(fabsf(out[i] - want[i]) <= tolerance);
            }
        }
    }
}

/* Equal bits: the same f32 operations. */
static void assert_row(const struct gr_adjust *a, const struct gr_stop_ids *ends, const float want[N])
{
    assert_near(a, ends, want, 0.0f);
}

static void test_repetition(void **state)
{
    (void)state;
    static const struct {
        float r;
        float want[N];
    } cases[] = {
        {1.2f,
         {-2.03500009f, 0.462499976f, -1.29500008f, 1.07916665f, -0.666000009f, 2.03500009f, 0.185000002f, -1.99800003f,
          0.925000012f, -1.11000001f, 1.66499996f, -0.185000002f}},
        {0.8f,
         {-2.03500009f, 0.693750024f, -1.29500008f, 1.6187501f, -0.444000006f, 2.03500009f, 0.185000002f, -1.33200002f,
          0.925000012f, -0.74000001f, 1.66499996f, -0.185000002f}},
        {3.0f,
         {-2.03500009f, 0.185000002f, -1.29500008f, 0.431666702f, -1.66499996f, 2.03500009f, 0.185000002f, -4.99499989f,
          0.925000012f, -2.7750001f, 1.66499996f, -0.185000002f}},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        for (int32_t from = 0; from <= N_TEXT; from++) { /* prompt and generated text count alike */
            count(from);
            assert_row(&(struct gr_adjust){.repetition = cases[i].r}, NULL, cases[i].want);
        }
    }
}

/* l - f * n - p where n > 0, n of the generated tokens alone. */
static void test_frequency_and_presence(void **state)
{
    (void)state;
    for (int32_t from = 0; from <= N_TEXT; from++) {
        float want[N];
        count(from);
        for (int id = 0; id < N; id++) {
            int n = 0;
            for (int32_t i = from; i < N_TEXT; i++) {
                n += text[i] == id;
            }
            want[id] = (float)((double)logits[id] - 0.5 * n - (n > 0 ? -0.75 : 0.0));
        }
        assert_near(&(struct gr_adjust){.frequency = 0.5f, .presence = -0.75f}, NULL, want, 3e-7f);
    }
}

/* Pitfall H1: a prompt that holds a token 50 times says nothing to frequency and presence. */
static void test_prompt_is_not_generated(void **state)
{
    (void)state;
    const int32_t prompt[1] = {5};
    float out[N];
    gr_token_counts_clear(&counts);
    for (int i = 0; i < 50; i++) {
        gr_token_counts_push(&counts, 5, 0);
    }
    const struct gr_row_text t = {.token = prompt, .n = 1};
    memcpy(out, logits, sizeof(logits));
    gr_adjust_row(&(struct gr_adjust){.frequency = 2.0f, .presence = 2.0f}, NULL, &t, &counts, out, N);
    assert_memory_equal(out, logits, sizeof(logits));
    gr_adjust_row(&(struct gr_adjust){.repetition = 2.0f}, NULL, &t, &counts, out, N);
    assert_float_equal(out[5], logits[5] / 2.0f, 1e-7f); /* once, however often it stands there */
}

static void test_bad_words(void **state)
{
    (void)state;
    static const struct gr_adjust a = {
        .bad = {.n = 19, .entry = {3, 4, 7, 2, 1, 5, 3, 9, 7, 11, 2, 7, 0, 5, 1, 9, 4, 7, 6}}};
    static const float want[N] = {-INFINITY, 0.555000007f, -INFINITY,    1.29500008f,   -0.555000007f, -INFINITY,
                                  -INFINITY, -1.66499996f, 0.925000012f, -0.925000012f, 1.66499996f,   -0.185000002f};
    assert_row(&a, NULL, want);
    /* Longer than the text: it cannot stand there. */
    static const struct gr_adjust longer = {.bad = {.n = 10, .entry = {9, 0, 3, 3, 7, 1, 9, 4, 7, 6}}};
    assert_row(&longer, NULL, logits);
}

static void test_bias_and_bans(void **state)
{
    (void)state;
    static const struct gr_adjust a = {.biased = {.n = 2, .id = {3, 8}}, .bias = {.n = 2, .value = {2.5f, -10.0f}}};
    static const float want[N] = {-2.03500009f,  0.555000007f,  -1.29500008f, 3.79500008f,
                                  -0.555000007f, 2.03500009f,   0.185000002f, -1.66499996f,
                                  -9.07499981f,  -0.925000012f, 1.66499996f,  -0.185000002f};
    assert_row(&a, NULL, want);
    static const struct gr_adjust ban = {
        .banned = {.n = 2, .id = {0, 11}}, .biased = {.n = 1, .id = {0}}, .bias = {.n = 1, .value = {100.0f}}};
    float banned[N];
    memcpy(banned, logits, sizeof(logits));
    banned[0] = banned[11] = -INFINITY;
    assert_row(&ban, NULL, banned);
}

/* Pitfall H4: all ends are banned, and an id that is none of the vocabulary's touches nothing. */
static void test_ends(void **state)
{
    (void)state;
    static const struct gr_stop_ids ends = {.n = 5, .id = {10, -1, 2, N, 1 << 30}};
    static const float want[N] = {-2.03500009f,  0.555000007f,  -INFINITY,    1.29500008f,
                                  -0.555000007f, 2.03500009f,   0.185000002f, -1.66499996f,
                                  0.925000012f,  -0.925000012f, -INFINITY,    -0.185000002f};
    assert_row(&(struct gr_adjust){0}, &ends, want);
    assert_row(&(struct gr_adjust){0}, NULL, logits);
}

static void test_together(void **state)
{
    (void)state;
    static const struct gr_adjust a = {.repetition = 1.3f,
                                       .biased = {.n = 3, .id = {3, 8, 9}},
                                       .bias = {.n = 3, .value = {2.5f, -10.0f, 1.0f}},
                                       .bad = {.n = 6, .entry = {3, 4, 7, 2, 1, 5}}};
    static const struct gr_stop_ids ends = {.n = 2, .id = {10, 11}};
    static const float want[N] = {-2.03500009f, 0.426923096f, -INFINITY,    2.91923094f,   -0.721499979f, -INFINITY,
                                  0.185000002f, -2.16449976f, -9.07499981f, 0.0576923005f, -INFINITY,     -INFINITY};
    count(3);
    assert_row(&a, &ends, want);
}

/* ---- counts along branches ---- */

static void test_counts_follow_a_walk(void **state)
{
    (void)state;
    uint64_t rng = 9;
    int32_t token[40];
    int n = 0;
    gr_token_counts_clear(&counts);
    for (int step = 0; step < 20000; step++) {
        rng = gr_mix64(rng + GR_HASH_GOLDEN);
        if (n == 40 || (n > 0 && rng % 2 == 0)) {
            n--;
            gr_token_counts_pop(&counts, token[n], n >= 10);
        } else {
            token[n] = (int32_t)((rng >> 8) % N);
            gr_token_counts_push(&counts, token[n], n >= 10);
            n++;
        }
        uint32_t want_all[N] = {0}, want_generated[N] = {0};
        int n_id = 0;
        for (int i = 0; i < n; i++) {
            n_id += want_all[token[i]]++ == 0;
            want_generated[token[i]] += i >= 10;
        }
        assert_memory_equal(all, want_all, sizeof(all));
        assert_memory_equal(generated, want_generated, sizeof(generated));
        assert_int_equal(counts.n_id, n_id);
        for (int i = 0; i < n_id; i++) {
            assert_true(all[ids[i]] > 0);
            for (int k = 0; k < i; k++) {
                assert_int_not_equal(ids[i], ids[k]);
            }
        }
    }
    gr_token_counts_clear(&counts);
    for (int i = 0; i < N; i++) {
        assert_true(all[i] == 0 && generated[i] == 0);
    }
}

/* ---- what is refused ---- */

static void test_limits(void **state)
{
    (void)state;
    static const struct {
        struct gr_adjust a;
        const char *word; /* of the line; NULL: it is taken */
    } cases[] = {
        {{0}, NULL},
        {{.repetition = 1.0f}, NULL},
        {{.repetition = 0.01f}, NULL},
        {{.repetition = 10.0f}, NULL},
        {{.repetition = 10.1f}, "repetition"},
        {{.repetition = -1.0f}, "repetition"},
        {{.repetition = NAN}, "repetition"},
        {{.frequency = 2.0f, .presence = -2.0f}, NULL},
        {{.frequency = 2.1f}, "frequency"},
        {{.presence = -2.1f}, "presence"},
        {{.presence = NAN}, "presence"},
        {{.biased = {.n = 1, .id = {N - 1}}, .bias = {.n = 1, .value = {-100.0f}}}, NULL},
        {{.biased = {.n = 1, .id = {N}}, .bias = {.n = 1}}, "vocabulary"},
        {{.biased = {.n = 1, .id = {-1}}, .bias = {.n = 1}}, "vocabulary"},
        {{.biased = {.n = 1}, .bias = {.n = 1, .value = {100.5f}}}, "-100 to 100"},
        {{.biased = {.n = 1}, .bias = {.n = 1, .value = {NAN}}}, "-100 to 100"},
        {{.biased = {.n = 2}, .bias = {.n = 1}}, "as many"},
        {{.banned = {.n = 1, .id = {N}}}, "vocabulary"},
        {{.banned = {.n = N - 1}}, NULL},
        {{.banned = {.n = N}}, "banned"},
        {{.bad = {.n = 2, .entry = {1, 3}}}, NULL},
        {{.bad = {.n = 1, .entry = {1}}}, "bad_words"},
        {{.bad = {.n = 2, .entry = {0, 1}}}, "bad_words"},
        {{.bad = {.n = 2, .entry = {-1, 1}}}, "bad_words"},
        {{.bad = {.n = 3, .entry = {INT32_MAX, 1, 1}}}, "bad_words"},
        {{.bad = {.n = 40, .entry = {33}}}, "bad_words"},
        {{.bad = {.n = 2, .entry = {1, N}}}, "vocabulary"},
    };
    for (size_t i = 0; i < GR_ARRAY_LEN(cases); i++) {
        const char *wrong = gr_adjust_wrong(&cases[i].a, 0, N);
        if (cases[i].word == NULL) {
            assert_null(wrong);
        } else {
            assert_non_null(wrong);
            assert_non_null(strstr(wrong, cases[i].word));
        }
    }
    assert_non_null(gr_adjust_wrong(&(struct gr_adjust){.banned = {.n = N - 1}}, 1, N));
    struct gr_adjust many = {.bad = {.n = 2 * GR_BAD_WORD_MAX}};
    for (int i = 0; i < GR_BAD_WORD_MAX + 1; i++) {
        many.bad.entry[2 * i] = 1;
        many.bad.entry[2 * i + 1] = 0;
    }
    assert_null(gr_adjust_wrong(&many, 0, 1000));
    many.bad.n += 2;
    assert_non_null(gr_adjust_wrong(&many, 0, 1000));
}

static void test_copy(void **state)
{
    (void)state;
    static struct gr_adjust a = {.repetition = 1.5f,
                                 .frequency = 0.5f,
                                 .presence = 0.25f,
                                 .banned = {.n = 1, .id = {4}},
                                 .biased = {.n = 2, .id = {1, 2}},
                                 .bias = {.n = 2, .value = {1.0f, -1.0f}},
                                 .bad = {.n = 3, .entry = {2, 7, 8}}};
    static struct gr_adjust b;
    gr_adjust_copy(&b, &a);
    assert_memory_equal(&a, &b, sizeof(a)); /* static memory has no odd padding */
}

/* ---- log-probabilities ---- */

static void test_logprobs(void **state)
{
    (void)state;
    static const float want[N] = {-5.2316885f,  -2.64168835f, -4.49168873f, -1.90168846f, -3.75168848f, -1.16168845f,
                                  -3.01168871f, -4.86168861f, -2.27168846f, -4.12168837f, -1.53168857f, -3.38168859f};
    static const int32_t best[N] = {5, 10, 3, 8, 1, 6, 11, 4, 9, 2, 7, 0};
    for (int32_t n_top = 0; n_top <= GR_LOGPROB_MAX; n_top++) {
        for (int32_t id = 0; id < N; id++) {
            struct gr_logprob_row r;
            gr_logprob_row(logits, N, id, n_top, &r);
            assert_int_equal(r.n, n_top < N ? n_top : N);
            assert_float_equal(r.chosen, want[id], 1e-6f);
            for (int32_t k = 0; k < r.n; k++) {
                assert_int_equal(r.id[k], best[k]);
                assert_float_equal(r.value[k], want[best[k]], 1e-6f);
            }
        }
    }
    static const float equal[N] = {1, 2, 2, 1, 2, 2, 1, 1, 1, 1, 1, 1};
    struct gr_logprob_row r;
    gr_logprob_row(equal, N, 0, 5, &r);
    static const int32_t ties[5] = {1, 2, 4, 5, 0};
    assert_memory_equal(r.id, ties, sizeof(ties));
}

/* ---- lists ---- */

static int32_t place[N];

static int make_list(const struct gr_adjust *a, const struct gr_stop_ids *ends, int32_t n_max,
                     struct gr_adjust_entry entry[N], struct gr_adjust_list *out)
{
    const struct gr_row_text t = {.token = text, .n = 4, .path = text + 4, .n_path = N_TEXT - 4};
    const struct gr_adjust_asked asked = {
        .adjust = a, .ends = ends, .text = &t, .counts = gr_adjust_penalises(a) ? &counts : NULL, .n_vocab = N};
    const int fits = gr_adjust_list_make(&asked, place, entry, n_max, out);
    for (int i = 0; i < N; i++) {
        assert_int_equal(place[i], 0);
    }
    return fits;
}

static struct gr_adjust much(void)
{
    return (struct gr_adjust){.repetition = 1.3f,
                              .frequency = 0.37f,
                              .presence = -0.41f,
                              .banned = {.n = 3, .id = {2, 9, 2}},
                              .biased = {.n = 3, .id = {9, 0, 1}},
                              .bias = {.n = 3, .value = {3.0f, -1.7f, 0.3f}},
                              .bad = {.n = 5, .entry = {2, 4, 7, 1, 5}}};
}

/* The entries of a list, applied one by one, give the row's bits. */
static void test_list_is_the_row(void **state)
{
    const struct gr_adjust a = much();
    const struct gr_stop_ids ends = {.n = 2, .id = {3, N + 5}};
    struct gr_adjust_entry entry[N];
    struct gr_adjust_list list;
    float want[N];
    float got[N];
    (void)state;
    count(3);
    adjust(&a, &ends, 4, want);
    assert_true(make_list(&a, &ends, N, entry, &list));
    memcpy(got, logits, sizeof(got));
    for (int32_t i = 0; i < list.n; i++) {
        got[entry[i].id] = gr_adjust_value(&entry[i], list.penalties, got[entry[i].id]);
    }
    assert_memory_equal(got, want, sizeof(got));
    assert_memory_not_equal(got, logits, sizeof(got));
}

static void test_list_that_does_not_fit(void **state)
{
    struct gr_adjust a = much();
    struct gr_adjust_entry entry[N];
    struct gr_adjust_list list;
    (void)state;
    count(3);
    assert_true(make_list(&a, NULL, N, entry, &list));
    const int32_t n = list.n;
    assert_true(make_list(&a, NULL, n, entry, &list));
    for (int32_t n_max = 0; n_max < n; n_max++) {
        assert_false(make_list(&a, NULL, n_max, entry, &list));
    }
    a.biased.id[2] = a.biased.id[1];
    assert_false(make_list(&a, NULL, N, entry, &list));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_is_the_row),
        cmocka_unit_test(test_list_that_does_not_fit),
        cmocka_unit_test(test_repetition),
        cmocka_unit_test(test_frequency_and_presence),
        cmocka_unit_test(test_prompt_is_not_generated),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_bias_and_bans),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_counts_follow_a_walk),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
