/* Teams of threads. A team has three words that its threads wait on: `start` (a new pass), `done` (all helpers
 * have finished it) and `barrier` (a phase of the pass). Each is a counter; to wait is to see it change.
 *
 * Another process (the draft worker) may own the same cores, so a wait spins for SPIN_NS only, then gives the
 * core away with sched_yield() for YIELD_NS (which costs an idle machine nothing and a busy one little, but see
 * common/base/yield.h), then sleeps on a futex. Nobody makes a futex call as long as nobody sleeps.
 *
 * Placement: a woken helper often lands on its waker's CPU and stays there, because threads that yield to each other
 * look idle to the load balancer; the other core then stands empty for seconds. So each thread notes its CPU at the
 * start of a pass, and a helper that finds itself on the CPU of an earlier thread moves away. */
#include "kernels/kernels.h"

#include "common/base/cgroup.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/yield.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_NS 4000         /* a thread that waits looks without a pause for so long */
#define YIELD_NS 60000       /* after so long it gives its CPU away at every look */
#define TEAM_THREAD_MAX 1024 /* threads of a team, at most */

/* Own cache line each: the waiters poll `value`. */
struct wait_word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t n_sleeper;
};

struct helper {
    struct gr_team *team;
    pthread_t thread;
    int ith;
    _Atomic int cpu; /* where it was at the start of its last pass */
};

struct gr_team {
    struct wait_word start, done, barrier;
    _Alignas(64) _Atomic int n_arrived; /* at the barrier */
    _Atomic int n_running;              /* helpers that have not finished the pass */
    int n_thread;
    _Atomic int caller_cpu;
    cpu_set_t allowed; /* of the thread that made the team */
    int n_started;     /* helpers that exist: less than n_thread - 1 only when create() fails */
    struct gr_yield yield;
    bool quit; /* written before start changes, like fn and arg */
    void (*fn)(const struct gr_exec *x, void *arg);
    void *arg;
    struct helper helper[];
};

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint32_t word_read(struct wait_word *w)
{
    return atomic_load_explicit(&w->value, memory_order_acquire);
}

/* The read of n_sleeper comes after the change of value, and a sleeper's futex call after its n_sleeper
 * increment (both seq_cst): either we see the sleeper or the kernel shows it the new value. */
static void word_advance(struct wait_word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->n_sleeper) != 0) {
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

static void word_sleep(struct wait_word *w, uint32_t old)
{
    atomic_fetch_add(&w->n_sleeper, 1);
    while (word_read(w) == old) {
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    }
    atomic_fetch_sub(&w->n_sleeper, 1);
}

static void word_wait(struct wait_word *w, struct gr_yield *yield, uint32_t old)
{
    uint64_t begin = 0;
    for (int n = 0; word_read(w) == old; n++) {
        if (n % 64 != 63) {
            pause_cpu();
            continue;
        }
        uint64_t t = gr_clock_ns();
        begin = begin ? begin : t;
        if (t - begin < SPIN_NS) {
            continue;
        }
        while (word_read(w) == old && t - begin < YIELD_NS && gr_yield_pays(yield, t)) {
            t = gr_yield_once(yield, t);
        }
        if (word_read(w) == old) {
            word_sleep(w, old);
        }
        return;
    }
}

static bool is_taken(const struct helper *h, int cpu)
{
    struct gr_team *t = h->team;
    bool taken = atomic_load_explicit(&t->caller_cpu, memory_order_relaxed) == cpu;
    for (int i = 0; i < h->ith - 1; i++) {
        taken = taken || atomic_load_explicit(&t->helper[i].cpu, memory_order_relaxed) == cpu;
    }
    return taken;
}

/* Moves to the CPUs that no earlier thread of the team is on, if there are any. */
static void keep_apart(struct helper *h)
{
    int cpu = sched_getcpu();
    if (cpu >= 0 && is_taken(h, cpu)) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int c = 0; c < CPU_SETSIZE; c++) {
            if (CPU_ISSET(c, &h->team->allowed) && !is_taken(h, c)) {
                CPU_SET(c, &set);
            }
        }
        if (CPU_COUNT(&set) > 0 && sched_setaffinity(0, sizeof(set), &set) == 0) {
            cpu = sched_getcpu();
        }
    }
    atomic_store_explicit(&h->cpu, cpu, memory_order_relaxed);
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;
    struct gr_team *t = h->team;
    for (uint32_t seen = 0;; seen++) {
        word_wait(&t->start, &t->yield, seen);
        if (t->quit) {
            return NULL;
        }
        keep_apart(h);
        struct gr_exec x = {.team = t, .ith = h->ith, .nth = t->n_thread};
        t->fn(&x, t->arg);
        if (atomic_fetch_sub(&t->n_running, 1) == 1) {
            word_advance(&t->done);
        }
    }
}

enum gr_status gr_team_create(int n_thread, struct gr_team **team_out)
{
    if (n_thread < 1 || n_thread > TEAM_THREAD_MAX) {
        log_error("a team of %d threads is not possible (1 to %d)", n_thread, TEAM_THREAD_MAX);
        return GR_EINVAL;
    }
    struct gr_team *t = NULL;
    size_t bytes = sizeof(*t) + (size_t)(n_thread - 1) * sizeof(struct helper);
    t = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!t) {
        log_error("no memory for a team of %d threads", n_thread);
        return GR_ENOMEM;
    }
    memset(t, 0, bytes);
    t->n_thread = n_thread;
    if (sched_getaffinity(0, sizeof(t->allowed), &t->allowed) != 0) {
        CPU_ZERO(&t->allowed); /* then nobody moves */
    }
    for (int i = 0; i < n_thread - 1; i++) {
        t->helper[i] = (struct helper){.team = t, .ith = i + 1};
        int err = pthread_create(&t->helper[i].thread, NULL, helper_main, &t->helper[i]);
        if (err != 0) {
            log_error("thread %d of %d: %s", i + 1, n_thread, strerror(err));
            gr_team_destroy(t);
            return GR_ENOMEM;
        }
        t->n_started++;
    }
    *team_out = t;
    return GR_OK;
}

void gr_team_destroy(struct gr_team *team)
{
    if (!team) {
        return;
    }
    team->quit = true;
    word_advance(&team->start);
    for (int i = 0; i < team->n_started; i++) {
        pthread_join(team->helper[i].thread, NULL);
    }
    free(team);
}

int gr_team_size(const struct gr_team *team)
{
    return team ? team->n_thread : 1;
}

void gr_team_run(struct gr_team *team, void (*fn)(const struct gr_exec *x, void *arg), void *arg)
{
    if (!team || team->n_thread == 1) {
        fn(&(struct gr_exec){.team = NULL, .ith = 0, .nth = 1}, arg);
        return;
    }
    uint32_t done = word_read(&team->done);
    team->fn = fn;
    team->arg = arg;
    atomic_store_explicit(&team->caller_cpu, sched_getcpu(), memory_order_relaxed);
    atomic_store(&team->n_running, team->n_thread - 1);
    word_advance(&team->start);
    fn(&(struct gr_exec){.team = team, .ith = 0, .nth = team->n_thread}, arg);
    word_wait(&team->done, &team->yield, done);
}

void gr_exec_barrier(const struct gr_exec *x)
{
    struct gr_team *t = x->team;
    if (!t || x->nth == 1) {
        return;
    }
    uint32_t phase = word_read(&t->barrier);
    if (atomic_fetch_add(&t->n_arrived, 1) == t->n_thread - 1) {
        atomic_store_explicit(&t->n_arrived, 0, memory_order_relaxed);
        word_advance(&t->barrier);
    } else {
        word_wait(&t->barrier, &t->yield, phase);
    }
}

/* ---- how many CPUs ---- */

/* Of a task of a Slurm step, which is bound to its CPUs only where the cluster is so configured. */
static int slurm_cpus(void)
{
    const char *text = getenv("SLURM_CPUS_PER_TASK");
    const bool number = text != NULL && text[0] != '\0' && strlen(text) < 7 &&
                        strspn(text, "0123456789") == strlen(text) && getenv("SLURM_JOB_ID") != NULL;
    const int n = number ? atoi(text) : 0;
    return n > 0 ? n : INT_MAX;
}

int gr_cpu_count(void)
{
    cpu_set_t set;
    struct gr_cgroup_limits limits;
    const int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    gr_cgroup_read("", &limits);
    if (limits.n_cpu < n) {
        log_debug("%d of %d CPUs are used: %s allows no more", limits.n_cpu, n, limits.cpu_from);
    }
    return GR_MAX(GR_MIN(GR_MIN(n, limits.n_cpu), slurm_cpus()), 1);
}

int gr_cpu_threads(int asked)
{
    const int n = gr_cpu_count();
    if (asked > n) {
        log_warn(
            "--threads %d: this process may use %d CPU%s (affinity mask, control group, SLURM_CPUS_PER_TASK): threads "
            "will wait for each other",
            asked, n, n == 1 ? "" : "s");
    }
    return asked > 0 ? asked : n;
}
