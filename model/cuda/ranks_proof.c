#include "model/cuda/ranks_proof.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/cuda/group/add.h"
#include "model/group/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define USE "proof of peer memory"
#define LIMIT_NS (10 * GR_S) /* of one pair; it takes microseconds */
#define LOOK_NS (GR_MS / 10)

/* What a rank's part buffers hold meanwhile, in words of WORD values: what it says itself; what each peer has written
 * here; and, read from each peer's memory, what that says, and what this rank has written there. */
enum {
    WORD = 4, /* the least that gr_cuda_add() takes */
    SAYS = 0,
    WRITTEN = 1,
    READ = WRITTEN + GR_GROUP_RANK_MAX,
    BACK = READ + GR_GROUP_RANK_MAX,
    N_VALUE = (BACK + GR_GROUP_RANK_MAX) * WORD,
};

struct proof {
    const struct gr_cuda_ranks_config *c;
    float *part[GR_GROUP_RANK_MAX]; /* as this rank's device sees them */
    int32_t device[GR_GROUP_RANK_MAX];
    bool required;
};

static float *word(const struct proof *p, int rank, int which)
{
    return p->part[rank] + which * WORD;
}

static void say(int rank, float out[WORD])
{
    for (int i = 0; i < WORD; i++) {
        out[i] = (float)(1 + rank * WORD + i);
    }
}

static void tell(const struct proof *p, int peer, const char *what)
{
    const int rank = p->c->group->rank;
    char line[224];
    snprintf(line, sizeof(line), "cuda:%d (rank %d) and cuda:%d (rank %d): %s, though the driver gives a way",
             p->device[rank], rank, p->device[peer], peer, what);
    if (p->required) {
        log_error("%s; take --tp-transport nccl", line);
    } else {
        log_warn("%s; --tp-transport nccl goes another way", line);
    }
}

static void look_again_later(void)
{
    const struct timespec t = {.tv_nsec = (long)LOOK_NS};
    (void)nanosleep(&t, NULL);
}

/* What is enqueued, which only touches memory of this rank and of `peer`. */
static enum gr_status wait_for_pair(const struct proof *p, int peer)
{
    const uint64_t begin = gr_clock_ns();
    cudaError_t e = cudaStreamQuery(p->c->device->stream);
    while (e == cudaErrorNotReady && gr_clock_ns() - begin < LIMIT_NS) {
        look_again_later();
        e = cudaStreamQuery(p->c->device->stream);
    }
    if (e == cudaErrorNotReady) {
        log_error("cuda:%d (rank %d) does not get through to the memory of cuda:%d (rank %d) within %.0f s; take "
                  "--tp-transport nccl",
                  p->device[p->c->group->rank], p->c->group->rank, p->device[peer], peer, (double)LIMIT_NS / 1e9);
        _exit(EXIT_FAILURE);
    }
    return gr_cuda_check(e, USE);
}

static enum gr_status write_to(const struct proof *p, int peer)
{
    const int rank = p->c->group->rank;
    GR_TRY(gr_cuda_add(word(p, peer, WRITTEN + rank), word(p, rank, SAYS), WORD, p->c->device->stream));
    return wait_for_pair(p, peer);
}

static enum gr_status read_from(const struct proof *p, int peer)
{
    const int rank = p->c->group->rank;
    GR_TRY(gr_cuda_add(word(p, rank, READ + peer), word(p, peer, SAYS), WORD, p->c->device->stream));
    GR_TRY(gr_cuda_add(word(p, rank, BACK + peer), word(p, peer, WRITTEN + rank), WORD, p->c->device->stream));
    return wait_for_pair(p, peer);
}

static enum gr_status with_each(const struct proof *p, enum gr_status (*f)(const struct proof *p, int peer))
{
    enum gr_status st = GR_OK;
    for (int peer = 0; peer < p->c->group->n_rank && st == GR_OK; peer++) {
        st = peer != p->c->group->rank ? f(p, peer) : GR_OK;
    }
    return gr_group_all_ok(p->c->group, st);
}

static bool is_said(const float *values, int which, int rank)
{
    float want[WORD];
    say(rank, want);
    return memcmp(values + which * WORD, want, sizeof(want)) == 0;
}

/* NULL: all is as it should be. */
static const char *trouble_with(const struct proof *p, const float *values, int peer)
{
    if (!is_said(values, READ + peer, peer)) {
        return "the first does not read what lies in the memory of the second";
    }
    if (!is_said(values, BACK + peer, p->c->group->rank)) {
        return "the first does not read back what it wrote into the memory of the second";
    }
    return is_said(values, WRITTEN + peer, peer) ? NULL : "what the second wrote does not come to the first";
}

static enum gr_status judge(const struct proof *p)
{
    const int rank = p->c->group->rank;
    float values[N_VALUE];
    int good = 1;
    enum gr_status st = gr_cuda_check(
        cudaMemcpyAsync(values, p->part[rank], sizeof(values), cudaMemcpyDeviceToHost, p->c->device->stream), USE);
    st = st == GR_OK ? gr_cuda_wait(p->c->device, USE) : st;
    GR_TRY(gr_group_all_ok(p->c->group, st));
    for (int peer = 0; peer < p->c->group->n_rank && good; peer++) {
        const char *trouble = peer != rank ? trouble_with(p, values, peer) : NULL;
        if (trouble != NULL) {
            tell(p, peer, trouble);
            good = 0;
        }
    }
    GR_TRY(gr_group_least(p->c->group, &good));
    return good ? GR_OK : GR_EUNSUPPORTED;
}

static enum gr_status begin(struct proof *p)
{
    const int rank = p->c->group->rank;
    const int32_t own = p->c->device->index;
    float says[WORD];
    say(rank, says);
    const enum gr_status st = gr_cuda_upload(p->c->device, word(p, rank, SAYS), says, sizeof(says), USE);
    GR_TRY(gr_group_all_ok(p->c->group, st));
    return gr_group_all_give(p->c->group, &own, sizeof(own), p->device);
}

static enum gr_status clear(const struct proof *p)
{
    enum gr_status st = gr_cuda_check(
        cudaMemsetAsync(p->part[p->c->group->rank], 0, N_VALUE * sizeof(float), p->c->device->stream), USE);
    st = st == GR_OK ? gr_cuda_wait(p->c->device, USE) : st;
    return gr_group_all_ok(p->c->group, st);
}

enum gr_status gr_cuda_ranks_prove(const struct gr_cuda_ranks_config *c,
                                   const struct gr_cuda_shown_memory shown[GR_GROUP_RANK_MAX], bool required)
{
    struct proof p = {.c = c, .required = required};
    GR_ASSERT(2 * c->n_part >= N_VALUE); /* a row has 64 values, at least */
    for (int r = 0; r < c->group->n_rank; r++) {
        p.part[r] = shown[r].p[GR_CUDA_SHOWN_PART];
    }
    GR_TRY(begin(&p));
    GR_TRY(with_each(&p, write_to));
    GR_TRY(with_each(&p, read_from));
    GR_TRY(judge(&p));
    return clear(&p);
}
