#include "bench/group.h"

#include "bench/window.h"
#include "common/base/clock.h"
#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

/* ---- what the orchestrator tells ---- */

static struct gr_group_session *session_of(struct gr_group *g, uint64_t id)
{
    for (int i = 0; i < g->n; i++) {
        if (g->session[i].id == id) {
            return &g->session[i];
        }
    }
    return NULL;
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct gr_group *g = ctx;
    struct gr_group_session *s = session_of(g, session);
    (void)user;
    GR_ASSERT(s != NULL && s->n_token + n <= g->max_tokens); /* the orchestrator checks the limit */
    memcpy(s->token + s->n_token, id, n * sizeof(*id));
    g->last_ns = gr_clock_ns();
    for (uint32_t i = 0; i < n; i++) {
        s->when_ns[s->n_token++] = g->last_ns;
    }
    g->first_ns = g->first_ns == 0 ? g->last_ns : g->first_ns;
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct gr_group *g = ctx;
    struct gr_group_session *s = session_of(g, session);
    (void)user;
    g->n_running--;
    s->metrics = *gr_orch_metrics(gr_hub_orch(g->pair.hub), session);
    if (gr_finish_is_bad(finish)) {
        log_error("session %d of %d failed: %s", (int)(s - g->session), g->n, text);
        g->failed = true;
    }
}

static void on_closed(void *ctx, uint64_t session, void *user, const char *why)
{
    (void)session;
    (void)user;
    (void)why;
    ((struct gr_group *)ctx)->n_open--;
}

/* ---- a run ---- */

static enum gr_status submit(struct gr_group *g, const struct gr_prompt *p, const struct gr_group_tree *tree,
                             struct gr_group_session *s)
{
    const struct gr_session_request q = {
        .prompt = p->id,
        .n_prompt = p->n,
        .wishes = {.turn = {.max_tokens = g->prompts_first ? 1 : g->max_tokens},
                   .keep_open = g->prompts_first,
                   .sampling = {.temperature = (float)g->temperature, .top_p = 1.0f, .seed = 1 + (uint64_t)s->prompt},
                   .want_draft = tree->wanted,
                   .tree_shape = GR_SHAPE_DYNAMIC,
                   .draft_depth = GR_DRAFT_DEPTH,
                   .draft_top_k = GR_DRAFT_TOP_K,
                   .n_node = tree->n_node,
                   .auto_tree = tree->automatic,
                   .draft_ahead = GR_AHEAD_AUTO}};
    s->n_token = 0;
    GR_TRY(gr_orch_submit(gr_hub_orch(g->pair.hub), &q, gr_clock_ns(), &s->id));
    g->n_running++;
    g->n_open += g->prompts_first;
    return GR_OK;
}

static enum gr_status run_until_done(struct gr_group *g)
{
    while (g->n_running > 0) {
        GR_TRY(gr_pair_pump(&g->pair));
    }
    return g->failed ? GR_ECLOSED : GR_OK;
}

/* The second turn of all, whose prompts are there. */
static enum gr_status decode_all(struct gr_group *g, const struct gr_prompt_set *prompts)
{
    g->first_ns = 0;
    for (int i = 0; i < g->n; i++) {
        struct gr_group_session *s = &g->session[i];
        const struct gr_prompt *p = &prompts->prompt[s->prompt];
        s->n_token = 0;
        GR_TRY(gr_pair_ask_again(&g->pair, s->id, p->id, p->n, g->max_tokens));
        g->n_running++;
    }
    GR_TRY(run_until_done(g));
    gr_orch_purge(gr_hub_orch(g->pair.hub));
    while (g->n_open > 0) {
        GR_TRY(gr_pair_pump(&g->pair));
    }
    return GR_OK;
}

enum gr_status gr_group_run(struct gr_group *g, const struct gr_prompt_set *prompts, int i_prompt, int n,
                            const struct gr_group_tree *tree)
{
    GR_ASSERT(n <= g->n_max);
    g->n = n;
    g->first_ns = g->last_ns = 0;
    for (int i = 0; i < n; i++) {
        g->session[i].prompt = (i_prompt + i) % prompts->n;
        GR_TRY(submit(g, &prompts->prompt[g->session[i].prompt], tree, &g->session[i]));
    }
    GR_TRY(run_until_done(g));
    return g->prompts_first ? decode_all(g, prompts) : GR_OK;
}

void gr_group_decoding(const struct gr_group *g, double *tokens_out, double *seconds_out)
{
    struct gr_window w = gr_window_all();
    double n = 0.0;
    for (int i = 0; i < g->n; i++) {
        w = gr_window_with(w, g->session[i].when_ns, g->session[i].n_token);
    }
    for (int i = 0; i < g->n; i++) {
        n += gr_window_tokens(w, g->session[i].when_ns, g->session[i].n_token);
    }
    *tokens_out = n;
    *seconds_out = gr_window_seconds(w);
}

/* ---- the workers ---- */

enum gr_status gr_group_start(struct gr_group *g, const struct gr_group_config *config)
{
    const struct gr_prompt_set *s = config->prompts;
    struct gr_pair_config c = config->pair;
    GR_ASSERT(config->n_max <= GR_GROUP_MAX);
    *g = (struct gr_group){.max_tokens = s->max_tokens,
                           .temperature = config->temperature,
                           .n_max = config->n_max,
                           .prompts_first = config->prompts_first};
    for (int i = 0; i < g->n_max; i++) {
        g->session[i].token = malloc(g->max_tokens * sizeof(int32_t));
        g->session[i].when_ns = malloc(g->max_tokens * sizeof(uint64_t));
        if (g->session[i].token == NULL || g->session[i].when_ns == NULL) {
            log_error("out of memory for %u tokens", g->max_tokens);
            return GR_ENOMEM;
        }
    }
    c.n_session = g->n_max;
    c.n_ctx_max = (int)(s->n_id_max + s->max_tokens + GR_TREE_MAX);
    c.io = (struct gr_orch_io){.ctx = g, .on_tokens = on_tokens, .on_done = on_done, .on_closed = on_closed};
    return gr_pair_start(&g->pair, &c);
}

void gr_group_stop(struct gr_group *g)
{
    gr_pair_stop(&g->pair);
    for (int i = 0; i < g->n_max; i++) {
        free(g->session[i].token);
        free(g->session[i].when_ns);
        g->session[i].token = NULL;
        g->session[i].when_ns = NULL;
    }
}

struct gr_group_tree gr_group_tree_of(int64_t n_node)
{
    const bool automatic = n_node == GR_AUTO;
    return (struct gr_group_tree){
        .wanted = true, .automatic = automatic, .n_node = automatic ? GR_NODE_MAX : (uint32_t)n_node};
}
