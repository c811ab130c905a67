/* Any bytes as the two segments of a journal; the first two bytes say how many of the rest are the first one's. A
 * session that is not named as damaged has all its records, in order, and nothing is read past the end. */
#include "orchestrator/journal/replay.h"

#define N_WATCHED 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct watched {
    uint64_t session, number; /* 0: free */
};

struct reading {
    struct watched watched[N_WATCHED];
    unsigned sum;
};

static struct watched *find(struct reading *x, uint64_t session)
{
    for (int i = 0; i < N_WATCHED; i++) {
        if (x->watched[i].session == session || x->watched[i].session == 0) {
            x->watched[i].session = session;
            return &x->watched[i];
        }
    }
    return NULL;
}

static enum gr_status take(void *ctx, const struct gr_record *r)
{
    struct reading *x = ctx;
    for (uint32_t i = 0; i < r->n_body; i++) {
        x->sum += r->body[i];
    }
    GR_ASSERT(r->session != 0 && r->number != 0 && r->kind != GR_RECORD_SEALED);
    struct watched *w = find(x, r->session);
    if (w != NULL) {
        GR_ASSERT(r->number == w->number + 1);
        w->number = r->number;
    }
    return GR_OK;
}

static void read_both(struct gr_replay *r, const uint8_t *p, size_t n, size_t n_first)
{
    enum gr_status st = gr_replay_segment(r, 1, p, n_first);
    GR_ASSERT(st == GR_OK || st == GR_EFORMAT || st == GR_EUNSUPPORTED);
    st = gr_replay_segment(r, 2, p + n_first, n - n_first);
    GR_ASSERT(st == GR_OK || st == GR_EFORMAT || st == GR_EUNSUPPORTED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reading x = {.sum = 0};
    struct gr_replay *r;
    struct gr_replay_report report;
    if (size < 2 || gr_replay_create(&x, take, &r) != GR_OK) {
        return 0;
    }
    const size_t n_first = (size_t)data[0] | (size_t)data[1] << 8;
    read_both(r, data + 2, size - 2, GR_MIN(n_first, size - 2));
    gr_replay_end(r, &report);
    for (int i = 0; i < N_WATCHED && x.watched[i].session != 0; i++) {
        const uint64_t session = x.watched[i].session;
        GR_ASSERT(gr_replay_is_damaged(r, session) || gr_replay_number(r, session) == x.watched[i].number);
    }
    gr_replay_destroy(r);
    return 0;
}
