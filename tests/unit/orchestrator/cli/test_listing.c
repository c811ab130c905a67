/* The answer to LIST as a client reads it: as many sessions and workers as an orchestrator may have. */
#include "orchestrator/cli/listing.h"
#include "orchestrator/machine/orch.h"
#include "transport/connect/control.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

static void put(struct gr_control *c, const struct gr_msg *m)
{
    assert_int_equal(gr_control_send(c, m), GR_OK);
}

static void put_answer(struct gr_control *c, uint32_t n_session, uint32_t n_worker)
{
    for (uint32_t i = 0; i < n_session; i++) {
        put(c, &(struct gr_msg){.type = GR_MSG_SESSION, .session = i + 1, .listed_session = {.n_token = 7 * i}});
    }
    for (uint32_t i = 0; i < n_worker; i++) {
        put(c, &(struct gr_msg){.type = GR_MSG_WORKER, .listed_worker = {.worker = i + 1, .role = 2, .pid = 5 * i}});
    }
    put(c, &(struct gr_msg){.type = GR_MSG_LISTED, .listed = {.n_session = n_session, .n_worker = n_worker}});
}

static void *flush_all(void *arg)
{
    struct gr_control *c = arg;
    struct pollfd p = {.fd = gr_control_fd(c), .events = POLLOUT};
    enum gr_status st = GR_AGAIN;
    while (st == GR_AGAIN && poll(&p, 1, 20000) == 1) {
        st = gr_control_flush(c);
    }
    return NULL;
}

static void read_answer(struct gr_remote *r, struct gr_control *far, struct gr_listing *l, uint32_t n_session,
                        uint32_t n_worker)
{
    pthread_t thread;
    put_answer(far, n_session, n_worker);
    assert_int_equal(pthread_create(&thread, NULL, flush_all, far), 0);
    assert_int_equal(gr_listing_read(r, GR_LISTING_MS, l), GR_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(l->n_session, n_session);
    assert_int_equal(l->n_worker, n_worker);
}

static void test_whole_answer(void **state)
{
    (void)state;
    int fd[2];
    struct gr_control *far = NULL;
    struct gr_listing l = {0};
    struct gr_remote r = {.address = "here", .signal_fd = eventfd(0, EFD_CLOEXEC)};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(gr_control_create(fd[0], NULL, &r.control), GR_OK);
    assert_int_equal(gr_control_create(fd[1], NULL, &far), GR_OK);
    read_answer(&r, far, &l, GR_ORCH_SESSION_MAX, GR_ORCH_WORKER_MAX);
    for (uint32_t i = 0; i < GR_ORCH_SESSION_MAX; i++) {
        assert_int_equal(l.session[i].id, i + 1);
        assert_int_equal(l.session[i].is.n_token, 7 * i);
    }
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        assert_true(l.worker[i].worker == i + 1 && l.worker[i].pid == 5 * i);
    }
    read_answer(&r, far, &l, 1, 0); /* what was listed before is gone */
    gr_listing_finish(&l);
    gr_control_destroy(far);
    gr_control_destroy(r.control);
    close(r.signal_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
