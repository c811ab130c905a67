/* Turns of sessions that are run one after the other on a pair of workers, each again and again on the same prompt: its
 * KV stays, so that only the first turn of a session computes it. The orchestrator is in this process. One thread. */
#ifndef GR_BENCH_LONG_TURN_H
#define GR_BENCH_LONG_TURN_H

#include "bench/options/options.h"
#include "bench/pair.h"
#include "bench/prices.h"
#include "common/protocol/specpv.h"

#define GR_LONG_VARIANT_MAX 32 /* ways to verify that are compared, at most */

/* What a turn came to, or sums of several. Times in seconds. */
struct gr_long_turn {
    double n_token;                  /* without the first: that one is no round's */
    double total_s;                  /* from the first token to the last, by this process's clock */
    double verify_s, wait_s, host_s; /* of rounds, as the target measured them */
    double priced_s;                 /* verify_s as the price list has it */
    double rounds, partial_rounds, refreshes, roll_backs;
    double drafts, accepted, n_judged, n_mismatch;
};

struct gr_long_config {
    const char *target, *draft; /* folders; draft NULL: no drafter */
    bool draft_is_head;
    const char *transport;
    bool auto_tree;
    uint32_t n_node, max_tokens;
    double temperature;
    uint32_t threshold;      /* 0: the target's */
    int32_t n_retrieval_max; /* blocks; 0: nobody has views */
    int32_t context_max, n_session;
};

/* A session: kept open, its KV stays. Zeroes: none yet. */
struct gr_long_session {
    uint64_t id;
    enum gr_specpv_mode mode;
    uint32_t n_retrieval; /* blocks */
};

/* Plain memory of the caller's; what is below `config` is this file's. */
struct gr_long_pair {
    struct gr_long_config config;
    struct gr_pair pair;
    const struct gr_price_list *prices; /* of the turn that runs, borrowed */
    struct gr_long_turn turn;
    int32_t token[GR_LONG_TOKEN_MAX];
    uint32_t n_token, committed_len;
    uint64_t first_ns, last_ns;
    int n_open; /* sessions that are not gone */
    bool running, failed;
};

GR_NODISCARD enum gr_status gr_long_start(struct gr_long_pair *p, const struct gr_long_config *config);
/* One turn on these ids. fresh: on a new session, also where there is one. Its tokens are in p->token. */
GR_NODISCARD enum gr_status gr_long_turn_run(struct gr_long_pair *p, struct gr_long_session *s, const int32_t *id,
                                             int32_t n_id, bool fresh, const struct gr_price_list *prices,
                                             struct gr_long_turn *out);
/* Ends all sessions, for other prompts. */
GR_NODISCARD enum gr_status gr_long_close(struct gr_long_pair *p);
void gr_long_stop(struct gr_long_pair *p);

#endif
