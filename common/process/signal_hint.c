#include "common/process/signal_hint.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>

#define STACK_BYTES_MIN (1 << 20) /* programs and drivers count on more than this; 8 MiB is usual */

static bool stack_is_small(void)
{
    struct rlimit r;
    return getrlimit(RLIMIT_STACK, &r) == 0 && r.rlim_cur < STACK_BYTES_MIN;
}

const char *gr_signal_hint(int signal_number)
{
    static const struct {
        int signal_number;
        const char *text;
    } hints[] = {
        {SIGKILL,
         "probably out of memory (dmesg, or memory.events of the cgroup, would say so): --kv-blocks takes less"},
        {SIGBUS, "probably a full /dev/shm or disk, or a model file that was cut while it was in use"},
        {SIGSEGV, "probably a fault of graft or of a driver: please report it with the lines above"},
        {SIGABRT, "a check inside the worker failed: its lines above say which"},
        {SIGILL, "probably a CPU that lacks an instruction: GRAFT_CPU=c does without"},
        {SIGXFSZ, "the limit of file sizes is too small (ulimit -f)"},
        {SIGXCPU, "the limit of CPU time is used up (ulimit -t)"},
    };
    if ((signal_number == SIGSEGV || signal_number == SIGBUS) && stack_is_small()) {
        return "probably the limit of the stack (ulimit -s), which is below 1024 KiB; 8192 is usual";
    }
    for (size_t i = 0; i < sizeof(hints) / sizeof(hints[0]); i++) {
        if (hints[i].signal_number == signal_number) {
            return hints[i].text;
        }
    }
    return "somebody or something outside graft sent it";
}
