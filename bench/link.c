#include "bench/link.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/protocol/wire.h"
#include "transport/connect/bootstrap.h"
#include "transport/connect/gate.h"
#include "transport/net.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPEN_MS 10000 /* how long a connection may take to open */
#define NEXT_MS 30000 /* for the next connection of one that measures several transports */

/* The workers' own, but for bulk slots: one frame is on its way at a time, and memory of verbs is pinned. */
static const struct gr_conn_limits limits = {
    .small_bytes_max = 8192, .bulk_bytes_max = GR_WIRE_BULK_BYTES_MAX, .n_small_slot = 64, .n_bulk_slot = 2};

static enum gr_status bootstrap(const struct gr_links *l, int fd, bool near, int forced, struct gr_conn **conn_out)
{
    struct gr_hello peer;
    struct gr_hello self = {.version = GR_PROTOCOL_VERSION,
                            .role = near ? GR_ROLE_DRAFT : GR_ROLE_TARGET,
                            .numerics_id = "graft-bench",
                            .transport_mask = gr_transport_built_mask(),
                            .limits = limits};
    randombytes_buf(&self.incarnation, sizeof(self.incarnation));
    (void)gr_host_id(self.host_id);
    const struct gr_bootstrap_options o = {.initiator = near,
                                           .forced = forced,
                                           .generation = l->generation,
                                           .timeout_ms = near ? OPEN_MS : GR_ACCEPT_TIMEOUT_MS,
                                           .key = l->key};
    return gr_bootstrap(fd, &self, &o, &peer, conn_out);
}

/* ---- far ---- */

/* GR_AGAIN: who came could not open a connection, which is logged; a stranger does not end a listener. */
static enum gr_status accept_one(struct gr_links *l, int listen_fd, int timeout_ms, struct gr_conn **conn_out)
{
    int fd = -1;
    struct pollfd p = {.fd = listen_fd, .events = POLLIN};
    const int n = poll(&p, 1, timeout_ms);
    if (n == 0) {
        log_error("the other end said that it comes back, and did not for %d s", NEXT_MS / 1000);
        return GR_ETIMEDOUT;
    }
    enum gr_status st = n < 0 ? GR_EIO : gr_tcp_accept(listen_fd, &fd);
    if (st != GR_OK) {
        if (st == GR_EIO) {
            log_error("--listen: %s", strerror(errno));
        }
        return st;
    }
    l->generation++;
    st = bootstrap(l, fd, false, -1, conn_out);
    if (st != GR_OK) {
        close(fd);
        return GR_AGAIN;
    }
    return GR_OK;
}

/* One connection after the other, until the last one's bye. */
static enum gr_status serve(struct gr_links *l, int listen_fd, const struct gr_rows *rows)
{
    bool more = true;
    for (int timeout_ms = -1; more; timeout_ms = NEXT_MS) {
        struct gr_conn *conn = NULL;
        enum gr_status st;
        do {
            st = accept_one(l, listen_fd, timeout_ms, &conn);
        } while (st == GR_AGAIN);
        GR_TRY(st);
        st = gr_far_serve(conn, rows, &more);
        gr_conn_close(conn);
        GR_TRY(st);
    }
    return GR_OK;
}

enum gr_status gr_far_listen(const struct gr_bench_options *o)
{
    struct gr_links l = {0};
    int fd = -1;
    const enum gr_status key = gr_key_from_env(l.key);
    if (key == GR_ENOTFOUND) {
        log_error("--listen needs a shared key: graft serve --make-key FILE makes one, GRAFT_KEY_FILE names it");
    }
    GR_TRY(key);
    struct gr_rows rows;
    GR_TRY(gr_rows_open(o, &rows));
    enum gr_status st = gr_tcp_listen(o->listen, &fd, l.address);
    if (st == GR_OK) {
        printf("listening on %s\n", l.address);
        fflush(stdout);
        st = serve(&l, fd, &rows);
        close(fd);
    }
    gr_rows_close(&rows);
    return st;
}

/* The near end has opened its device when it calls, so what is wrong with it is said once. */
static enum gr_status serve_near(struct gr_links *l, int listen_fd, const struct gr_bench_options *o)
{
    struct gr_rows rows;
    struct pollfd p = {.fd = listen_fd, .events = POLLIN};
    (void)poll(&p, 1, -1);
    GR_TRY(gr_rows_open(o, &rows));
    const enum gr_status st = serve(l, listen_fd, &rows);
    gr_rows_close(&rows);
    return st;
}

static enum gr_status fork_far(struct gr_links *l, const struct gr_bench_options *o)
{
    int fd = -1;
    char hex[2 * GR_KEY_BYTES + 1];
    GR_TRY(gr_key_random(l->key, hex));
    GR_TRY(gr_tcp_listen("127.0.0.1:0", &fd, l->address));
    const pid_t parent = getpid();
    l->far = fork();
    if (l->far < 0) {
        log_error("fork: %s", strerror(errno));
        close(fd);
        l->far = 0;
        return GR_EIO;
    }
    if (l->far == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() == parent && serve_near(l, fd, o) == GR_OK ? 0 : 1);
    }
    close(fd);
    return GR_OK;
}

enum gr_status gr_links_start(struct gr_links *l, const struct gr_bench_options *o)
{
    const char *peer = o->peer;
    *l = (struct gr_links){0};
    if (peer == NULL) {
        return fork_far(l, o);
    }
    if (strlen(peer) >= sizeof(l->address)) {
        log_error("--peer %s: longer than %zu bytes", peer, sizeof(l->address) - 1);
        return GR_EINVAL;
    }
    snprintf(l->address, sizeof(l->address), "%s", peer);
    const enum gr_status st = gr_key_from_env(l->key);
    if (st == GR_ENOTFOUND) {
        log_error("--peer needs the shared key of the one that listens: GRAFT_KEY_FILE names its file");
    }
    return st;
}

void gr_links_stop(struct gr_links *l)
{
    if (l->far == 0) {
        return;
    }
    kill(l->far, SIGKILL);
    while (waitpid(l->far, NULL, 0) < 0 && errno == EINTR) {
    }
    l->far = 0;
}

/* ---- loop: the far end is a thread ---- */

struct gr_link_far {
    struct gr_conn *conn;
    pthread_t thread;
};

static void *far_thread(void *data)
{
    const struct gr_rows none = {.far = NULL}; /* loop is not measured with rows on a device */
    struct gr_link_far *far = data;
    bool more = false;
    if (gr_far_serve(far->conn, &none, &more) != GR_OK) { /* logged; the near end sees the connection end */
    }
    gr_conn_close(far->conn);
    return NULL;
}

static enum gr_status open_loop(struct gr_links *l, struct gr_link *out)
{
    struct gr_conn *ends[2];
    struct gr_link_far *far = malloc(sizeof(*far));
    if (far == NULL) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    const enum gr_status st = gr_transport_open_loop(&limits, l->generation, ends);
    if (st != GR_OK) {
        free(far);
        return st;
    }
    far->conn = ends[1];
    const int err = pthread_create(&far->thread, NULL, far_thread, far);
    if (err != 0) {
        log_error("thread: %s", strerror(err));
        gr_conn_close(ends[0]);
        gr_conn_close(ends[1]);
        free(far);
        return GR_EIO;
    }
    *out = (struct gr_link){.conn = ends[0], .far = far};
    return GR_OK;
}

/* ---- near ---- */

enum gr_status gr_link_open(struct gr_links *l, enum gr_transport_kind kind, struct gr_link *out)
{
    int fd = -1;
    struct gr_link link = {0};
    l->generation++;
    if (kind == GR_TRANSPORT_LOOP) {
        return open_loop(l, out);
    }
    GR_TRY(gr_tcp_connect(l->address, OPEN_MS, &fd));
    const enum gr_status st = bootstrap(l, fd, true, (int)kind, &link.conn);
    if (st != GR_OK) {
        close(fd);
        return st;
    }
    *out = link;
    return GR_OK;
}

void gr_link_close(struct gr_link *l)
{
    gr_conn_close(l->conn);
    if (l->far != NULL) {
        pthread_join(l->far->thread, NULL);
        free(l->far);
    }
    *l = (struct gr_link){0};
}
