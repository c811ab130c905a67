#include "orchestrator/http/recall.h"

#include "common/base/log.h"
#include "orchestrator/machine/session_index.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

struct gr_recall {
    struct gr_recalled place[GR_RECALL_PLACES];
    uint32_t next;                               /* where a place is looked for */
    struct gr_session_index by_session, by_once; /* places */
};

enum gr_status gr_recall_create(struct gr_recall **out)
{
    struct gr_recall *r = calloc(1, sizeof(*r));
    if (r == NULL || !gr_session_index_create(&r->by_session, GR_RECALL_PLACES) ||
        !gr_session_index_create(&r->by_once, GR_RECALL_PLACES)) {
        log_error("out of memory for the endpoint");
        gr_recall_destroy(r);
        return GR_ENOMEM;
    }
    *out = r;
    return GR_OK;
}

void gr_recall_destroy(struct gr_recall *r)
{
    if (r != NULL) {
        gr_session_index_destroy(&r->by_session);
        gr_session_index_destroy(&r->by_once);
        free(r);
    }
}

/* An answer is looked for by the first bytes of a digest; then all of it is compared. */
static uint64_t number_of(const struct gr_once *once)
{
    uint64_t number;
    memcpy(&number, once->key, sizeof(number));
    return number != 0 ? number : 1;
}

void gr_recall_forget_once(struct gr_recall *r, int place)
{
    struct gr_recalled *e = &r->place[place];
    if (e->once.asked && gr_session_index_find(&r->by_once, number_of(&e->once)) == place) {
        gr_session_index_remove(&r->by_once, number_of(&e->once));
    }
    e->once = (struct gr_once){0};
}

void gr_recall_forget(struct gr_recall *r, int place)
{
    struct gr_recalled *e = &r->place[place];
    gr_recall_forget_once(r, place);
    if (e->session != 0) {
        gr_session_index_remove(&r->by_session, e->session);
    }
    *e = (struct gr_recalled){0};
}

/* Around the table: about the oldest of those whose answers are not in memory. -1: there is none. */
static int find_place(struct gr_recall *r)
{
    uint32_t n = 0;
    while (r->place[r->next].job != NULL) {
        r->next = (r->next + 1) % GR_RECALL_PLACES;
        if (++n == GR_RECALL_PLACES) {
            return -1;
        }
    }
    const int place = (int)r->next;
    r->next = (r->next + 1) % GR_RECALL_PLACES;
    if (r->place[place].used) {
        gr_recall_forget(r, place);
    }
    return place;
}

int gr_recall_add(struct gr_recall *r, const struct gr_api_owner *owner, const struct gr_once *once, struct gr_job *job)
{
    const int place = find_place(r);
    if (place < 0) {
        return -1;
    }
    r->place[place] = (struct gr_recalled){.used = true, .owner = *owner, .once = *once, .job = job};
    if (once->asked) {
        gr_session_index_add(&r->by_once, number_of(once), place);
    }
    return place;
}

void gr_recall_name(struct gr_recall *r, int place, uint64_t session)
{
    r->place[place].session = session;
    gr_session_index_add(&r->by_session, session, place);
}

struct gr_recalled *gr_recall_session(struct gr_recall *r, uint64_t session, const struct gr_api_owner *owner)
{
    const int place = gr_session_index_find(&r->by_session, session);
    struct gr_recalled *e = place >= 0 ? &r->place[place] : NULL;
    return e != NULL && sodium_memcmp(&e->owner, owner, sizeof(*owner)) == 0 ? e : NULL;
}

struct gr_recalled *gr_recall_once(struct gr_recall *r, const struct gr_once *once)
{
    const int place = once->asked ? gr_session_index_find(&r->by_once, number_of(once)) : -1;
    struct gr_recalled *e = place >= 0 ? &r->place[place] : NULL;
    return e != NULL && sodium_memcmp(e->once.key, once->key, sizeof(once->key)) == 0 ? e : NULL;
}

int gr_recall_place(const struct gr_recall *r, const struct gr_recalled *e)
{
    return (int)(e - r->place);
}

void gr_recall_load(struct gr_recall *r, int place, struct gr_job *job)
{
    r->place[place].job = job;
    job->place = place;
}

void gr_recall_unload(struct gr_recall *r, int place)
{
    r->place[place].job = NULL;
}
