#include "transport/verbs/nearest.h"

#include <stdio.h>
#include <string.h>

bool gr_pci_parse(const char *text, struct gr_pci_address *out)
{
    struct gr_pci_address a = {0};
    int end = 0;
    if (sscanf(text, "%8x:%2x:%2x.%1x%n", &a.domain, &a.bus, &a.device, &a.function, &end) != 4) {
        a.domain = 0;
        end = 0;
        if (sscanf(text, "%2x:%2x.%1x%n", &a.bus, &a.device, &a.function, &end) != 3) {
            return false;
        }
    }
    if (text[end] != '\0' || a.device > 31 || a.function > 7) {
        return false;
    }
    *out = a;
    return true;
}

const char *gr_near_words(enum gr_near_kind kind)
{
    static const char *const words[GR_N_NEAR_KIND] = {"across processors", "at one processor", "on one PCI root",
                                                      "behind one PCI switch"};
    return words[kind];
}

static uint64_t key_of(const struct gr_pci_address *a)
{
    return (uint64_t)a->domain << 16 | a->bus << 8 | a->device << 3 | a->function;
}

static const struct gr_near_device *find_gpu(const struct gr_near_map *map, const struct gr_pci_address *pci)
{
    for (int i = 0; i < map->n_gpu; i++) {
        if (key_of(&map->gpu[i].pci) == key_of(pci)) {
            return &map->gpu[i];
        }
    }
    return NULL;
}

static const struct gr_near_device *find_card(const struct gr_near_map *map, const char *name)
{
    for (int i = 0; i < map->n_card; i++) {
        if (strcmp(map->card[i].name, name) == 0) {
            return &map->card[i];
        }
    }
    return NULL;
}

/* Steps that both ways begin with. */
static int n_shared(const struct gr_near_device *a, const struct gr_near_device *b)
{
    int n = 0;
    while (n < a->n_step && n < b->n_step && a->step[n].id == b->step[n].id) {
        n++;
    }
    return n;
}

/* The cards that are nearest to a GPU, as a set over the names; *shared_out: how near. */
static uint64_t nearest(const struct gr_near_map *map, const struct gr_near_device *gpu, const char *const *name,
                        int n_name, int *shared_out)
{
    uint64_t set = 0;
    int best = 0;
    for (int i = 0; i < n_name; i++) {
        const struct gr_near_device *card = find_card(map, name[i]);
        const int shared = card != NULL ? n_shared(gpu, card) : 0;
        if (shared > best) {
            best = shared;
            set = 0;
        }
        set |= shared == best && best > 0 ? 1ull << i : 0;
    }
    *shared_out = best;
    return set;
}

/* GPUs before this one, in the order of addresses, that have the same cards to choose from. */
static int turn_of(const struct gr_near_map *map, const struct gr_near_device *gpu, const char *const *name, int n_name,
                   uint64_t set)
{
    int n = 0;
    for (int i = 0; i < map->n_gpu; i++) {
        int shared = 0;
        const struct gr_near_device *other = &map->gpu[i];
        n += key_of(&other->pci) < key_of(&gpu->pci) && nearest(map, other, name, n_name, &shared) == set;
    }
    return n;
}

static uint64_t card_key(const struct gr_near_map *map, const char *name)
{
    return key_of(&find_card(map, name)->pci);
}

/* The one of a set that has so many before it, in the order of addresses. */
static int pick(const struct gr_near_map *map, const char *const *name, int n_name, uint64_t set, int turn)
{
    for (int i = 0; i < n_name; i++) {
        int n_before = 0;
        for (int k = 0; k < n_name && (set >> i & 1) != 0; k++) {
            n_before += (set >> k & 1) != 0 && card_key(map, name[k]) < card_key(map, name[i]);
        }
        if ((set >> i & 1) != 0 && n_before == turn) {
            return i;
        }
    }
    return -1;
}

struct gr_near_choice gr_near_choose(const struct gr_near_map *map, const struct gr_pci_address *gpu,
                                     const char *const *name, int n_name)
{
    struct gr_near_choice c = {.i_name = -1};
    const struct gr_near_device *self = find_gpu(map, gpu);
    int shared = 0;
    n_name = GR_MIN(n_name, GR_NEAR_CARD_MAX);
    const uint64_t set = self != NULL ? nearest(map, self, name, n_name, &shared) : 0;
    if (set == 0) {
        return c;
    }
    c.n_as_near = __builtin_popcountll(set);
    c.kind = self->step[shared - 1].kind;
    c.i_name = pick(map, name, n_name, set, turn_of(map, self, name, n_name, set) % c.n_as_near);
    return c;
}
