/* For tests of the orchestrator's machine: a fleet of scripted targets and drafters, who answer at once when answer()
 * is called. Include it in one .c file of a program. */
#ifndef GR_TESTS_ORCH_FLEET_H
#define GR_TESTS_ORCH_FLEET_H

#include "common/base/clock.h"
#include "orchestrator/machine/orch.h"
#include "tests/quiet_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define WORKER_MAX 12
#define QUEUE 16384
#define SESSIONS 2048

struct fleet {
    uint64_t n_id; /* numbers of sessions that were given out */
    bool ids_fall;
    struct gr_orch *orch;
    uint64_t now_ns;
    struct said { /* what workers answer: handed in by answer() */
        uint32_t worker;
        struct gr_msg m;
    } queue[QUEUE];
    int n_queue;
    uint32_t n_open[WORKER_MAX], n_attach[WORKER_MAX]; /* that each worker was asked for */
    bool is_target[WORKER_MAX];
    uint32_t n_told_none[WORKER_MAX]; /* DETACHs of a target: a session has no drafter any more */
    bool full[WORKER_MAX];            /* a target refuses: it has no room */
    bool rejects[WORKER_MAX];         /* a target refuses: the request is not one for it */
    bool ending[WORKER_MAX];          /* it is to end, and sends what comes elsewhere */
    bool deaf[WORKER_MAX];            /* a drafter cannot reach any target */
    uint64_t hash[SESSIONS];          /* of what a session's text is by now; by its number */
    uint32_t len[SESSIONS], epoch[SESSIONS];
    int n_done, n_failed;
    uint32_t place[SESSIONS];   /* in the queue, as told last; by session; 0: it was not */
    enum gr_finish finish;      /* of the last turn that ended */
    char text[GR_MSG_TEXT_MAX]; /* of the last turn that ended */
};

/* What a worker is to say when answer() is called next. */
void answer_later(struct fleet *f, uint32_t worker, struct gr_msg m);

/* Everything that workers have to say, and what follows from it. */
void answer(struct fleet *f);

struct fleet *make_fleet(void);

void destroy_fleet(struct fleet *f);

void join(struct fleet *f, uint32_t worker, enum gr_worker_role role, uint32_t n_slot);

/* A request of three tokens, 1000 at most to generate, that wants a drafter. */
struct gr_session_request usual_request(bool keep_open);

/* Three tokens of prompt, 1000 at most to generate, and a drafter is wanted. */
uint64_t open_session(struct fleet *f, bool keep_open);

struct gr_session_info info_of(const struct fleet *f, uint64_t id);

/* The target commits a round with a tree. */
void commit_tree(struct fleet *f, uint64_t id, uint32_t n_draft, uint32_t n_accepted);

/* The prompt is computed: the target commits its first token. */
void first_token(struct fleet *f, uint64_t id);

/* The target commits a token, the last one. */
void end_turn(struct fleet *f, uint64_t id);

/* The next turn of an idle session. */
void append(struct fleet *f, uint64_t id);

/* Zeroes: it is not there. */
struct gr_worker_status status_of(const struct fleet *f, uint32_t worker);

uint32_t held_by(const struct fleet *f, uint32_t worker);

/* The counts are those of the sessions that are there. */
void check_counts(const struct fleet *f);

/* Two targets that have told of their rounds, by these two PONGs, and then n sessions at once. */
struct fleet *share_out(const struct gr_msg *first, const struct gr_msg *second, int n);

/* Answers until nobody has anything to say, and looks at the counts. */
void settle(struct fleet *f);

#endif
