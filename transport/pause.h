/* How long who looks for a peer waits between two attempts. */
#ifndef GR_TRANSPORT_PAUSE_H
#define GR_TRANSPORT_PAUSE_H

#include <stdint.h>

/* The n-th pause, from 0: half of it is fixed and half is drawn, and the whole is min_ms << n, at most max_ms. So those
 * who lost one peer in one instant do not come back in step. Any thread. */
uint32_t gr_pause_ms(uint32_t n, uint32_t min_ms, uint32_t max_ms);

#endif
