/* Answers that are over, and who comes back to one that runs or is over. */
#include "common/base/log.h"
#include "common/base/session_id.h"
#include "orchestrator/http/front_internal.h"
#include "orchestrator/http/json_text.h"
#include "orchestrator/http/tell.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers that are over ---- */

static void drop_oldest(struct gr_front *f)
{
    struct gr_job *j = f->kept;
    f->kept = j->next;
    f->kept_end = f->kept == NULL ? &f->kept : f->kept_end;
    f->n_kept--;
    f->kept_bytes -= j->n_byte;
    gr_recall_unload(f->recall, j->place);
    gr_job_destroy(j);
}

static void keep(struct gr_front *f, struct gr_job *j, uint64_t now_ns)
{
    for (int i = 0; i < j->n_answer; i++) {
        const enum gr_status st = gr_turn_text_end(&j->answer[i].turn_text);
        (void)st; /* it has ended, and nothing is added */
    }
    gr_job_trim(j);
    j->over_ns = now_ns;
    j->next = NULL;
    *f->kept_end = j;
    f->kept_end = &j->next;
    f->n_kept++;
    f->kept_bytes += j->n_byte;
}

struct gr_job *gr_front_recall(struct gr_front *f, const struct gr_recalled *e, uint64_t now_ns)
{
    struct gr_kept_answer a;
    bool stopped = false;
    if (e->job != NULL || f->c.find_past == NULL || e->session == 0 || !f->c.find_past(f->c.ctx, e->session, &a) ||
        a.in_turn) {
        return e->job;
    }
    struct gr_job *j = gr_past_job(&a, f->c.served, f->c.n_served, &stopped);
    if (j != NULL) {
        gr_recall_load(f->recall, gr_recall_place(f->recall, e), j);
        keep(f, j, now_ns);
    }
    return j;
}

/* ---- followers ---- */

bool gr_front_follow(struct gr_front *f, struct gr_job *j, struct gr_stream *stream, bool ids, uint32_t from,
                     uint64_t now_ns)
{
    const bool full = j->n_follower >= GR_JOB_FOLLOWER_MAX || f->n_follower >= GR_FRONT_FOLLOWER_MAX;
    struct gr_follower *one = full ? NULL : gr_job_add_follower(j, stream, ids, from);
    if (one == NULL) {
        gr_stream_refuse(stream, full ? 429 : 500,
                         full ? "as many connections follow this answer, or all of them, as may: try again later"
                              : "out of memory");
        return false;
    }
    f->n_follower++;
    one->said_ns = now_ns;
    gr_tell_follower(j, one, now_ns);
    if (gr_job_is_over(j)) {
        f->n_follower -= gr_job_drop_followers(j);
    }
    return true;
}

/* ---- a request that comes twice ---- */

bool gr_front_came_before(struct gr_front *f, struct gr_job *j, uint64_t now_ns)
{
    const struct gr_recalled *e = gr_recall_once(f->recall, &j->once);
    if (e == NULL) {
        return false;
    }
    struct gr_job *first = gr_front_recall(f, e, now_ns);
    if (first == NULL) { /* it is not kept any more: this is another one */
        gr_recall_forget_once(f->recall, gr_recall_place(f->recall, e));
        return false;
    }
    if (!gr_once_is_same(&e->once, &j->once)) {
        gr_stream_refuse(j->stream, 422,
                         "the Idempotency-Key is another request's: its body or its path was different");
    } else {
        gr_job_follow_again(first);
        (void)gr_front_follow(f, first, j->stream, j->event_ids, 0, now_ns);
    }
    gr_job_destroy(j);
    return true;
}

/* ---- who comes back ---- */

void gr_front_stop_answer(struct gr_front *f, struct gr_job_answer *a, uint64_t now_ns)
{
    if (!a->stop_sent) {
        a->stop_sent = true;
        const struct gr_msg m = {
            .type = GR_MSG_TRUNCATE,
            .session = a->session,
            .truncate = {.keep_len = a->turn_text.turn_len + a->turn_text.n_final, .turn = a->turn}};
        const enum gr_status st = f->c.say(f->c.ctx, a->client, &m, now_ns);
        (void)st;
    }
}

/* The turn's tokens are those that have been told; who follows it hears of its end. */
static void stop(struct gr_front *f, struct gr_job *j, const struct gr_return *r, uint64_t now_ns)
{
    const bool runs = !gr_job_is_over(j) && !j->failed;
    char session[GR_SESSION_ID_DIGITS + 1];
    gr_session_id_spell(r->session, session);
    if (runs) {
        log_info("session %s: its client stops it", session);
        gr_front_stop_answer(f, &j->answer[0], now_ns);
    }
    gr_stream_answer(r->stream, gr_json_text(json_pack("{s:s, s:s, s:b}", "id", session, "object", "session.stop",
                                                       "stopped", runs)));
}

void gr_front_come_back(struct gr_front *f, const struct gr_return *r, uint64_t now_ns)
{
    const struct gr_recalled *e = gr_recall_session(f->recall, r->session, &r->owner);
    struct gr_job *j = e != NULL ? gr_front_recall(f, e, now_ns) : NULL;
    if (e == NULL || (j != NULL && !j->request.stream)) {
        gr_stream_refuse(r->stream, 404, "there is no such session");
    } else if (j == NULL || (gr_job_is_over(j) && !j->resumes)) {
        gr_stream_refuse(r->stream, 410, "the answer is over, and is not kept any more");
    } else if (r->stops) {
        stop(f, j, r, now_ns);
    } else {
        gr_job_follow_again(j);
        j->error.is_final = j->failed; /* it has no other end any more */
        (void)gr_front_follow(f, j, r->stream, true, r->from, now_ns);
    }
}

/* ---- ends ---- */

/* What failed can be asked anew; what never began was not there. */
void gr_front_retire(struct gr_front *f, struct gr_job *j, uint64_t now_ns)
{
    const bool begun = j->n_answer > 0 && j->n_opened == j->n_answer;
    if (j->stream != NULL) { /* with what waits in it, which is not counted among what is kept */
        gr_stream_end(j->stream);
        gr_stream_drop(j->stream);
        j->stream = NULL;
    }
    for (struct gr_follower *one = j->follower; one != NULL; one = one->next) {
        gr_stream_end(one->stream);
        one->ended = true;
    }
    f->n_follower -= gr_job_drop_followers(j);
    if (j->place >= 0 && j->failed) {
        gr_recall_forget_once(f->recall, j->place);
    }
    if (j->place >= 0 && !begun) {
        gr_recall_forget(f->recall, j->place);
    } else if (begun && j->resumes && !j->left) {
        keep(f, j, now_ns);
        return;
    } else if (j->place >= 0) {
        gr_recall_unload(f->recall, j->place);
    }
    gr_job_destroy(j);
}

uint64_t gr_front_expire(struct gr_front *f, uint64_t now_ns)
{
    while (f->kept != NULL && (now_ns - f->kept->over_ns >= f->c.grace_ns || f->n_kept > GR_FRONT_KEPT_MAX ||
                               f->kept_bytes > GR_FRONT_KEPT_BYTES)) {
        drop_oldest(f);
    }
    return f->kept != NULL ? f->kept->over_ns + f->c.grace_ns : UINT64_MAX;
}

void gr_front_end_returns(struct gr_front *f)
{
    while (f->kept != NULL) {
        drop_oldest(f);
    }
    pthread_mutex_lock(&f->lock);
    struct gr_return *r = f->returned;
    f->returned = NULL;
    f->returned_end = &f->returned;
    pthread_mutex_unlock(&f->lock);
    while (r != NULL) {
        struct gr_return *next = r->next;
        gr_stream_refuse(r->stream, 503, GR_API_ENDS);
        gr_stream_drop(r->stream);
        free(r);
        r = next;
    }
}
