/* Which targets serve which model of the endpoint: by the tokenizer, and by the name that the fleet has for it. */
#include "orchestrator/http/homes.h"
#include "tests/unit/orch_world.h"

#define OTHER 2
#define MORE 3

static struct gr_worker_info target_of(const char *name, uint64_t fingerprint, uint64_t tokenizer)
{
    struct gr_worker_info info = target_info();
    snprintf(info.model, sizeof(info.model), "%s", name);
    info.model_fingerprint = fingerprint;
    info.tokenizer_fingerprint = tokenizer;
    return info;
}

static void join_as(struct world *w, uint32_t worker, const char *name, uint64_t fingerprint, uint64_t tokenizer)
{
    struct gr_worker_info info = target_of(name, fingerprint, tokenizer);
    info.incarnation = fingerprint;
    snprintf(info.seat, sizeof(info.seat), "%s", name);
    assert_int_equal(gr_orch_join(w->orch, worker, &info, w->now_ns), GR_OK);
}

static bool fits(const struct gr_homes *h, int i, const struct world *w, uint32_t worker)
{
    return gr_homes_fit(h, i, gr_orch_worker(w->orch, worker, NULL));
}

/* Two have joined since the endpoint last looked: who was before the other counts, not its place in the table. */
static void test_the_first_of_two(void **state)
{
    (void)state;
    static const struct gr_served served = {.name = "folder", .fingerprint = 7};
    struct gr_homes h;
    struct world *w = make(&(struct gr_orch_config){.first_number = 1000});
    gr_homes_begin(&h, &served, 1);
    join_as(w, OTHER, "b", 12, 7);
    join_as(w, TARGET, "a", 11, 7);
    gr_homes_look(&h, w->orch);
    assert_string_equal(h.home[0].name, "b");
    destroy(w);
}

/* A model that nobody has named is that of the first target with its tokenizer: another one with the same tokenizer and
 * other values does not serve it, whether the first one is there or away. */
static void test_the_first_settles_it(void **state)
{
    (void)state;
    static const struct gr_served served = {.name = "folder", .fingerprint = 7};
    struct gr_homes h;
    struct world *w = make(NULL);
    gr_homes_begin(&h, &served, 1);
    join_as(w, MORE, "foreign", 13, 8);
    gr_homes_look(&h, w->orch);
    assert_string_equal(h.home[0].name, "");
    assert_false(fits(&h, 0, w, MORE));
    assert_true(h.home[0].foreign); /* the machine would give it sessions, since it is the only one */
    join_as(w, OTHER, "b", 12, 7);
    gr_homes_look(&h, w->orch);
    assert_string_equal(h.home[0].name, "b");
    assert_false(h.home[0].foreign);
    join_as(w, TARGET, "a", 11, 7); /* in an earlier place of the table */
    gr_homes_look(&h, w->orch);
    assert_string_equal(h.home[0].name, "b");
    assert_true(fits(&h, 0, w, OTHER));
    assert_false(fits(&h, 0, w, TARGET));
    gr_orch_on_lost(w->orch, OTHER, w->now_ns); /* it may come back */
    gr_homes_look(&h, w->orch);
    assert_string_equal(h.home[0].name, "b");
    assert_false(fits(&h, 0, w, TARGET));
    join_as(w, OTHER, "b", 12, 7);
    say(w, OTHER, &(struct gr_msg){.type = GR_MSG_DRAIN}); /* it ends in order */
    (void)gr_orch_step(w->orch, w->now_ns);
    gr_orch_on_lost(w->orch, OTHER, w->now_ns);
    gr_homes_look(&h, w->orch);
    assert_string_equal(h.home[0].name, "a");
    assert_true(fits(&h, 0, w, TARGET));
    destroy(w);
}

/* Models of one tokenizer are told apart by their names, whose values are those of the first target. */
static void test_names_tell(void **state)
{
    (void)state;
    static const struct gr_served served[] = {{.name = "a", .named = true, .fingerprint = 7},
                                              {.name = "b", .named = true, .fingerprint = 7},
                                              {.name = "c", .named = true, .fingerprint = 7}};
    struct gr_homes h;
    struct world *w = make(NULL);
    gr_homes_begin(&h, served, 3);
    gr_homes_look(&h, w->orch);
    assert_string_equal(h.home[1].name, "b");
    assert_false(h.home[1].known || h.home[1].foreign);
    join_as(w, TARGET, "a", 11, 7);
    join_as(w, OTHER, "b", 12, 7);
    join_as(w, MORE, "c", 13, 8); /* a foreign tokenizer under the right name */
    gr_homes_look(&h, w->orch);
    for (int i = 0; i < 3; i++) {
        assert_true(fits(&h, i, w, TARGET) == (i == 0));
        assert_true(fits(&h, i, w, OTHER) == (i == 1));
        assert_false(fits(&h, i, w, MORE));
        assert_true(h.home[i].foreign == (i == 2));
    }
    gr_orch_on_lost(w->orch, MORE, w->now_ns);
    join_as(w, MORE, "another name of a", 11, 7); /* the same values */
    gr_homes_look(&h, w->orch);
    assert_true(fits(&h, 0, w, MORE));
    destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_settles_it),
        cmocka_unit_test(test_the_first_of_two),
        cmocka_unit_test(test_names_tell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
