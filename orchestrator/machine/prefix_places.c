#include "orchestrator/machine/prefix_places.h"

#include "common/rules/hash.h"

#include <stdlib.h>

#define NONE UINT32_MAX

/* ---- life ---- */

bool gr_prefix_places_create(struct gr_prefix_places *p, uint32_t n_max)
{
    *p = (struct gr_prefix_places){.n_max = n_max, .n_bucket = 1, .vacant = NONE, .oldest = NONE, .newest = NONE};
    while (p->n_bucket < n_max) {
        p->n_bucket *= 2;
    }
    p->entry = calloc(n_max, sizeof(*p->entry));
    p->bucket = calloc(p->n_bucket, sizeof(*p->bucket));
    if (p->entry == NULL || p->bucket == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < p->n_bucket; i++) {
        p->bucket[i] = NONE;
    }
    for (uint32_t i = n_max; i-- > 0;) {
        p->entry[i].next = p->vacant;
        p->vacant = i;
    }
    return true;
}

void gr_prefix_places_destroy(struct gr_prefix_places *p)
{
    free(p->entry);
    free(p->bucket);
}

/* ---- entries ---- */

static uint32_t *bucket_of(const struct gr_prefix_places *p, uint64_t hash)
{
    return &p->bucket[hash & (p->n_bucket - 1)];
}

static uint32_t find(const struct gr_prefix_places *p, uint64_t hash, uint32_t worker)
{
    uint32_t i = *bucket_of(p, hash);
    while (i != NONE && (p->entry[i].hash != hash || p->entry[i].worker != worker)) {
        i = p->entry[i].next;
    }
    return i;
}

static void leave_order(struct gr_prefix_places *p, uint32_t i)
{
    const struct gr_prefix_entry *e = &p->entry[i];
    *(e->older != NONE ? &p->entry[e->older].newer : &p->oldest) = e->newer;
    *(e->newer != NONE ? &p->entry[e->newer].older : &p->newest) = e->older;
}

static void be_newest(struct gr_prefix_places *p, uint32_t i)
{
    p->entry[i].older = p->newest;
    p->entry[i].newer = NONE;
    *(p->newest != NONE ? &p->entry[p->newest].newer : &p->oldest) = i;
    p->newest = i;
}

static void drop(struct gr_prefix_places *p, uint32_t i)
{
    uint32_t *at = bucket_of(p, p->entry[i].hash);
    while (*at != i) {
        at = &p->entry[*at].next;
    }
    *at = p->entry[i].next;
    leave_order(p, i);
    p->entry[i].next = p->vacant;
    p->vacant = i;
    p->n--;
}

static void add(struct gr_prefix_places *p, uint64_t hash, uint32_t worker)
{
    if (p->vacant == NONE) {
        drop(p, p->oldest);
    }
    const uint32_t i = p->vacant;
    uint32_t *bucket = bucket_of(p, hash);
    p->vacant = p->entry[i].next;
    p->entry[i] = (struct gr_prefix_entry){.hash = hash, .worker = worker, .next = *bucket};
    *bucket = i;
    be_newest(p, i);
    p->n++;
}

static void use(struct gr_prefix_places *p, uint64_t hash, uint32_t worker)
{
    const uint32_t i = find(p, hash, worker);
    if (i == NONE) {
        add(p, hash, worker);
        return;
    }
    leave_order(p, i);
    be_newest(p, i);
}

/* ---- texts ---- */

uint64_t gr_prefix_root(uint64_t model_fingerprint, const char *salt)
{
    uint64_t h = gr_mix64(model_fingerprint + GR_HASH_GOLDEN);
    for (; *salt != '\0'; salt++) {
        h = gr_hash_extend(h, *salt);
    }
    return h;
}

/* Goes on over one step. */
static uint64_t hash_step(uint64_t h, const int32_t *token)
{
    for (int i = 0; i < GR_PREFIX_STEP; i++) {
        h = gr_hash_extend(h, token[i]);
    }
    return h;
}

static uint32_t steps_of(uint32_t n_token)
{
    const uint32_t n = n_token / GR_PREFIX_STEP;
    return n < GR_PREFIX_STEPS ? n : GR_PREFIX_STEPS;
}

/* The beginning is used last, so that it is given up last. */
void gr_prefix_places_put(struct gr_prefix_places *p, uint64_t root, const int32_t *token, uint32_t n_token,
                          uint32_t worker)
{
    uint64_t hash[GR_PREFIX_STEPS];
    const uint32_t n = steps_of(n_token);
    uint64_t h = root;
    for (uint32_t k = 0; k < n; k++) {
        h = hash[k] = hash_step(h, token + (size_t)k * GR_PREFIX_STEP);
    }
    for (uint32_t k = n; k-- > 0;) {
        use(p, hash[k], worker);
    }
}

/* Whoever holds a block holds all before it (D-217), so a step that nobody has is followed by none. */
void gr_prefix_places_look(const struct gr_prefix_places *p, uint64_t root, const int32_t *token, uint32_t n_token,
                           uint32_t *held, uint32_t n_worker)
{
    for (uint32_t w = 0; w < n_worker; w++) {
        held[w] = 0;
    }
    const uint32_t n = steps_of(n_token);
    uint64_t h = root;
    bool some = true;
    for (uint32_t k = 0; k < n && some; k++) {
        h = hash_step(h, token + (size_t)k * GR_PREFIX_STEP);
        some = false;
        for (uint32_t i = *bucket_of(p, h); i != NONE; i = p->entry[i].next) {
            const struct gr_prefix_entry *e = &p->entry[i];
            if (e->hash == h && e->worker < n_worker) {
                held[e->worker] = (k + 1) * GR_PREFIX_STEP;
                some = true;
            }
        }
    }
}

void gr_prefix_places_forget(struct gr_prefix_places *p, uint32_t worker)
{
    uint32_t i = p->oldest;
    while (i != NONE) {
        const uint32_t newer = p->entry[i].newer;
        if (p->entry[i].worker == worker) {
            drop(p, i);
        }
        i = newer;
    }
}

/* ---- for tests ---- */

bool gr_prefix_places_check(const struct gr_prefix_places *p)
{
    uint32_t n = 0, older = NONE;
    bool fine = true;
    for (uint32_t i = p->oldest; i != NONE && n <= p->n; i = p->entry[i].newer, n++) {
        fine = fine && p->entry[i].older == older && find(p, p->entry[i].hash, p->entry[i].worker) == i;
        older = i;
    }
    uint32_t n_vacant = 0;
    for (uint32_t i = p->vacant; i != NONE && n_vacant <= p->n_max; i = p->entry[i].next) {
        n_vacant++;
    }
    return fine && n == p->n && older == p->newest && n + n_vacant == p->n_max;
}
