#include "orchestrator/cli/serve_http.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rules/kv_block.h"
#include "orchestrator/cli/plan.h"
#include "orchestrator/cli/serve_models.h"

#include <stdio.h>
#include <string.h>

#define HTTP_ADDRESS "127.0.0.1:8000" /* where a model is named, and nothing said */

static enum gr_status say(void *ctx, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    return gr_desk_on_msg(((struct gr_serve_http *)ctx)->desk, client, m, now_ns);
}

static void leave(void *ctx, uint32_t client)
{
    gr_desk_on_client_lost(((struct gr_serve_http *)ctx)->desk, client);
}

static bool find_past(void *ctx, uint64_t session, struct gr_kept_answer *out)
{
    return gr_keeper_answer(((const struct gr_serve_http *)ctx)->keeper, session, out);
}

static bool adopt(void *ctx, uint32_t client, uint64_t session)
{
    return gr_desk_adopt(((struct gr_serve_http *)ctx)->desk, client, session);
}

static void restore_one(void *ctx, const struct gr_kept_answer *a)
{
    gr_front_restore(((struct gr_serve_http *)ctx)->front, a, gr_clock_ns());
}

static const char *fleet_name(void *ctx, const struct gr_served *m)
{
    const struct gr_serve_http *h = ctx;
    const struct gr_home *home = &h->homes.home[m - h->served];
    return home->foreign ? NULL : home->name;
}

/* Targets that were there may come back. */
static uint32_t room(void *ctx, const struct gr_served *m)
{
    const struct gr_serve_http *h = ctx;
    const uint32_t n_slot = h->n_slot_most[m - h->served];
    return n_slot > 0 ? n_slot + h->n_queue_max : 0;
}

static const char *address_of(const struct gr_options *o)
{
    const bool said = o->values.source[GR_OPTION_http] != GR_FROM_DEFAULT;
    return said ? o->http : o->models.n > 0 ? HTTP_ADDRESS : NULL;
}

/* What an answer is where its request says nothing: as a client's that names no option. */
static enum gr_status choose_base(const struct gr_options *o, const char *model, struct gr_wishes *out)
{
    struct gr_options run;
    struct gr_plan plan;
    gr_options_default(&run, GR_CMD_RUN);
    run.model = model;
    run.disable_specpv = o->disable_specpv;
    run.disable_multi_token = o->disable_multi_token;
    GR_TRY(gr_plan_remote(&run, &plan));
    gr_wishes_copy(out, &plan.wishes);
    return GR_OK;
}

static enum gr_status check_tls(const struct gr_options *o)
{
    if ((o->tls_cert == NULL) != (o->tls_key == NULL)) {
        log_error("%s is given without %s; TLS needs both", o->tls_cert != NULL ? "--tls-cert" : "--tls-key",
                  o->tls_cert != NULL ? "--tls-key" : "--tls-cert");
        return GR_EINVAL;
    }
    return GR_OK;
}

static struct gr_http_config config_of(const struct gr_serve_http *h, const struct gr_options *o, const char *address)
{
    return (struct gr_http_config){.listen = address,
                                   .served = h->served,
                                   .n_served = h->n_served,
                                   .base = &h->base,
                                   .front = h->front,
                                   .unknown_pass = o->http_unknown == GR_CHOICE_HTTP_UNKNOWN_LOG,
                                   .insecure = o->insecure,
                                   .api_key_file = o->api_key_file,
                                   .tls = o->tls_cert != NULL,
                                   .tls_cert = o->tls_cert,
                                   .tls_key = o->tls_key,
                                   .host = o->http_host.word,
                                   .n_host = o->http_host.n,
                                   .n_connection = (int)o->http_connections,
                                   .n_of_address = (int)o->http_connections_per_address,
                                   .request_ns = (uint64_t)o->http_request_timeout,
                                   .idle_ns = (uint64_t)o->http_idle_timeout};
}

static enum gr_status open_models(struct gr_serve_http *h, const struct gr_options *o,
                                  const struct gr_serve_models *models)
{
    for (; h->n_served < models->n; h->n_served++) {
        const struct gr_serve_model *m = &models->model[h->n_served];
        const struct gr_served_config c = {.name = m->name[0] != '\0' ? m->name : NULL,
                                           .path = m->path,
                                           .chat_template = o->chat_template,
                                           .has_others = models->n > 1};
        GR_TRY(gr_served_open(&c, &h->served[h->n_served]));
    }
    gr_homes_begin(&h->homes, h->served, h->n_served);
    return GR_OK;
}

static enum gr_status start(struct gr_serve_http *h, const struct gr_options *o, const struct gr_serve_models *models,
                            const char *address)
{
    GR_TRY(check_tls(o));
    GR_TRY(open_models(h, o, models));
    const struct gr_front_config front = {.ctx = h,
                                          .say = say,
                                          .leave = leave,
                                          .first_client = GR_CLIENT_MAX,
                                          .grace_ns = (uint64_t)o->resume_grace,
                                          .served = h->served,
                                          .n_served = h->n_served,
                                          .fleet_name = fleet_name,
                                          .room = room,
                                          .find_past = h->keeper != NULL ? find_past : NULL,
                                          .adopt = adopt};
    h->n_queue_max = (uint32_t)o->queue_max;
    GR_TRY(choose_base(o, models->model[0].path, &h->base));
    GR_TRY(gr_front_create(&front, &h->front));
    const struct gr_http_config c = config_of(h, o, address);
    return gr_http_create(&c, &h->http);
}

static void tell_serving(const struct gr_serve_http *h, const struct gr_options *o)
{
    fprintf(stderr, "serving ");
    for (int i = 0; i < h->n_served; i++) {
        fprintf(stderr, "%s%s", i > 0 ? ", " : "", h->served[i].name);
    }
    fprintf(stderr, " at %s://%s/v1\n", o->tls_cert != NULL ? "https" : "http", gr_http_address(h->http));
}

enum gr_status gr_serve_http_open(struct gr_serve_http *h, const struct gr_options *o,
                                  const struct gr_serve_models *models, struct gr_orch *orch, struct gr_desk *desk,
                                  const struct gr_keeper *keeper)
{
    const char *address = address_of(o);
    *h = (struct gr_serve_http){.desk = desk, .orch = orch, .keeper = keeper, .due_ns = UINT64_MAX};
    if (address == NULL) {
        return GR_OK;
    }
    if (models->n == 0) {
        log_error("--http %s: which model is served? Give --model DIR, whose tokenizer and chat template are read here",
                  address);
        return GR_EINVAL;
    }
    GR_TRY(start(h, o, models, address));
    if (keeper != NULL) {
        gr_keeper_each_answer(keeper, h, restore_one);
    }
    tell_serving(h, o);
    return GR_OK;
}

int gr_serve_http_fd(const struct gr_serve_http *h)
{
    return h->front != NULL ? gr_front_fd(h->front) : -1;
}

void gr_serve_http_want(struct gr_serve_http *h, uint32_t n_target, uint32_t n_draft)
{
    h->n_target_wanted = n_target;
    h->n_draft_wanted = n_draft;
}

bool gr_serve_http_has_files(const struct gr_options *o)
{
    return address_of(o) != NULL && (o->api_key_file != NULL || o->tls_cert != NULL);
}

void gr_serve_http_reload(struct gr_serve_http *h)
{
    if (h->http == NULL) {
        return;
    }
    if (gr_http_reload(h->http) == GR_OK) {
        fprintf(stderr, "the endpoint's keys and certificates were read again\n");
    } else {
        log_error("SIGHUP: the endpoint goes on with the keys and certificates that it had");
    }
}

bool gr_serve_http_has(const struct gr_serve_http *h, uint32_t client)
{
    return h->front != NULL && gr_front_has_client(h->front, client);
}

void gr_serve_http_on_msg(struct gr_serve_http *h, uint32_t client, const struct gr_msg *m, uint64_t now_ns)
{
    gr_front_on_msg(h->front, client, m, now_ns);
}

/* Tokens that a session there may have: its KV pool may hold fewer than the model's context. */
static uint32_t context_of(const struct gr_worker_info *w)
{
    const uint64_t n_pool = (uint64_t)w->n_block * GR_KV_BLOCK_TOKENS;
    return w->n_block > 0 ? (uint32_t)GR_MIN((uint64_t)w->n_ctx_max, n_pool) : w->n_ctx_max;
}

/* A target counts for each model that it serves; false: it serves none. */
static bool count_target(const struct gr_serve_http *h, const struct gr_worker_info *w, bool drained,
                         struct gr_http_state *s)
{
    bool serves = false;
    for (int i = 0; i < h->n_served; i++) {
        if (gr_homes_fit(&h->homes, i, w)) {
            s->model[i].n_target++;
            s->model[i].n_taking += !drained;
            s->model[i].n_ctx = GR_MAX(s->model[i].n_ctx, context_of(w));
            s->n_ctx = GR_MAX(s->n_ctx, s->model[i].n_ctx);
            serves = true;
        }
    }
    return serves;
}

/* Before requests are taken: who joins now has room for them. */
static void note_slots(struct gr_serve_http *h)
{
    for (int i = 0; i < h->n_served; i++) {
        uint32_t n_slot = 0;
        for (uint32_t k = 0; k < GR_ORCH_WORKER_MAX; k++) {
            const struct gr_worker_info *w = gr_orch_worker(h->orch, k, NULL);
            n_slot += w != NULL && gr_homes_fit(&h->homes, i, w) ? w->n_slot : 0;
        }
        h->n_slot_most[i] = GR_MAX(h->n_slot_most[i], n_slot);
    }
}

static struct gr_http_state look(const struct gr_serve_http *h, bool draining)
{
    struct gr_http_state s = {.n_draft = gr_orch_n_worker(h->orch, GR_WORKER_DRAFT),
                              .n_target_wanted = h->n_target_wanted,
                              .n_draft_wanted = h->n_draft_wanted,
                              .draining = draining};
    for (uint32_t i = 0; i < GR_ORCH_WORKER_MAX; i++) {
        struct gr_worker_status status;
        const struct gr_worker_info *w = gr_orch_worker(h->orch, i, &status);
        if (w != NULL) {
            s.worker[s.n_worker++] =
                (struct gr_http_worker){.number = i + 1, .role = w->role, .n_slot = w->n_slot, .status = status};
        }
        const bool is_target = w != NULL && w->role == GR_WORKER_TARGET && !status.leaving;
        s.n_target += is_target && count_target(h, w, status.draining, &s);
    }
    for (int i = GR_SESSION_WAITING; i <= GR_SESSION_CLOSING; i++) {
        s.n_session[i] = gr_orch_n_in_state(h->orch, (enum gr_session_state)i);
    }
    s.n_running = s.n_session[GR_SESSION_RUNNING];
    s.n_waiting = s.n_session[GR_SESSION_WAITING] + s.n_session[GR_SESSION_OPENING];
    s.totals = *gr_orch_totals(h->orch);
    s.has_journal = h->keeper != NULL;
    s.journal_failed = s.has_journal && gr_keeper_has_failed(h->keeper);
    s.journal_since_ns = s.has_journal ? gr_keeper_waits_since(h->keeper) : 0;
    return s;
}

void gr_serve_http_run(struct gr_serve_http *h, bool draining, uint64_t now_ns)
{
    if (h->http == NULL) {
        return;
    }
    gr_homes_look(&h->homes, h->orch);
    note_slots(h);
    h->due_ns = gr_front_run(h->front, now_ns);
    const struct gr_http_state s = look(h, draining);
    gr_http_tell(h->http, &s);
}

int gr_serve_http_n_job(const struct gr_serve_http *h)
{
    return h->front != NULL ? gr_front_n_job(h->front) : 0;
}

void gr_serve_http_close(struct gr_serve_http *h)
{
    gr_front_end(h->front);
    gr_http_destroy(h->http);
    gr_front_destroy(h->front);
    for (int i = 0; i < h->n_served; i++) {
        gr_served_close(&h->served[i]);
    }
    *h = (struct gr_serve_http){0};
}
