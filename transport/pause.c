#include "transport/pause.h"

#include "common/base/status.h"

#include <sodium.h>

#define DOUBLINGS_MAX 10u /* more would overflow, and by then every max_ms in use has been reached */

uint32_t gr_pause_ms(uint32_t n, uint32_t min_ms, uint32_t max_ms)
{
    const uint32_t whole_ms = GR_MIN(min_ms << GR_MIN(n, DOUBLINGS_MAX), max_ms);
    return whole_ms / 2 + randombytes_uniform(whole_ms - whole_ms / 2 + 1);
}
