/* Rank 0's table of a job: who has said hello, whether all say the same, who is missing, who gets which GPU. Pure: no
 * socket, no clock but the one that is handed in. One thread. */
#ifndef GR_ORCHESTRATOR_LAUNCH_TABLE_H
#define GR_ORCHESTRATOR_LAUNCH_TABLE_H

#include "common/base/clock.h"
#include "orchestrator/launch/roles.h"

#include <jansson.h>

#define GR_LAUNCH_GPU_MAX 32          /* GPUs that a rank may see */
#define GR_LAUNCH_TELL_NS (30 * GR_S) /* between lines about who is missing */

enum gr_launch_state {
    GR_LAUNCH_ABSENT, /* no hello yet */
    GR_LAUNCH_HERE,   /* it has said hello; its worker has not joined yet */
    GR_LAUNCH_UP,     /* its worker has joined */
};

enum gr_launch_wait { GR_LAUNCH_QUIET, GR_LAUNCH_TELL, GR_LAUNCH_TOO_LATE };
#define GR_LAUNCH_WAIT_BYTES 544

struct gr_launch_entry {
    enum gr_launch_state state;
    char host[80];                   /* before its hello: where the launcher has put it, or empty */
    char node[80];                   /* equal on ranks that share a machine */
    uint64_t incarnation;            /* random by process */
    bool heard;                      /* it has said hello, and may have been refused */
    json_t *facts;                   /* owned: name -> text */
    int n_gpu;                       /* GPUs that it sees; 0: it asked for none, or there is none */
    char gpu[GR_LAUNCH_GPU_MAX][16]; /* their PCI addresses */
    char group[256];                 /* where the ranks meet that are one target with it, if it leads them; a list */
    int device;                      /* its first GPU; GR_DEVICE_LOCAL until it is placed */
    int wants_gpu;                   /* it was told cuda:local: how many GPUs, side by side, one a rank of its group */
};

struct gr_launch_table {
    struct gr_roles *roles; /* borrowed */
    struct gr_launch_entry *rank;
    char job[96];
    uint64_t begin_ns, told_ns; /* since when is waited; when that was last told */
};

GR_NODISCARD enum gr_status gr_launch_table_create(struct gr_roles *roles, const char *job, uint64_t now_ns,
                                                   struct gr_launch_table *out);
void gr_launch_table_destroy(struct gr_launch_table *t);

/* The hello of a rank, as gr_launch_hello() makes it. *rank_out: whose it is. GR_EPROTO: it is none. GR_EMISMATCH: it
 * does not belong here or says something else than the others; why has the first reason, and each difference is logged
 * with rank, host and both values. GR_ENOTFOUND: it belongs to another job. */
GR_NODISCARD enum gr_status gr_launch_table_hello(struct gr_launch_table *t, const json_t *hello, int *rank_out,
                                                  char why[512]);
/* The first rank on another machine than rank 0; 0: there is none. */
int gr_launch_table_elsewhere(const struct gr_launch_table *t);
/* How many ranks have not come so far. */
int gr_launch_table_missing(const struct gr_launch_table *t, enum gr_launch_state wanted);
/* Where the launcher has put a rank that has said nothing yet. */
void gr_launch_table_expect(struct gr_launch_table *t, int rank, const char *host);
/* "rank 3 (target) on host n2 has not said hello" and what else is known, of the first few that have not come so far.
 */
void gr_launch_table_who(const struct gr_launch_table *t, enum gr_launch_state wanted, char text[512]);
/* What is to be done about those who have not come so far: nothing yet; to say so, every GR_LAUNCH_TELL_NS; or to end,
 * as within_ns are over. text: who they are and for how long they are waited for, unless there is nothing to do. */
enum gr_launch_wait gr_launch_table_wait(struct gr_launch_table *t, enum gr_launch_state wanted, uint64_t now_ns,
                                         uint64_t within_ns, char text[GR_LAUNCH_WAIT_BYTES]);
/* GPUs for each rank that asked for cuda:local: those that it sees, where they are as many as it wants, else by its
 * place among the ranks of its host that want some. share: in turn where there are too few. GR_EINVAL (logged): too
 * few, two ranks got one GPU, or hosts have unequal parts of a target. */
GR_NODISCARD enum gr_status gr_launch_table_place(struct gr_launch_table *t, bool share);

/* Where this rank finds who leads its group: the addresses that this one has told, without loopback if it is on another
 * host. False: it is a target or drafter by itself, or leads. */
bool gr_launch_table_group(const struct gr_launch_table *t, int rank, char out[256]);

/* The hello of this process. facts: stolen. gpu: PCI addresses of the GPUs that it sees, where it wants one. NULL: no
 * memory. */
json_t *gr_launch_hello(const struct gr_who *w, const struct gr_launch_entry *self, json_t *facts);

#endif
