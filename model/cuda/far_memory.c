/* What makes a GPU's memory fit for a network card. Sources: CUDA's driver API, cuMemGetHandleForAddressRange and the
 * attributes of GPUDirect RDMA (flush options, ordering of writes). */
#include "model/cuda/far_memory.h"

#include "common/base/log.h"
#include "model/cuda/device.h"

#include <assert.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TAKEN_MAX = 64 };

typedef CUresult (*export_fn)(void *handle, CUdeviceptr p, size_t bytes, CUmemRangeHandleType type,
                              unsigned long long flags);

struct far_memory {
    struct gr_far_memory memory;
    struct gr_cuda_device device;
    char name[16];
    export_fn export; /* NULL: the driver has none */
    bool flushes;     /* another device's writes are not in order by themselves */
    struct {
        uint8_t *p;
        size_t bytes;
        void *region; /* what was allocated for it; p lies on a page */
    } taken[N_TAKEN_MAX];
    pthread_mutex_t lock; /* of taken */
};

static enum gr_status enter(const struct far_memory *f)
{
    return gr_cuda_check(cudaSetDevice(f->device.index), "choice of the device");
}

/* ---- taking ---- */

static enum gr_status take(void *ctx, size_t bytes, uint8_t **out)
{
    struct far_memory *f = ctx;
    void *region = NULL;
    GR_TRY(enter(f));
    pthread_mutex_lock(&f->lock);
    int i = 0;
    while (i < N_TAKEN_MAX && f->taken[i].region != NULL) {
        i++;
    }
    enum gr_status st = i < N_TAKEN_MAX ? GR_OK : GR_ELIMIT;
    if (st == GR_OK) {
        st = gr_cuda_check(cudaMalloc(&region, bytes + GR_FAR_PAGE_BYTES), "memory for frames");
    } else {
        log_error("%s: more than %d connections with frames in its memory", f->name, N_TAKEN_MAX);
    }
    if (st == GR_OK) {
        const uintptr_t page = GR_FAR_PAGE_BYTES;
        f->taken[i].region = region;
        f->taken[i].bytes = bytes;
        f->taken[i].p = (uint8_t *)(((uintptr_t)region + page - 1) / page * page);
        *out = f->taken[i].p;
    }
    pthread_mutex_unlock(&f->lock);
    return st;
}

static void give(void *ctx, uint8_t *p)
{
    struct far_memory *f = ctx;
    (void)enter(f);
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < N_TAKEN_MAX; i++) {
        if (f->taken[i].region != NULL && f->taken[i].p == p) {
            (void)gr_cuda_check(cudaFree(f->taken[i].region), "giving back memory for frames");
            f->taken[i].region = NULL;
        }
    }
    pthread_mutex_unlock(&f->lock);
}

static int export_fd(void *ctx, uint8_t *p, size_t bytes)
{
    const struct far_memory *f = ctx;
    int fd = -1;
    if (f->export == NULL || enter(f) != GR_OK) {
        return -ENOSYS;
    }
    const CUresult e = f->export(&fd, (CUdeviceptr)(uintptr_t)p, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (e == CUDA_SUCCESS) {
        return fd;
    }
    return e == CUDA_ERROR_NOT_SUPPORTED ? -EOPNOTSUPP : -EINVAL;
}

/* ---- copies ---- */

static bool is_ours(struct far_memory *f, const void *p)
{
    const uint8_t *at = p;
    bool found = false;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < N_TAKEN_MAX && !found; i++) {
        found = f->taken[i].region != NULL && at >= f->taken[i].p && at < f->taken[i].p + f->taken[i].bytes;
    }
    pthread_mutex_unlock(&f->lock);
    return found;
}

static enum gr_status wait_all(void *ctx)
{
    const struct far_memory *f = ctx;
    return gr_cuda_wait(&f->device, "copies of frames");
}

static enum gr_status copy(void *ctx, void *to, const void *from, size_t bytes)
{
    struct far_memory *f = ctx;
    GR_TRY(enter(f));
    GR_TRY(gr_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, f->device.stream), "a copy of a frame"));
    return is_ours(f, to) && is_ours(f, from) ? GR_OK : wait_all(f);
}

static enum gr_status arrived(void *ctx)
{
    const struct far_memory *f = ctx;
    if (!f->flushes) {
        return GR_OK;
    }
    GR_TRY(enter(f));
    return gr_cuda_check(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                                            cudaFlushGPUDirectRDMAWritesToOwner),
                         "flush of what a network card wrote");
}

/* ---- opening ---- */

static enum gr_status attribute(const struct far_memory *f, enum cudaDeviceAttr which, int *out)
{
    return gr_cuda_check(cudaDeviceGetAttribute(out, which, f->device.index), "attribute of the device");
}

static enum gr_status look_at_device(struct far_memory *f)
{
    int supported = 0, ordering = 0, flush = 0;
    GR_TRY(attribute(f, cudaDevAttrGPUDirectRDMASupported, &supported));
    GR_TRY(attribute(f, cudaDevAttrGPUDirectRDMAWritesOrdering, &ordering));
    GR_TRY(attribute(f, cudaDevAttrGPUDirectRDMAFlushWritesOptions, &flush));
    f->flushes = ordering < cudaGPUDirectRDMAWritesOrderingOwner;
    if (supported == 0) {
        f->memory.unfit = "the driver does not lend this GPU's memory to other devices";
    } else if (f->flushes && (flush & cudaFlushGPUDirectRDMAWritesOptionHost) == 0) {
        f->memory.unfit = "the driver cannot make this GPU see what other devices wrote";
    }
    return GR_OK;
}

static void find_export(struct far_memory *f)
{
    enum cudaDriverEntryPointQueryResult result;
    void *fn = NULL;
    static_assert(sizeof(fn) == sizeof(f->export), "an address is an address");
    if (cudaGetDriverEntryPointByVersion("cuMemGetHandleForAddressRange", &fn, 11070, cudaEnableDefault, &result) ==
            cudaSuccess &&
        result == cudaDriverEntryPointSuccess) {
        memcpy(&f->export, &fn, sizeof(fn)); /* a cast is no C */
    }
    (void)cudaGetLastError();
}

enum gr_status gr_cuda_far_memory_open(int index, const struct gr_far_memory **out)
{
    struct far_memory *f = calloc(1, sizeof(*f));
    if (f == NULL) {
        log_error("cuda:%d: out of memory", index);
        return GR_ENOMEM;
    }
    snprintf(f->name, sizeof(f->name), "cuda:%d", index);
    pthread_mutex_init(&f->lock, NULL);
    f->memory = (struct gr_far_memory){.name = f->name,
                                       .ctx = f,
                                       .take = take,
                                       .give = give,
                                       .export_fd = export_fd,
                                       .copy = copy,
                                       .wait = wait_all,
                                       .arrived = arrived};
    enum gr_status st = gr_cuda_device_open(&f->device, index);
    st = st == GR_OK ? look_at_device(f) : st;
    if (st != GR_OK) {
        gr_cuda_far_memory_close(&f->memory);
        return st;
    }
    find_export(f);
    *out = &f->memory;
    return GR_OK;
}

void gr_cuda_far_memory_close(const struct gr_far_memory *memory)
{
    if (memory == NULL) {
        return;
    }
    struct far_memory *f = memory->ctx;
    gr_cuda_device_close(&f->device);
    pthread_mutex_destroy(&f->lock);
    free(f);
}
