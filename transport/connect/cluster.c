#include "transport/connect/cluster.h"

#include "common/base/log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool fits(const char *name)
{
    size_t n = 0;
    while (name[n] != '\0' && isprint((unsigned char)name[n])) {
        n++;
    }
    return name[n] == '\0' && n < GR_CLUSTER_BYTES;
}

static const char *slurm_job(void)
{
    static const char *const names[] = {"SLURM_HET_JOB_ID", "SLURM_JOB_ID"};
    const char *id = NULL;
    for (size_t i = 0; i < GR_ARRAY_LEN(names) && id == NULL; i++) {
        const char *value = getenv(names[i]);
        const bool number = value != NULL && value[0] != '\0' && strspn(value, "0123456789") == strlen(value);
        id = number && strlen(value) < 24 ? value : NULL;
    }
    return id;
}

void gr_cluster_use(const char *name)
{
    if (name != NULL) {
        setenv("GRAFT_CLUSTER", name, 1);
    }
}

enum gr_status gr_cluster_name(bool by_job, char out[GR_CLUSTER_BYTES])
{
    const char *name = getenv("GRAFT_CLUSTER");
    const char *job = by_job ? slurm_job() : NULL;
    if (name != NULL && !fits(name)) {
        log_error("GRAFT_CLUSTER (--cluster): a name has at most %d printable ASCII characters", GR_CLUSTER_BYTES - 1);
        return GR_EINVAL;
    }
    if (name == NULL && job != NULL) {
        snprintf(out, GR_CLUSTER_BYTES, "slurm-job-%s", job);
    } else {
        snprintf(out, GR_CLUSTER_BYTES, "%s", name != NULL ? name : "");
    }
    return GR_OK;
}
