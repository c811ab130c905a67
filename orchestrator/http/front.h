/* Where requests of the endpoint meet the orchestrator: each answer is a client of the desk (desk.h), which opens a
 * session, takes what it reports and makes the response of it. All but posting is the orchestrator's thread's. Jobs,
 * and word that a reader is gone, are posted by other threads, which wake it by a file descriptor. */
#ifndef GR_ORCHESTRATOR_HTTP_FRONT_H
#define GR_ORCHESTRATOR_HTTP_FRONT_H

#include "orchestrator/http/past.h"

#define GR_FRONT_ANSWER_MAX 4096        /* answers at a time */
#define GR_FRONT_FOLLOWER_MAX 8192      /* followers of all answers together */
#define GR_JOB_FOLLOWER_MAX 16          /* followers of a request's answers */
#define GR_FRONT_KEPT_MAX 1024          /* requests whose answers are over, and can be read still */
#define GR_FRONT_KEPT_BYTES (64u << 20) /* the same, of memory; the oldest go first */

struct gr_front;

/* Somebody comes back to an answer, or ends it. */
struct gr_return {
    struct gr_api_owner owner;
    uint64_t session;
    uint32_t from; /* tokens of it that he has */
    bool stops;    /* he wants it to end, and no more of it */
    struct gr_stream *stream;
    struct gr_return *next;
};

struct gr_front_config {
    void *ctx;
    /* A message of the client to the desk. GR_EPROTO never: what is sent is well formed. */
    enum gr_status (*say)(void *ctx, uint32_t client, const struct gr_msg *m, uint64_t now_ns);
    void (*leave)(void *ctx, uint32_t client); /* the client is gone */
    uint32_t first_client;                     /* numbers from here on, GR_FRONT_ANSWER_MAX of them, are answers */
    /* An answer goes on for so long without a follower, if its request asked for that; one that is over can be read for
     * as long. */
    uint64_t grace_ns;
    const struct gr_served *served; /* borrowed, (n_served) */
    int n_served;
    /* What targets call it; "": not known yet, and the only one of its tokenizer is meant. NULL: of the targets that
     * would take its sessions none has its tokenizer. */
    const char *(*fleet_name)(void *ctx, const struct gr_served *m);
    /* The most answers of this model that can run and wait together; 0, or no function: it is not known. */
    uint32_t (*room)(void *ctx, const struct gr_served *m);
    /* A journal's. NULL: there is none. False: it has no such answer; or the turn is not there to be taken over. */
    bool (*find_past)(void *ctx, uint64_t session, struct gr_kept_answer *out);
    bool (*adopt)(void *ctx, uint32_t client, uint64_t session);
};

GR_NODISCARD enum gr_status gr_front_create(const struct gr_front_config *c, struct gr_front **out);
/* Responses that are being made end; nothing is taken any more. NULL is legal. */
void gr_front_end(struct gr_front *f);
void gr_front_destroy(struct gr_front *f); /* after all who post have ended; NULL is legal */
int gr_front_fd(const struct gr_front *f); /* readable: gr_front_run() has something to do */

/* ---- any thread ---- */

/* Takes j. */
void gr_front_post(struct gr_front *f, struct gr_job *j);
/* Copies r, and holds its stream until it is answered. */
void gr_front_post_return(struct gr_front *f, const struct gr_return *r);
/* Somebody reads a job's response no more (gr_stream_is_left()). */
void gr_front_post_gone(struct gr_front *f);

/* ---- the orchestrator's thread ---- */

/* An answer of an earlier process is found again; where its turn goes on, it goes on here. */
void gr_front_restore(struct gr_front *f, const struct gr_kept_answer *a, uint64_t now_ns);
/* Does what was posted and what time brings. Returns when to call again at the latest; UINT64_MAX: when something
 * comes. */
uint64_t gr_front_run(struct gr_front *f, uint64_t now_ns);
bool gr_front_has_client(const struct gr_front *f, uint32_t client);
/* What the desk tells a client of gr_front_has_client(). */
void gr_front_on_msg(struct gr_front *f, uint32_t client, const struct gr_msg *m, uint64_t now_ns);
int gr_front_n_job(const struct gr_front *f);

#endif
