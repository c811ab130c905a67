/* Many sessions at once at a running orchestrator, all of one client: one connection carries them. What `graft-bench
 * clients' measures with. One thread.
 *
 * A run has two turns. In the first every session's prompt is computed and one token comes; when the last one has it,
 * all are asked for max_tokens more at once, so that prompts and decoding do not mix in what is measured. */
#ifndef GR_BENCH_CROWD_H
#define GR_BENCH_CROWD_H

#include "bench/group.h"
#include "bench/prompt_set.h"
#include "orchestrator/cli/remote.h"

#define GR_CROWD_SHARE_MAX 640 /* bytes of the text about workers */

struct gr_crowd_session {
    uint64_t id; /* 0: not opened */
    int prompt;
    int32_t *token;    /* (max_tokens), of the second turn; borrowed from the crowd */
    uint64_t *when_ns; /* (max_tokens): when each came */
    uint32_t n_token;
    uint64_t asked_ns, first_ns;       /* of the first turn: when it was asked for, when its token came */
    bool undrafted;                    /* a drafter was there that did not work for it, in the second turn */
    uint64_t drafter_ns;               /* of the waits for trees in the second turn, the drafter's own time */
    struct gr_session_metrics metrics; /* of the second turn */
};

/* Plain memory of the caller's. */
struct gr_crowd {
    struct gr_remote remote;
    bool connected;
    uint32_t max_tokens;
    double temperature;
    int n_max;
    struct gr_crowd_session *session; /* owned, (n_max): those of the last run are the first n */
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
    /* what the orchestrator listed in the middle of the second turn */
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
/* Until so many workers have joined. GR_ETIMEDOUT (logged): they have not within so many seconds. */
GR_NODISCARD enum gr_status gr_crowd_await(struct gr_crowd *c, int n_target, int n_drafter, int within_s);
/* n sessions of prompts i_prompt, i_prompt + 1, ... (round the set) until all are over; all are closed then. A session
 * that was refused or has failed is GR_EINVAL (the first one is logged), and the others are waited for. */
GR_NODISCARD enum gr_status gr_crowd_run(struct gr_crowd *c, const struct gr_prompt_set *prompts, int i_prompt, int n,
                                         const struct gr_group_tree *tree);
void gr_crowd_end(struct gr_crowd *c);

/* Of a run: how many tokens came in which time. */
struct gr_crowd_window {
    double seconds, tokens; /* while all decode: from the last one's first token to the first one's last token; seconds
                             * 0: there was no such time */
    double all_seconds, all_tokens; /* from the first token of any to the last of any, that first one not counted */
    double least;                   /* tokens/s of the slowest session over its own time; 0: it has none */
};
/* Each has two tokens or more. */
struct gr_crowd_window gr_crowd_window(const struct gr_crowd_session *s, int n);

#endif
