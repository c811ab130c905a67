/* A session that begins with the tokens of another (OPEN: fork_of), as the answers to one prompt do: it takes that
 * one's KV as far as both begin alike, in two steps.
 *
 * Whole blocks are shared when room is claimed, while no pass is on its way; they are read by both from then on, and
 * written by neither (model/kv/kv_pool.h). Of the block that the other has begun, the cells that both have in common
 * are copied by the pass that runs the fork's first rows, before them: so there is no copy that waits while the other
 * goes on, is cut, or leaves. The last token before the first pick is always computed anew, since the pick is its
 * row's.
 *
 * While the other still computes what can be shared, the fork waits. It never waits for one that is younger, or that
 * has no blocks: that one could be waiting for its. Where the other is not here, or has other tokens, nothing is
 * shared, and the KV that is computed is the same. Decision D-100. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>
#include <string.h>

/* Whose KV it may share; NULL: nobody's, one's with another salt, or it has KV already. */
static const struct session *parent_of(struct gr_target *t, const struct session *s)
{
    const bool begins = s->wishes.fork_of != 0 && s->kv.len == 0;
    const struct session *parent = begins ? target_find(t, s->wishes.fork_of) : NULL;
    const bool shares = parent != NULL && parent != s && strcmp(parent->wishes.salt, s->wishes.salt) == 0;
    return shares ? parent : NULL;
}

/* Tokens with which both begin, and whose KV the fork can take. */
static int32_t common_len(const struct session *s, const struct session *parent)
{
    const int32_t most = GR_MIN(parent->prefix.len, s->turn.prefill_end - 1);
    int32_t len = 0;
    while (len < most && s->prefix.token[len] == parent->prefix.token[len]) {
        len++;
    }
    return len;
}

/* Tokens that the parent has KV of, or will have when it has read its prompt. */
static int32_t coming_len(const struct session *s, const struct session *parent)
{
    const bool reads = parent->state == SESSION_PREFILL && parent->arrival < s->arrival;
    return reads ? parent->turn.prefill_end : parent->kv.len;
}

int32_t target_fork_saves(struct gr_target *t, const struct session *s)
{
    const struct session *parent = parent_of(t, s);
    const int32_t len = parent != NULL ? GR_MIN(common_len(s, parent), coming_len(s, parent)) : 0;
    return len / GR_KV_BLOCK_TOKENS * GR_KV_BLOCK_TOKENS;
}

bool target_fork_waits(struct gr_target *t, const struct session *s)
{
    const struct session *parent = parent_of(t, s);
    return parent != NULL && parent->kv.len < coming_len(s, parent) && parent->kv.len < common_len(s, parent);
}

void target_fork_blocks(struct gr_target *t, struct session *s)
{
    const struct session *parent = s->state == SESSION_PREFILL ? parent_of(t, s) : NULL;
    if (parent == NULL || s->kv.forked || target_fork_waits(t, s)) {
        return;
    }
    const int32_t len = GR_MIN(common_len(s, parent), parent->kv.len);
    if (len > 0) {
        target_kv_fork(t, s, parent, len / GR_KV_BLOCK_TOKENS);
        target_fork_features(t, s, parent, len);
        t->counters.n_fork++;
        t->counters.n_fork_token += (uint64_t)s->kv.len;
        log_info("session %" GR_SESSION_ID_PRI ": shares KV of %d tokens with session %" GR_SESSION_ID_PRI, s->id,
                 s->kv.len, parent->id);
    }
}

struct fork_part target_fork_part(struct gr_target *t, const struct session *s, int32_t end)
{
    const bool begins_block = s->kv.len % GR_KV_BLOCK_TOKENS == 0;
    const struct session *parent = begins_block ? target_find(t, s->wishes.fork_of) : NULL;
    if (parent == NULL) {
        return (struct fork_part){0}; /* it has gone since: these tokens are computed */
    }
    const int32_t block_end = s->kv.len + GR_KV_BLOCK_TOKENS - 1;
    const int32_t len = GR_MIN(GR_MIN(common_len(s, parent), parent->kv.len), GR_MIN(end - 1, block_end));
    if (len <= s->kv.len) {
        return (struct fork_part){0};
    }
    t->counters.n_fork_token += (uint64_t)(len - s->kv.len);
    return (struct fork_part){.n = len - s->kv.len,
                              .from = parent->kv.table.block[s->kv.len / GR_KV_BLOCK_TOKENS] * GR_KV_BLOCK_TOKENS};
}
