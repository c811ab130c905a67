/* What the RDMA devices of this host count of packets that were lost or damaged, came out of order, or were sent again:
 * a fabric without flow control (PFC, ECN) loses packets under load, and its figures then say more of time-outs than of
 * what is measured. Read from /sys/class/infiniband, whoever sent the packets; the peer's host counts its own. */
#ifndef GR_BENCH_FABRIC_H
#define GR_BENCH_FABRIC_H

#include <stdbool.h>
#include <stdint.h>

#define GR_FABRIC_COUNTERS 16
#define GR_FABRIC_TEXT 400
#define GR_FABRIC_ROOT "/sys/class/infiniband"

struct gr_fabric_counts {
    bool known;                     /* a device has one of the counters */
    uint64_t n[GR_FABRIC_COUNTERS]; /* of all devices and ports together, by name */
};

/* root: GR_FABRIC_ROOT, or a folder that is laid out so. */
void gr_fabric_read(const char *root, struct gr_fabric_counts *out);
/* By how much the counters have grown, all together. text: those that have grown, "out_of_sequence 3,
 * local_ack_timeout_err 1"; empty where none has. */
uint64_t gr_fabric_lost(const struct gr_fabric_counts *before, const struct gr_fabric_counts *now,
                        char text[GR_FABRIC_TEXT]);

#endif
