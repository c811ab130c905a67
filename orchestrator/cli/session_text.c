#include "orchestrator/cli/session_text.h"

#include "common/base/log.h"
#include "common/base/session_id.h"
#include "model/tokenizer/tokenizer_of_model.h"
#include "orchestrator/answer/text_stream.h"
#include "orchestrator/cli/listing.h"
#include "orchestrator/cli/text_out.h"

#include <inttypes.h>
#include <stdio.h>

/* The tokens that the last turn has generated. */
static struct gr_msg_ids answer_of(const struct gr_msg_read_text *m)
{
    const uint32_t from = GR_MIN(m->turn_len, m->ids.n);
    return (struct gr_msg_ids){.p = m->ids.p + from, .n = m->ids.n - from};
}

static enum gr_status decode(const struct gr_tokenizer *tok, const struct gr_msg_ids *ids, struct gr_text_stream *out)
{
    GR_TRY(gr_text_stream_init(out, tok, NULL, 0));
    for (uint32_t i = 0; i < ids->n; i++) {
        bool stopped = false;
        GR_TRY(gr_text_stream_push(out, ids->p[i], &stopped));
    }
    return gr_text_stream_end(out);
}

static const char *reason(const struct gr_msg_read_text *m)
{
    return m->in_turn ? "running" : gr_finish_name((enum gr_finish)m->finish);
}

static int print_json(uint64_t session, const struct gr_msg_read_text *m, const struct gr_text_stream *text)
{
    char id[GR_SESSION_ID_DIGITS + 1];
    const struct gr_msg_ids answer = answer_of(m);
    json_t *ids = json_array();
    size_t n = 0;
    const char *p = text != NULL ? gr_text_stream_take((struct gr_text_stream *)(uintptr_t)text, &n) : NULL;
    for (uint32_t i = 0; i < answer.n; i++) {
        json_array_append_new(ids, json_integer(answer.p[i]));
    }
    gr_session_id_spell(session, id);
    return gr_listing_dump(json_pack("{s:s, s:i, s:i, s:s, s:s, s:o, s:o}", "session", id, "turn", (int)m->turn,
                                     "epoch", (int)m->epoch, "finish_reason", reason(m), "error", m->text, "token_ids",
                                     ids, "text", p != NULL ? json_stringn(p, n) : json_null()));
}

static int print(uint64_t session, const struct gr_msg_read_text *m, struct gr_text_stream *text)
{
    size_t n = 0;
    const char *p = gr_text_stream_take(text, &n);
    const bool told = gr_text_out(p, n) && putchar('\n') != EOF;
    (void)told; /* main() tells of output that is lost */
    if (m->in_turn || m->text[0] != '\0') {
        fprintf(stderr, "session %" GR_SESSION_ID_PRI ": %s%s%s\n", session, reason(m), m->text[0] != '\0' ? ": " : "",
                m->text);
    }
    return 0;
}

static int show(const struct gr_options *o, const struct gr_tokenizer *tok, const struct gr_msg *m)
{
    struct gr_text_stream text = {0};
    const struct gr_msg_ids ids = answer_of(&m->read_text);
    if (tok == NULL) {
        return print_json(m->session, &m->read_text, NULL);
    }
    int status = decode(tok, &ids, &text) == GR_OK ? 0 : 1;
    if (status == 0) {
        status = o->json ? print_json(m->session, &m->read_text, &text) : print(m->session, &m->read_text, &text);
    }
    gr_text_stream_finish(&text);
    return status;
}

int gr_session_text(struct gr_remote *r, const struct gr_options *o)
{
    struct gr_tokenizer *tok = NULL;
    struct gr_msg reply;
    if (o->model == NULL && !o->json) {
        log_error("--text: whose tokens are these? Give --model DIR, the folder of the session's model; or --json");
        return 2;
    }
    if (o->model != NULL && gr_tokenizer_of_model_required(o->model, &tok) != GR_OK) {
        return 1;
    }
    const struct gr_msg ask = {.type = GR_MSG_READ, .session = o->session};
    int status = gr_remote_status(r, gr_remote_ask(r, &ask, GR_MSG_TEXT, &reply));
    if (status == 0) {
        status = show(o, tok, &reply);
        gr_msg_finish(&reply);
    }
    gr_tokenizer_destroy(tok);
    return status;
}
