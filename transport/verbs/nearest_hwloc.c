/* The map of nearest.h, as hwloc sees the machine (HWLOC_XMLFILE names another one). Its parts that would open GPUs
 * are left out: CUDA is initialised by who computes. */
#include "transport/verbs/nearest.h"

#include <hwloc.h>
#include <stdio.h>

enum { CLASS_DISPLAY = 0x03, VENDOR_NVIDIA = 0x10de };

static enum gr_near_kind kind_of(const struct hwloc_obj *o)
{
    if (o->type == HWLOC_OBJ_BRIDGE) {
        return o->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST ? GR_NEAR_ROOT : GR_NEAR_SWITCH;
    }
    return o->type == HWLOC_OBJ_MACHINE ? GR_NEAR_MACHINE : GR_NEAR_NODE;
}

/* false: too deep. */
static bool find_way(struct gr_near_device *d, const struct hwloc_obj *device)
{
    int n = 0;
    for (const struct hwloc_obj *o = device->parent; o != NULL; o = o->parent) {
        n++;
    }
    d->n_step = n;
    for (const struct hwloc_obj *o = device->parent; o != NULL && n <= GR_NEAR_STEP_MAX; o = o->parent) {
        n--;
        d->step[n].kind = kind_of(o);
        d->step[n].id = o->gp_index;
    }
    return d->n_step <= GR_NEAR_STEP_MAX;
}

static bool describe(struct gr_near_device *d, const struct hwloc_obj *pci)
{
    const struct hwloc_pcidev_attr_s *a = &pci->attr->pcidev;
    d->pci = (struct gr_pci_address){.domain = a->domain, .bus = a->bus, .device = a->dev, .function = a->func};
    return find_way(d, pci);
}

static void add_gpus(struct gr_near_map *map, hwloc_topology_t t)
{
    for (hwloc_obj_t o = hwloc_get_next_pcidev(t, NULL); o != NULL; o = hwloc_get_next_pcidev(t, o)) {
        const struct hwloc_pcidev_attr_s *a = &o->attr->pcidev;
        if (a->class_id >> 8 == CLASS_DISPLAY && a->vendor_id == VENDOR_NVIDIA && map->n_gpu < GR_NEAR_GPU_MAX) {
            map->n_gpu += describe(&map->gpu[map->n_gpu], o);
        }
    }
}

/* Those on PCI: soft RoCE is nowhere. */
static void add_cards(struct gr_near_map *map, hwloc_topology_t t)
{
    for (hwloc_obj_t o = hwloc_get_next_osdev(t, NULL); o != NULL; o = hwloc_get_next_osdev(t, o)) {
        const struct hwloc_obj *pci = o->parent;
        while (pci != NULL && pci->type != HWLOC_OBJ_PCI_DEVICE) {
            pci = pci->parent;
        }
        if (o->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS && pci != NULL && map->n_card < GR_NEAR_CARD_MAX) {
            struct gr_near_device *d = &map->card[map->n_card];
            snprintf(d->name, sizeof(d->name), "%s", o->name);
            map->n_card += describe(d, pci);
        }
    }
}

static bool load(hwloc_topology_t t)
{
    static const char *const parts[] = {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl"};
    for (size_t i = 0; i < GR_ARRAY_LEN(parts); i++) {
        (void)hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, parts[i]);
    }
    return hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 &&
           hwloc_topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0 && hwloc_topology_load(t) == 0;
}

enum gr_status gr_near_map_draw(struct gr_near_map *out, const char **why_out)
{
    hwloc_topology_t t;
    out->n_gpu = out->n_card = 0;
    *why_out = "hwloc cannot look at this machine";
    if (hwloc_topology_init(&t) != 0) {
        return GR_ENOTFOUND;
    }
    const bool loaded = load(t);
    if (loaded) {
        add_gpus(out, t);
        add_cards(out, t);
    }
    hwloc_topology_destroy(t);
    return loaded ? GR_OK : GR_ENOTFOUND;
}
