#include "orchestrator/launch/gpu.h"

#include "common/base/log.h"

#include <dlfcn.h>
#include <string.h>

/* The few calls of the driver that are made; all return 0 where all is well. */
struct driver {
    int (*init)(unsigned flags);
    int (*count)(int *n);
    int (*get)(int *device, int ordinal);
    int (*pci)(char *text, int len, int device);
};

static void find(void *library, const char *name, void *function_out)
{
    void *found = dlsym(library, name);
    memcpy(function_out, &found, sizeof(found)); /* C has no cast from data to functions */
}

static bool open_driver(struct driver *d)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *d = (struct driver){.init = NULL};
    if (library == NULL) {
        return false;
    }
    find(library, "cuInit", &d->init);
    find(library, "cuDeviceGetCount", &d->count);
    find(library, "cuDeviceGet", &d->get);
    find(library, "cuDeviceGetPCIBusId", &d->pci);
    return d->init != NULL && d->count != NULL && d->get != NULL && d->pci != NULL;
}

enum gr_status gr_launch_gpus(struct gr_launch_entry *self)
{
    struct driver d;
    int n = 0, error = 0;
    self->n_gpu = 0;
    if (!open_driver(&d)) {
        log_error("cuda:local: this host has no NVIDIA driver (libcuda.so.1)");
        return GR_EUNSUPPORTED;
    }
    if ((error = d.init(0)) != 0 || (error = d.count(&n)) != 0) {
        log_error("cuda:local: the driver says error %d; are GPUs visible to this rank (nvidia-smi)?", error);
        return GR_EUNSUPPORTED;
    }
    for (int i = 0; i < n && i < GR_LAUNCH_GPU_MAX; i++) {
        int device = 0;
        if (d.get(&device, i) == 0 && d.pci(self->gpu[i], sizeof(self->gpu[i]), device) == 0) {
            self->n_gpu = i + 1;
        }
    }
    return GR_OK;
}
