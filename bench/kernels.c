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
    const char *isa = NULL;
    const char *only = NULL;
    const struct gr_bench_option options[] = {
        {"isa", &isa, "avx512 | avx2 | c (default: all that this machine can run)"},
        {"only", &only, "linear | attention | view | rows | sample"},
    };
    enum gr_table_format format;
    const int status = gr_bench_options("kernels", argc, argv, &format, options, (int)GR_ARRAY_LEN(options));
    if (status >= 0) {
        return status;
    }
    static const char *const formats[] = {"md", "csv", "json", "jsonl"};
    const char *args[10] = {gr_program_sibling("tests/kernels/check_kernels"), "--bench"};
    int n = 2;
    if (isa != NULL) {
        args[n++] = "--isa";
        args[n++] = isa;
    }
    if (only != NULL) {
        args[n++] = "--only";
        args[n++] = only;
    }
    args[n++] = "-o";
    args[n++] = formats[format];
    execv(args[0], (char **)(uintptr_t)args);
    log_error("%s: %s; it is built with the tests (meson option tests)", args[0], strerror(errno));
    return 1;
}
