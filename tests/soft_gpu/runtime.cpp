/* The run time: memory, streams, graphs. A graph runs when it is launched, other kernels when somebody waits for their
 * stream or enqueues something that is none: so that kernels one after another can overlap.
 *
 *   SOFT_GPU_DEVICES     how many there are (1)
 *   CUDA_VISIBLE_DEVICES of them those that the process sees, by number, and their order (all)
 *   SOFT_GPU_EXPORT      not 0: processes can map each other's memory (cudaIpc...)
 *   SOFT_GPU_CAPABILITY  of them, as 9.0
 *   SOFT_GPU_MEMORY      bytes of each (8 GiB)
 *   SOFT_GPU_FAIL_AFTER  launches of the process after which one fails (none) */
#include "tests/soft_gpu/engine.h"

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* A kernel, or something else that is done at once. */
struct Operation {
    soft_gpu::Launch launch;
    std::function<void()> host; /* empty: a kernel */
};

struct CUgraph_st {
    std::vector<Operation> op;
};

struct CUgraphExec_st {
    CUgraph_st graph;
};

/* Threads of a process may come to one: who frees memory waits for all streams of the device. */
struct CUstream_st {
    std::mutex mutex; /* of what follows, and held while something of the stream runs */
    int device = 0;
    CUgraph_st *recording = nullptr; /* owned */
    std::vector<soft_gpu::Launch> pending;
};

struct CUevent_st {
    std::chrono::steady_clock::time_point at;
};

namespace
{

constexpr size_t SHARED_DEFAULT = 48 * 1024, SHARED_MAX = 227 * 1024;
constexpr size_t FILE_LEAST = 64 * 1024;
constexpr int OTHER_PROCESS = -2;
constexpr int N_MULTIPROCESSOR = 8; /* few: blocks that find no work take their time here */

struct Device {
    std::mutex mutex;
    std::map<const uint8_t *, std::pair<size_t, int>> taken; /* size, device; -1: of the host, -2: another process's */
    std::map<const uint8_t *, int> file; /* of pieces that another process may map: all of a device's that are large */
    std::map<std::pair<int, const void *>, int> shared_max; /* of a device's kernel: threads have one each */
    std::map<CUstream_st *, std::shared_ptr<CUstream_st>> stream; /* all there are */
    std::atomic<bool> broken{false};
    std::atomic<long> n_launch{0};
};

Device gpu;
constexpr int N_DEVICE_MAX = 16;
CUstream_st default_stream[N_DEVICE_MAX]; /* of calls without one */
thread_local cudaError_t last_error;
thread_local int current_device;

long long setting(const char *name, long long otherwise)
{
    const char *text = getenv(name);
    return text != nullptr ? atoll(text) : otherwise;
}

cudaError_t said(cudaError_t e)
{
    if (e != cudaSuccess) {
        last_error = e;
    }
    return e;
}

size_t memory_of_device()
{
    return (size_t)setting("SOFT_GPU_MEMORY", 8ll << 30);
}

size_t n_taken(int device)
{
    size_t n = 0;
    for (const auto &piece : gpu.taken) {
        n += piece.second.second == device ? piece.second.first : 0;
    }
    return n;
}

/* In a file, for cudaIpcGetMemHandle(). */
bool take_file(void **p, size_t bytes)
{
    const int file = memfd_create("soft-gpu", MFD_CLOEXEC);
    void *at = file >= 0 && ftruncate(file, (off_t)bytes) == 0
                   ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                   : MAP_FAILED;
    if (at == MAP_FAILED) {
        close(file);
        return false;
    }
    gpu.file[(const uint8_t *)at] = file;
    *p = at;
    return true;
}

bool is_file(size_t bytes, int device)
{
    return device >= 0 && bytes >= FILE_LEAST && setting("SOFT_GPU_EXPORT", 0) != 0;
}

cudaError_t take(void **p, size_t bytes, int device)
{
    const std::lock_guard<std::mutex> lock(gpu.mutex);
    if (gpu.broken) {
        return said(cudaErrorLaunchFailure);
    }
    if (device >= 0 && bytes > memory_of_device() - n_taken(device)) {
        return said(cudaErrorMemoryAllocation);
    }
    if (is_file(bytes, device) ? !take_file(p, bytes) : posix_memalign(p, 256, bytes > 0 ? bytes : 1) != 0) {
        return said(cudaErrorMemoryAllocation);
    }
    gpu.taken[(const uint8_t *)*p] = {bytes, device};
    return cudaSuccess;
}

cudaError_t give_back(void *p)
{
    if (p == nullptr) {
        return cudaSuccess;
    }
    const std::lock_guard<std::mutex> lock(gpu.mutex);
    const auto piece = gpu.taken.find((const uint8_t *)p);
    const auto file = gpu.file.find((const uint8_t *)p);
    if (piece == gpu.taken.end()) {
        return said(cudaErrorInvalidValue);
    }
    if (piece->second.second == OTHER_PROCESS || file != gpu.file.end()) {
        munmap(p, piece->second.first);
    } else {
        free(p);
    }
    if (file != gpu.file.end()) {
        close(file->second);
        gpu.file.erase(file);
    }
    gpu.taken.erase(piece);
    return cudaSuccess;
}

cudaError_t run_kernels(const std::vector<soft_gpu::Launch> &launches)
{
    const long fail_after = setting("SOFT_GPU_FAIL_AFTER", -1), before = gpu.n_launch.fetch_add((long)launches.size());
    const bool fails = fail_after >= before && fail_after < before + (long)launches.size();
    if (!launches.empty() && (gpu.broken || fails || !soft_gpu::run(launches))) {
        gpu.broken = true;
        return cudaErrorLaunchFailure;
    }
    return cudaSuccess;
}

CUstream_st &stream_of(cudaStream_t stream)
{
    return stream != nullptr ? *stream : default_stream[current_device];
}

/* All that the stream has. The caller holds its mutex. */
cudaError_t finish_held(CUstream_st &s)
{
    std::vector<soft_gpu::Launch> launches;
    launches.swap(s.pending);
    return said(gpu.broken ? cudaErrorLaunchFailure : run_kernels(launches));
}

cudaError_t finish(CUstream_st &s)
{
    const std::lock_guard<std::mutex> lock(s.mutex);
    return finish_held(s);
}

/* The caller holds the stream's mutex. */
cudaError_t run_operation(CUstream_st &s, const Operation &op)
{
    if (!op.host) {
        s.pending.push_back(op.launch);
        return cudaSuccess;
    }
    const cudaError_t e = finish_held(s);
    if (e == cudaSuccess) {
        op.host();
    }
    return e;
}

/* After what the stream has, or as a part of its graph. */
cudaError_t enqueue(cudaStream_t stream, Operation op)
{
    CUstream_st &s = stream_of(stream);
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (gpu.broken) {
        return said(cudaErrorLaunchFailure);
    }
    if (s.recording != nullptr) {
        s.recording->op.push_back(std::move(op));
        return cudaSuccess;
    }
    return run_operation(s, op);
}

/* Of the device that is chosen: others may be other threads'. */
cudaError_t finish_all()
{
    std::vector<std::shared_ptr<CUstream_st>> all;
    {
        const std::lock_guard<std::mutex> lock(gpu.mutex);
        for (const auto &s : gpu.stream) {
            all.push_back(s.second);
        }
    }
    cudaError_t e = finish(default_stream[current_device]);
    for (const auto &s : all) {
        e = e == cudaSuccess && s->device == current_device ? finish(*s) : e;
    }
    return e;
}

int cluster_of(const cudaLaunchConfig_t &c)
{
    int n = 1;
    for (unsigned i = 0; i < c.numAttrs; i++) {
        const cudaLaunchAttribute &a = c.attrs[i];
        const bool says = a.id == cudaLaunchAttributeClusterDimension || a.id == cudaLaunchAttributeIgnore;
        n = says ? (int)a.val.clusterDim.x : n;
    }
    return n;
}

bool is_early(const cudaLaunchConfig_t &c)
{
    bool early = false;
    for (unsigned i = 0; i < c.numAttrs; i++) {
        early = early || (c.attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                          c.attrs[i].val.programmaticStreamSerializationAllowed != 0);
    }
    return early;
}

} // namespace

bool soft_gpu::is_taken(const void *p, size_t bytes)
{
    const std::lock_guard<std::mutex> lock(gpu.mutex);
    auto at = gpu.taken.upper_bound((const uint8_t *)p);
    return at != gpu.taken.begin() && (--at, (const uint8_t *)p + bytes <= at->first + at->second.first);
}

cudaError_t soft_gpu_shared_max(const void *kernel, int bytes)
{
    const std::lock_guard<std::mutex> lock(gpu.mutex);
    if (bytes < 0 || (size_t)bytes > SHARED_MAX) {
        return said(cudaErrorInvalidValue);
    }
    gpu.shared_max[{current_device, kernel}] = bytes;
    return cudaSuccess;
}

cudaError_t soft_gpu_launch(const cudaLaunchConfig_t *config, const void *kernel, std::function<void()> body)
{
    const cudaLaunchConfig_t &c = *config;
    const soft_gpu::Launch launch{
        {c.gridDim.x, c.gridDim.y, c.gridDim.z}, c.blockDim.x, cluster_of(c), is_early(c), c.dynamicSmemBytes, kernel,
        std::move(body)};
    size_t shared_max = SHARED_DEFAULT;
    {
        const std::lock_guard<std::mutex> lock(gpu.mutex);
        const auto at = gpu.shared_max.find({current_device, kernel});
        shared_max = at != gpu.shared_max.end() ? std::max(shared_max, (size_t)at->second) : shared_max;
    }
    if (c.gridDim.x < 1 || c.gridDim.y < 1 || c.gridDim.z < 1 || c.blockDim.x < 1 || c.blockDim.x > 1024 ||
        c.blockDim.y != 1 || c.blockDim.z != 1 || c.gridDim.x % (unsigned)launch.cluster != 0 ||
        c.dynamicSmemBytes > shared_max) {
        fprintf(stderr,
                "soft GPU: kernel %p: %u x %u x %u blocks in clusters of %d, %u x %u x %u threads, %zu bytes of shared "
                "memory of at most %zu\n",
                kernel, c.gridDim.x, c.gridDim.y, c.gridDim.z, launch.cluster, c.blockDim.x, c.blockDim.y, c.blockDim.z,
                c.dynamicSmemBytes, shared_max);
        return said(cudaErrorInvalidValue);
    }
    return enqueue(c.stream, {launch, {}});
}

extern "C" {

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorSymbolNotFound:
        return "named symbol not found";
    case cudaErrorNotSupported:
        return "operation not supported";
    case cudaErrorPeerAccessAlreadyEnabled:
        return "peer access is already enabled";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    }
    return "unrecognized error code";
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

/* Which of the computer's devices the process sees; as with the driver the first number that is none ends the list. */
static std::vector<int> visible_devices()
{
    const int n = (int)std::min(setting("SOFT_GPU_DEVICES", 1), (long long)N_DEVICE_MAX);
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    std::vector<int> seen;
    if (at == nullptr) {
        for (int i = 0; i < n; i++) {
            seen.push_back(i);
        }
        return seen;
    }
    for (char *end = nullptr;; at = end + 1) {
        const long i = strtol(at, &end, 10);
        if (end == at || i < 0 || i >= n) {
            return seen;
        }
        seen.push_back((int)i);
        if (*end != ',') {
            return seen;
        }
    }
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = (int)visible_devices().size();
    return said(*n > 0 ? cudaSuccess : cudaErrorNoDevice);
}

static bool is_device(int device)
{
    return device >= 0 && device < (int)visible_devices().size();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    const char *capability = getenv("SOFT_GPU_CAPABILITY");
    if (!is_device(device)) {
        return said(cudaErrorInvalidDevice);
    }
    *prop = cudaDeviceProp{"a GPU in software", memory_of_device(), 9, 0, N_MULTIPROCESSOR, {}};
    prop->uuid.bytes[15] = (char)visible_devices()[(size_t)device];
    if (capability != nullptr) {
        (void)sscanf(capability, "%d.%d", &prop->major, &prop->minor);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    if (!is_device(device)) {
        return said(cudaErrorInvalidDevice);
    }
    switch (attr) {
    case cudaDevAttrMultiProcessorCount:
        *value = N_MULTIPROCESSOR;
        return cudaSuccess;
    case cudaDevAttrGPUDirectRDMASupported:
    case cudaDevAttrGPUDirectRDMAFlushWritesOptions:
    case cudaDevAttrGPUDirectRDMAWritesOrdering:
        *value = 0;
        return cudaSuccess;
    }
    return said(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device)
{
    if (!is_device(device)) {
        return said(cudaErrorInvalidDevice);
    }
    (void)snprintf(out, (size_t)size, "0000:%02x:00.0", visible_devices()[(size_t)device] + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget,
                                               enum cudaFlushGPUDirectRDMAWritesScope)
{
    return said(cudaErrorNotSupported);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    *result = cudaDriverEntryPointSymbolNotFound;
    return said(cudaErrorSymbolNotFound);
}

cudaError_t cudaSetDevice(int device)
{
    if (!is_device(device)) {
        return said(cudaErrorInvalidDevice);
    }
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (!is_device(device) || !is_device(peer)) {
        return said(cudaErrorInvalidDevice);
    }
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)flags;
    return said(is_device(peer) && peer != current_device ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize(void)
{
    return finish_all();
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p)
{
    const std::lock_guard<std::mutex> lock(gpu.mutex);
    const auto file = gpu.file.find((const uint8_t *)p);
    if (file == gpu.file.end()) {
        fprintf(stderr, "soft GPU: cudaIpcGetMemHandle: %p is not the begin of %zu bytes or more\n", p, FILE_LEAST);
        return said(cudaErrorInvalidValue);
    }
    *handle = {(int)getpid(), file->second, gpu.taken[(const uint8_t *)p].first};
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned flags)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.process, handle.file);
    const int file = flags == cudaIpcMemLazyEnablePeerAccess && handle.process != (int)getpid()
                         ? open(path, O_RDWR | O_CLOEXEC)
                         : -1;
    void *at = file >= 0 ? mmap(nullptr, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0) {
        close(file);
    }
    if (at == MAP_FAILED) {
        return said(cudaErrorInvalidValue);
    }
    const std::lock_guard<std::mutex> lock(gpu.mutex);
    gpu.taken[(const uint8_t *)at] = {handle.bytes, OTHER_PROCESS};
    *p = at;
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    (void)finish_all();
    return give_back(p);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return take(p, bytes, current_device);
}

cudaError_t cudaFree(void *p)
{
    (void)finish_all();
    return give_back(p);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    return take(p, bytes, -1);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    (void)flags;
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    (void)finish_all();
    return give_back(p);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    const std::lock_guard<std::mutex> lock(gpu.mutex);
    *all = memory_of_device();
    *left = *all - n_taken(current_device);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    if (bytes > 0 && ((from_device && !soft_gpu::is_taken(from, bytes)) ||
                      (to_device && !soft_gpu::is_taken(to, bytes)))) {
        return said(cudaErrorInvalidValue);
    }
    const auto copy = [=] {
        if (bytes > 0) {
            memmove(to, from, bytes);
        }
    };
    return enqueue(stream, {{}, copy});
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    if (bytes > 0 && !soft_gpu::is_taken(to, bytes)) {
        return said(cudaErrorInvalidValue);
    }
    return enqueue(stream, {{}, [=] { memset(to, value, bytes); }});
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*fn)(void *data), void *data)
{
    return enqueue(stream, {{}, [=] { fn(data); }});
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return cudaMemsetAsync(to, value, bytes, nullptr);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    const auto s = std::make_shared<CUstream_st>();
    s->device = current_device;
    const std::lock_guard<std::mutex> lock(gpu.mutex);
    gpu.stream[s.get()] = s;
    *stream = s.get();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    return cudaStreamCreate(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (stream == nullptr) {
        return said(cudaErrorInvalidValue);
    }
    (void)finish(*stream);
    const std::lock_guard<std::mutex> lock(gpu.mutex);
    delete stream->recording;
    gpu.stream.erase(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return finish(stream_of(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return cudaStreamSynchronize(stream);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    if (stream == nullptr) {
        return said(cudaErrorInvalidValue);
    }
    const std::lock_guard<std::mutex> lock(stream->mutex);
    if (stream->recording != nullptr) {
        return said(cudaErrorInvalidValue);
    }
    stream->recording = new CUgraph_st;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    if (stream == nullptr) {
        return said(cudaErrorInvalidValue);
    }
    const std::lock_guard<std::mutex> lock(stream->mutex);
    if (stream->recording == nullptr) {
        return said(cudaErrorInvalidValue);
    }
    *graph = stream->recording;
    stream->recording = nullptr;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = new CUevent_st;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return enqueue(stream, {{}, [event] { event->at = std::chrono::steady_clock::now(); }});
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return said(gpu.broken ? cudaErrorLaunchFailure : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    *ms = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *exec = new CUgraphExec_st{*graph};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec, (void)stream;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    CUstream_st &s = stream_of(stream);
    const std::lock_guard<std::mutex> lock(s.mutex);
    cudaError_t e = finish_held(s);
    for (const Operation &op : exec->graph.op) {
        e = e == cudaSuccess ? run_operation(s, op) : e;
    }
    return e == cudaSuccess ? finish_held(s) : e;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    for (size_t i = 0; i < graph->op.size() && i < *n; i++) {
        nodes[i] = (cudaGraphNode_t)&graph->op[i];
    }
    *n = graph->op.size();
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    *type = ((const Operation *)node)->host ? cudaGraphNodeTypeHost : cudaGraphNodeTypeKernel;
    return cudaSuccess;
}
}
