/* Connections, as far as they cost: how many there are, of whom, and how long each may take over what it does. Who is
 * too slow is cut off. Where there are too many, the one that has asked nothing for longest makes room: so connections
 * that nobody uses keep nobody out, however many there are. Where all of them are being answered, the new one is in
 * excess, and is told so when it asks.
 *
 * Any thread may call; times are given, so that tests can choose them. */
#ifndef GR_ORCHESTRATOR_HTTP_GUESTS_H
#define GR_ORCHESTRATOR_HTTP_GUESTS_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define GR_GUEST_BODY_RATE (64u << 10) /* bytes that give a body another second */

/* What a connection does: it has come, sends headers, sends a body, is answered, or waits for its client to ask again.
 */
enum gr_guest_phase { GR_GUEST_NEW, GR_GUEST_HEAD, GR_GUEST_BODY, GR_GUEST_ANSWERED, GR_GUEST_IDLE };
/* Which limit it is beyond. */
enum gr_guest_excess { GR_GUEST_FITS, GR_GUEST_OF_ADDRESS, GR_GUEST_OF_ALL };

struct gr_guests;
struct gr_guest;

struct gr_guests_config {
    int n_max, n_max_of_address;
    uint64_t request_ns; /* for headers, and again for a body */
    uint64_t idle_ns;    /* between requests */
    void *ctx;
    /* Under the lock: the connection is to end, which removes it soon. It does nothing that counts any more. Returns
     * whether it was told so. */
    bool (*cut)(void *ctx, int fd, enum gr_guest_phase phase);
};

GR_NODISCARD enum gr_status gr_guests_create(const struct gr_guests_config *c, struct gr_guests **out);
void gr_guests_destroy(struct gr_guests *g); /* all have been removed; NULL is legal */
/* Readable when gr_guests_run() has something to do. */
int gr_guests_fd(const struct gr_guests *g);
/* Cuts off who is too slow. */
void gr_guests_run(struct gr_guests *g, uint64_t now_ns);

/* NULL: out of memory. An address of IPv6 is its /64. */
struct gr_guest *gr_guests_add(struct gr_guests *g, int fd, const struct sockaddr *from, uint64_t now_ns);
void gr_guests_remove(struct gr_guests *g, struct gr_guest *one);
/* false: it has been cut off. */
GR_NODISCARD bool gr_guests_enter(struct gr_guests *g, struct gr_guest *one, enum gr_guest_phase phase,
                                  uint64_t now_ns);
/* n bytes of a body have come. */
void gr_guests_took(struct gr_guests *g, struct gr_guest *one, uint64_t n);
/* Whether a 408 was sent to it as it was cut off. Only the first call says so, so that it is counted once. */
bool gr_guests_take_told(struct gr_guests *g, struct gr_guest *one);
enum gr_guest_excess gr_guests_excess(struct gr_guests *g, const struct gr_guest *one);

#endif
