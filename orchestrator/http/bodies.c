#include "orchestrator/http/bodies.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static size_t counted(size_t cap)
{
    return cap > GR_HTTP_BODY_SMALL ? cap : 0;
}

/* Counts n bytes more; false: all of them together would be too many. */
static bool take(struct gr_bodies *all, size_t n)
{
    size_t held = all->n;
    do {
        if (n > GR_HTTP_BODIES_MAX - held) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&all->n, &held, held + n));
    return true;
}

void gr_body_drop(struct gr_bodies *all, struct gr_body *body)
{
    all->n -= counted(body->cap);
    free(body->p);
    *body = (struct gr_body){0};
}

static enum gr_status make_room(struct gr_bodies *all, struct gr_body *body, size_t n)
{
    const size_t cap = GR_MIN(2 * n, (size_t)GR_HTTP_BODY_MAX);
    const size_t more = counted(cap) - counted(body->cap);
    if (!take(all, more)) {
        return GR_ELIMIT;
    }
    char *p = realloc(body->p, cap);
    if (p == NULL) {
        all->n -= more;
        return GR_ENOMEM;
    }
    body->p = p;
    body->cap = cap;
    return GR_OK;
}

enum gr_status gr_body_add(struct gr_bodies *all, struct gr_body *body, const char *data, size_t n)
{
    GR_ASSERT(n <= GR_HTTP_BODY_MAX - body->len);
    const enum gr_status st = body->len + n > body->cap ? make_room(all, body, body->len + n) : GR_OK;
    if (st != GR_OK) {
        gr_body_drop(all, body);
        return st;
    }
    memcpy(body->p + body->len, data, n);
    body->len += n;
    return GR_OK;
}
