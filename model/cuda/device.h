/* A GPU as the models use it: its stream and the memory that is taken of it while a model is created. One thread at a
 * time calls. Errors are one line each; what failed stays to be closed. */
#ifndef GR_MODEL_CUDA_DEVICE_H
#define GR_MODEL_CUDA_DEVICE_H

#include "common/base/device_lock.h"
#include "common/base/status.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GR_CUDA_REGION_MAX = 4096, /* a layer takes up to 9, and a model has up to GR_HF_N_LAYER_MAX layers */
    GR_CUDA_USE_MAX = 12,      /* lines of the table of who got what */
};

struct gr_cuda_device {
    int index;
    char name[64];
    char lock_file[64];  /* of its memory: one name for the device, whatever its number here */
    cudaStream_t stream; /* owned */
    bool open;
    struct gr_device_lock lock;
    struct {
        void *p; /* owned: memory of the device, or of the host (pinned) */
        size_t bytes;
        int i_use; /* -1: of the host */
    } region[GR_CUDA_REGION_MAX];
    int n_region;
    struct {
        const char *what; /* static text */
        uint64_t bytes;
    } use[GR_CUDA_USE_MAX];
    int n_use;
};

/* What to do about an error of the runtime; what: the operation. */
enum gr_status gr_cuda_check(cudaError_t e, const char *what);

/* Device `index` of compute capability 9.0; GR_EUNSUPPORTED says what is there instead. */
GR_NODISCARD enum gr_status gr_cuda_device_open(struct gr_cuda_device *d, int index);
/* Gives everything back. A device that was never opened: nothing happens. */
void gr_cuda_device_close(struct gr_cuda_device *d);

/* Between the two no other worker of this host measures what is free or takes its share (device_lock.h); close ends
 * it, too. */
void gr_cuda_memory_begin(struct gr_cuda_device *d);
void gr_cuda_memory_end(struct gr_cuda_device *d);
/* Bytes that can be taken now. */
GR_NODISCARD enum gr_status gr_cuda_memory_free(const struct gr_cuda_device *d, uint64_t *bytes_out);

/* Zeroed memory of the device, aligned to 256, until close. what: static text, a line of the table. GR_ENOMEM: the line
 * says what was needed and what is free. */
GR_NODISCARD enum gr_status gr_cuda_take(struct gr_cuda_device *d, const char *what, size_t bytes, void **out);
/* Gives one of them back before, once all that was enqueued has run. NULL: nothing happens. */
void gr_cuda_give_back(struct gr_cuda_device *d, void *p);
/* Pinned memory of the host, zeroed; on_device: where the device sees it. */
GR_NODISCARD enum gr_status gr_cuda_take_host(struct gr_cuda_device *d, size_t bytes, void **out, void **on_device);
/* One line for each use, and what is left. what: of this use alone; NULL: of all. */
void gr_cuda_log_memory(const struct gr_cuda_device *d, const char *what);

/* Bytes of the host, after all that was enqueued (so that the memory is cleared); from is the caller's again after. */
GR_NODISCARD enum gr_status gr_cuda_upload(const struct gr_cuda_device *d, void *to, const void *from, size_t bytes,
                                           const char *what);
/* Waits for all that was enqueued. */
GR_NODISCARD enum gr_status gr_cuda_wait(const struct gr_cuda_device *d, const char *what);

#endif
