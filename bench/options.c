/* The command line of one benchmark. */
#include "bench/bench.h"
#include "common/base/log.h"
#include "common/base/suggest.h"

#include <string.h>

static void refuse_name(const char *what, const char *arg, const struct gr_bench_option *options, int n_option)
{
    const char *name = arg + strspn(arg, "-");
    struct gr_suggest near = {.word = name, .len = strlen(name)};
    char also[80];
    for (int k = 0; k < n_option; k++) {
        gr_suggest_offer(&near, options[k].name);
    }
    log_error("unknown option %s%s; see graft-bench %s --help", arg, gr_suggest_text(&near, "--", also, sizeof(also)),
              what);
}

int gr_bench_options(const char *what, int argc, char **argv, enum gr_table_format *format,
                     const struct gr_bench_option *options, int n_option)
{
    *format = GR_TABLE_MD;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            printf("usage: graft-bench %s [-o md|csv|json|jsonl] [options]\n\n", what);
            for (int k = 0; k < n_option; k++) {
                printf("  --%-16s %s\n", options[k].name, options[k].help);
            }
            return 0;
        }
        if (i + 1 >= argc) {
            log_error("%s: unknown option, or it needs a value; see graft-bench %s --help", argv[i], what);
            return 2;
        }
        if (strcmp(argv[i], "-o") == 0) {
            if (gr_table_format_by_name(argv[++i], format) != GR_OK) {
                log_error("-o: `%s' is not one of md, csv, json, jsonl", argv[i]);
                return 2;
            }
            continue;
        }
        const struct gr_bench_option *found = NULL;
        for (int k = 0; k < n_option; k++) {
            if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, options[k].name) == 0) {
                found = &options[k];
            }
        }
        if (found == NULL) {
            refuse_name(what, argv[i], options, n_option);
            return 2;
        }
        *found->value = argv[++i];
    }
    return -1;
}

bool gr_bench_flag(int *argc, char **argv, const char *name)
{
    int n = 0;
    for (int i = 0; i < *argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0 || strcmp(argv[i] + 2, name) != 0) {
            argv[n++] = argv[i];
        }
    }
    const bool found = n < *argc;
    *argc = n;
    return found;
}
