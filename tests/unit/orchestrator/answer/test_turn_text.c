/* Pieces of a turn's text: whoever is told them, from whichever token on and at whatever time, has the same text. */
#include "orchestrator/answer/turn_text.h"
#include "tests/quiet_log.h"
#include "tests/unit/mini_tokenizer_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N 600

static struct gr_tokenizer *bytes; /* id = byte */

/* Who follows: pieces, and after each the token that they reach. */
struct follower {
    uint32_t at;
    size_t n;
    char text[4 * N];
};

static void follow(struct follower *f, const struct gr_turn_text *t)
{
    size_t n = 0;
    const uint32_t before = f->at;
    const char *p = gr_turn_text_piece(t, f->at, &f->at, &n);
    assert_true(f->at >= before && f->at <= t->n_final && (n == 0 || f->at > before));
    memcpy(f->text + f->n, p, n);
    f->n += n;
}

/* Letters, halves of characters, and beginnings of the stop string. */
static int32_t draw(uint64_t *seed)
{
    static const uint8_t some[] = {'a', 'b', '<', 'e', 'n', '<', 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xff, '\n'};
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return some[(*seed >> 33) % sizeof(some)];
}

static bool commit(struct gr_turn_text *t, int32_t *ids, uint32_t n)
{
    const struct gr_stop_ids none = {0};
    bool stopped = false;
    const struct gr_msg_commit m = {
        .ids = {.p = ids, .n = n}, .keep_len = 7 + t->n_final, .final_len = 7 + t->n_final + n};
    assert_int_equal(gr_turn_text_take(t, &m, &none, &stopped), GR_OK);
    return stopped;
}

static void run(uint64_t seed, const char *stop)
{
    static struct follower each, late, second, from[N + 1];
    const struct gr_turn_text_config c = {.tok = bytes, .stop = &stop, .n_stop = stop != NULL, .max_tokens = N};
    struct gr_turn_text t;
    each = late = second = (struct follower){0};
    assert_int_equal(gr_turn_text_init(&t, &c), GR_OK);
    bool stopped = false;
    while (!stopped && t.n_final < N - 8) {
        int32_t ids[8];
        const uint32_t n = 1 + (uint32_t)(seed >> 40) % 8;
        for (uint32_t i = 0; i < n; i++) {
            ids[i] = draw(&seed);
        }
        stopped = commit(&t, ids, n);
        follow(&each, &t);
        if ((seed >> 50) % 3 == 0) {
            follow(&second, &t);
        }
    }
    assert_int_equal(gr_turn_text_end(&t), GR_OK);
    follow(&each, &t);
    follow(&second, &t);
    follow(&late, &t);
    assert_true(each.at == t.n_final && late.n == t.stream.len && memcmp(late.text, t.stream.text, late.n) == 0);
    assert_true(each.n == late.n && memcmp(each.text, late.text, late.n) == 0);
    assert_true(second.n == late.n && memcmp(second.text, late.text, late.n) == 0);
    gr_turn_text_trim(&t);
    for (uint32_t i = 0; i <= t.n_final; i++) { /* the end of the text, from any token on */
        from[i] = (struct follower){.at = i};
        follow(&from[i], &t);
        assert_true(from[i].at == t.n_final && from[i].n <= late.n &&
                    memcmp(from[i].text, late.text + late.n - from[i].n, from[i].n) == 0);
    }
    assert_int_equal(from[t.n_final].n, 0);
    gr_turn_text_finish(&t);
}

static void test_pieces(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        run(seed, seed % 2 == 0 ? "<en" : NULL);
    }
}

/* A token of which nothing can be shown yet is not told; with what makes it whole it is. */
static void test_what_waits(void **state)
{
    (void)state;
    const char *stop = "stop";
    const struct gr_turn_text_config c = {.tok = bytes, .stop = &stop, .n_stop = 1, .max_tokens = 16};
    struct gr_turn_text t;
    struct follower f = {0};
    assert_int_equal(gr_turn_text_init(&t, &c), GR_OK);
    commit(&t, (int32_t[]){'x', 0xc3}, 2);
    follow(&f, &t);
    assert_true(f.at == 1 && f.n == 1);
    commit(&t, (int32_t[]){0xa9, 's', 't'}, 3);
    follow(&f, &t);
    assert_true(f.at == 3 && f.n == 3);
    commit(&t, (int32_t[]){'x'}, 1);
    follow(&f, &t);
    assert_true(f.at == 6 && f.n == 6);
    commit(&t, (int32_t[]){0xc3}, 1);
    follow(&f, &t);
    assert_true(f.at == 6);
    assert_int_equal(gr_turn_text_end(&t), GR_OK);
    follow(&f, &t);
    assert_true(f.at == 7 && f.n == 9 && memcmp(f.text, "x\xc3\xa9stx\xef\xbf\xbd", 9) == 0);
    gr_turn_text_finish(&t);
}

static int setup(void **state)
{
    (void)state;
    return mini_tokenizer_open(&bytes) == GR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    gr_tokenizer_destroy(bytes);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces), cmocka_unit_test(test_what_waits)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
