/* The insides of the devices in memory: fake_verbs.c (devices, memory, faults), fake_verbs_qp.c (queue pairs,
 * completions), fake_verbs_cm.c (connections). */
#ifndef GR_TESTS_TRANSPORT_FAKE_VERBS_IMPL_H
#define GR_TESTS_TRANSPORT_FAKE_VERBS_IMPL_H

#include "tests/transport/fake_verbs.h"

#include "common/base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define FAKE_N_QUEUE 16384u /* completions, receives */
#define FAKE_N_EVENT 64u
#define FAKE_N_MR 64
#define FAKE_N_ID 64

struct fake_comp {
    struct ibv_comp_channel pub;
    struct fake_cq *cq;
};

struct fake_cq {
    struct ibv_cq pub;
    struct fake_comp *comp;
    bool armed;
    uint32_t n_in, n_out, n_cqe;
    unsigned n_event, n_acked;
    struct ibv_wc wc[FAKE_N_QUEUE];
};

struct fake_qp {
    struct ibv_qp pub;
    struct fake_id *id;
    struct fake_qp *peer;
    bool error;
    uint32_t n_recv_max, n_in, n_out;
    int n_sge_max;
    int n_unsignalled;
    struct ibv_recv_wr recv[FAKE_N_QUEUE];
    struct ibv_sge sge[FAKE_N_QUEUE];
};

struct fake_event {
    struct rdma_cm_event pub;
    uint8_t data[56];
};

struct fake_channel {
    struct rdma_event_channel pub;
    struct fake_event events[FAKE_N_EVENT];
    uint32_t n_in, n_out;
};

struct fake_id {
    struct rdma_cm_id pub;
    struct fake_id *other; /* connecting or connected */
    uint16_t port;         /* listening */
    uint16_t to_port;      /* resolved */
    bool disconnected;
};

struct fake_state {
    pthread_mutex_t lock;
    struct ibv_device device[2];
    struct ibv_context context[2];
    struct ibv_async_event async[2];
    struct ibv_mr *mr[FAKE_N_MR];
    int access[FAKE_N_MR];
    struct fake_id *id[FAKE_N_ID];
    uint32_t next_key;
    uint16_t next_port;
    size_t locked;
    struct fake_counts counts;
};
extern struct fake_state fake;

static inline void fake_lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static inline void fake_unlock(void)
{
    pthread_mutex_unlock(&fake.lock);
}

int fake_fail(int err);

/* A descriptor that is readable while its count is above 0. */
int fake_bell_make(void);
void fake_bell_ring(int fd);
bool fake_bell_take(int fd);

/* Under the lock. */
bool fake_in_mr(const struct ibv_pd *pd, uint64_t addr, size_t bytes, uint32_t key, int access);
struct rdma_cm_event *fake_push_event(struct fake_id *id, enum rdma_cm_event_type type, int status);
void fake_qp_to_error(struct fake_qp *qp);

/* Each fills its part of the table. */
void fake_table_qp(struct gr_verbs_lib *lib);
void fake_table_cm(struct gr_verbs_lib *lib);

#endif
