/* What each rank of a job is: by --roles, or by the lists of workers of a plan. Pure but for the log. */
#ifndef GR_ORCHESTRATOR_LAUNCH_ROLES_H
#define GR_ORCHESTRATOR_LAUNCH_ROLES_H

#include "common/options/options.h"
#include "orchestrator/launch/who.h"

#define GR_LAUNCH_RANK_MAX 1024  /* ranks of a job, at most */
#define GR_LAUNCH_TEXT_MAX 65536 /* bytes of the names that lists of hosts give to ranks, with their NULs */

enum gr_launch_role { GR_LAUNCH_SERVE, GR_LAUNCH_DRAFT, GR_LAUNCH_TARGET };

struct gr_launch_rank {
    enum gr_launch_role role;
    const char *host;          /* where the plan puts it; NULL: anywhere. Borrowed from the options, or in text */
    struct gr_devices devices; /* n 0: not said */
    int tp;                    /* processes of its own that a target is; 0: not said */
    int group;                 /* ranks of the job that are one target together; 0: it is one by itself */
    int member, leader;        /* of such: its place in the group, and the rank of the job whose place is 0 */
};

/* It is not copied: its ranks point into it. */
struct gr_roles {
    struct gr_launch_rank rank[GR_LAUNCH_RANK_MAX];
    int n;
    char text[GR_LAUNCH_TEXT_MAX];
    size_t n_text;
    const char *from; /* "--roles" or the plan, for messages */
};

/* By --roles, else by the lists targets and drafts. GR_EINVAL (logged): both, neither, a word that is no role, rank 0
 * is no orchestrator or another one is, no target, more ranks than GR_LAUNCH_RANK_MAX, more workers than an
 * orchestrator takes, a group that cannot be. */
GR_NODISCARD enum gr_status gr_roles_read(const struct gr_options *o, struct gr_roles *out);
/* Has the launcher started as many ranks as there are roles? w->size 0 becomes that of the roles. The complaint names
 * rank and host. */
GR_NODISCARD enum gr_status gr_roles_check_size(const struct gr_roles *r, struct gr_who *w);
/* Can this rank be what the roles say? with_model, with_draft: these are named by the options. Complaints name rank and
 * host. */
GR_NODISCARD enum gr_status gr_roles_check_own(const struct gr_roles *r, const struct gr_who *w, bool with_model,
                                               bool with_draft);
const char *gr_launch_role_name(enum gr_launch_role role);
/* The rank that stands for the target that this one is, alone or with others. */
int gr_roles_leader(const struct gr_roles *r, int rank);
/* One text for one table of roles, to compare. It fits whole or ends with the number of ranks. */
void gr_roles_text(const struct gr_roles *r, char *text, size_t text_bytes);

#endif
