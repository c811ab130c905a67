#include "bench/server/stub_clients.h"

#include "bench/server/stub_targets.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/machine/transcript.h"

#include <stdio.h>
#include <stdlib.h>

#define FIRST_INCARNATION 1000 /* past those of targets */

static enum gr_status wrong(uint64_t session, const char *what)
{
    log_error("session %" GR_SESSION_ID_PRI ": %s", session, what);
    return GR_EPROTO;
}

/* NULL: it is not one of these. */
static uint32_t *got_by(const struct gr_stub_clients *c, uint64_t session)
{
    const int place = gr_session_index_find(&c->place, session);
    return place >= 0 ? &c->n_got[place] : NULL;
}

static enum gr_status on_opened(struct gr_stub_clients *c, uint64_t session)
{
    if (c->n_opened == c->n_session || session == 0) {
        return wrong(session, "nobody has asked for it");
    }
    gr_session_index_add(&c->place, session, c->n_opened++);
    return GR_OK;
}

static enum gr_status on_commit(struct gr_stub_clients *c, const struct gr_msg *m)
{
    uint32_t *got = got_by(c, m->session);
    if (got == NULL) {
        return wrong(m->session, "nobody has opened it");
    }
    if (m->commit.keep_len != GR_STUB_PROMPT + *got) {
        return wrong(m->session, "a token is missing, or came twice");
    }
    for (uint32_t i = 0; i < m->commit.ids.n; i++) {
        if (m->commit.ids.p[i] != gr_stub_token(m->session, GR_STUB_PROMPT + *got)) {
            return wrong(m->session, "a token is another session's");
        }
        ++*got;
        c->n_token++;
    }
    return GR_OK;
}

static enum gr_status on_finished(struct gr_stub_clients *c, const struct gr_msg *m)
{
    const uint32_t *got = got_by(c, m->session);
    c->n_over++;
    if (got != NULL && m->finished.finish == GR_FINISH_STOP && m->finished.n_token == GR_STUB_PROMPT + *got) {
        return GR_OK;
    }
    return wrong(m->session,
                 m->finished.text[0] != '\0' ? m->finished.text : "it ended otherwise than its target said");
}

static enum gr_status on_msg(void *ctx, const struct gr_msg *m)
{
    struct gr_stub_clients *c = ctx;
    switch (m->type) {
    case GR_MSG_OPENED:
        return on_opened(c, m->session);
    case GR_MSG_COMMIT:
        return on_commit(c, m);
    case GR_MSG_FINISHED:
        return on_finished(c, m);
    case GR_MSG_ERROR:
        return wrong(m->session, m->error.text);
    default:
        return GR_OK;
    }
}

enum gr_status gr_stub_clients_begin(struct gr_stub_clients *c, struct gr_bus *bus, int n_client, int n_session)
{
    GR_ASSERT(n_client >= 1 && n_client <= GR_STUB_CLIENT_MAX && n_session >= n_client);
    *c = (struct gr_stub_clients){.bus = bus, .n_client = n_client, .n_session = n_session};
    c->n_got = calloc((size_t)n_session, sizeof(*c->n_got));
    if (c->n_got == NULL || !gr_session_index_create(&c->place, (uint32_t)n_session)) {
        log_error("out of memory for %d sessions", n_session);
        return GR_ENOMEM;
    }
    for (int i = 0; i < n_client; i++) {
        GR_TRY(gr_bus_join(bus, GR_ROLE_CLIENT, FIRST_INCARNATION + (uint64_t)i, on_msg, c, &c->end[i]));
        GR_TRY(gr_bus_pump(bus, 0)); /* targets are pinged */
    }
    return GR_OK;
}

struct gr_msg gr_stub_open(int32_t prompt[GR_STUB_PROMPT], int32_t segments[2])
{
    for (int32_t i = 0; i < GR_STUB_PROMPT; i++) {
        prompt[i] = i;
    }
    segments[0] = GR_SEGMENT_PROMPT;
    segments[1] = GR_STUB_PROMPT;
    return (struct gr_msg){.type = GR_MSG_OPEN,
                           .open = {.tokenizer_fingerprint = 1,
                                    .ids = {.p = prompt, .n = GR_STUB_PROMPT},
                                    .segments = {.p = segments, .n = 2},
                                    .wishes = {.turn = {.max_tokens = 1u << 19}, .sampling = {.top_p = 1.0f}}}};
}

enum gr_status gr_stub_clients_open(struct gr_stub_clients *c)
{
    int32_t prompt[GR_STUB_PROMPT], segments[2];
    const struct gr_msg m = gr_stub_open(prompt, segments);
    for (int i = 0; i < c->n_session; i++) {
        GR_TRY(gr_bus_send(c->bus, c->end[i % c->n_client], &m));
    }
    return GR_OK;
}

void gr_stub_clients_end(struct gr_stub_clients *c)
{
    gr_session_index_destroy(&c->place);
    free(c->n_got);
    *c = (struct gr_stub_clients){0};
}

/* ---- those that look ---- */

static enum gr_status on_look(void *ctx, const struct gr_msg *m)
{
    struct gr_stub_looker *l = ctx;
    const uint64_t took_ns = gr_clock_ns() - l->asked_ns;
    if (m->type == GR_MSG_PONG) {
        l->ping_ns = GR_MAX(l->ping_ns, took_ns);
        l->asked_ns = 0;
    } else if (m->type == GR_MSG_LISTED) {
        l->list_ns = GR_MAX(l->list_ns, took_ns);
        l->n_session = m->listed.n_session;
        l->n_worker = m->listed.n_worker;
        l->asked_ns = 0;
    } else if (m->type == GR_MSG_ERROR) {
        snprintf(l->error, sizeof(l->error), "%s", m->error.text);
        l->asked_ns = 0;
    }
    return GR_OK;
}

enum gr_status gr_stub_looker_begin(struct gr_stub_looker *l, struct gr_bus *bus, uint64_t incarnation)
{
    *l = (struct gr_stub_looker){.end = -1};
    return gr_bus_join(bus, GR_ROLE_CLIENT, incarnation, on_look, l, &l->end);
}

enum gr_status gr_stub_looker_ask(struct gr_stub_looker *l, struct gr_bus *bus, const struct gr_msg *m)
{
    l->asked_ns = gr_clock_ns();
    return gr_bus_send(bus, l->end, m);
}
