#include "bench/server/stub_targets.h"

#include "common/base/log.h"
#include "common/base/session_id.h"
#include "common/rules/hash.h"

#include <stdlib.h>
#include <unistd.h>

static enum gr_status say(const struct gr_stub_target *t, const struct gr_msg *m)
{
    return gr_bus_send(t->all->bus, t->end, m);
}

static enum gr_status on_open(struct gr_stub_target *t, const struct gr_msg *m)
{
    if (t->n == t->all->n_slot) {
        log_error("the server gives a target %d sessions, and it has room for %d", t->n + 1, t->all->n_slot);
        return GR_EPROTO;
    }
    struct gr_stub_session *s = &t->session[t->n++];
    *s = (struct gr_stub_session){.id = m->session, .epoch = m->open.epoch, .len = m->open.ids.n};
    for (uint32_t i = 0; i < m->open.ids.n; i++) {
        s->hash = gr_hash_extend(s->hash, m->open.ids.p[i]);
    }
    t->all->n_open++;
    return say(t, &(struct gr_msg){.type = GR_MSG_OPENED, .session = m->session, .opened = {.epoch = s->epoch}});
}

static enum gr_status on_close(struct gr_stub_target *t, uint64_t session)
{
    for (int i = 0; i < t->n; i++) {
        if (t->session[i].id == session) {
            t->session[i] = t->session[--t->n];
            t->all->n_open--;
            return say(t, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = session});
        }
    }
    log_error("the server closes session %" GR_SESSION_ID_PRI ", which its target does not have", session);
    return GR_EPROTO;
}

static enum gr_status on_msg(void *ctx, const struct gr_msg *m)
{
    struct gr_stub_target *t = ctx;
    switch (m->type) {
    case GR_MSG_OPEN:
        return on_open(t, m);
    case GR_MSG_CLOSE:
        return on_close(t, m->session);
    case GR_MSG_PING:
        return say(
            t, &(struct gr_msg){.type = GR_MSG_PONG, .pong = {.n_vocab = GR_STUB_VOCAB, .n_session = (uint32_t)t->n}});
    case GR_MSG_JOINED: /* the number of its process, which nothing here uses */
        return GR_OK;
    default:
        log_error("the server sends a target %s, which nobody has asked for", gr_msg_name(m->type));
        return GR_EPROTO;
    }
}

static enum gr_status join(struct gr_stub_targets *all, int i)
{
    struct gr_stub_target *t = &all->target[i];
    const uint64_t incarnation = (uint64_t)i + 1;
    t->all = all;
    t->session = calloc((size_t)all->n_slot, sizeof(*t->session));
    if (t->session == NULL) {
        log_error("out of memory for %d sessions", all->n_slot);
        return GR_ENOMEM;
    }
    GR_TRY(gr_bus_join(all->bus, GR_ROLE_TARGET, incarnation, on_msg, t, &t->end));
    return say(t, &(struct gr_msg){.type = GR_MSG_JOIN,
                                   .join = {.incarnation = incarnation,
                                            .role = GR_ROLE_TARGET,
                                            .pid = (uint32_t)getpid(),
                                            .n_vocab = GR_STUB_VOCAB,
                                            .n_ctx_max = 1u << 20,
                                            .n_session = (uint32_t)all->n_slot,
                                            .model_fingerprint = 1,
                                            .tokenizer_fingerprint = 1,
                                            .numerics_id = "stub",
                                            .model = "stub"}});
}

enum gr_status gr_stub_targets_begin(struct gr_stub_targets *t, struct gr_bus *bus, int n_target, int n_slot)
{
    GR_ASSERT(n_target >= 1 && n_target <= GR_STUB_TARGET_MAX);
    *t = (struct gr_stub_targets){.bus = bus, .n_target = n_target, .n_slot = n_slot};
    for (int i = 0; i < n_target; i++) {
        GR_TRY(join(t, i));
        GR_TRY(gr_bus_pump(bus, 0));
    }
    return GR_OK;
}

static enum gr_status commit(struct gr_stub_target *t, struct gr_stub_session *s, bool last)
{
    int32_t id = gr_stub_token(s->id, s->len);
    s->hash = gr_hash_extend(s->hash, id);
    s->len++;
    s->is_over = last;
    t->all->n_sent++;
    return say(t, &(struct gr_msg){.type = GR_MSG_COMMIT,
                                   .session = s->id,
                                   .commit = {.epoch = s->epoch,
                                              .round = s->round++,
                                              .ids = {.p = &id, .n = 1},
                                              .keep_len = s->len - 1,
                                              .final_len = s->len,
                                              .finish = last ? GR_FINISH_STOP : GR_FINISH_NONE,
                                              .hash = s->hash,
                                              .verify_ns = 5000000,
                                              .n_row = 1}});
}

enum gr_status gr_stub_targets_round(struct gr_stub_targets *t, int target, bool last)
{
    struct gr_stub_target *w = &t->target[target];
    for (int i = 0; i < w->n; i++) {
        if (!w->session[i].is_over) {
            GR_TRY(commit(w, &w->session[i], last));
        }
    }
    return GR_OK;
}

void gr_stub_targets_end(struct gr_stub_targets *t)
{
    for (int i = 0; i < t->n_target; i++) {
        free(t->target[i].session);
        t->target[i].session = NULL;
    }
}
