/* What the page at / is told: the fleet, and rounds, as JSON; and where it is found. */
#include "orchestrator/http/fleet.h"
#include "orchestrator/http/worker_state.h"
#include "orchestrator/http/look.h"
#include "orchestrator/http/pages.h"
#include "orchestrator/http/round_json.h"
#include "tests/unit/mini_tokenizer_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <jansson.h>
#include <string.h>
#include <cmocka.h>

static json_int_t at(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static void test_the_fleet(void **state)
{
    static struct gr_http_state s;
    static struct gr_served served;
    (void)state;
    s.n_worker = 2;
    s.worker[0] = (struct gr_http_worker){
        .number = 3, .role = GR_WORKER_TARGET, .n_slot = 8, .status = {.n_active = 5, .standing = GR_QUARANTINE_OUT}};
    s.worker[1] = (struct gr_http_worker){
        .number = 9,
        .role = GR_WORKER_DRAFT,
        .status = {.draining = true, .rounds = {.n_round = 4, .n_draft_tokens = 40, .n_accepted_tokens = 7}}};
    s.n_session[GR_SESSION_RUNNING] = 6;
    s.totals.draft_ahead_hits = UINT32_MAX + 1ull;
    snprintf(served.name, sizeof(served.name), "a \"model\" </script>");
    char *text = gr_fleet_json(&s, &served, 1);
    json_t *root = json_loads(text, 0, NULL);
    const json_t *workers = json_object_get(root, "workers"), *drafter = json_array_get(workers, 1);
    assert_int_equal(json_array_size(workers), 2);
    assert_int_equal(at(json_array_get(workers, 0), "slots"), 8);
    assert_int_equal(at(json_array_get(workers, 0), "active"), 5);
    assert_string_equal(json_string_value(json_object_get(json_array_get(workers, 0), "state")), "quarantine");
    assert_string_equal(json_string_value(json_object_get(drafter, "role")), "draft");
    assert_string_equal(json_string_value(json_object_get(drafter, "state")), "drained");
    assert_int_equal(at(drafter, "accepted_tokens"), 7);
    assert_int_equal(at(json_object_get(root, "sessions"), "running"), 6);
    assert_int_equal(at(json_object_get(root, "totals"), "draft_ahead_hits"), UINT32_MAX + 1ull);
    s.worker[1].status.n_active = 1;
    assert_int_equal(gr_http_worker_state_of(&s.worker[1].status), GR_HTTP_WORKER_DRAINING);
    const json_t *model = json_array_get(json_object_get(root, "models"), 0);
    assert_string_equal(json_string_value(json_object_get(model, "id")), served.name);
    assert_true(json_is_false(json_object_get(model, "chat")));
    json_decref(root);
    free(text);
}

static void test_a_round_with_a_tree(void **state)
{
    struct gr_tokenizer *tok = NULL;
    int32_t ids[] = {1, 2}, nodes[] = {1, 2, 3}, parents[] = {-1, 0, 0}, path[] = {0}, no_token[] = {INT32_MAX};
    struct gr_msg m = {.type = GR_MSG_COMMIT,
                       .commit = {.round = 7,
                                  .ids = {.p = ids, .n = 2},
                                  .n_draft = 3,
                                  .n_accepted = 1,
                                  .verdict_kind = 2,
                                  .wait_ns = 5,
                                  .tree_ids = {.p = nodes, .n = 3},
                                  .tree_parents = {.p = parents, .n = 3},
                                  .path = {.p = path, .n = 1}}};
    (void)state;
    assert_int_equal(mini_tokenizer_open(&tok), GR_OK);
    json_t *round = gr_round_json(tok, &m.commit), *tree = json_object_get(round, "tree");
    assert_int_equal(at(round, "round"), 7);
    assert_int_equal(at(round, "wait_ns"), 5);
    assert_string_equal(json_string_value(json_object_get(round, "kind")), "full");
    assert_int_equal(json_array_size(json_object_get(tree, "tokens")), 3);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(tree, "parents"), 0)), -1);
    assert_true(json_equal(json_array_get(json_object_get(tree, "tokens"), 0),
                           json_array_get(json_object_get(round, "tokens"), 0)));
    json_decref(round);
    m.commit.tree_ids.n = 0; /* a round without one */
    m.commit.ids.p = no_token;
    m.commit.ids.n = 1;
    round = gr_round_json(tok, &m.commit);
    assert_null(json_object_get(round, "tree"));
    assert_string_equal(json_string_value(json_array_get(json_object_get(round, "tokens"), 0)), "");
    json_decref(round);
    gr_tokenizer_destroy(tok);
}

static const char *header_of(const struct gr_page *page, const char *name)
{
    for (const struct gr_page_header *h = page->header; h != NULL && h->name != NULL; h++) {
        if (strcmp(h->name, name) == 0) {
            return h->value;
        }
    }
    return NULL;
}

static void test_where_the_page_is(void **state)
{
    (void)state;
    const struct gr_page *look = gr_page_find("/"), *fleet = gr_page_find("/v1/graft/fleet");
    assert_ptr_equal(gr_page_find("//"), look);
    assert_true(look->open && !look->always && !look->post);
    assert_false(fleet->open || fleet->always);
    assert_true(gr_page_find("/health")->open && gr_page_find("/health")->always);
    assert_string_equal(header_of(look, "Content-Security-Policy"), gr_look_policy);
    assert_string_equal(header_of(fleet, "Cache-Control"), "no-store");
    assert_null(gr_page_find("/v1/models")->header);
    int status = 200;
    const char *type = NULL;
    char *text = look->make(NULL, &status, &type);
    assert_string_equal(text, gr_look_html);
    assert_string_equal(type, "text/html; charset=utf-8");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_fleet),
        cmocka_unit_test(test_a_round_with_a_tree),
        cmocka_unit_test(test_where_the_page_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
