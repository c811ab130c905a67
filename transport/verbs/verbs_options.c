/* What the verbs transport was told (verbs.h), once for the process; in every build, with RDMA's libraries or without.
 */
#include "transport/verbs/verbs.h"

#include "common/base/log.h"
#include "transport/verbs/nearest.h"

#include <malloc.h>
#include <stdio.h>

static struct gr_verbs_options configured = GR_VERBS_OPTIONS_DEFAULT;

/* librdmacm before 52 sorts its devices by the lower half of their addresses and merges them by the whole. Where the
 * heaps of two threads lie far apart, a device that is made again while we run can push another one off its list, and
 * no address is bound to that one until the process ends. So there is one heap; nothing is allocated in a round. */
void gr_verbs_prepare(void)
{
#ifdef M_ARENA_MAX
    (void)mallopt(M_ARENA_MAX, 1);
#endif
}

void gr_verbs_configure(const struct gr_verbs_options *options)
{
    configured = *options;
}

const struct gr_verbs_options *gr_verbs_configured(void)
{
    return &configured;
}

void gr_verbs_prefer_near(const char *gpu_pci)
{
    static struct gr_near_map map;
    static char pci[32];
    const char *why = NULL;
    snprintf(pci, sizeof(pci), "%s", gpu_pci);
    configured.gpu_pci = NULL;
    configured.map = NULL;
    if (pci[0] == '\0' || !gr_verbs_worth_offering(&configured)) {
        return;
    }
    if (gr_near_map_draw(&map, &why) != GR_OK) {
        log_info("verbs: which RDMA device is nearest to the GPU at %s is not known: %s", pci, why);
        return;
    }
    configured.gpu_pci = pci;
    configured.map = &map;
}

const char *gr_far_path_name(enum gr_far_path path)
{
    static const char *const names[GR_N_FAR_PATH] = {"host", "dma-buf", "peer memory", "staging"};
    return names[path];
}
