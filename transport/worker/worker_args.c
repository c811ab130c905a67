#include "transport/worker/worker_args.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/suggest.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Read before the first connection, by the one thread there is. */
static enum gr_status store_rdma(const struct gr_arg *a, const char *value)
{
    struct gr_verbs_options o = *gr_verbs_configured();
    int64_t v = 0;
    if (a->kind == GR_ARG_IB_HCA) {
        o.hca = value;
    } else if (a->kind == GR_ARG_VERBS_MODE) {
        o.two_sided = strcmp(value, "two_sided") == 0;
        if (!o.two_sided && strcmp(value, "one_sided") != 0) {
            log_error("--%s: `%s' is not one_sided or two_sided", a->name, value);
            return GR_EINVAL;
        }
    } else if (!gr_parse_int(value, a->min, a->max, &v)) {
        log_error("--%s: `%s' is not a whole number from %lld to %lld", a->name, value, (long long)a->min,
                  (long long)a->max);
        return GR_EINVAL;
    } else if (a->kind == GR_ARG_GID_INDEX) {
        o.gid_index = (int)v;
    } else {
        o.spin_us = (int)v;
    }
    gr_verbs_configure(&o);
    return GR_OK;
}

static enum gr_status store_address(const struct gr_arg *a, const char *value)
{
    char what[32];
    struct gr_address address;
    snprintf(what, sizeof(what), "--%s", a->name);
    GR_TRY(gr_address_parse(what, value, (unsigned)a->min, &address));
    *(const char **)a->slot = value;
    return GR_OK;
}

static enum gr_status store(const struct gr_arg *a, const char *value)
{
    int64_t v = 0;
    enum gr_transport_kind kind = GR_TRANSPORT_TCP;
    switch (a->kind) {
    case GR_ARG_TEXT:
        *(const char **)a->slot = value;
        return GR_OK;
    case GR_ARG_ADDRESS:
        return store_address(a, value);
    case GR_ARG_FLAG:
        *(bool *)a->slot = true;
        return GR_OK;
    case GR_ARG_BLOCKS:
        if (strcmp(value, "auto") != 0 && !gr_parse_int(value, 1, 1 << 26, &v)) {
            log_error("--%s: `%s' is not auto or a whole number from 1 to %d", a->name, value, 1 << 26);
            return GR_EINVAL;
        }
        *(int *)a->slot = (int)v;
        return GR_OK;
    case GR_ARG_INT:
        if (!gr_parse_int(value, a->min, a->max, &v)) {
            log_error("--%s: `%s' is not a whole number from %lld to %lld", a->name, value, (long long)a->min,
                      (long long)a->max);
            return GR_EINVAL;
        }
        *(int *)a->slot = (int)v;
        return GR_OK;
    case GR_ARG_INT_OR_0:
        if (!gr_parse_int_or_0(value, a->min, a->max, &v)) {
            log_error("--%s: `%s' is not 0 or a whole number from %lld to %lld", a->name, value, (long long)a->min,
                      (long long)a->max);
            return GR_EINVAL;
        }
        *(int *)a->slot = (int)v;
        return GR_OK;
    case GR_ARG_SHARE:
        if (!gr_parse_share(value, a->slot)) {
            log_error("--%s: `%s' is not " GR_SHARE_RANGE, a->name, value);
            return GR_EINVAL;
        }
        return GR_OK;
    case GR_ARG_JOIN_TIMEOUT:
        if (!gr_parse_int(value, a->min, a->max, &v) || setenv("GRAFT_JOIN_TIMEOUT", value, 1) != 0) {
            log_error("--%s: `%s' is not a whole number of seconds from %lld to %lld", a->name, value,
                      (long long)a->min, (long long)a->max);
            return GR_EINVAL;
        }
        return GR_OK;
    case GR_ARG_TRANSPORT:
        GR_TRY(gr_transport_by_name(value, &kind));
        *(int *)a->slot = (int)kind;
        return GR_OK;
    case GR_ARG_IB_HCA:
    case GR_ARG_GID_INDEX:
    case GR_ARG_VERBS_MODE:
    case GR_ARG_VERBS_SPIN:
        return store_rdma(a, value);
    }
    return GR_EINVAL;
}

static void help(const char *program, const struct gr_arg *args, int n_arg)
{
    printf("usage: %s [options]\n\nThe shared key comes from GRAFT_KEY (64 hex digits) or the file GRAFT_KEY_FILE "
           "names.\n\n",
           program);
    for (int i = 0; i < n_arg; i++) {
        printf("  --%-20s %s\n", args[i].name, args[i].help);
    }
    printf("  --%-20s %s\n", "supervise",
           "         run as a parent that restarts the worker when a signal kills it or its "
           "orchestrator goes");
}

/* found NULL: there is no option of that name; else it has a value too many, or one too few. */
static void refuse(const char *program, const struct gr_arg *args, int n_arg, const char *arg, const char *name,
                   size_t len, const struct gr_arg *found)
{
    struct gr_suggest near = {.word = name, .len = len};
    char also[80];
    for (int a = 0; a < n_arg; a++) {
        gr_suggest_offer(&near, args[a].name);
    }
    if (found == NULL) {
        log_error("unknown option %s%s; see %s --help", arg, gr_suggest_text(&near, "--", also, sizeof(also)), program);
    } else {
        log_error(found->kind == GR_ARG_FLAG ? "%s: this option takes no value; see %s --help"
                                             : "%s needs a value; see %s --help",
                  arg, program);
    }
}

int gr_args_parse(const char *program, const struct gr_arg *args, int n_arg, int argc, char **argv)
{
    gr_verbs_prepare();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0) {
            printf("%s %s\n", program, GR_VERSION);
            return 0;
        }
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            help(program, args, n_arg);
            return 0;
        }
        const char *name = strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "";
        const size_t len = strcspn(name, "=");
        const struct gr_arg *found = NULL;
        for (int a = 0; a < n_arg; a++) {
            if (strlen(args[a].name) == len && memcmp(args[a].name, name, len) == 0) {
                found = &args[a];
            }
        }
        const bool flag = found != NULL && found->kind == GR_ARG_FLAG;
        const char *value = name[len] == '=' ? name + len + 1 : flag ? "" : i + 1 < argc ? argv[i + 1] : NULL;
        if (found == NULL || value == NULL || (flag && name[len] == '=')) {
            refuse(program, args, n_arg, argv[i], name, len, found);
            return 2;
        }
        i += name[len] != '=' && !flag;
        if (store(found, value) != GR_OK) {
            return 2;
        }
    }
    return -1;
}
