/* A build without hwloc has no map. */
#include "transport/verbs/nearest.h"

enum gr_status gr_near_map_draw(struct gr_near_map *out, const char **why_out)
{
    out->n_gpu = out->n_card = 0;
    *why_out = "this build has no hwloc (libhwloc-dev was missing)";
    return GR_ENOTFOUND;
}
