/* A round's exchange between two GPUs without the host: two processes, one a GPU, publish and await frames in rings
 * that both map. What a round trip costs, by where the rings lie and how a round is launched.
 *
 *   ninja -C build kernels/cuda/proto_exchange
 *   proto_exchange [--rounds N] [--threads] [--lose] [--hole]
 *
 * Rings: *host*, POSIX shared memory pinned by both processes; *peer*, device memory of the receiver, CUDA IPC.
 * --threads: two threads of one process instead, on one GPU where there is one. --lose: the target is killed in the
 * middle, and the drafter must end by itself. --hole: the device forgets one check, and the replay must say so (exit
 * 1). A round trip: from the drafter's first store of DRAFT to VERDICT and
 * FEATURES in its own memory; checks and walk of the target are in it. Period: from round to round. Decision D-015. */
#include "bench/cuda/exchange_device.cuh"
#include "kernels/cuda/device/cuda_status.cuh"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum Role { DRAFT = 0, TARGET = 1 };
enum Form { PERSISTENT, GRAPH_AHEAD, GRAPH_ONE }; /* up to four graphs queued; one at a time */
static const char *const WIRE_NAME[] = {"flag", "words", "all words"};
static const char *const FORM_NAME[] = {"persistent", "graph, 4 ahead", "graph, 1 ahead"};

/* Bytes of all slots, one way and the other. */
static constexpr size_t UP_BYTES = (size_t)N_SLOT * UP_SLOT, DOWN_BYTES = (size_t)N_SLOT * DOWN_SLOT;
static constexpr size_t RING_BYTES = (UP_BYTES + DOWN_BYTES + 4095) / 4096 * 4096; /* both ways, in whole pages */
static constexpr size_t IPC_BYTES = 4u << 20; /* an allocation of its own: what is shared is all of it */
static_assert(RING_BYTES <= IPC_BYTES, "");
static constexpr double BARRIER_S = 20.0; /* seconds after which a side takes the other for stuck */
static constexpr uint32_t N_WARM = 200;   /* rounds not counted */

/* Shared by the sides; not the data path. */
struct Shared {
    std::atomic<uint32_t> n_arrived, is_failed;
    cudaIpcMemHandle_t handle[2]; /* of the ring that the side reads */
    uint8_t *pointer[2];          /* the ring that the side reads, where the sides are threads */
    struct gx_replay replay;
    uint32_t n_fault; /* planted */
};

struct Options {
    uint32_t n_round = 10000;
    bool threads = false, lose = false, hole = false;
};

struct Setup {
    Role role;
    bool peer_ring;
    Options opt;
    Shared *shared;
    uint8_t *host_ring; /* RING_BYTES, mapped by both: up, down */
};

static double now_s()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Both sides have come here. A peer that fails or does not come ends this side. */
static void barrier(Shared *sh)
{
    const uint32_t i = sh->n_arrived.fetch_add(1), all = (i / 2 + 1) * 2;
    const double begin = now_s();
    while (sh->n_arrived.load() < all) {
        if (sh->is_failed.load() != 0 || now_s() - begin > BARRIER_S) {
            fprintf(stderr, "the other side has ended or does not come\n");
            exit(1);
        }
        sched_yield();
    }
}

/* ---- memory of a side ---- */

/* Trees as a drafter's would be: bushy, parents before children, no duplicate siblings; one without nodes. */
static std::vector<uint8_t> make_trees()
{
    std::vector<uint8_t> all(GX_N_TREE * GX_FRAME_BYTES, 0);
    for (int k = 0; k < GX_N_TREE; k++) {
        uint8_t *f = &all[(size_t)k * GX_FRAME_BYTES];
        const uint32_t n = k == 7 ? 0 : k % 4 == 3 ? 2 + (uint32_t)k % 59 : k % 2 == 1 ? 59 : 63;
        memcpy(f + AT_N, &n, 4);
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t h = gr_mix64((uint64_t)k * 64 + i + 1);
            const int32_t token = (int32_t)(h % (GX_N_VOCAB / 64) * 64 + i); /* i differs, so siblings do */
            const int16_t parent = (int16_t)((int)(h >> 40) % (int)(i + 1) - 1);
            memcpy(f + AT_TOKEN + 4 * i, &token, 4);
            memcpy(f + AT_TOKEN + 4 * n + 2 * i, &parent, 2);
        }
    }
    return all;
}

template <class T> static T *upload(const std::vector<T> &v)
{
    T *p;
    CUDA_OK(cudaMalloc(&p, v.size() * sizeof(T)));
    CUDA_OK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

template <class T> static T *pinned(size_t n)
{
    T *p;
    CUDA_OK(cudaHostAlloc(&p, n * sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped));
    memset((void *)p, 0, n * sizeof(T));
    return p;
}

/* The ring of this side in its device memory, the peer's opened. */
static void open_peer_ring(const Setup &u, int n_device, Side &s)
{
    const int other = 1 - u.role;
    CUDA_OK(cudaMalloc(&s.mine, IPC_BYTES));
    CUDA_OK(cudaMemset(s.mine, 0, IPC_BYTES));
    CUDA_OK(cudaDeviceSynchronize());
    u.shared->pointer[u.role] = s.mine;
    if (!u.opt.threads) {
        CUDA_OK(cudaIpcGetMemHandle(&u.shared->handle[u.role], s.mine));
    }
    barrier(u.shared);
    if (!u.opt.threads) {
        CUDA_OK(cudaIpcOpenMemHandle((void **)&s.theirs, u.shared->handle[other], cudaIpcMemLazyEnablePeerAccess));
        return;
    }
    if (n_device > 1) {
        CUDA_OK(cudaDeviceEnablePeerAccess(other, 0));
    }
    s.theirs = u.shared->pointer[other];
}

static void open_host_ring(const Setup &u, Side &s)
{
    const cudaError_t e = cudaHostRegister(u.host_ring, RING_BYTES, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (e == cudaErrorHostMemoryAlreadyRegistered && u.opt.threads) { /* by the other thread, for all devices */
        (void)cudaGetLastError();
    } else {
        CUDA_OK(e);
    }
    uint8_t *ring;
    CUDA_OK(cudaHostGetDevicePointer((void **)&ring, u.host_ring, 0));
    s.mine = u.role == TARGET ? ring : ring + UP_BYTES;
    s.theirs = u.role == TARGET ? ring + UP_BYTES : ring;
}

/* The side's own device, where there are two. Returns how many there are. */
static int set_device(Role role)
{
    int n_device = 0;
    CUDA_OK(cudaGetDeviceCount(&n_device));
    CUDA_OK(cudaSetDevice(std::min((int)role, n_device - 1)));
    return n_device;
}

static Side open_side(const Setup &u)
{
    Side s{};
    const int n_device = set_device(u.role);
    std::vector<uint32_t> features(FEATURE_BYTES_MAX / 4);
    for (size_t i = 0; i < features.size(); i++) {
        features[i] = (uint32_t)gr_mix64(i + 1);
    }
    s.trees = upload(make_trees());
    s.features = upload(features);
    s.features_out = upload(features);
    s.stamp = upload(std::vector<Stamp>(N_STAMP));
    s.report = pinned<Report>(1);
    s.record = u.role == TARGET ? pinned<struct gx_record>(u.opt.n_round) : nullptr;
    s.limit_ns = u.opt.lose ? 500000000 : 2000000000;
    CUDA_OK(cudaMalloc(&s.room, sizeof(Room)));
    if (u.peer_ring) {
        open_peer_ring(u, n_device, s);
    } else {
        open_host_ring(u, s);
    }
    return s;
}

/* ---- a case ---- */

static struct gx_place place_of(const Case &c)
{
    return {.session = 0x67726166ull + c.seq0,
            .hash = gr_mix64(c.seq0 + 1),
            .epoch = 3,
            .round = 0,
            .base_len = 1000,
            .pad = 0};
}

template <int WORDS> static void launch_all(Role role, const Side &s, const Case &c, cudaStream_t st)
{
    if (role == DRAFT) {
        draft_all<WORDS><<<1, N_THREAD, 0, st>>>(s, c);
    } else {
        target_all<WORDS><<<1, N_THREAD, 0, st>>>(s, c);
    }
    CUDA_OK(cudaGetLastError());
}

template <int WORDS> static cudaGraphExec_t capture(Role role, const Side &s, const Case &c, cudaStream_t st)
{
    cudaGraph_t g;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    if (role == DRAFT) {
        draft_first<WORDS><<<1, N_THREAD, 0, st>>>(s, c);
        draft_last<WORDS><<<1, N_THREAD, 0, st>>>(s, c);
    } else {
        target_first<WORDS><<<1, N_THREAD, 0, st>>>(s, c);
        target_last<WORDS><<<1, N_THREAD, 0, st>>>(s, c);
    }
    CUDA_OK(cudaStreamEndCapture(st, &g));
    CUDA_OK(cudaGraphInstantiate(&exec, g, 0));
    CUDA_OK(cudaGraphDestroy(g));
    CUDA_OK(cudaGraphUpload(exec, st));
    CUDA_OK(cudaStreamSynchronize(st));
    return exec;
}

/* A graph a round; the host looks at a word of memory, and never waits for the stream. */
static void launch_graphs(cudaGraphExec_t exec, uint32_t n_graph, uint32_t n_ahead, const Side &s, cudaStream_t st)
{
    const volatile Report *rep = s.report;
    for (uint32_t i = 0; i < n_graph; i++) {
        const double begin = now_s();
        for (uint32_t n = 1; rep->n_done + n_ahead <= i; n++) {
            if (rep->is_lost != 0 || (n % 1024 == 0 && now_s() - begin > 10.0)) {
                return;
            }
        }
        CUDA_OK(cudaGraphLaunch(exec, st));
    }
}

static void start_case(const Setup &u, const Case &c, const Side &s)
{
    Room room{};
    room.place = place_of(c);
    CUDA_OK(cudaMemcpy(s.room, &room, sizeof(room), cudaMemcpyHostToDevice));
    memset((void *)s.report, 0, sizeof(*s.report));
    CUDA_OK(cudaDeviceSynchronize());
    barrier(u.shared);
}

static void check_lost(const Setup &u, const Side &s)
{
    if (s.report->is_lost != 0) {
        fprintf(stderr, "%s: nothing came for round %u within %.1f s: the peer is lost\n",
                u.role == DRAFT ? "draft" : "target", s.report->is_lost - 1, 1e-9 * (double)s.limit_ns);
        u.shared->is_failed.store(1);
        exit(1);
    }
}

template <int WORDS> static void run_case(const Setup &u, const Case &c, Form form, const Side &s, cudaStream_t st)
{
    cudaGraphExec_t exec = nullptr;
    if (form != PERSISTENT) {
        exec = capture<WORDS>(u.role, s, c, st);
    }
    start_case(u, c, s);
    if (form == PERSISTENT) {
        launch_all<WORDS>(u.role, s, c, st);
    } else {
        launch_graphs(exec, c.n_round + (u.role == DRAFT), form == GRAPH_AHEAD ? 4 : 1, s, st);
    }
    CUDA_OK(cudaStreamSynchronize(st));
    if (exec != nullptr) {
        CUDA_OK(cudaGraphExecDestroy(exec));
    }
    check_lost(u, s);
}

/* The target's host reads what its device has judged. */
static void replay(const Setup &u, const Case &c, const Side &s)
{
    struct gx_replay *r = &u.shared->replay;
    memset(r, 0, sizeof(*r));
    r->place = place_of(c);
    u.shared->n_fault = 0;
    for (uint32_t i = 0; c.judge && i < c.n_round; i++) {
        gx_replay_round(r, &s.record[i], c.verdict_bytes);
        u.shared->n_fault += s.record[i].fault != GX_GOOD;
    }
    const struct gx_place &p = s.report->place;
    if (c.judge && (p.hash != r->place.hash || p.base_len != r->place.base_len || p.round != r->place.round)) {
        r->n_mismatch++;
    }
}

static uint32_t total_mismatch;

static void report_case(const Setup &u, const Case &c, Form form, Wire wire, const Side &s)
{
    std::vector<Stamp> t(c.n_round);
    CUDA_OK(cudaMemcpy(t.data(), s.stamp, t.size() * sizeof(Stamp), cudaMemcpyDeviceToHost));
    const Stamp &a = t.front(), &b = t.back();
    const double tick_ns = (double)(b.ns_done - a.ns_send) / (double)(b.clk_done - a.clk_send);
    std::vector<double> us;
    for (size_t i = N_WARM; i < t.size(); i++) {
        us.push_back(form == PERSISTENT ? 1e-3 * tick_ns * (double)(t[i].clk_done - t[i].clk_send)
                                        : 1e-3 * (double)(t[i].ns_done - t[i].ns_send));
    }
    std::sort(us.begin(), us.end());
    const double period = 1e-3 * (double)(b.ns_done - t[N_WARM].ns_done) / (double)(t.size() - 1 - N_WARM);
    const struct gx_replay &r = u.shared->replay;
    const struct gx_place &p = s.report->place; /* the drafter's own */
    const bool agree = !c.judge || (p.hash == r.place.hash && p.base_len == r.place.base_len);
    uint32_t n_planted = 0;
    for (uint32_t i = 0; i < c.n_round; i++) {
        n_planted += (uint32_t)(c.judge && gx_is_corrupted(i));
    }
    const uint32_t n_bad = r.n_mismatch + r.n_misjudged + s.report->n_desync + s.report->n_bad_feature + !agree +
                           (c.judge && (r.n_refused != n_planted || u.shared->n_fault != n_planted));
    total_mismatch += n_bad;
    printf("%s|%s|%s|%s|%d+%d|%.2f|%.2f|%.2f|%.2f|%u of %u refused|%u wrong\n", u.peer_ring ? "peer" : "host",
           FORM_NAME[form], WIRE_NAME[wire],
           c.frame_bytes == 0 ? "empty"
           : c.judge          ? "checked"
                              : "bytes",
           c.verdict_bytes, c.feature_bytes, us.front(), us[us.size() / 2], us[us.size() * 99 / 100], period,
           r.n_refused, n_planted, n_bad);
    fflush(stdout);
}

static void one_case(const Setup &u, const Case &c, Form form, Wire wire, const Side &s, cudaStream_t st)
{
    if (wire == FLAG) {
        run_case<FLAG>(u, c, form, s, st);
    } else if (wire == WORDS_SMALL) {
        run_case<WORDS_SMALL>(u, c, form, s, st);
    } else {
        run_case<ALL_WORDS>(u, c, form, s, st);
    }
    if (u.role == TARGET) {
        replay(u, c, s);
    }
    barrier(u.shared);
    if (u.role == DRAFT) {
        report_case(u, c, form, wire, s);
    }
    barrier(u.shared);
}

static void run_cases(const Setup &u, const Side &s, cudaStream_t st)
{
    static const Case CASES[] = {
        {0, 0, 0, 0, 0, 0, 0},        {0, 0, 512, 16, 0, 0, 0},      {0, 0, 512, 16, 0, 1, 0},
        {0, 0, 512, 16, 8192, 1, 0},  {0, 0, 512, 16, 40960, 1, 0},  {0, 0, 512, 256, 0, 1, 0},
        {0, 0, 512, 256, 8192, 1, 0}, {0, 0, 512, 256, 40960, 1, 0},
    };
    uint32_t seq = 0;
    for (int form = PERSISTENT; form <= GRAPH_ONE; form++) {
        for (int wire = FLAG; wire <= ALL_WORDS; wire++) {
            for (Case c : CASES) {
                if ((wire != FLAG && c.frame_bytes == 0) || (wire == ALL_WORDS && c.feature_bytes == 0)) {
                    continue; /* a flag alone is a word; without features the two forms are one */
                }
                c.n_round = u.opt.n_round, c.seq0 = seq, c.has_hole = u.opt.hole;
                seq += c.n_round;
                one_case(u, c, (Form)form, (Wire)wire, s, st);
            }
        }
    }
}

/* ---- ceilings ---- */

static __global__ void empty()
{
}
/* The smallest steps that globaltimer is seen to take. */
static __global__ void tick(uint64_t *out)
{
    uint64_t least = ~0ull;
    for (int i = 0; i < 1000; i++) {
        const uint64_t a = now_ns();
        uint64_t b = a;
        while (b == a) {
            b = now_ns();
        }
        least = b - a < least ? b - a : least;
    }
    *out = least;
}

static void ceilings(cudaStream_t st)
{
    cudaGraph_t g;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    empty<<<1, 1, 0, st>>>();
    CUDA_OK(cudaStreamEndCapture(st, &g));
    CUDA_OK(cudaGraphInstantiate(&exec, g, 0));
    for (int use_graph = 0; use_graph < 2; use_graph++) {
        std::vector<double> us;
        for (int i = 0; i < 2200; i++) {
            const double begin = now_s();
            if (use_graph) {
                CUDA_OK(cudaGraphLaunch(exec, st));
            } else {
                empty<<<1, 1, 0, st>>>();
            }
            CUDA_OK(cudaStreamSynchronize(st));
            if (i >= 200) {
                us.push_back(1e6 * (now_s() - begin));
            }
        }
        std::sort(us.begin(), us.end());
        printf("%s + stream synchronisation: min %.2f median %.2f p99 %.2f us\n", use_graph ? "graph launch" : "launch",
               us.front(), us[us.size() / 2], us[us.size() * 99 / 100]);
    }
    uint64_t *least = pinned<uint64_t>(1);
    tick<<<1, 1, 0, st>>>(least);
    CUDA_OK(cudaStreamSynchronize(st));
    printf("globaltimer steps by %llu ns\n", (unsigned long long)*least);
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(g));
}

/* ---- a lost peer ---- */

/* The target dies by SIGKILL after a thousand rounds; the drafter ends with one line, as check_lost says it. */
static void run_lost(const Setup &u, const Side &s, cudaStream_t st)
{
    const Case c = {10000000, 0, 512, 16, 8192, 0, 0};
    const Form form = u.peer_ring ? PERSISTENT : GRAPH_AHEAD;
    if (u.role == DRAFT) {
        run_case<FLAG>(u, c, form, s, st);
        fprintf(stderr, "draft: ended without noticing anything\n");
        exit(2);
    }
    std::thread launcher([&] {
        (void)set_device(u.role);
        run_case<FLAG>(u, c, form, s, st);
    });
    const volatile Report *rep = s.report;
    const double begin = now_s();
    while (rep->n_done < 1000 && now_s() - begin < 10.0) {
    }
    raise(SIGKILL);
    launcher.join();
}

/* ---- processes ---- */

static void run_side(const Setup &u)
{
    const Side s = open_side(u);
    cudaStream_t st;
    CUDA_OK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    barrier(u.shared);
    if (u.opt.lose) {
        run_lost(u, s, st);
    }
    if (u.role == DRAFT && !u.peer_ring) {
        ceilings(st);
    }
    run_cases(u, s, st);
    CUDA_OK(cudaDeviceSynchronize());
    barrier(u.shared); /* nobody's memory goes before both are done */
    if (u.role == DRAFT && total_mismatch > 0) {
        fprintf(stderr, "%u rounds or values went wrong\n", total_mismatch);
        exit(1);
    }
}

static void *map_shared(size_t n_bytes)
{
    char name[64];
    snprintf(name, sizeof(name), "/gr-exchange-%d", (int)getpid());
    const int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)n_bytes) != 0) {
        perror("shared memory");
        exit(1);
    }
    void *p = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    shm_unlink(name);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

/* Two children; 0 when all went as it should. With --lose the target is killed and the drafter fails: 0 is that. */
static int run_processes(Setup u)
{
    pid_t pid[2];
    for (int role = 0; role < 2; role++) {
        pid[role] = fork();
        if (pid[role] == 0) {
            u.role = (Role)role;
            run_side(u);
            exit(0);
        }
        if (pid[role] < 0) {
            perror("fork");
            exit(1);
        }
    }
    int status[2] = {0, 0};
    double ended[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        int st;
        const pid_t p = wait(&st);
        const int role = p == pid[TARGET];
        status[role] = st, ended[role] = now_s();
        if (st != 0 && !u.opt.lose) {
            u.shared->is_failed.store(1);
        }
    }
    if (u.opt.lose) {
        const bool good = WIFSIGNALED(status[TARGET]) && WIFEXITED(status[DRAFT]) && WEXITSTATUS(status[DRAFT]) == 1;
        printf("lost target, rings %s: drafter's status %d, %.0f ms after the target was reaped: %s\n",
               u.peer_ring ? "peer" : "host", WEXITSTATUS(status[DRAFT]), 1e3 * (ended[DRAFT] - ended[TARGET]),
               good ? "as it should" : "NOT as it should");
        fflush(stdout);
        return !good;
    }
    return status[DRAFT] != 0 || status[TARGET] != 0;
}

static int run_threads(Setup u)
{
    Setup d = u, t = u;
    d.role = DRAFT, t.role = TARGET;
    std::thread target(run_side, t);
    run_side(d);
    target.join();
    return 0;
}

int main(int argc, char **argv)
{
    Options opt;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0) {
            opt.threads = true;
        } else if (strcmp(argv[i], "--lose") == 0) {
            opt.lose = true;
        } else if (strcmp(argv[i], "--hole") == 0) {
            opt.hole = true;
        } else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
            opt.n_round = (uint32_t)strtoul(argv[++i], nullptr, 10);
        } else {
            fprintf(stderr, "usage: proto_exchange [--rounds N] [--threads] [--lose] [--hole]\n");
            return 2;
        }
    }
    if (opt.n_round < 2 * N_WARM || opt.n_round > N_STAMP || (opt.lose && opt.threads)) {
        fprintf(stderr, "rounds: %u to %d; --lose kills a process and takes no --threads\n", 2 * N_WARM, N_STAMP);
        return 2;
    }
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* no loading while the other side's kernel spins */
    printf("rings|form|wire|payload|down bytes|min us|median|p99|period|host's replay\n");
    fflush(stdout);
    int bad = 0;
    for (int peer_ring = 0; peer_ring < 2; peer_ring++) {
        uint8_t *memory = (uint8_t *)map_shared(4096 + RING_BYTES);
        bad |= (opt.threads ? run_threads
                            : run_processes)({DRAFT, peer_ring == 1, opt, new (memory) Shared{}, memory + 4096});
    }
    return bad;
}
