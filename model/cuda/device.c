#include "model/cuda/device.h"

#include "common/base/log.h"
#include "kernels/cuda/device/ceiling.h"
#include "common/base/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum gr_status gr_cuda_check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) {
        return GR_OK;
    }
    log_error("CUDA: %s: %s", what, cudaGetErrorString(e));
    (void)cudaGetLastError();
    return e == cudaErrorMemoryAllocation ? GR_ENOMEM : GR_ECUDA;
}

static void name_lock(struct gr_cuda_device *d, const struct cudaDeviceProp *prop)
{
    int at = snprintf(d->lock_file, sizeof(d->lock_file), "/dev/shm/graft.gpu-");
    for (size_t i = 0; i < sizeof(prop->uuid.bytes); i++) {
        at += snprintf(d->lock_file + at, sizeof(d->lock_file) - (size_t)at, "%02x",
                       (unsigned)prop->uuid.bytes[i] & 0xffu);
    }
}

static enum gr_status find_device(struct gr_cuda_device *d, int index)
{
    int n = 0;
    struct cudaDeviceProp prop;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        (void)cudaGetLastError();
        log_error("cuda:%d: no GPU can be used here (%s); take cpu, or look at nvidia-smi", index,
                  e != cudaSuccess ? cudaGetErrorString(e) : "the driver lists none");
        return GR_EUNSUPPORTED;
    }
    if (index < 0 || index >= n) {
        log_error("cuda:%d: there %s %d GPU%s here: cuda:0%s", index, n > 1 ? "are" : "is", n, n > 1 ? "s" : "",
                  n > 1 ? " and on" : "");
        return GR_EUNSUPPORTED;
    }
    GR_TRY(gr_cuda_check(cudaGetDeviceProperties(&prop, index), "properties of the device"));
    if (prop.major != 9 || prop.minor != 0) {
        log_error("cuda:%d: %s has compute capability %d.%d; the kernels are built for 9.0 (H100, H200)", index,
                  prop.name, prop.major, prop.minor);
        return GR_EUNSUPPORTED;
    }
    snprintf(d->name, sizeof(d->name), "%.63s", prop.name);
    name_lock(d, &prop);
    return GR_OK;
}

enum gr_status gr_device_check(int device)
{
    struct gr_cuda_device d;
    return device == GR_DEVICE_CPU ? GR_OK : find_device(&d, device);
}

bool gr_cuda_device_pci(int device, char out[32])
{
    const bool told = cudaDeviceGetPCIBusId(out, 32, device) == cudaSuccess;
    (void)cudaGetLastError();
    return told;
}

enum gr_status gr_cuda_device_open(struct gr_cuda_device *d, int index)
{
    *d = (struct gr_cuda_device){.index = index};
    GR_TRY(find_device(d, index));
    GR_TRY(gr_cuda_check(cudaSetDevice(index), "choice of the device"));
    GR_TRY(gr_cuda_check(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "stream"));
    d->open = true;
    return GR_OK;
}

void gr_cuda_device_close(struct gr_cuda_device *d)
{
    if (!d->open) {
        return;
    }
    (void)cudaSetDevice(d->index);
    (void)cudaStreamSynchronize(d->stream);
    for (int i = d->n_region - 1; i >= 0; i--) {
        (void)(d->region[i].i_use < 0 ? cudaFreeHost(d->region[i].p) : cudaFree(d->region[i].p));
    }
    (void)cudaStreamDestroy(d->stream);
    gr_device_lock_give(&d->lock);
    *d = (struct gr_cuda_device){0};
}

void gr_cuda_memory_begin(struct gr_cuda_device *d)
{
    char what[32];
    snprintf(what, sizeof(what), "cuda:%d", d->index);
    gr_device_lock_take(&d->lock, d->lock_file, what);
}

void gr_cuda_memory_end(struct gr_cuda_device *d)
{
    gr_device_lock_give(&d->lock);
}

enum gr_status gr_cuda_memory_free(const struct gr_cuda_device *d, uint64_t *bytes_out)
{
    size_t left = 0;
    size_t all = 0;
    GR_TRY(gr_cuda_check(cudaSetDevice(d->index), "choice of the device"));
    GR_TRY(gr_cuda_check(cudaMemGetInfo(&left, &all), "free memory"));
    *bytes_out = left;
    return GR_OK;
}

/* Its line of the table. */
static int count_use(struct gr_cuda_device *d, const char *what, size_t bytes)
{
    int i = 0;
    while (i < d->n_use && strcmp(d->use[i].what, what) != 0) {
        i++;
    }
    if (i == d->n_use) {
        GR_ASSERT(i < GR_CUDA_USE_MAX);
        d->use[d->n_use++].what = what;
    }
    d->use[i].bytes += bytes;
    return i;
}

static enum gr_status no_memory(const struct gr_cuda_device *d, const char *what, size_t bytes)
{
    uint64_t left = 0;
    GR_TRY(gr_cuda_memory_free(d, &left));
    log_error("cuda:%d: %s needs %zu MiB, %" PRIu64 " MiB are free; lower --kv-blocks, --sessions or --max-model-len",
              d->index, what, bytes >> 20, left >> 20);
    return GR_ENOMEM;
}

enum gr_status gr_cuda_take(struct gr_cuda_device *d, const char *what, size_t bytes, void **out)
{
    void *p = NULL;
    GR_ASSERT(d->n_region < GR_CUDA_REGION_MAX);
    GR_TRY(gr_cuda_check(cudaSetDevice(d->index), "choice of the device"));
    const cudaError_t e = cudaMalloc(&p, GR_MAX(bytes, 256));
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return no_memory(d, what, bytes);
    }
    GR_TRY(gr_cuda_check(e, what));
    d->region[d->n_region].p = p;
    d->region[d->n_region].bytes = bytes;
    d->region[d->n_region++].i_use = count_use(d, what, bytes);
    *out = p;
    return gr_cuda_check(cudaMemsetAsync(p, 0, GR_MAX(bytes, 256), d->stream), what);
}

void gr_cuda_give_back(struct gr_cuda_device *d, void *p)
{
    int i = 0;
    if (p == NULL) {
        return;
    }
    while (i < d->n_region && d->region[i].p != p) {
        i++;
    }
    GR_ASSERT(i < d->n_region && d->region[i].i_use >= 0);
    (void)cudaSetDevice(d->index);
    (void)cudaStreamSynchronize(d->stream);
    (void)cudaFree(p);
    d->use[d->region[i].i_use].bytes -= d->region[i].bytes;
    d->region[i] = d->region[--d->n_region];
}

enum gr_status gr_cuda_take_host(struct gr_cuda_device *d, size_t bytes, void **out, void **on_device)
{
    void *p = NULL;
    GR_ASSERT(d->n_region < GR_CUDA_REGION_MAX);
    GR_TRY(gr_cuda_check(cudaSetDevice(d->index), "choice of the device"));
    GR_TRY(gr_cuda_check(cudaHostAlloc(&p, GR_MAX(bytes, 16), cudaHostAllocMapped), "pinned host memory"));
    d->region[d->n_region].p = p;
    d->region[d->n_region++].i_use = -1;
    memset(p, 0, bytes);
    *out = p;
    return gr_cuda_check(cudaHostGetDevicePointer(on_device, p, 0), "pinned host memory");
}

void gr_cuda_log_memory(const struct gr_cuda_device *d, const char *what)
{
    uint64_t left = 0;
    for (int i = 0; i < d->n_use; i++) {
        if (what == NULL || strcmp(what, d->use[i].what) == 0) {
            log_info("cuda:%d: %8.1f MiB %s", d->index, (double)d->use[i].bytes / 1048576.0, d->use[i].what);
        }
    }
    if (gr_cuda_memory_free(d, &left) == GR_OK) {
        log_info("cuda:%d: %8.1f MiB free (%s)", d->index, (double)left / 1048576.0, d->name);
    }
}

enum gr_status gr_cuda_upload(const struct gr_cuda_device *d, void *to, const void *from, size_t bytes,
                              const char *what)
{
    GR_TRY(gr_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, d->stream), what));
    return gr_cuda_wait(d, what);
}

enum gr_status gr_cuda_wait(const struct gr_cuda_device *d, const char *what)
{
    return gr_cuda_check(cudaStreamSynchronize(d->stream), what);
}

enum gr_status gr_cuda_device_ceilings(int device, double *read_bytes_per_s, double *flops)
{
    struct gr_cuda_device d = {0};
    struct gr_cuda_ceilings c;
    GR_TRY(find_device(&d, device));
    GR_TRY(gr_cuda_check(cudaSetDevice(device), "choice of the device"));
    GR_TRY(gr_cuda_measure_ceilings(&c));
    *read_bytes_per_s = c.read_bytes_per_s;
    *flops = c.matrix_flops;
    return GR_OK;
}

bool gr_cuda_is_built(void)
{
    return true;
}
