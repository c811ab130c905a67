/* Which network card is nearest to a GPU: the one with which it shares the longest way through the machine. Pure; who
 * draws the map is nearest_hwloc.c. GPUs and cards are known by their PCI addresses alone, since CUDA, hwloc and the
 * driver number them in different orders. */
#ifndef GR_TRANSPORT_VERBS_NEAREST_H
#define GR_TRANSPORT_VERBS_NEAREST_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define GR_NEAR_STEP_MAX 24
#define GR_NEAR_GPU_MAX 64
#define GR_NEAR_CARD_MAX 64

struct gr_pci_address {
    uint32_t domain, bus, device, function;
};
/* "0000:17:00.0", with a domain of four or eight digits, or without one. false: it is none. */
bool gr_pci_parse(const char *text, struct gr_pci_address *out);

/* What stands on the way from the machine to a device. */
enum gr_near_kind {
    GR_NEAR_MACHINE,
    GR_NEAR_NODE,   /* a processor, or a part of one */
    GR_NEAR_ROOT,   /* its PCI root (host bridge) */
    GR_NEAR_SWITCH, /* a PCI bridge below it */
    GR_N_NEAR_KIND
};

struct gr_near_device {
    struct gr_pci_address pci;
    char name[64]; /* of a card: its RDMA device */
    int n_step;    /* from the machine down */
    struct {
        enum gr_near_kind kind;
        uint64_t id; /* of this thing in the map */
    } step[GR_NEAR_STEP_MAX];
};

struct gr_near_map {
    int n_gpu, n_card;
    struct gr_near_device gpu[GR_NEAR_GPU_MAX], card[GR_NEAR_CARD_MAX];
};

struct gr_near_choice {
    int i_name;             /* -1: nothing is known of the GPU, or of any of the cards */
    int n_as_near;          /* cards that are as near, itself included */
    enum gr_near_kind kind; /* the last thing that both ways have */
};

/* Of the cards with these names. Where several are as near, GPUs that are in the same place share them out, in the
 * order of their addresses. */
struct gr_near_choice gr_near_choose(const struct gr_near_map *map, const struct gr_pci_address *gpu,
                                     const char *const *name, int n_name);
const char *gr_near_words(enum gr_near_kind kind); /* "behind one PCI switch" */

/* The map of this machine, of the CPUs that this process may not use as well. GR_ENOTFOUND: there is none (a build
 * without hwloc, or hwloc cannot look); why_out is static text. */
enum gr_status gr_near_map_draw(struct gr_near_map *out, const char **why_out);

#endif
