/* For tests of the orchestrator's machine: a scripted target and drafter, and everything the machine said. Messages
 * go through the codec, as they would on a link. Include it in one .c file of a program. */
#ifndef GR_TESTS_ORCH_WORLD_H
#define GR_TESTS_ORCH_WORLD_H

#include "common/base/clock.h"
#include "common/rules/hash.h"
#include "orchestrator/server/desk.h"
#include "orchestrator/machine/orch.h"
#include "tests/quiet_log.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TARGET 0
#define DRAFTER 1
#define SENT_MAX 64

/* Everything that the machine said. */
struct world {
    struct gr_orch *orch;
    uint64_t now_ns;
    struct gr_msg sent[SENT_MAX]; /* decoded copies, owned */
    uint32_t to[SENT_MAX];
    int n_sent;
    int32_t token[256];
    uint32_t n_token;
    int n_done, n_closed, n_report, n_dropped, n_pong;
    enum gr_finish finish;
    char text[GR_MSG_TEXT_MAX], why[GR_MSG_TEXT_MAX];
    uint64_t cookie, rtt_ns;
    uint32_t dropped;
    /* the scripted target */
    uint32_t len;
    uint64_t hash;
    uint32_t epoch;
    uint64_t session;
    uint32_t specpv; /* what the last OPEN asked for; opened() grants it */
    uint32_t round;
    bool append_from_done; /* the next turn is begun from within on_done */
    struct gr_desk *desk;  /* hears what the machine reports; NULL: none. Owned */
};

struct gr_turn_request turn_of(const int32_t *ids, uint32_t n);

struct world *make(const struct gr_orch_config *config);
/* on_placed: its ctx is the world. */
struct world *make_with(const struct gr_orch_config *config,
                        void (*on_placed)(void *ctx, uint64_t session, void *user));

void destroy(struct world *w);

struct gr_worker_info target_info(void);

struct gr_worker_info draft_info(void);

void join_target(struct world *w);

void join_drafter(struct world *w);

/* The only message that was sent since the last look. */
const struct gr_msg *only(struct world *w, uint32_t to, enum gr_msg_type type);

void expect(struct world *w, uint32_t to, enum gr_msg_type type);

void say(struct world *w, uint32_t from, const struct gr_msg *m);

/* ---- the scripted target ---- */

/* Takes OPEN: the transcript's hash and length are the target's from now on. */
void take_open(struct world *w);

void opened(struct world *w);

struct gr_msg commit_of(struct world *w, int32_t *id, uint32_t n, enum gr_finish finish);

void commit(struct world *w, int32_t first, uint32_t n, enum gr_finish finish);

/* Takes APPEND: checks keep_len and hash as a target would. */
void take_append(struct world *w, uint32_t keep_len, uint32_t n_ids);

uint64_t submit(struct world *w, bool keep_open, bool want_draft);

enum gr_session_state state_of(const struct world *w, uint64_t id);

/* An idle session of 3 prompt and 3 generated tokens. */
uint64_t idle_session(struct world *w);

void check_reopened(struct world *w, uint64_t id, uint32_t epoch, uint32_t n_ids, uint32_t n_segment,
                    uint32_t max_tokens);

#endif
