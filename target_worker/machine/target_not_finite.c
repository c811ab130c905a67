/* Rows on the walk whose logits are not finite: the tail, the last row of a prompt, judged missing tokens. (An accepted
 * node's is the next pass's tail: common/rules/accept.h.) Under a view such a row proves nothing about the
 * model, so the view is refreshed; full verification ends the session, where plain decoding would. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "target_worker/machine/target_internal.h"

#include <inttypes.h>
#include <stdio.h>

static void refresh_view(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, uint64_t now_ns)
{
    log_warn("session %" GR_SESSION_ID_PRI
             " round %u: the logits at position %d are not finite under a partial view; it is "
             "refreshed",
             s->id, s->next.round, q->odd_pos);
    t->counters.n_view_not_finite++;
    target_view_ask(&s->specpv);
    gr_kv_table_truncate(&t->pool, &s->kv.table, target_held_len(s));
    target_begin_root(s, now_ns);
}

/* Provisional tokens up to the bad row's own have just been judged, and stand: they are told before the end. `finish`
 * says that an ERROR follows. */
static void tell_judged(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, int32_t len)
{
    if (len <= s->kv.final_len) {
        return;
    }
    struct gr_msg m = {.type = GR_MSG_COMMIT,
                       .session = s->id,
                       .commit = {.epoch = s->epoch,
                                  .round = s->next.round,
                                  .keep_len = (uint32_t)len,
                                  .final_len = (uint32_t)len,
                                  .hash = s->prefix.hash[len],
                                  .finish = GR_FINISH_ERROR,
                                  .verdict_kind = GR_VERDICT_FULL}};
    target_tell_logprobs(q, &m.commit);
    t->io.send_msg(t->io.ctx, &m);
}

void target_not_finite(struct gr_target *t, struct session *s, const struct gr_pass_seq *q, uint64_t now_ns)
{
    char text[GR_MSG_TEXT_MAX];
    if (q->partial) {
        refresh_view(t, s, q, now_ns);
        return;
    }
    t->counters.n_not_finite++;
    snprintf(text, sizeof(text),
             "model %.120s: the logits after position %d hold NaN or infinity, so there is no next "
             "token; its weights are broken, or its values overflow",
             t->config.model != NULL ? t->config.model : "(no name)", q->odd_pos);
    log_info("session %" GR_SESSION_ID_PRI ": %s", s->id, text); /* who asked is told by the ERROR */
    tell_judged(t, s, q, GR_MIN(q->odd_pos + 1, s->prefix.len));
    target_fail_session(t, s, GR_EFORMAT, text);
}
