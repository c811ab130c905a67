/* graft-pmix: the rendezvous of `graft launch' over PMIx. Rank 0 puts and commits its note, the others get it from rank
 * 0; there is no fence, in which a missing or dead rank would hold the others. PMIx_Finalize is no barrier, as nothing
 * asks for PMIX_EMBED_BARRIER, and it comes at once: a launcher takes a process that ends without it for a failed one.
 */
#include "orchestrator/programs/channel_helper.h"

#include <pmix.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define AGAIN_NS 100000000 /* between two questions, where a server does not wait for what is not there yet */

static int failed(const char *call, pmix_status_t rc)
{
    return channel_refuse("%s: %s", call, PMIx_Error_string(rc));
}

/* 0, or the exit status. */
static int check_place(const struct channel_task *t, const pmix_proc_t *self)
{
    pmix_proc_t job;
    pmix_value_t *size = NULL;
    PMIX_LOAD_PROCID(&job, self->nspace, PMIX_RANK_WILDCARD);
    const pmix_status_t rc = PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &size);
    if (rc != PMIX_SUCCESS) {
        return failed("PMIx_Get of the job's size", rc);
    }
    const unsigned n = size->type == PMIX_UINT32 ? size->data.uint32 : 0;
    PMIX_VALUE_RELEASE(size);
    if (self->rank != (pmix_rank_t)t->rank || n != (unsigned)t->size) {
        return channel_refuse("PMIx says rank %u of %u here, and `graft launch' was told rank %d of %d; --ranks pmix, "
                              "or repair the launcher (srun --mpi=pmix)",
                              self->rank, n, t->rank, t->size);
    }
    return 0;
}

static int give(void)
{
    char note[GR_CHANNEL_BYTES_MAX];
    pmix_value_t value;
    if (!channel_hear_note(note)) {
        return 1;
    }
    channel_say(GR_CHANNEL_CALL, "PMIx_Put");
    PMIX_VALUE_CONSTRUCT(&value);
    value.type = PMIX_STRING;
    value.data.string = note; /* the library makes a copy */
    pmix_status_t rc = PMIx_Put(PMIX_GLOBAL, GR_CHANNEL_KEY, &value);
    rc = rc == PMIX_SUCCESS ? PMIx_Commit() : rc;
    return rc == PMIX_SUCCESS ? 0 : failed("PMIx_Put of rank 0's note", rc);
}

static pmix_status_t ask(const pmix_proc_t *lead, int seconds, pmix_value_t **note_out)
{
    pmix_info_t limit;
    PMIX_INFO_CONSTRUCT(&limit);
    PMIX_INFO_LOAD(&limit, PMIX_TIMEOUT, &seconds, PMIX_INT);
    const pmix_status_t rc = PMIx_Get(lead, GR_CHANNEL_KEY, &limit, 1, note_out);
    PMIX_INFO_DESTRUCT(&limit);
    return rc;
}

static int take(const struct channel_task *t, const pmix_proc_t *self)
{
    const struct timespec pause = {.tv_nsec = AGAIN_NS};
    pmix_proc_t lead;
    pmix_value_t *note = NULL;
    channel_say(GR_CHANNEL_CALL, "PMIx_Get of rank 0's note");
    PMIX_LOAD_PROCID(&lead, self->nspace, 0);
    pmix_status_t rc;
    while ((rc = ask(&lead, t->seconds, &note)) == PMIX_ERR_NOT_FOUND) {
        nanosleep(&pause, NULL); /* nothing tells when a key comes; `graft launch' bounds it */
    }
    if (rc != PMIX_SUCCESS) {
        return failed("PMIx_Get of rank 0's note", rc);
    }
    if (note->type == PMIX_STRING && note->data.string != NULL) {
        channel_say(GR_CHANNEL_NOTE, note->data.string);
    }
    PMIX_VALUE_RELEASE(note);
    return 0;
}

int main(int argc, char **argv)
{
    struct channel_task t;
    pmix_proc_t self;
    if (!channel_begin(argc, argv, &t)) {
        return 2;
    }
    channel_say(GR_CHANNEL_LIBRARY, PMIx_Get_version());
    channel_say(GR_CHANNEL_CALL, "PMIx_Init");
    const pmix_status_t rc = PMIx_Init(&self, NULL, 0);
    if (rc != PMIX_SUCCESS) {
        return failed("PMIx_Init", rc);
    }
    int status = check_place(&t, &self);
    if (status == 0) {
        status = t.rank == 0 ? give() : take(&t, &self);
    }
    channel_say(GR_CHANNEL_CALL, "PMIx_Finalize");
    (void)PMIx_Finalize(NULL, 0);
    return status;
}
