#include "bench/long_turn.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "common/protocol/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- what the orchestrator tells ---- */

static enum gr_price_kind kind_of(const struct gr_msg_commit *commit)
{
    return commit->verdict_kind == GR_VERDICT_PARTIAL ? GR_PRICE_PARTIAL
           : commit->verdict_kind == GR_VERDICT_FULL  ? GR_PRICE_REFRESH
                                                      : GR_PRICE_FULL;
}

static void on_report(void *ctx, uint64_t session, void *user, const struct gr_msg *m)
{
    struct gr_long_pair *p = ctx;
    struct gr_long_turn *t = &p->turn;
    (void)session;
    (void)user;
    if (m->type != GR_MSG_COMMIT) {
        return;
    }
    t->roll_backs += m->commit.round > 0 && m->commit.keep_len < p->committed_len;
    p->committed_len = m->commit.keep_len + m->commit.ids.n;
    if (m->commit.round == 0) {
        return; /* the prompt, which is no round */
    }
    t->rounds++;
    t->partial_rounds += m->commit.verdict_kind == GR_VERDICT_PARTIAL;
    t->refreshes += m->commit.verdict_kind == GR_VERDICT_FULL;
    t->n_judged += m->commit.n_judged;
    t->n_mismatch += m->commit.n_mismatch;
    t->verify_s += 1e-9 * (double)m->commit.verify_ns;
    t->wait_s += 1e-9 * (double)m->commit.wait_ns;
    t->host_s += 1e-9 * (double)m->commit.host_ns;
    t->priced_s += 1e-9 * gr_price_ns(p->prices, kind_of(&m->commit), (int32_t)m->commit.n_row);
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct gr_long_pair *p = ctx;
    (void)session;
    (void)user;
    GR_ASSERT(p->n_token + n <= p->config.max_tokens); /* the orchestrator checks the limit */
    memcpy(p->token + p->n_token, id, n * sizeof(*id));
    p->n_token += n;
    p->last_ns = gr_clock_ns();
    p->first_ns = p->first_ns == 0 ? p->last_ns : p->first_ns;
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct gr_long_pair *p = ctx;
    (void)user;
    p->running = false;
    if (gr_finish_is_bad(finish)) {
        log_error("session %" GR_SESSION_ID_PRI " failed: %s", session, text);
        p->failed = true;
    }
}

static void on_closed(void *ctx, uint64_t session, void *user, const char *why)
{
    (void)session;
    (void)user;
    (void)why;
    ((struct gr_long_pair *)ctx)->n_open--;
}

/* ---- the pair ---- */

enum gr_status gr_long_start(struct gr_long_pair *p, const struct gr_long_config *c)
{
    char retrieval[16];
    const char *const views[] = {"--specpv", "on", "--specpv-n-retrieval-blocks", retrieval, NULL};
    const int32_t n_ctx = c->context_max + (int32_t)c->max_tokens + GR_TREE_MAX;
    *p = (struct gr_long_pair){.config = *c};
    snprintf(retrieval, sizeof(retrieval), "%d", c->n_retrieval_max);
    return gr_pair_start(
        &p->pair,
        &(struct gr_pair_config){
            .target = c->target,
            .draft = c->draft,
            .draft_is_head = c->draft_is_head,
            .target_options = c->n_retrieval_max > 0 ? views : NULL,
            .transport = c->transport,
            .n_session = c->n_session,
            .n_ctx_max = n_ctx,
            .n_block = c->n_session * (n_ctx / GR_KV_BLOCK_TOKENS + 2),
            .io = {
                .ctx = p, .on_report = on_report, .on_tokens = on_tokens, .on_done = on_done, .on_closed = on_closed}});
}

void gr_long_stop(struct gr_long_pair *p)
{
    gr_pair_stop(&p->pair);
}

static enum gr_status pump_until_closed(struct gr_long_pair *p, int n_open)
{
    while (p->n_open > n_open) {
        GR_TRY(gr_pair_pump(&p->pair));
    }
    return GR_OK;
}

enum gr_status gr_long_close(struct gr_long_pair *p)
{
    gr_orch_purge(gr_hub_orch(p->pair.hub));
    return pump_until_closed(p, 0);
}

/* ---- a turn ---- */

static enum gr_status open_session(struct gr_long_pair *p, struct gr_long_session *s, const int32_t *id, int32_t n_id)
{
    const struct gr_long_config *c = &p->config;
    const struct gr_session_request q = {
        .prompt = id,
        .n_prompt = (uint32_t)n_id,
        .wishes = {.turn = {.max_tokens = c->max_tokens},
                   .keep_open = true,
                   .sampling = {.temperature = (float)c->temperature, .top_p = 1.0f, .seed = 1},
                   .want_draft = c->draft != NULL,
                   .tree_shape = GR_SHAPE_DYNAMIC,
                   .draft_depth = GR_DRAFT_DEPTH,
                   .draft_top_k = GR_DRAFT_TOP_K,
                   .n_node = c->n_node,
                   .auto_tree = c->auto_tree,
                   .draft_ahead = GR_AHEAD_AUTO,
                   .specpv = s->mode,
                   .specpv_params = {.n_retrieval = s->n_retrieval, .threshold = c->threshold}}};
    GR_TRY(gr_orch_submit(gr_hub_orch(p->pair.hub), &q, gr_clock_ns(), &s->id));
    p->n_open++;
    return GR_OK;
}

static enum gr_status begin(struct gr_long_pair *p, struct gr_long_session *s, const int32_t *id, int32_t n_id,
                            bool fresh)
{
    if (fresh && s->id != 0) {
        GR_TRY(gr_orch_close(gr_hub_orch(p->pair.hub), s->id));
        GR_TRY(pump_until_closed(p, p->n_open - 1));
        s->id = 0;
    }
    return s->id == 0 ? open_session(p, s, id, n_id)
                      : gr_pair_ask_again(&p->pair, s->id, id, (uint32_t)n_id, p->config.max_tokens);
}

enum gr_status gr_long_turn_run(struct gr_long_pair *p, struct gr_long_session *s, const int32_t *id, int32_t n_id,
                                bool fresh, const struct gr_price_list *prices, struct gr_long_turn *out)
{
    p->turn = (struct gr_long_turn){0};
    p->prices = prices;
    p->n_token = 0;
    p->first_ns = p->last_ns = 0;
    p->running = true;
    struct gr_session_metrics before = {0};
    if (s->id != 0 && !fresh) {
        before = *gr_orch_metrics(gr_hub_orch(p->pair.hub), s->id);
    }
    GR_TRY(begin(p, s, id, n_id, fresh));
    while (p->running) {
        GR_TRY(gr_pair_pump(&p->pair));
    }
    if (p->failed || p->n_token != p->config.max_tokens) {
        log_error("a turn of %d tokens of context gave %u tokens of %u", n_id, p->n_token, p->config.max_tokens);
        return GR_ECLOSED;
    }
    const struct gr_session_metrics *m = gr_orch_metrics(gr_hub_orch(p->pair.hub), s->id);
    p->turn.drafts = (double)(m->num_drafts - before.num_drafts);
    p->turn.accepted = (double)m->num_accepted_tokens - (double)before.num_accepted_tokens;
    p->turn.n_token = p->n_token - 1.0;
    p->turn.total_s = 1e-9 * (double)(p->last_ns - p->first_ns);
    *out = p->turn;
    return GR_OK;
}
