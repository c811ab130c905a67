#include "orchestrator/launch/layout.h"

#include "common/base/parse.h"
#include "orchestrator/launch/node_list.h"
#include "orchestrator/launch/who.h"

#include <stdlib.h>
#include <string.h>

/* Index of a rank's node, -1: there are fewer ranks. */
typedef int layout_fn(const struct gr_layout *l, int rank);

/* Each node has its tasks one after the other. */
static int in_blocks(const struct gr_layout *l, int rank)
{
    for (int node = 0; node < l->n_node; node++) {
        if (rank < l->tasks[node]) {
            return node;
        }
        rank -= l->tasks[node];
    }
    return -1;
}

/* A task for each node that has room for it, and again from the first one. */
static int in_a_cycle(const struct gr_layout *l, int rank)
{
    bool any = true;
    for (int round = 0; any; round++) {
        any = false;
        for (int node = 0; node < l->n_node; node++) {
            if (l->tasks[node] <= round) {
                continue;
            }
            any = true;
            if (rank-- == 0) {
                return node;
            }
        }
    }
    return -1;
}

/* own: "0,2,3". Are all of these on that node? */
static bool fits(const struct gr_layout *l, layout_fn *layout, const char *own, int node)
{
    for (;;) {
        char *end = NULL;
        const long rank = strtol(own, &end, 10);
        if (end == own || rank < 0 || rank > GR_NODE_LIST_MAX || layout(l, (int)rank) != node) {
            return false;
        }
        if (*end != ',') {
            return *end == '\0';
        }
        own = end + 1;
    }
}

/* "block", "block:cyclic", "block,nopack": the first word is about nodes. */
static bool may_be(const char *distribution, const char *name)
{
    const size_t n = strlen(name);
    return distribution == NULL ||
           (strncmp(distribution, name, n) == 0 && strchr(":,", distribution[n]) != NULL); /* the NUL counts, too */
}

static void read_tasks(const char *list, struct gr_layout *l)
{
    int n;
    while ((n = gr_tasks_per_node_at(list, l->n_node)) >= 0) {
        if (l->n_node == GR_LAYOUT_NODE_MAX) {
            l->n_node = 0; /* none fits then */
            return;
        }
        l->tasks[l->n_node++] = n;
    }
}

void gr_layout_read(char *const *env, struct gr_layout *out)
{
    const char *tasks = gr_env_get(env, "SLURM_STEP_TASKS_PER_NODE"), *own = gr_env_get(env, "SLURM_GTIDS");
    const char *id = gr_env_get(env, "SLURM_NODEID"), *distribution = gr_env_get(env, "SLURM_DISTRIBUTION");
    int64_t node = 0;
    *out = (struct gr_layout){.nodes = gr_env_get(env, "SLURM_STEP_NODELIST")};
    if (tasks == NULL || own == NULL || id == NULL || out->nodes == NULL || gr_who_is_het(env) ||
        !gr_parse_int(id, 0, GR_LAYOUT_NODE_MAX - 1, &node)) {
        return;
    }
    read_tasks(tasks, out);
    out->blocks = may_be(distribution, "block") && fits(out, in_blocks, own, (int)node);
    out->cycle = may_be(distribution, "cyclic") && fits(out, in_a_cycle, own, (int)node);
}

bool gr_layout_node(const struct gr_layout *l, int rank, char *node_out, size_t node_bytes)
{
    const int block = l->blocks ? in_blocks(l, rank) : -1;
    const int cycle = l->cycle ? in_a_cycle(l, rank) : block;
    const int node = l->blocks ? block : cycle;
    return node >= 0 && node == cycle && gr_node_list_at(l->nodes, node, node_out, node_bytes) == GR_OK;
}
