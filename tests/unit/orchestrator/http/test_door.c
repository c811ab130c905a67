/* Who is let in: keys of a file, names of a host, types of a body, and the order in which a request is held against
 * the rules. */
#include "orchestrator/http/door.h"
#include "tests/quiet_log.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define KEY_A "sk-aaaaaaaaaaaaaaaaaaaa"
#define KEY_B "bb.bb-bb_bb~bb+bb/bb=="

static struct gr_api_keys *parse(const char *text)
{
    struct gr_api_keys *k = NULL;
    assert_int_equal(gr_api_keys_parse("F", text, strlen(text), &k), GR_OK);
    return k;
}

static bool has(const struct gr_api_keys *k, const char *key)
{
    struct gr_api_owner owner;
    return gr_api_keys_find(k, key, strlen(key), &owner);
}

static void test_a_file_of_keys(void **state)
{
    (void)state;
    struct gr_api_keys *k = parse("# keys\n\n  " KEY_A " alice of sales \r\n\t# " KEY_B "x\n" KEY_B);
    assert_int_equal(gr_api_keys_count(k), 2);
    assert_true(has(k, KEY_A) && has(k, KEY_B));
    assert_false(has(k, "") || has(k, "alice") || has(k, "#"));
    assert_false(has(k, KEY_A "x") || has(k, " " KEY_A));
    for (size_t n = 0; n < strlen(KEY_A); n++) {
        struct gr_api_owner owner;
        assert_false(gr_api_keys_find(k, KEY_A, n, &owner));
    }
    gr_api_keys_destroy(k);
}

static void test_an_owner_is_told_from_others(void **state)
{
    (void)state;
    struct gr_api_owner a, b, again, nobody;
    const struct gr_api_owner zero = {{0}};
    struct gr_api_keys *k = parse(KEY_A "\n" KEY_B "\n"), *turned = parse(KEY_B "\n" KEY_A " now with a name\n");
    assert_true(gr_api_keys_find(k, KEY_A, strlen(KEY_A), &a) && gr_api_keys_find(k, KEY_B, strlen(KEY_B), &b));
    assert_true(gr_api_keys_find(turned, KEY_A, strlen(KEY_A), &again));
    assert_false(gr_api_keys_find(k, "x", 1, &nobody));
    assert_memory_equal(&a, &again, sizeof(a));
    assert_memory_not_equal(&a, &b, sizeof(a));
    assert_memory_equal(&nobody, &zero, sizeof(zero));
    assert_memory_not_equal(&a, &zero, sizeof(zero));
    gr_api_keys_destroy(k);
    gr_api_keys_destroy(turned);
}

static void refused_text(const char *text, size_t len, const char *words)
{
    struct gr_api_keys *k = NULL;
    const enum gr_status st = gr_api_keys_parse("F", text, len, &k);
    const char *said = log_count_last;
    if (st != GR_EINVAL || strstr(said, words) == NULL || strstr(said, KEY_A) != NULL) {
        fail_msg("`%s': status %d, `%s'", text, (int)st, said);
    }
}

static void test_files_that_are_refused(void **state)
{
    (void)state;
    static char large[(GR_API_KEYS_MAX + 1) * 32];
    static char wide[GR_API_KEY_BYTES_MAX + 2];
    size_t n = 0;
    refused_text("", 0, "no key");
    refused_text("# " KEY_A "\n\n", strlen(KEY_A) + 4, "no key");
    refused_text("\n" KEY_A "\n" KEY_A " b", 2 * strlen(KEY_A) + 4, "line 3: this key stands in line 2");
    refused_text("aaaaaaaaaaaaaaa\xc3\xa4", 17, "line 1: character 16");
    refused_text("aaaaaaaaaaaaaaaaa\0b", 19, "line 1: character 18");
    refused_text("a,bbbbbbbbbbbbbbbbb", 19, "character 2");
    memset(wide, 'a', sizeof(wide) - 1);
    refused_text(wide, sizeof(wide) - 1, "512");
    for (int i = 0; i <= GR_API_KEYS_MAX; i++) {
        n += (size_t)snprintf(large + n, sizeof(large) - n, "key-of-many-%016d\n", i);
    }
    refused_text(large, n, "1024");
}

static void test_a_short_key_is_told_of(void **state)
{
    (void)state;
    struct gr_api_keys *k = parse("short\n");
    assert_non_null(strstr(log_count_last, "line 1: a key of 5 characters can be guessed"));
    gr_api_keys_destroy(k);
}

static void test_bearers(void **state)
{
    (void)state;
    size_t n = 0;
    static const char *const none[] = {"",    "Bearer",     "Bearer ",      "Basic " KEY_A,
                                       KEY_A, "Bearer a b", "Bearer" KEY_A, "Bearer  \t"};
    for (size_t i = 0; i < GR_ARRAY_LEN(none); i++) {
        assert_null(gr_api_bearer(none[i], &n));
    }
    assert_null(gr_api_bearer(NULL, &n));
    static const char *const some[] = {"Bearer " KEY_A, "bearer " KEY_A, "BEARER   " KEY_A "  "};
    for (size_t i = 0; i < GR_ARRAY_LEN(some); i++) {
        const char *key = gr_api_bearer(some[i], &n);
        assert_non_null(key);
        assert_int_equal(n, strlen(KEY_A));
        assert_memory_equal(key, KEY_A, n);
    }
}

static void test_names_of_the_host(void **state)
{
    (void)state;
    static const char *const names[] = {"llm.example", "10.0.0.7"};
    const struct gr_door d = {.on_loopback = true, .host = names, .n_host = 2};
    static const char *const known[] = {"localhost",  "LocalHost:8000", "127.0.0.1",        "127.0.0.1:1",
                                        "[::1]",      "[::1]:65535",    "llm.example:443",  "10.0.0.7",
                                        "localhost:", "localhost ",     "127.0.0.1:8000 \t"};
    static const char *const others[] = {"",
                                         "evil.test",
                                         "localhost.evil.test",
                                         "localhost:evil.test",
                                         "localhost x",
                                         "127.0.0.1.evil",
                                         "localhost@evil",
                                         "localhost:8000.evil",
                                         "::1",
                                         "127.0.0.1:1:2",
                                         "xlocalhost",
                                         "localhost:123456",
                                         "0.0.0.0",
                                         "llm.example.evil"};
    for (size_t i = 0; i < GR_ARRAY_LEN(known); i++) {
        if (!gr_door_knows_host(&d, known[i])) {
            fail_msg("%s is not known", known[i]);
        }
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(others); i++) {
        if (gr_door_knows_host(&d, others[i])) {
            fail_msg("%s is known", others[i]);
        }
    }
}

static void test_types_of_a_body(void **state)
{
    (void)state;
    assert_true(gr_type_is_json("application/json") && gr_type_is_json("Application/JSON; charset=utf-8"));
    assert_true(gr_type_is_json("application/json ;x"));
    assert_false(gr_type_is_json(NULL) || gr_type_is_json("") || gr_type_is_json("text/plain"));
    assert_false(gr_type_is_json("application/jsonp") || gr_type_is_json("text/plain; application/json"));
}

static int ask(const struct gr_door *d, const struct gr_visit *v)
{
    struct gr_admission a;
    struct gr_visit at_page = *v;
    at_page.page = gr_page_find(v->path);
    gr_door_ask(d, &at_page, &a);
    return a.error.http_status;
}

/* What could be read as two different requests is refused, and nothing that follows is read. */
static void test_where_a_body_ends(void **state)
{
    (void)state;
    const struct gr_door d = {0};
    const struct gr_visit odd[] = {{.odd_name = true},       {.transfer = "gzip, chunked", .is_chunked = true},
                                   {.lengths_differ = true}, {.is_chunked = true, .length = "1"},
                                   {.length = ""},           {.length = "4 2"},
                                   {.length = "+1"},         {.length = "0x1"}};
    for (size_t i = 0; i < GR_ARRAY_LEN(odd); i++) {
        struct gr_admission a;
        struct gr_visit v = odd[i];
        v.path = "/v1/completions";
        v.page = gr_page_find(v.path);
        v.method = "POST";
        v.type = "application/json";
        gr_door_ask(&d, &v, &a);
        assert_true(a.ends);
        assert_int_equal(a.error.http_status, v.transfer != NULL ? 501 : 400);
    }
}

static void test_names_of_headers(void **state)
{
    (void)state;
    static const char *const odd[] = {"Host ", "A B", "A\tB", "content-length42", "Transfer-Encoding:chunked"};
    static const char *const plain[] = {
        "Host", "Content-Length", "transfer-encoding", "X-Content-Length", "Content-Type", ""};
    for (size_t i = 0; i < GR_ARRAY_LEN(odd); i++) {
        assert_true(gr_header_is_odd(odd[i]));
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(plain); i++) {
        assert_false(gr_header_is_odd(plain[i]));
    }
}

static void test_heads(void **state)
{
    (void)state;
    const struct gr_door d = {0};
    struct gr_visit v = {.path = "/health", .method = "HEAD"};
    assert_int_equal(ask(&d, &v), 0);
    v.path = "/v1/sessions/0123456789abcdef/stream"; /* whose length nobody knows ahead */
    assert_int_equal(ask(&d, &v), 405);
    v.method = "GET";
    assert_int_equal(ask(&d, &v), 0);
}

static void test_the_order_of_rules(void **state)
{
    (void)state;
    struct gr_api_keys *k = parse(KEY_A "\n");
    struct gr_door d = {.on_loopback = true, .keys = k};
    struct gr_visit v = {.path = "/v1/completions", .method = "POST", .host = "localhost", .type = "application/json"};
    assert_int_equal(ask(&d, &v), 401);
    v.path = "/nothing"; /* which pages there are is not told */
    assert_int_equal(ask(&d, &v), 401);
    v.host = "evil.test";
    assert_int_equal(ask(&d, &v), 403);
    v.host = NULL;
    v.authorization = "Bearer " KEY_A;
    v.n_authorization = 1;
    assert_int_equal(ask(&d, &v), 404);
    v.path = "//v1//completions/";
    assert_int_equal(ask(&d, &v), 0);
    v.n_authorization = 2;
    assert_int_equal(ask(&d, &v), 401);
    v.n_authorization = 1;
    v.method = "OPTIONS";
    assert_int_equal(ask(&d, &v), 405);
    v.method = "POST";
    v.coding = "gzip";
    assert_int_equal(ask(&d, &v), 415);
    v.coding = "identity";
    assert_int_equal(ask(&d, &v), 0);
    v.type = "text/plain";
    assert_int_equal(ask(&d, &v), 415);
    v.type = "application/json";
    v.length = "33554433";
    assert_int_equal(ask(&d, &v), 413);
    v.length = "33554432";
    v.head_bytes = GR_HTTP_HEAD_MAX + 1;
    assert_int_equal(ask(&d, &v), 431);
    v.head_bytes = GR_HTTP_HEAD_MAX;
    v.excess = GR_GUEST_OF_ADDRESS;
    assert_int_equal(ask(&d, &v), 429);
    v.excess = GR_GUEST_OF_ALL;
    assert_int_equal(ask(&d, &v), 503);
    v = (struct gr_visit){.path = "/health", .method = "GET", .needs_host = true};
    assert_int_equal(ask(&d, &v), 400);
    v.host = "localhost";
    v.n_host = 2;
    assert_int_equal(ask(&d, &v), 400);
    v.n_host = 1;
    v.length = "1";
    assert_int_equal(ask(&d, &v), 0);
    v.is_chunked = true;
    assert_int_equal(ask(&d, &v), 400);
    v.length = NULL;
    assert_int_equal(ask(&d, &v), 0);
    v.transfer = "gzip";
    assert_int_equal(ask(&d, &v), 501);
    v = (struct gr_visit){.path = "/health", .method = "GET", .excess = GR_GUEST_OF_ALL};
    assert_int_equal(ask(&d, &v), 0);
    v.host = "evil.test";
    assert_int_equal(ask(&d, &v), 403);
    d.on_loopback = false;
    assert_int_equal(ask(&d, &v), 0);
    gr_api_keys_destroy(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_of_keys),
        cmocka_unit_test(test_an_owner_is_told_from_others),
        cmocka_unit_test(test_files_that_are_refused),
        cmocka_unit_test(test_a_short_key_is_told_of),
        cmocka_unit_test(test_bearers),
        cmocka_unit_test(test_names_of_the_host),
        cmocka_unit_test(test_types_of_a_body),
        cmocka_unit_test(test_where_a_body_ends),
        cmocka_unit_test(test_names_of_headers),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_the_order_of_rules),
    };
    return sodium_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
