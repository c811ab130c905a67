/* The edge of the orchestrator where others misbehave or room runs out: it keeps its loop asleep, and its door open. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "orchestrator/server/hub.h"
#include "tests/unit/log_capture.h"
#include "transport/net.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#define N_STRANGER_MAX 200 /* more than there are hand-shakes at a time */
#define N_HOLDER 10

static uint8_t key[GR_KEY_BYTES];

static int n_done;

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    (void)ctx;
    (void)session;
    (void)user;
    (void)finish;
    (void)text;
    n_done++;
}

static struct gr_hub *make(int hello_timeout_ms)
{
    struct gr_hub_config c = {
        .listen = "127.0.0.1:0", .io = {.on_done = on_done}, .hello_timeout_ms = hello_timeout_ms};
    struct gr_hub *h = NULL;
    memcpy(c.key, key, sizeof(c.key));
    assert_int_equal(gr_hub_create(&c, &h), GR_OK);
    return h;
}

/* A worker that wants in, on a thread of its own. */
struct guest {
    pthread_t thread;
    const char *address;
    int fd; /* connected; -1: it connects itself */
    enum gr_status st;
    bool done;
};

static void *run_guest(void *arg)
{
    struct guest *g = arg;
    struct gr_hello peer;
    const struct gr_hello self = {.version = GR_PROTOCOL_VERSION,
                                  .role = GR_ROLE_DRAFT,
                                  .incarnation = 1,
                                  .limits = {.small_bytes_max = 8192, .n_small_slot = 2}};
    g->st = g->fd < 0 ? gr_tcp_connect(g->address, 10000, &g->fd) : GR_OK;
    if (g->st == GR_OK) {
        g->st = gr_hello_exchange(g->fd, &self, key, 10000, &peer);
    }
    __atomic_store_n(&g->done, true, __ATOMIC_RELEASE);
    return NULL;
}

/* Until it has passed the hand-shake, or failed; then it is connected. */
static enum gr_status begin_let_in(struct gr_hub *h, struct guest *g)
{
    assert_int_equal(pthread_create(&g->thread, NULL, run_guest, g), 0);
    while (!__atomic_load_n(&g->done, __ATOMIC_ACQUIRE)) {
        gr_hub_pump(h, 20, -1);
    }
    pthread_join(g->thread, NULL);
    return g->st;
}

static enum gr_status let_in(struct gr_hub *h, struct guest *g)
{
    const enum gr_status st = begin_let_in(h, g);
    close(g->fd);
    return st;
}

/* ---- strangers ---- */

enum stranger_kind { SAYS_NOTHING, SAYS_HALF, SAYS_SLOWLY, N_STRANGER_KIND };

/* A HELLO of 200 bytes is announced. Half of it, or a byte at each look of the hub: more than a second apart would not
 * keep a hand-shake any longer. */
static void speak(enum stranger_kind kind, int fd, int n_look)
{
    const uint8_t half[4 + 100] = {200};
    if (kind == SAYS_HALF && n_look == 0) {
        (void)!send(fd, half, sizeof(half), MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (kind == SAYS_SLOWLY && n_look < (int)sizeof(half)) {
        (void)!send(fd, half + n_look, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

static void arrive(struct gr_hub *h, enum stranger_kind kind, int n, int *fd)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(gr_tcp_connect(gr_hub_address(h), 5000, &fd[i]), GR_OK);
        speak(kind, fd[i], 0);
        gr_hub_pump(h, 0, -1);
    }
}

/* A hand-shake would hold its place for a minute: whoever is let in has not waited for that. */
static void crowd(enum stranger_kind kind, int n)
{
    struct gr_hub *h = make(60000);
    struct guest holder[N_HOLDER], g = {.address = gr_hub_address(h), .fd = -1};
    int fd[N_STRANGER_MAX];
    struct log_capture c;
    for (int i = 0; i < N_HOLDER; i++) {
        holder[i] = (struct guest){.address = gr_hub_address(h), .fd = -1};
        assert_int_equal(begin_let_in(h, &holder[i]), GR_OK);
    }
    log_capture_begin(&c);
    arrive(h, kind, n, fd);
    assert_int_equal(pthread_create(&g.thread, NULL, run_guest, &g), 0);
    for (int n_look = 1; !__atomic_load_n(&g.done, __ATOMIC_ACQUIRE); n_look++) {
        for (int i = 0; i < n; i++) {
            speak(kind, fd[i], n_look);
        }
        gr_hub_pump(h, 20, -1);
    }
    pthread_join(g.thread, NULL);
    for (int i = 0; i < N_HOLDER; i++) {
        uint8_t byte; /* those who had proven the key are still connected */
        assert_true(recv(holder[i].fd, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
        close(holder[i].fd);
    }
    gr_hub_destroy(h);
    const char *text = log_capture_end(&c);
    assert_int_equal(g.st, GR_OK);
    assert_true(log_capture_n_line(text) <= 12); /* strangers do not fill a log */
    close(g.fd);
    for (int i = 0; i < n; i++) {
        close(fd[i]);
    }
}

static void test_strangers(void **state)
{
    (void)state;
    static const int numbers[] = {16, 81, N_STRANGER_MAX};
    gr_log_set_level(GR_LOG_ERROR);
    for (int kind = 0; kind < N_STRANGER_KIND; kind++) {
        for (size_t i = 0; i < GR_ARRAY_LEN(numbers); i++) {
            crowd((enum stranger_kind)kind, numbers[i]);
        }
    }
}

/* The other key is said at both ends. */
static void test_wrong_key(void **state)
{
    (void)state;
    struct gr_hub *h = make(0);
    struct guest g = {.address = gr_hub_address(h), .fd = -1};
    struct log_capture c;
    log_capture_begin(&c);
    key[0] ^= 1; /* the hub has its copy */
    const enum gr_status st = let_in(h, &g);
    key[0] ^= 1;
    gr_hub_destroy(h);
    const char *text = log_capture_end(&c);
    assert_true(st == GR_EAUTH || st == GR_ECLOSED);
    assert_non_null(strstr(text, "does not hold our shared key"));
    assert_non_null(strstr(text, "from 127.0.0.1)"));
}

/* The lowest number that a new descriptor would get becomes the limit of them. */
static rlim_t leave_no_descriptor(void)
{
    struct rlimit r;
    const int lowest = dup(STDERR_FILENO);
    assert_true(lowest >= 0);
    close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    const rlim_t was = r.rlim_cur;
    r.rlim_cur = (rlim_t)lowest;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
    return was;
}

/* No descriptor is left for one who waits at the door: the loop sleeps, says it once, and lets him in when there is. */
static void test_no_descriptors(void **state)
{
    (void)state;
    struct gr_hub *h = make(0);
    struct guest g = {.address = gr_hub_address(h), .fd = -1};
    struct log_capture c;
    struct rlimit r;
    gr_log_set_level(GR_LOG_ERROR);
    assert_int_equal(gr_tcp_connect(g.address, 5000, &g.fd), GR_OK);
    log_capture_begin(&c);
    const rlim_t was = leave_no_descriptor();
    const uint64_t end_ns = gr_clock_ns() + 2500 * GR_MS; /* two pauses and a half */
    int n_pump = 0;
    while (gr_clock_ns() < end_ns && n_pump < 100000) {
        gr_hub_pump(h, 500, -1);
        n_pump++;
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    r.rlim_cur = was;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
    const char *text = log_capture_end(&c);
    assert_true(n_pump < 100);
    assert_int_equal(log_capture_n_line(text), 1);
    assert_non_null(strstr(text, "ulimit -n"));
    assert_int_equal(let_in(h, &g), GR_OK);
    gr_hub_destroy(h);
}

/* Whoever looks at the machine between two pumps sees at once what time has changed: here a turn that waited for too
 * long ends, and nothing else would wake the hub for a minute. */
static void test_what_time_brings_is_seen_at_once(void **state)
{
    (void)state;
    static const int32_t prompt[] = {1};
    const struct gr_session_request q = {.prompt = prompt, .n_prompt = 1, .wishes = {.turn = {.max_tokens = 1}}};
    const uint64_t begin_ns = gr_clock_ns();
    struct gr_hub *h = make(0);
    struct log_capture c;
    uint64_t id = 0;
    gr_orch_configure(gr_hub_orch(h), &(struct gr_orch_config){.queue_timeout_ns = 20 * GR_MS});
    log_capture_begin(&c);
    assert_int_equal(gr_orch_submit(gr_hub_orch(h), &q, gr_clock_ns(), &id), GR_OK);
    n_done = 0;
    while (n_done == 0) {
        gr_hub_pump(h, 60000, -1);
    }
    gr_hub_destroy(h);
    const char *text = log_capture_end(&c);
    assert_non_null(text);
    assert_true(gr_clock_ns() - begin_ns < 30 * GR_S);
}

/* Bytes of the message on a link, its length among them. */
static size_t bytes_of(const struct gr_msg *m)
{
    static uint8_t bytes[4096];
    size_t len = 0;
    assert_int_equal(gr_msg_encode(m, bytes, sizeof(bytes), &len), GR_OK);
    return sizeof(uint32_t) + len;
}

static void fill_text(char *text, size_t cap)
{
    memset(text, 'x', cap - 1);
    text[cap - 1] = '\0';
}

/* The longest answer to LIST may wait for a client as a whole: numbers of all bits, texts that fill their room. */
static void test_longest_list_fits(void **state)
{
    (void)state;
    struct gr_msg session = {.type = GR_MSG_SESSION, .session = UINT64_MAX};
    struct gr_msg worker = {.type = GR_MSG_WORKER};
    struct gr_msg_listed_worker *w = &worker.listed_worker;
    memset(&session.listed_session, 0xff, sizeof(session.listed_session));
    memset(w, 0xff, sizeof(*w));
    session.listed_session.keep_open = w->draining = w->leaving = true; /* a bool holds no other bits */
    fill_text(w->address, sizeof(w->address));
    fill_text(w->numerics_id, sizeof(w->numerics_id));
    fill_text(w->host, sizeof(w->host));
    fill_text(w->peer, sizeof(w->peer));
    fill_text(w->model, sizeof(w->model));
    const struct gr_msg end = {.type = GR_MSG_LISTED, .listed = {.n_session = UINT32_MAX, .n_worker = UINT32_MAX}};
    const size_t n = GR_ORCH_SESSION_MAX * bytes_of(&session) + GR_ORCH_WORKER_MAX * bytes_of(&worker) + bytes_of(&end);
    assert_in_range(n, GR_ORCH_SESSION_MAX * 200, GR_CLIENT_QUEUE_BYTES);
}

int main(void)
{
    char hex[2 * GR_KEY_BYTES + 1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers),         cmocka_unit_test(test_wrong_key),
        cmocka_unit_test(test_no_descriptors),    cmocka_unit_test(test_what_time_brings_is_seen_at_once),
        cmocka_unit_test(test_longest_list_fits),
    };
    return gr_key_random(key, hex) == GR_OK ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
