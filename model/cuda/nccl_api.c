#include "model/cuda/nccl_api.h"

#include "common/base/log.h"

#include <dlfcn.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"
#define OLDEST 21000 /* sends in graphs */

static bool find(void *library, const char *name, void *function_out)
{
    void *found = dlsym(library, name);
    memcpy(function_out, &found, sizeof(found)); /* C has no cast from data to functions */
    if (found == NULL) {
        log_error(LIBRARY " has no %s", name);
    }
    return found != NULL;
}

static bool find_all(void *l, struct gr_nccl_api *a)
{
    return find(l, "ncclGetVersion", &a->version) && find(l, "ncclGetUniqueId", &a->unique_id) &&
           find(l, "ncclCommInitRank", &a->init) && find(l, "ncclCommAbort", &a->abort) &&
           find(l, "ncclCommGetAsyncError", &a->async_error) && find(l, "ncclGroupStart", &a->begin) &&
           find(l, "ncclGroupEnd", &a->end) && find(l, "ncclSend", &a->send) && find(l, "ncclRecv", &a->receive) &&
           find(l, "ncclAllReduce", &a->allreduce) && find(l, "ncclGetErrorString", &a->text);
}

enum gr_status gr_nccl_load(struct gr_nccl_api *api)
{
    int version = 0;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        log_error("NCCL: %s; install it, or name its folder in LD_LIBRARY_PATH", dlerror());
        return GR_EUNSUPPORTED;
    }
    if (!find_all(library, api)) {
        return GR_EUNSUPPORTED;
    }
    if (api->version(&version) != GR_NCCL_OK || version < OLDEST) {
        log_error("NCCL: version %d; %d is the oldest that will do", version, OLDEST);
        return GR_EUNSUPPORTED;
    }
    log_info("NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return GR_OK;
}
