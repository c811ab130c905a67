/* What a sweep ran on beyond what every result says: GPUs, their driver, network cards. */
#ifndef GR_BENCH_SWEEP_CARDS_H
#define GR_BENCH_SWEEP_CARDS_H

#include <jansson.h>

/* {"cards": ["0: NVIDIA H100 80GB HBM3 (0000:19:00.0)"], "driver": "535.1", "cuda": "12.4"}: what the driver says;
 * empty without one. Of all GPUs that this process sees. */
json_t *gr_about_cards(void);
/* ["mlx5_0 400 Gb/sec (4X NDR)", "eth0 10000 Mb/s"]: RDMA devices and interfaces that are up, but loopback. */
json_t *gr_about_nics(void);

#endif
