#include "bench/fabric.h"

#include "common/base/status.h"

#include <glob.h>
#include <inttypes.h>
#include <stdio.h>

/* A receiver that was not ready (rnr) and marks of congestion are no losses. */
static const char *const names[] = {
    "duplicate_request",                                                    /* mlx5, rdma_rxe */
    "out_of_sequence",       "packet_seq_err",       "implied_nak_seq_err", /* mlx5 */
    "local_ack_timeout_err", "rx_icrc_encapsulated", "roce_slow_restart",   /* mlx5 */
    "out_of_seq_request",    "rcvd_seq_err",         "retry_exceeded_err",  /* rdma_rxe */
    "completer_retry_err",                                                  /* rdma_rxe */
    "to_retransmits",        "seq_err_naks_rcvd",    "oos_drop_count",      /* bnxt_re */
    "missing_resp",                                                         /* bnxt_re */
};
_Static_assert(GR_ARRAY_LEN(names) <= GR_FABRIC_COUNTERS, "each has its place");

static void read_port(const char *folder, struct gr_fabric_counts *out)
{
    char path[1200];
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        uint64_t n = 0;
        snprintf(path, sizeof(path), "%s/hw_counters/%s", folder, names[i]);
        FILE *f = fopen(path, "re");
        if (f != NULL && fscanf(f, "%" SCNu64, &n) == 1) {
            out->known = true;
            out->n[i] += n;
        }
        if (f != NULL) {
            fclose(f);
        }
    }
}

void gr_fabric_read(const char *root, struct gr_fabric_counts *out)
{
    char pattern[400];
    glob_t ports;
    snprintf(pattern, sizeof(pattern), "%.300s/*/ports/*", root);
    *out = (struct gr_fabric_counts){.known = false};
    if (glob(pattern, GLOB_NOSORT, NULL, &ports) == 0) {
        for (size_t i = 0; i < ports.gl_pathc; i++) {
            read_port(ports.gl_pathv[i], out);
        }
    }
    globfree(&ports);
}

uint64_t gr_fabric_lost(const struct gr_fabric_counts *before, const struct gr_fabric_counts *now,
                        char text[GR_FABRIC_TEXT])
{
    uint64_t all = 0;
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        const uint64_t n = now->n[i] > before->n[i] ? now->n[i] - before->n[i] : 0; /* a driver may begin anew */
        if (n > 0 && at < GR_FABRIC_TEXT) {
            at += (size_t)snprintf(text + at, GR_FABRIC_TEXT - at, "%s%s %" PRIu64, at > 0 ? ", " : "", names[i], n);
        }
        all += n;
    }
    return all;
}
