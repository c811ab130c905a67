/* Two connected ends for the transport tests, and waiting with a deadline instead of sleeping. */
#ifndef GR_TESTS_TRANSPORT_PAIR_H
#define GR_TESTS_TRANSPORT_PAIR_H

#include "transport/bootstrap.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

/* Beyond this a wait has failed. Long, for sanitizers on a loaded machine; no test waits for it to
 * pass. */
#define WAIT_MS 20000

struct pair {
    struct gr_conn *conn[2]; /* NULL after drop() */
    int fd[2];               /* their sockets (theirs), -1 for loop */
};

extern const struct gr_conn_limits limits_default;

/* Two connected sockets: a Unix pair, or TCP over the loopback interface. */
void make_unix_sockets(int fd[2]);
void make_tcp_sockets(int fd[2]);

void pair_open(struct pair *p, enum gr_transport_kind kind, const struct gr_conn_limits *limits);
void pair_close(struct pair *p);
void drop(struct pair *p, int side);

/* Sleeps until one of the n connections has something to do. false: WAIT_MS passed. */
bool wait_conns(struct gr_conn **conns, int n);

/* recv, with waiting. While waiting it flushes `from` (may be NULL) too: the two may live in one
 * thread. */
enum gr_status recv_wait(struct gr_conn *from, struct gr_conn *to, struct gr_frame *frame_out);
enum gr_status acquire_wait(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes,
                            struct gr_frame *frame_out);

/* A payload of `bytes` that only (seed, bytes) makes. Safe in any thread. */
void fill(uint8_t *p, uint32_t bytes, uint32_t seed);
bool is_filled(const uint8_t *p, uint32_t bytes, uint32_t seed);

/* acquire, fill, send, without flush; fails the test unless GR_OK. */
void send_filled(struct gr_conn *c, enum gr_frame_class class, uint32_t bytes, uint32_t seed);
/* recv_wait, check class, length and payload, release; fails the test on any difference. */
void expect_filled(struct gr_conn *from, struct gr_conn *to, enum gr_frame_class class,
                   uint32_t bytes, uint32_t seed);

#endif
