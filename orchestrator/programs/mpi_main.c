/* graft-mpi: the rendezvous of `graft launch' over MPI: one broadcast of rank 0's note, and MPI_Finalize right after
 * it, so that no rank stands in a barrier of the exit when another one fails later. MPI_Init and MPI_Finalize wait for
 * all ranks; `graft launch' ends a helper that waits for too long. */
#include "orchestrator/programs/channel_helper.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char *call, int rc)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;
    (void)MPI_Error_string(rc, text, &len);
    return channel_refuse("%s: %s", call, text);
}

static void say_library(void)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int len = 0;
    (void)MPI_Get_library_version(text, &len);
    text[strcspn(text, "\r\n")] = '\0';
    channel_say(GR_CHANNEL_LIBRARY, text);
}

/* 0, or the exit status. MPICH would abort without a word of what to do. */
static int check_environment(void)
{
#ifdef MPICH_VERSION
    if (getenv("PMI_SIZE") != NULL && getenv("PMIX_NAMESPACE") != NULL) {
        return channel_refuse("PMI_SIZE and PMIX_NAMESPACE are both set, and MPICH takes neither then; unset the one "
                              "that is not the launcher's");
    }
#endif
    return 0;
}

/* 0, or the exit status. */
static int check_place(const struct channel_task *t)
{
    int rank = -1, size = 0;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == t->rank && size == t->size) {
        return 0;
    }
    return channel_refuse("MPI says rank %d of %d here, and `graft launch' was told rank %d of %d: is graft-mpi's MPI "
                          "the launcher's (srun --mpi=pmix)?",
                          rank, size, t->rank, t->size);
}

static int exchange(const struct channel_task *t)
{
    char note[GR_CHANNEL_BYTES_MAX] = "";
    if (t->rank == 0 && !channel_hear_note(note)) {
        return 1;
    }
    channel_say(GR_CHANNEL_CALL, "MPI_Bcast of rank 0's note");
    const int rc = MPI_Bcast(note, (int)sizeof(note), MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rc != MPI_SUCCESS) {
        return failed("MPI_Bcast of rank 0's note", rc);
    }
    note[sizeof(note) - 1] = '\0';
    if (t->rank > 0) {
        channel_say(GR_CHANNEL_NOTE, note);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct channel_task t;
    if (!channel_begin(argc, argv, &t)) {
        return 2;
    }
    say_library();
    int status = check_environment();
    if (status != 0) {
        return status;
    }
    channel_say(GR_CHANNEL_CALL, "MPI_Init");
    const int rc = MPI_Init(NULL, NULL);
    if (rc != MPI_SUCCESS) {
        return failed("MPI_Init", rc);
    }
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    status = check_place(&t);
    status = status == 0 ? exchange(&t) : status;
    channel_say(GR_CHANNEL_CALL, "MPI_Finalize");
    (void)MPI_Finalize();
    return status;
}
