/* What two looks at a session tell of the time between them. */
#include "orchestrator/cli/top_view.h"

/* Sessions that are listed twice mostly stand at the same place, so the search begins there. */
static const struct gr_listing_session *find_in(const struct gr_listing *l, uint64_t id, int hint)
{
    for (int i = 0; i < l->n_session; i++) {
        const struct gr_listing_session *s = &l->session[(hint + i) % l->n_session];
        if (s->id == id) {
            return s;
        }
    }
    return NULL;
}

static const struct gr_listing_session *before(const struct gr_top_snapshot *s, int i)
{
    return s->before != NULL ? find_in(s->before, s->now->session[i].id, i) : NULL;
}

double gr_top_speed(const struct gr_top_snapshot *s, int i)
{
    const struct gr_msg_listed_session *now = &s->now->session[i].is;
    const struct gr_listing_session *then = before(s, i);
    if (then == NULL || s->between_ns == 0 || then->is.n_token > now->n_token) {
        return -1;
    }
    return (double)(now->n_token - then->is.n_token) * 1e9 / (double)s->between_ns;
}

static double mean_ms(uint64_t now_ns, uint64_t before_ns, uint64_t n)
{
    return n > 0 && now_ns >= before_ns ? 1e-6 * (double)(now_ns - before_ns) / (double)n : 0.0;
}

struct gr_top_round gr_top_round(const struct gr_top_snapshot *s, int i)
{
    static const struct gr_msg_listed_session nothing = {0};
    const struct gr_msg_listed_session *now = &s->now->session[i].is;
    const struct gr_listing_session *found = before(s, i);
    const struct gr_msg_listed_session *then =
        found != NULL && found->is.n_round < now->n_round ? &found->is : &nothing;
    const uint64_t n = now->n_round - then->n_round;
    return (struct gr_top_round){.n = n,
                                 .wait_ms = mean_ms(now->wait_ns, then->wait_ns, n),
                                 .verify_ms = mean_ms(now->verify_ns, then->verify_ns, n),
                                 .host_ms = mean_ms(now->host_ns, then->host_ns, n),
                                 .draft_ms = mean_ms(now->draft_ns, then->draft_ns, n)};
}
