/* Keeps a desk's sessions in a journal (docs/journal.md): writes what happens to them, holds what their clients are
 * told until that is durable, brings them back when a process begins, and knows the answers that are over. One thread,
 * which never waits for the disk, unless it asks to. */
#ifndef GR_ORCHESTRATOR_SERVER_KEEPER_H
#define GR_ORCHESTRATOR_SERVER_KEEPER_H

#include "orchestrator/journal/files.h"
#include "orchestrator/machine/kept_answer.h"
#include "orchestrator/server/desk.h"

#define GR_KEEPER_OVER_MAX 4096 /* answers that are over and can still be read; the oldest go first */

struct gr_keeper;

struct gr_keeper_config {
    const char *path;                     /* of the journal; borrowed */
    const struct gr_journal_files *files; /* borrowed; NULL: the system's */
    uint32_t segment_bytes;               /* of the journal; 0: GR_JOURNAL_SEGMENT_BYTES */
    uint64_t over_ns;                     /* an answer that is over can be read for so long */
    uint32_t n_client;                    /* numbers of clients */
    void *ctx;
    void (*send)(void *ctx, uint32_t client, const struct gr_msg *m);
    /* What the client was to be told is lost: gr_desk_fail_client(). From gr_keeper_run() alone. */
    void (*lost)(void *ctx, uint32_t client, const char *why);
};

/* Opens the journal and reads it. Logged: as gr_scribe_create() returns. */
GR_NODISCARD enum gr_status gr_keeper_create(const struct gr_keeper_config *c, struct gr_keeper **out);
/* Waits until all is durable, or has failed, until then at the latest (gr_clock_ns(); UINT64_MAX: without a limit).
 * GR_ETIMEDOUT: logged. NULL is legal. */
enum gr_status gr_keeper_destroy(struct gr_keeper *k, uint64_t deadline_ns);

/* The desk's part of it; orch (borrowed): where its sessions are. Before the first session. */
struct gr_desk_keeper gr_keeper_serve(struct gr_keeper *k, const struct gr_orch *orch);
/* Gives the desk the sessions that the journal has. A turn that cannot go on ends with an error. */
void gr_keeper_restore(struct gr_keeper *k, struct gr_desk *d, uint64_t now_ns);

/* An answer whose OPEN had what tells it again. False: the journal has no such one. */
bool gr_keeper_answer(const struct gr_keeper *k, uint64_t session, struct gr_kept_answer *out);
/* All there are. on_answer may have turns end. */
void gr_keeper_each_answer(const struct gr_keeper *k, void *ctx,
                           void (*on_answer)(void *ctx, const struct gr_kept_answer *a));

/* A message to a client, which leaves when it may. */
void gr_keeper_send(struct gr_keeper *k, uint32_t client, const struct gr_msg *m);

/* No turn begins any more: the journal takes nothing. */
bool gr_keeper_has_failed(const struct gr_keeper *k);
/* gr_journal_waits_since(). */
uint64_t gr_keeper_waits_since(const struct gr_keeper *k);

/* Readable when gr_keeper_run() has something to do. */
int gr_keeper_fd(const struct gr_keeper *k);
/* What has become durable is told; answers whose time is over are closed. Returns when to call again at the latest;
 * UINT64_MAX. */
uint64_t gr_keeper_run(struct gr_keeper *k, uint64_t now_ns);
/* The same, after waiting until all that was noted is durable, or has failed. GR_ETIMEDOUT: the disk has not done it by
 * then (gr_clock_ns(); UINT64_MAX: without a limit), which one line says; what waits for it is not told. */
enum gr_status gr_keeper_flush(struct gr_keeper *k, uint64_t now_ns, uint64_t deadline_ns);

#endif
