/* No message leaves before its record is durable, and none before those that its client was to get earlier. */
#include "common/rules/hash.h"
#include "orchestrator/server/outbox.h"
#include "tests/quiet_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_CLIENT 5

/* What clients got: messages number their client's messages by `place`. */
static struct {
    uint64_t synced;               /* that the outbox was told of */
    uint64_t needs[N_CLIENT][512]; /* the record of each message */
    uint32_t n_put[N_CLIENT], n_got[N_CLIENT];
} x;

static void to_client(void *ctx, uint32_t client, const struct gr_msg *m)
{
    (void)ctx;
    assert_int_equal(m->type, GR_MSG_QUEUED);
    assert_int_equal(m->queued.place, x.n_got[client]); /* in order, none twice */
    assert_true(x.needs[client][x.n_got[client]] <= x.synced);
    x.n_got[client]++;
}

static struct gr_outbox *make(void)
{
    struct gr_outbox *o = NULL;
    memset(&x, 0, sizeof(x));
    assert_int_equal(gr_outbox_create(N_CLIENT, &(struct gr_outbox_io){.send = to_client}, &o), GR_OK);
    return o;
}

static void put(struct gr_outbox *o, uint32_t client, uint64_t seq)
{
    const uint32_t n = x.n_put[client]++;
    x.needs[client][n] = seq;
    const struct gr_msg m = {.type = GR_MSG_QUEUED, .session = 1, .queued = {.place = n}};
    assert_int_equal(gr_outbox_put(o, client, &m, seq), GR_OK);
}

static void synced(struct gr_outbox *o, uint64_t seq)
{
    x.synced = GR_MAX(x.synced, seq);
    gr_outbox_synced(o, seq);
}

static void test_order(void **state)
{
    (void)state;
    struct gr_outbox *o = make();
    put(o, 0, 0);
    assert_int_equal(x.n_got[0], 1);
    put(o, 0, 3);
    put(o, 0, 0); /* needs no record, but comes after one that does */
    put(o, 0, 1);
    put(o, 1, 0); /* another client waits for nobody */
    assert_true(x.n_got[0] == 1 && x.n_got[1] == 1);
    assert_true(gr_outbox_holds(o, 0) && !gr_outbox_holds(o, 1));
    synced(o, 2);
    assert_int_equal(x.n_got[0], 1);
    synced(o, 3);
    assert_int_equal(x.n_got[0], 4);
    assert_false(gr_outbox_holds(o, 0));
    put(o, 0, 2);
    assert_int_equal(x.n_got[0], 5);
    gr_outbox_destroy(o);
}

static void test_forget(void **state)
{
    (void)state;
    struct gr_outbox *o = make();
    put(o, 0, 5);
    put(o, 1, 4);
    put(o, 0, 6);
    gr_outbox_forget(o, 0);
    x.n_put[0] = 0; /* the number is another client's */
    put(o, 0, 0);
    assert_int_equal(x.n_got[0], 1);
    synced(o, 6);
    assert_true(x.n_got[0] == 1 && x.n_got[1] == 1);
    put(o, 1, 9); /* the end of the list is where it belongs */
    put(o, 0, 8);
    synced(o, 9);
    assert_true(x.n_got[0] == 2 && x.n_got[1] == 2);
    put(o, 2, 10); /* still held when it ends */
    gr_outbox_destroy(o);
}

static void test_any_order(void **state)
{
    (void)state;
    uint64_t random = 7, newest = 0;
    struct gr_outbox *o = make();
    for (int i = 0; i < 1500; i++) {
        random = gr_mix64(random + GR_HASH_GOLDEN);
        const uint32_t client = (uint32_t)(random % N_CLIENT);
        if (random >> 32 & 1) {
            newest += random >> 33 & 3;
            put(o, client, random >> 40 & 1 ? newest : 0);
        } else if (random >> 34 & 1) {
            synced(o, GR_MIN(newest, x.synced + (random >> 36 & 7)));
        }
    }
    synced(o, newest);
    for (int i = 0; i < N_CLIENT; i++) {
        assert_true(x.n_put[i] > 50 && x.n_got[i] == x.n_put[i]);
    }
    gr_outbox_destroy(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_forget),
        cmocka_unit_test(test_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
