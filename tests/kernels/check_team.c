/* Teams: every thread runs once per pass, barriers separate phases, teams survive sleeping. */
#include "tests/kernels/check.h"

#include "common/base/status.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { N_PHASE = 50, N_THREAD_MAX = 5 };

struct phases {
    int value[N_THREAD_MAX][16]; /* plain memory: the barrier must order it */
    int n_wrong[N_THREAD_MAX];
    int n_run[N_THREAD_MAX];
};

/* In each phase a thread reads what its neighbour wrote in the one before. */
static void run_phases(const struct gr_exec *x, void *arg)
{
    struct phases *p = arg;
    p->n_run[x->ith]++;
    for (int i = 0; i < N_PHASE; i++) {
        p->value[x->ith][0] = i;
        gr_exec_barrier(x);
        p->n_wrong[x->ith] += p->value[(x->ith + 1) % x->nth][0] != i;
        gr_exec_barrier(x);
    }
}

static void team_case(struct check *c, int n_thread)
{
    struct gr_team *team;
    struct phases p;
    enum { N_PASS = 20 };
    snprintf(c->label, sizeof(c->label), "team of %d", n_thread);
    memset(&p, 0, sizeof(p));
    if (gr_team_create(n_thread, &team) != GR_OK) {
        check_fail(c, "cannot be created");
        return;
    }
    if (gr_team_size(team) != n_thread) {
        check_fail(c, "has size %d", gr_team_size(team));
    }
    for (int i = 0; i < N_PASS; i++) {
        gr_team_run(team, run_phases, &p);
        if (i % 8 == 7) {
            usleep(2000); /* long enough for the helpers to sleep */
        }
    }
    for (int i = 0; i < n_thread; i++) {
        if (p.n_run[i] != N_PASS || p.n_wrong[i] != 0) {
            check_fail(c, "thread %d ran %d of %d passes, %d phases wrong", i, p.n_run[i], N_PASS, p.n_wrong[i]);
        }
    }
    gr_team_destroy(team);
}

void check_team(struct check *c)
{
    struct phases p;
    for (int n = 1; n <= N_THREAD_MAX; n++) {
        team_case(c, n);
    }
    memset(&p, 0, sizeof(p));
    gr_team_run(NULL, run_phases, &p);
    if (p.n_run[0] != 1 || p.n_wrong[0] != 0 || gr_team_size(NULL) != 1) {
        check_fail(c, "NULL team");
    }
    gr_team_destroy(NULL);
    if (gr_cpu_count() < 1) {
        check_fail(c, "gr_cpu_count");
    }
}
