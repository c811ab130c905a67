/* graft-bench kernels: the benchmark that lives beside the kernels' test, so that what is timed is what is checked. */
#include "bench/bench.h"
#include "common/base/log.h"
#include "common/process/program.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

int gr_bench_kernels(int argc, char **argv)
{
    static struct gr_bench_options o;
    const int status = gr_bench_options_read(&o, GR_BENCH_KERNELS, argc, argv);
    if (status >= 0) {
        return status;
    }
    const char *args[10] = {gr_program_sibling("tests/kernels/check_kernels"), "--bench"};
    int n = 2;
    const struct {
        const char *name, *value;
    } handed[] = {{"--isa", gr_bench_choice(&o, GR_BENCH_OPTION_isa)},
                  {"--only", gr_bench_choice(&o, GR_BENCH_OPTION_op)},
                  {"-o", gr_bench_choice(&o, GR_BENCH_OPTION_format)}};
    for (size_t i = 0; i < GR_ARRAY_LEN(handed); i++) {
        if (handed[i].value != NULL) {
            args[n++] = handed[i].name;
            args[n++] = handed[i].value;
        }
    }
    execv(args[0], (char **)(uintptr_t)args);
    log_error("%s: %s; it is built with the tests (meson option tests)", args[0], strerror(errno));
    return 1;
}
