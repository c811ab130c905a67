#include "transport/worker/meet.h"

#include "common/base/address.h"
#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/protocol/msg.h"
#include "transport/connect/cluster.h"
#include "transport/connect/gate.h"
#include "transport/connect/reach.h"
#include "transport/net.h"
#include "transport/pause.h"
#include "transport/worker/call.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TELL_NS (30 * GR_S)
#define CONNECT_MS 2000     /* one attempt at one address */
#define HELLO_MS 10000      /* HELLO and proof, for who connects */
#define RECORD_MS 5000      /* a message that has begun */
#define MESH_NS (30 * GR_S) /* the connections between other ranks, once all are there */
#define LOOK_MS 1000        /* between two looks at who is gone */
#define PAUSE_MS_MIN 50u    /* between attempts at rank 0 */
#define PAUSE_MS_MAX 1000u
#define RECORD_MAX 2048 /* bytes of a MEMBER or an ERROR */
#define WHY_BYTES 768
#define WHAT "tensor-parallel group"

struct meet {
    const struct gr_meet_config *c;
    struct gr_meeting *out;
    struct gr_hello host, member; /* as who listens and as who comes */
    struct gr_gate *gate;         /* NULL: nobody comes here */
    int wake_fd;
    struct gr_msg_member who[GR_MEET_MAX];
};

/* ---- messages ---- */

static enum gr_status send_msg(int fd, const struct gr_msg *m)
{
    uint8_t record[4 + RECORD_MAX];
    size_t n = 0;
    GR_TRY(gr_msg_encode(m, record + 4, RECORD_MAX, &n));
    struct gr_writer w = {.p = record, .cap = 4};
    gr_write_u32(&w, n);
    return gr_sock_write_peer(fd, record, 4 + n, gr_deadline_ns(RECORD_MS), WHAT);
}

/* A MEMBER. GR_EMISMATCH (logged): the peer says in words why there is none. */
static enum gr_status receive_member(int fd, struct gr_msg_member *out)
{
    uint8_t head[4], record[RECORD_MAX];
    struct gr_msg m;
    GR_TRY(gr_sock_read_peer(fd, head, sizeof(head), gr_deadline_ns(RECORD_MS), WHAT));
    struct gr_reader r = {.p = head, .len = sizeof(head)};
    const uint32_t n = gr_read_u32(&r);
    if (n > sizeof(record)) {
        log_error(WHAT ": a message of %u bytes, %d are the most", n, RECORD_MAX);
        return GR_EPROTO;
    }
    GR_TRY(gr_sock_read_peer(fd, record, n, gr_deadline_ns(RECORD_MS), WHAT));
    GR_TRY(gr_msg_decode(record, n, &m));
    enum gr_status st = GR_OK;
    if (m.type == GR_MSG_MEMBER) {
        *out = m.member;
    } else if (m.type == GR_MSG_ERROR) {
        log_error("%s", m.error.text);
        st = GR_EMISMATCH;
    } else {
        log_error(WHAT ": %s where MEMBER is expected", gr_msg_name(m.type));
        st = GR_EPROTO;
    }
    gr_msg_finish(&m);
    return st;
}

/* ---- this process ---- */

static enum gr_status introduce(struct meet *m)
{
    struct gr_msg_member *own = &m->who[m->c->rank];
    gr_hello_for_messages(GR_ROLE_HOST, &m->host);
    GR_TRY(gr_cluster_name(true, m->host.cluster));
    m->member = m->host;
    m->member.role = GR_ROLE_MEMBER;
    *own = (struct gr_msg_member){
        .incarnation = m->host.incarnation, .rank = (uint32_t)m->c->rank, .n_rank = (uint32_t)m->c->n_rank};
    (void)gethostname(own->host, sizeof(own->host) - 1);
    snprintf(own->host_id, sizeof(own->host_id), "%s", m->host.host_id);
    snprintf(own->version, sizeof(own->version), "%s", GR_VERSION);
    snprintf(own->runs, sizeof(own->runs), "%s", m->c->runs);
    snprintf(own->gpu, sizeof(own->gpu), "%s", m->c->gpu != NULL ? m->c->gpu : "");
    return GR_OK;
}

/* at: taken, also after an error. */
static enum gr_status open_gate(struct meet *m, struct gr_listening *at)
{
    m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->wake_fd < 0) {
        log_error("eventfd: %s", strerror(errno));
        gr_listening_close(at);
        return GR_EIO;
    }
    const struct gr_gate_config c = {.at = *at,
                                     .wake_fd = m->wake_fd,
                                     .self = &m->host,
                                     .key = m->c->key,
                                     .timeout_ms = GR_ACCEPT_TIMEOUT_MS,
                                     .forced = -1};
    return gr_gate_create(&c, &m->gate);
}

static void wait_at_gate(struct meet *m, int ms)
{
    uint64_t count = 0;
    struct pollfd p[] = {{.fd = m->wake_fd, .events = POLLIN},
                         {.fd = gr_gate_poll_fd(m->gate, gr_clock_ns()), .events = POLLIN}};
    (void)poll(p, GR_ARRAY_LEN(p), ms);
    (void)!read(m->wake_fd, &count, sizeof(count));
    gr_gate_accept(m->gate, gr_clock_ns());
}

static bool is_gone(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0;
}

static void forget(struct meet *m, int rank)
{
    close(m->out->fd[rank]);
    m->out->fd[rank] = -1;
}

static void forget_all(struct meet *m)
{
    for (int r = 0; r < m->c->n_rank; r++) {
        if (m->out->fd[r] >= 0) {
            forget(m, r);
        }
    }
}

/* ---- rank 0 ---- */

/* Ranks from `first' on that have not come; as words, too. */
static int count_missing(const struct meet *m, int first, char text[64])
{
    size_t at = 0;
    int n = 0;
    text[0] = '\0';
    for (int r = first; r < m->c->n_rank; r++) {
        if (m->out->fd[r] < 0) {
            at += (size_t)snprintf(text + at, 64 - at, "%s%d", n++ > 0 ? ", " : "", r);
        }
    }
    return n;
}

/* The rank that is there and has the same GPU of the same host, -1: none. Kernels of two ranks on one would wait for
 * each other's turn for ever. */
static int rank_with_gpu_of(const struct meet *m, const struct gr_msg_member *it)
{
    int found = -1;
    for (int r = 0; r < m->c->n_rank && it->gpu[0] != '\0' && it->host_id[0] != '\0'; r++) {
        const bool is_there = r == 0 || (r != (int)it->rank && m->out->fd[r] >= 0 && !is_gone(m->out->fd[r]));
        const bool same = strcmp(m->who[r].host_id, it->host_id) == 0 && strcmp(m->who[r].gpu, it->gpu) == 0;
        found = is_there && same ? r : found;
    }
    return found;
}

static bool fits(const struct meet *m, const struct gr_msg_member *it, char why[WHY_BYTES])
{
    const int other = rank_with_gpu_of(m, it);
    const struct gr_msg_member *own = &m->who[0];
    const bool in_range = it->rank > 0 && (int)it->rank < m->c->n_rank;
    if (it->n_rank != own->n_rank) {
        snprintf(why, WHY_BYTES,
                 "rank %u on host %s is of a group of %u (--tensor-parallel-size), and rank 0 on host %s of %u",
                 it->rank, it->host, it->n_rank, own->host, own->n_rank);
    } else if (!in_range) {
        snprintf(why, WHY_BYTES, "rank %u on host %s: rank 0 is on host %s, and waits for ranks 1 to %d (--tp-rank)",
                 it->rank, it->host, own->host, m->c->n_rank - 1);
    } else if (strcmp(it->version, own->version) != 0) {
        snprintf(why, WHY_BYTES, "rank %u on host %s is graft %s, and rank 0 on host %s is graft %s", it->rank,
                 it->host, it->version, own->host, own->version);
    } else if (strcmp(it->runs, own->runs) != 0) {
        snprintf(why, WHY_BYTES, "rank %u on host %s runs %s; rank 0 on host %s: %s", it->rank, it->host, it->runs,
                 own->host, own->runs);
    } else if (m->out->fd[it->rank] >= 0 && !is_gone(m->out->fd[it->rank])) {
        snprintf(why, WHY_BYTES, "rank %u comes twice: from host %s and from host %s (--tp-rank)", it->rank,
                 m->who[it->rank].host, it->host);
    } else if (other >= 0) {
        snprintf(why, WHY_BYTES,
                 "rank %u on host %s has the GPU at %s, and so has rank %d: give each its own (--device)", it->rank,
                 it->host, it->gpu, other);
    } else {
        return true;
    }
    return false;
}

static void refuse(int fd, const char *why)
{
    struct gr_msg no = {.type = GR_MSG_ERROR, .error = {.code = (uint32_t)-GR_EMISMATCH}};
    snprintf(no.error.text, sizeof(no.error.text), "%.255s", why);
    log_error("refused: %s", why);
    if (send_msg(fd, &no) != GR_OK) {
        log_info("who was refused did not wait for it");
    }
    close(fd);
}

static void admit(struct meet *m, const struct gr_arrival *a)
{
    struct gr_msg_member it;
    char why[WHY_BYTES];
    if (receive_member(a->fd, &it) != GR_OK) {
        close(a->fd);
        return;
    }
    if (!fits(m, &it, why)) {
        refuse(a->fd, why);
        return;
    }
    if (m->out->fd[it.rank] >= 0) {
        forget(m, (int)it.rank);
    }
    it.incarnation = a->peer.incarnation; /* what has been proven */
    m->who[it.rank] = it;
    m->out->fd[it.rank] = a->fd;
    log_info("rank %u of the tensor-parallel group has come, from host %s", it.rank, it.host);
}

static void drop_who_left(struct meet *m)
{
    for (int r = 1; r < m->c->n_rank; r++) {
        if (m->out->fd[r] >= 0 && is_gone(m->out->fd[r])) {
            log_warn("rank %d on host %s went away before its tensor-parallel group was whole", r, m->who[r].host);
            forget(m, r);
        }
    }
}

static void tell_missing(const struct meet *m, const char *missing, uint64_t begin_ns, uint64_t *tell_ns)
{
    const uint64_t now_ns = gr_clock_ns();
    if (now_ns >= *tell_ns) {
        log_warn("tensor-parallel rank 0 of %d at %s has waited for %d s for ranks %s", m->c->n_rank, m->c->address,
                 (int)((now_ns - begin_ns) / GR_S), missing);
        *tell_ns = now_ns + TELL_NS;
    }
}

static enum gr_status tell_all(struct meet *m)
{
    for (int to = 1; to < m->c->n_rank; to++) {
        for (int r = 0; r < m->c->n_rank; r++) {
            GR_TRY(send_msg(m->out->fd[to], &(struct gr_msg){.type = GR_MSG_MEMBER, .member = m->who[r]}));
        }
    }
    return GR_OK;
}

static enum gr_status receive_all(struct meet *m)
{
    const uint64_t begin_ns = gr_clock_ns();
    uint64_t tell_ns = begin_ns + TELL_NS;
    char missing[64];
    struct gr_arrival a;
    while (count_missing(m, 1, missing) > 0) {
        tell_missing(m, missing, begin_ns, &tell_ns);
        wait_at_gate(m, LOOK_MS);
        while (gr_gate_take(m->gate, &a)) {
            admit(m, &a);
        }
        drop_who_left(m);
    }
    return tell_all(m);
}

static enum gr_status open_group(struct meet *m)
{
    struct gr_listening at = {.fd = {m->c->listen_fd}, .n = 1};
    if (m->c->listen_fd < 0) {
        GR_TRY(gr_tcp_listen_own(m->c->address, &at));
    } else {
        gr_sock_own_text(m->c->listen_fd, at.bound);
    }
    log_info("tensor-parallel rank 0 of %d waits for the others at %s", m->c->n_rank, at.bound);
    return open_gate(m, &at);
}

/* ---- another rank ---- */

/* Where higher ranks come, and what rank 0 is told of that. */
static enum gr_status listen_for_higher(struct meet *m, int link_fd)
{
    struct gr_listening at;
    if (m->c->rank == m->c->n_rank - 1 || m->gate != NULL) {
        return GR_OK;
    }
    GR_TRY(gr_tcp_listen_own(m->c->listen != NULL ? m->c->listen : "*:0", &at));
    GR_TRY(open_gate(m, &at));
    gr_reach_list(&at, link_fd, m->who[m->c->rank].address);
    return GR_OK;
}

static enum gr_status await_table(struct meet *m, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, -1) < 0 && errno == EINTR) {
    }
    for (int r = 0; r < m->c->n_rank; r++) {
        struct gr_msg_member it;
        GR_TRY(receive_member(fd, &it));
        if ((int)it.rank != r) {
            log_error(WHAT ": rank 0 tells of rank %u where rank %d is due", it.rank, r);
            return GR_EPROTO;
        }
        m->who[r] = it;
    }
    return GR_OK;
}

static enum gr_status talk_to_0(struct meet *m, int fd)
{
    struct gr_hello peer;
    GR_TRY(gr_hello_exchange(fd, &m->member, m->c->key, HELLO_MS, &peer));
    GR_TRY(listen_for_higher(m, fd));
    GR_TRY(send_msg(fd, &(struct gr_msg){.type = GR_MSG_MEMBER, .member = m->who[m->c->rank]}));
    return await_table(m, fd);
}

static enum gr_status try_rank_0(struct meet *m)
{
    int fd = -1;
    GR_TRY(gr_tcp_connect(m->c->address, CONNECT_MS, &fd));
    const enum gr_status st = talk_to_0(m, fd);
    if (st != GR_OK) {
        close(fd);
        return st;
    }
    m->out->fd[0] = fd;
    return GR_OK;
}

static enum gr_status find_rank_0(struct meet *m)
{
    const uint64_t begin_ns = gr_clock_ns();
    uint64_t tell_ns = begin_ns + TELL_NS;
    for (uint32_t n = 0;; n++) {
        char why[400] = "";
        gr_log_hold(why, sizeof(why));
        const enum gr_status st = try_rank_0(m);
        gr_log_hold(NULL, 0);
        if (st == GR_OK) {
            return GR_OK;
        }
        if (!gr_call_may_come_back(st)) {
            log_error("tensor-parallel rank %d of %d: rank 0 at %s: %s", m->c->rank, m->c->n_rank, m->c->address, why);
            return st;
        }
        if (gr_clock_ns() >= tell_ns) {
            log_warn("tensor-parallel rank %d of %d has not found its group for %d s: %s", m->c->rank, m->c->n_rank,
                     (int)((gr_clock_ns() - begin_ns) / GR_S), why);
            tell_ns += TELL_NS;
        }
        (void)poll(NULL, 0, (int)gr_pause_ms(n, PAUSE_MS_MIN, PAUSE_MS_MAX));
    }
}

/* ---- between other ranks ---- */

static enum gr_status try_lower(struct meet *m, int rank, const char *address)
{
    struct gr_hello self = m->member, peer;
    int fd = -1;
    self.wanted = m->who[rank].incarnation;
    GR_TRY(gr_tcp_connect(address, CONNECT_MS, &fd));
    const enum gr_status st = gr_hello_exchange(fd, &self, m->c->key, HELLO_MS, &peer);
    if (st != GR_OK) {
        close(fd);
        return st;
    }
    m->out->fd[rank] = fd;
    return GR_OK;
}

static enum gr_status call_lower(struct meet *m, int rank)
{
    char item[300], why[400] = "";
    size_t at = 0;
    enum gr_status st = GR_EINVAL;
    gr_log_hold(why, sizeof(why));
    while (st != GR_OK && gr_address_next(m->who[rank].address, &at, item)) {
        st = item[0] != '@' ? try_lower(m, rank, item) : st; /* a peer names no files of ours */
    }
    gr_log_hold(NULL, 0);
    if (st != GR_OK) {
        log_error("tensor-parallel rank %d: rank %d on host %s cannot be reached at %s: %s", m->c->rank, rank,
                  m->who[rank].host, m->who[rank].address, why);
    }
    return st;
}

static void take_higher(struct meet *m)
{
    struct gr_arrival a;
    while (gr_gate_take(m->gate, &a)) {
        int r = m->c->rank + 1;
        while (r < m->c->n_rank && (m->who[r].incarnation != a.peer.incarnation || m->out->fd[r] >= 0)) {
            r++;
        }
        if (r < m->c->n_rank && !is_gone(a.fd)) {
            m->out->fd[r] = a.fd;
        } else {
            close(a.fd); /* of an earlier group, or attempt */
        }
    }
}

static enum gr_status connect_others(struct meet *m)
{
    const uint64_t end_ns = gr_clock_ns() + MESH_NS;
    char missing[64];
    for (int r = 1; r < m->c->rank; r++) {
        GR_TRY(call_lower(m, r));
    }
    while (count_missing(m, m->c->rank + 1, missing) > 0) {
        if (gr_clock_ns() > end_ns || is_gone(m->out->fd[0])) {
            log_error("tensor-parallel rank %d: ranks %s have not connected", m->c->rank, missing);
            return GR_ETIMEDOUT;
        }
        wait_at_gate(m, LOOK_MS);
        take_higher(m);
    }
    return GR_OK;
}

static enum gr_status join_group(struct meet *m)
{
    GR_TRY(find_rank_0(m));
    return connect_others(m);
}

/* ---- both ---- */

static void describe(struct meet *m)
{
    const char *own = m->who[m->c->rank].host_id;
    for (int r = 0; r < m->c->n_rank; r++) {
        snprintf(m->out->host[r], sizeof(m->out->host[r]), "%s", m->who[r].host);
        m->out->n_here += own[0] != '\0' ? strcmp(m->who[r].host_id, own) == 0 : r == m->c->rank;
    }
}

static void close_all(struct meet *m, bool failed)
{
    if (m->gate != NULL) {
        gr_gate_destroy(m->gate);
    }
    if (m->wake_fd >= 0) {
        close(m->wake_fd);
    }
    if (failed) {
        forget_all(m);
    }
}

/* Who went away while the others were told of it comes again, and so do these. */
static enum gr_status meet(struct meet *m)
{
    enum gr_status st = m->c->rank == 0 ? open_group(m) : GR_OK;
    if (st != GR_OK) {
        return st;
    }
    while ((st = m->c->rank == 0 ? receive_all(m) : join_group(m)) != GR_OK && gr_call_may_come_back(st)) {
        log_warn("tensor-parallel rank %d of %d: the group was not whole, and meets again", m->c->rank, m->c->n_rank);
        forget_all(m);
    }
    return st;
}

enum gr_status gr_meet(const struct gr_meet_config *c, struct gr_meeting *out)
{
    struct meet m = {.c = c, .out = out, .wake_fd = -1};
    GR_ASSERT(c->n_rank >= 2 && c->n_rank <= GR_MEET_MAX && c->rank >= 0 && c->rank < c->n_rank);
    *out = (struct gr_meeting){.n_here = 0};
    for (int r = 0; r < GR_MEET_MAX; r++) {
        out->fd[r] = -1;
    }
    enum gr_status st = introduce(&m);
    if (st == GR_OK) {
        st = meet(&m);
    } else if (c->listen_fd >= 0) {
        close(c->listen_fd);
    }
    close_all(&m, st != GR_OK);
    if (st == GR_OK) {
        describe(&m);
    }
    return st;
}
