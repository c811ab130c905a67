/* Two connected ends for the transport tests, and waiting with a deadline instead of sleeping. */
#ifndef GR_TESTS_TRANSPORT_PAIR_H
#define GR_TESTS_TRANSPORT_PAIR_H

#include "transport/connect/bootstrap.h"
#include "transport/verbs/verbs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <unistd.h>

/* Beyond this a wait has failed. Long, for sanitizers on a loaded machine; no test waits for it to
 * pass. */
#define WAIT_MS 20000

#define NO_WHY (&(struct gr_why){.text = ""})

struct pair {
    struct gr_conn *conn[2]; /* NULL after drop() */
    int fd[2];               /* their sockets (theirs), -1 for loop */
};

extern const struct gr_conn_limits limits_default;

/* Two connected sockets: a Unix pair, or TCP over the loopback interface. */
void make_unix_sockets(int fd[2]);
void make_tcp_sockets(int fd[2]);

void pair_open(struct pair *p, enum gr_transport_kind kind, const struct gr_conn_limits *limits);
/* What the two ends of a verbs pair are opened with. */
extern struct gr_verbs_options pair_verbs[2];
/* Both ends, each in a thread of its own, over the sockets of p. */
void pair_open_verbs(struct pair *p, const struct gr_conn_limits *limits, enum gr_status st_out[2]);
/* False: it did not open, nothing is left of it. */
bool pair_try_verbs(struct pair *p, const struct gr_conn_limits *limits);
void pair_close(struct pair *p);
void drop(struct pair *p, int side);

/* Sleeps until one of the n connections has something to do. false: WAIT_MS passed. */
bool wait_conns(struct gr_conn **conns, int n);

/* recv, with waiting. While waiting it flushes `from` (may be NULL) too: the two may live in one
 * thread. */
enum gr_status recv_wait(struct gr_conn *from, struct gr_conn *to, struct gr_frame *frame_out);
enum gr_status acquire_wait(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes, struct gr_frame *frame_out);

/* A payload of `bytes` that only (seed, bytes) makes. Safe in any thread. */
void fill(uint8_t *p, uint32_t bytes, uint32_t seed);
bool is_filled(const uint8_t *p, uint32_t bytes, uint32_t seed);

/* The same for a frame, wherever its body lies. */
void fill_frame(struct gr_conn *c, struct gr_frame *f, uint32_t bytes, uint32_t seed);
bool frame_is_filled(struct gr_conn *c, const struct gr_frame *f, uint32_t seed);

/* acquire, fill, send, without flush; fails the test unless GR_OK. */
void send_filled(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes, uint32_t seed);
/* recv_wait, check class, length and payload, release; fails the test on any difference. */
void expect_filled(struct gr_conn *from, struct gr_conn *to, enum gr_frame_class class, uint32_t bytes, uint32_t seed);

/* A HELLO that fits hello_of() of another role. */
struct gr_hello hello_of(uint32_t role);
extern const uint8_t key_a[GR_KEY_BYTES], key_b[GR_KEY_BYTES];

/* Standard error of `call` goes to `text`. What makes another thread write must happen within `call`, too. */
#define CAPTURE_STDERR(text, cap, call)             \
    do {                                            \
        int ends_[2], old_ = dup(STDERR_FILENO);    \
        assert_int_equal(pipe(ends_), 0);           \
        dup2(ends_[1], STDERR_FILENO);              \
        call;                                       \
        dup2(old_, STDERR_FILENO);                  \
        close(ends_[1]);                            \
        ssize_t n_ = read(ends_[0], text, (cap)-1); \
        (text)[n_ < 0 ? 0 : n_] = '\0';             \
        close(ends_[0]);                            \
        close(old_);                                \
    } while (0)

#endif
