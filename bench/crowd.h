/* Many sessions of one client at once, on one connection to a running orchestrator. `graft-bench clients' measures with
 * them. One thread.
 *
 * A run has two turns. In the first one every session's prompt is computed and brings one token. When all have theirs,
 * all sessions are asked for max_tokens more at once: no prompt is computed in the time that is measured. */
#ifndef GR_BENCH_CROWD_H
#define GR_BENCH_CROWD_H

#include "bench/group.h"
#include "bench/prompt_set.h"
#include "orchestrator/cli/remote.h"
#include "orchestrator/machine/session_index.h"

#define GR_CROWD_SHARE_MAX 640 /* bytes of the text about workers */

struct gr_crowd_session {
    uint64_t id; /* 0: not opened */
    int prompt;
    int32_t *token;    /* (max_tokens), of the second turn; borrowed from the crowd */
    uint64_t *when_ns; /* (max_tokens): when each came */
    uint32_t n_token;
    uint64_t asked_ns, first_ns; /* when the first turn was asked for, and when its token came */
    bool undrafted;              /* in the second turn no drafter worked for it, though one was there */
    bool reopened;       /* its prompt was computed again in the second turn: its KV had gone to another session,
                          * or its worker was lost */
    uint64_t drafter_ns; /* the drafter's own time, which is a part of the second turn's waits for trees */
    struct gr_session_metrics metrics; /* of the second turn */
};

/* Plain memory of the caller's. */
struct gr_crowd {
    struct gr_remote remote;
    bool connected;
    uint32_t max_tokens;
    double temperature;
    int n_max;
    struct gr_crowd_session *session; /* owned, (n_max): the first n are those of the last run */
    struct gr_session_index by_id;    /* owned */
    int32_t *token;                   /* owned */
    uint64_t *when_ns;                /* owned */
    int n;
    /* of the turn at hand */
    const struct gr_prompt_set *prompts;
    const struct gr_group_tree *tree;
    bool decodes; /* the second turn */
    bool closes;  /* turns are over */
    int n_asked, n_answered, n_running, n_open;
    uint64_t n_token;
    /* the orchestrator's list of workers, asked for in the middle of the second turn */
    bool listed;
    int n_target, n_drafter;
    char shares[GR_CROWD_SHARE_MAX]; /* "targets 4 4, drafters 8": sessions of each worker */
    char targets[GR_CROWD_SHARE_MAX / 2 - 16], drafters[GR_CROWD_SHARE_MAX / 2 - 16];
    bool failed; /* logged */
};

/* n_max: 1 to GR_CROWD_MAX. address: NULL: GRAFT_CONNECT, else where `graft serve' is by default. Tries for patience_ms
 * while nobody listens. Logged; gr_crowd_end() is legal afterwards. */
GR_NODISCARD enum gr_status gr_crowd_begin(struct gr_crowd *c, const char *address, int patience_ms, int n_max,
                                           uint32_t max_tokens, double temperature);
/* Waits until n_target targets and n_drafter drafters have joined. GR_ETIMEDOUT (logged): they have not within within_s
 * seconds. */
GR_NODISCARD enum gr_status gr_crowd_await(struct gr_crowd *c, int n_target, int n_drafter, int within_s);
/* Runs n sessions, with the prompts i_prompt, i_prompt + 1, ... of the set, which begins anew after its last one.
 * Returns when all of them are over and closed. GR_EINVAL: a session was refused or has failed; the first such one is
 * logged. */
GR_NODISCARD enum gr_status gr_crowd_run(struct gr_crowd *c, const struct gr_prompt_set *prompts, int i_prompt, int n,
                                         const struct gr_group_tree *tree);
void gr_crowd_end(struct gr_crowd *c);

/* The tokens of a run, and the time in which they came. */
struct gr_crowd_window {
    double seconds, tokens; /* while all decode: from the moment when every session has its first token to the moment
                             * when one has its last; seconds 0: there was no such time */
    double all_seconds,
        all_tokens; /* from the first token of any session to the last of any; the first is not counted */
    double least;   /* tokens/s of the slowest session over its own time; 0: it has none */
    int n_waited;   /* sessions whose first token came after another one's last, and after a wait of more than half of
                     * their own time: they were not let in before */
};
/* Each has two tokens or more. */
struct gr_crowd_window gr_crowd_window(const struct gr_crowd_session *s, int n);

#endif
