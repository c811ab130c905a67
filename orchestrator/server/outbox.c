#include "orchestrator/server/outbox.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>

struct held {
    struct held *next;
    uint64_t seq; /* never less than that of one before it to the same client */
    uint32_t client;
    size_t n;
    uint8_t bytes[]; /* (n) of the message */
};

struct gr_outbox {
    struct gr_outbox_io io;
    struct held *first, **end; /* owned, in the order that they came in */
    size_t n_bytes;            /* of all that are held */
    uint64_t synced;
    uint32_t n_client;
    uint64_t *last_seq; /* owned: of each client, what its last held message waits for, or waited */
    uint8_t *body;      /* owned: GR_MSG_BYTES_MAX */
};

enum gr_status gr_outbox_create(uint32_t n_client, const struct gr_outbox_io *io, struct gr_outbox **out)
{
    struct gr_outbox *o = calloc(1, sizeof(*o));
    if (o != NULL) {
        *o = (struct gr_outbox){.io = *io, .end = &o->first, .n_client = n_client};
        o->last_seq = calloc(n_client, sizeof(*o->last_seq));
        o->body = malloc(GR_MSG_BYTES_MAX);
    }
    if (o == NULL || o->last_seq == NULL || o->body == NULL) {
        log_error("out of memory for messages to clients");
        gr_outbox_destroy(o);
        return GR_ENOMEM;
    }
    *out = o;
    return GR_OK;
}

/* Takes the one out that *link points at. */
static struct held *take(struct gr_outbox *o, struct held **link)
{
    struct held *h = *link;
    *link = h->next;
    if (o->end == &h->next) {
        o->end = link;
    }
    o->n_bytes -= h->n;
    return h;
}

void gr_outbox_destroy(struct gr_outbox *o)
{
    if (o != NULL) {
        while (o->first != NULL) {
            free(take(o, &o->first));
        }
        free(o->last_seq);
        free(o->body);
        free(o);
    }
}

static enum gr_status hold(struct gr_outbox *o, uint32_t client, const struct gr_msg *m, uint64_t seq)
{
    size_t n = 0;
    GR_TRY(gr_msg_encode(m, o->body, GR_MSG_BYTES_MAX, &n));
    if (n > GR_OUTBOX_BYTES_MAX - o->n_bytes) {
        log_error("%zu bytes wait for the journal's disk, which is too slow: a client is cut off", o->n_bytes);
        return GR_ELIMIT;
    }
    struct held *h = malloc(sizeof(*h) + n);
    if (h == NULL) {
        log_error("out of memory for a message to a client");
        return GR_ENOMEM;
    }
    *h = (struct held){.seq = seq, .client = client, .n = n};
    memcpy(h->bytes, o->body, n);
    *o->end = h;
    o->end = &h->next;
    o->n_bytes += n;
    o->last_seq[client] = seq;
    return GR_OK;
}

enum gr_status gr_outbox_put(struct gr_outbox *o, uint32_t client, const struct gr_msg *m, uint64_t seq)
{
    GR_ASSERT(client < o->n_client);
    const uint64_t after = GR_MAX(seq, o->last_seq[client]);
    if (after > o->synced) {
        return hold(o, client, m, after);
    }
    o->io.send(o->io.ctx, client, m);
    return GR_OK;
}

void gr_outbox_wait(struct gr_outbox *o, uint32_t client, uint64_t seq)
{
    GR_ASSERT(client < o->n_client);
    o->last_seq[client] = GR_MAX(seq, o->last_seq[client]);
}

typedef void on_held(void *ctx, uint32_t client, const struct gr_msg *m);

static void give(const struct held *h, on_held *to, void *ctx)
{
    struct gr_msg m;
    if (gr_msg_decode(h->bytes, h->n, &m) == GR_OK) { /* what was encoded here is whole */
        to(ctx, h->client, &m);
        gr_msg_finish(&m);
    }
}

void gr_outbox_synced(struct gr_outbox *o, uint64_t seq)
{
    struct held **link = &o->first;
    if (seq <= o->synced) {
        return; /* what is held waits for later ones */
    }
    o->synced = seq;
    while (*link != NULL) {
        if ((*link)->seq > o->synced) {
            link = &(*link)->next;
            continue;
        }
        struct held *h = take(o, link);
        give(h, o->io.send, o->io.ctx);
        free(h);
    }
}

void gr_outbox_drop(struct gr_outbox *o, uint32_t client, on_held *told, void *ctx)
{
    struct held **link = &o->first;
    o->last_seq[client] = 0;
    while (*link != NULL) {
        if ((*link)->client != client) {
            link = &(*link)->next;
            continue;
        }
        struct held *h = take(o, link);
        if (told != NULL) {
            give(h, told, ctx);
        }
        free(h);
    }
}

void gr_outbox_forget(struct gr_outbox *o, uint32_t client)
{
    gr_outbox_drop(o, client, NULL, NULL);
}

bool gr_outbox_holds(const struct gr_outbox *o, uint32_t client)
{
    return o->last_seq[client] > o->synced;
}
