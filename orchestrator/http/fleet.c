#include "orchestrator/http/fleet.h"

#include "orchestrator/http/json_text.h"
#include "orchestrator/http/worker_state.h"

#include <jansson.h>

static json_t *number(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *models_json(const struct gr_http_state *s, const struct gr_served *served, int n_served)
{
    json_t *all = json_array();
    for (int i = 0; i < n_served; i++) {
        json_array_append_new(all, json_pack("{s:s, s:b, s:i, s:i}", "id", served[i].name, "chat",
                                             served[i].chat.form != NULL, "targets", (int)s->model[i].n_target,
                                             "max_model_len", (int)s->model[i].n_ctx));
    }
    return all;
}

static json_t *worker_json(const struct gr_http_worker *w)
{
    const struct gr_worker_status *s = &w->status;
    return json_pack("{s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "worker", (int)w->number,
                     "role", gr_worker_role_name(w->role), "state",
                     gr_http_worker_state_name(gr_http_worker_state_of(s)), "sessions", (int)s->n_session, "active",
                     (int)s->n_active, "slots", (int)w->n_slot, "kv_blocks", (int)s->n_block, "kv_free_blocks",
                     (int)s->n_free_block, "ping_ns", number(s->rtt_ns), "round_ns", number(s->round_ns), "rounds",
                     number(s->rounds.n_round), "draft_tokens", number(s->rounds.n_draft_tokens), "accepted_tokens",
                     number(s->rounds.n_accepted_tokens));
}

static json_t *workers_json(const struct gr_http_state *s)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < s->n_worker; i++) {
        json_array_append_new(all, worker_json(&s->worker[i]));
    }
    return all;
}

/* By state; opening ones and closing ones are on their way. */
static json_t *sessions_json(const struct gr_http_state *s)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i}", "waiting", (int)s->n_session[GR_SESSION_WAITING], "opening",
                     (int)s->n_session[GR_SESSION_OPENING], "running", (int)s->n_session[GR_SESSION_RUNNING], "idle",
                     (int)s->n_session[GR_SESSION_IDLE], "closing", (int)s->n_session[GR_SESSION_CLOSING]);
}

static json_t *totals_json(const struct gr_totals *t)
{
    const struct {
        const char *name;
        uint64_t value;
    } all[] = {
        {"turns", t->turns_begun},
        {"generation_tokens", t->generation_tokens},
        {"rounds", t->rounds},
        {"root_only_rounds", t->root_only_rounds},
        {"drafts", t->num_drafts},
        {"draft_tokens", t->num_draft_tokens},
        {"accepted_tokens", t->num_accepted_tokens},
        {"late_trees", t->late_trees},
        {"draft_ahead_verdicts", t->draft_ahead_verdicts},
        {"draft_ahead_hits", t->draft_ahead_hits},
        {"wait_ns", t->wait_ns},
        {"verify_ns", t->verify_ns},
        {"host_ns", t->host_ns},
        {"reopens", t->reopens},
    };
    json_t *totals = json_object();
    for (size_t i = 0; i < GR_ARRAY_LEN(all); i++) {
        json_object_set_new(totals, all[i].name, number(all[i].value));
    }
    return totals;
}

char *gr_fleet_json(const struct gr_http_state *s, const struct gr_served *served, int n_served)
{
    return gr_json_text(json_pack("{s:s, s:b, s:i, s:o, s:o, s:o, s:o}", "version", GR_VERSION, "draining", s->draining,
                                  "max_model_len", (int)s->n_ctx, "models", models_json(s, served, n_served), "workers",
                                  workers_json(s), "sessions", sessions_json(s), "totals", totals_json(&s->totals)));
}
