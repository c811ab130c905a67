/* Who is told that a client has gone: the one whose connection it was, though its descriptor is another's by then. */
#include "orchestrator/http/watch.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

static struct gr_watch *watch;
static int other_fd, pair[2], second[2]; /* [0]: watched; [1]: its client's end */
static int first_client, second_client;  /* whom the calls are about */
static int n_ready, n_first, n_second;
static sem_t inside, go_on, told;

static void count(void *who)
{
    n_first += who == &first_client;
    n_second += who == &second_client;
    sem_post(&told);
}

/* On the watch's thread. At first it waits until the first client has gone, so that this is told together with the next
 * call; then that descriptor becomes the second client's. */
static void on_ready(void *ctx)
{
    uint64_t n;
    (void)ctx;
    n_ready++;
    if (n_ready == 1) {
        sem_post(&inside);
        sem_wait(&go_on);
        return;
    }
    assert_int_equal(read(other_fd, &n, sizeof(n)), sizeof(n));
    if (n_ready == 2) {
        gr_watch_remove(watch, pair[0]);
        assert_int_equal(dup2(second[0], pair[0]), pair[0]);
        assert_int_equal(gr_watch_add(watch, pair[0], &second_client), GR_OK);
    }
    sem_post(&told);
}

static void test_descriptor_of_another(void **state)
{
    static const struct gr_watch_calls calls = {.probe = count, .gone = count};
    (void)state;
    sem_init(&inside, 0, 0);
    sem_init(&go_on, 0, 0);
    sem_init(&told, 0, 0);
    other_fd = eventfd(1, 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, second), 0);
    const struct gr_watch_other other = {.fd = other_fd, .ready = on_ready};
    assert_int_equal(gr_watch_create(&calls, &other, &watch), GR_OK);
    sem_wait(&inside);
    assert_int_equal(gr_watch_add(watch, pair[0], &first_client), GR_OK);
    close(pair[1]);
    sem_post(&go_on);
    sem_wait(&told); /* the descriptor has changed hands */
    assert_int_equal(eventfd_write(other_fd, 1), 0);
    sem_wait(&told); /* and what came together with that has been looked at */
    assert_int_equal(n_first, 0);
    assert_int_equal(n_second, 0);
    close(second[1]);
    close(second[0]);
    sem_wait(&told); /* the second client's own end is told, again and again until it is watched no more */
    gr_watch_remove(watch, pair[0]);
    gr_watch_destroy(watch);
    assert_int_equal(n_first, 0);
    assert_true(n_second > 0);
    close(pair[0]);
    close(other_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_descriptor_of_another)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
