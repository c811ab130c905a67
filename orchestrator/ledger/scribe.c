#include "orchestrator/ledger/scribe.h"

#include "common/base/log.h"
#include "common/base/session_id.h"

#include <stdlib.h>

struct gr_scribe {
    struct gr_journal *journal;
    struct gr_ledger *ledger;
    uint8_t *body; /* owned: GR_MSG_BYTES_MAX */
};

static enum gr_status open_all(struct gr_scribe *s, const char *path, const struct gr_journal_files *files,
                               uint32_t segment_bytes)
{
    GR_TRY(gr_ledger_create(&s->ledger));
    const struct gr_journal_config config = {.path = path,
                                             .files = files,
                                             .segment_bytes = segment_bytes,
                                             .ctx = s->ledger,
                                             .on_record = gr_ledger_take,
                                             .on_damaged = gr_ledger_damage};
    return gr_journal_open(&config, &s->journal);
}

enum gr_status gr_scribe_create(const char *path, const struct gr_journal_files *files, uint32_t segment_bytes,
                                struct gr_scribe **out)
{
    struct gr_scribe *s = calloc(1, sizeof(*s));
    if (s == NULL || (s->body = malloc(GR_MSG_BYTES_MAX)) == NULL) {
        log_error("out of memory for a journal");
        free(s);
        return GR_ENOMEM;
    }
    const enum gr_status st = open_all(s, path, files, segment_bytes);
    if (st != GR_OK) {
        const enum gr_status ended = gr_scribe_destroy(s, UINT64_MAX);
        (void)ended; /* it was not opened */
        return st;
    }
    *out = s;
    return GR_OK;
}

enum gr_status gr_scribe_destroy(struct gr_scribe *s, uint64_t deadline_ns)
{
    if (s == NULL) {
        return GR_OK;
    }
    const enum gr_status st = gr_journal_close_by(s->journal, deadline_ns);
    gr_ledger_destroy(s->ledger);
    free(s->body);
    free(s);
    return st;
}

static enum gr_status apply(struct gr_scribe *s, const struct gr_msg *m)
{
    const enum gr_status st = gr_ledger_apply(s->ledger, m);
    if (st == GR_EINVAL) {
        log_error("journal: %s of session %" GR_SESSION_ID_PRI " does not fit what was written of it before",
                  gr_msg_name(m->type), m->session);
    }
    return st;
}

/* The ledger has the message, and the journal has not got it. */
static void forget(struct gr_scribe *s, const struct gr_msg *m)
{
    log_error("journal: %s of session %" GR_SESSION_ID_PRI " was not written", gr_msg_name(m->type), m->session);
    if (m->type == GR_MSG_OPEN) {
        enum gr_status st = gr_ledger_apply(s->ledger, &(struct gr_msg){.type = GR_MSG_CLOSED, .session = m->session});
        (void)st; /* it is there */
    } else if (m->type == GR_MSG_COMMIT) {
        gr_ledger_take_back(s->ledger, m->session, m->commit.keep_len);
    } else if (m->type != GR_MSG_CLOSED) {
        gr_ledger_give_up(s->ledger, m->session);
    }
}

enum gr_status gr_scribe_note(struct gr_scribe *s, const struct gr_msg *m, uint64_t *seq_out)
{
    const struct gr_ledger_session *before = gr_ledger_find(s->ledger, m->session);
    const uint64_t number = (before != NULL ? before->n_record : 0) + 1;
    size_t n = 0;
    GR_TRY(gr_msg_encode(m, s->body, GR_MSG_BYTES_MAX, &n));
    GR_TRY(apply(s, m));
    const struct gr_record r = {.session = m->session,
                                .number = number,
                                .kind = GR_LEDGER_KIND | (m->type == GR_MSG_CLOSED ? GR_RECORD_ENDS : 0),
                                .n_body = (uint32_t)n,
                                .body = s->body};
    uint64_t seq = 0;
    const enum gr_status st = gr_journal_add(s->journal, &r, &seq);
    if (st != GR_OK) {
        forget(s, m);
        return st;
    }
    gr_ledger_count(s->ledger, m->session, seq);
    if (seq_out != NULL) {
        *seq_out = seq;
    }
    return GR_OK;
}

void gr_scribe_give_up(struct gr_scribe *s, uint64_t session)
{
    gr_ledger_give_up(s->ledger, session);
}

struct gr_journal *gr_scribe_journal(struct gr_scribe *s)
{
    return s->journal;
}

const struct gr_ledger *gr_scribe_ledger(const struct gr_scribe *s)
{
    return s->ledger;
}
