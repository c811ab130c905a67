/* Any bytes as a control message: refused, or a message that encodes and decodes to itself. */
#include "common/protocol/msg.h"
#include "common/protocol/msgpack_guard.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_MAX 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t first[2 * BYTES_MAX], second[2 * BYTES_MAX];
    struct gr_msg m;
    if (size > BYTES_MAX || gr_msg_decode(data, size, &m) != GR_OK) {
        return 0;
    }
    GR_ASSERT(gr_msgpack_sound(data, size, 3));
    size_t n = 0;
    size_t n_again = 0;
    struct gr_msg again;
    /* Ids may take five bytes where the input took one, hence at most 5 times the input; rarely past the buffer. */
    if (gr_msg_encode(&m, first, sizeof(first), &n) == GR_OK) {
        GR_ASSERT(gr_msg_decode(first, n, &again) == GR_OK);
        GR_ASSERT(again.type == m.type && again.session == m.session);
        GR_ASSERT(gr_msg_encode(&again, second, sizeof(second), &n_again) == GR_OK);
        GR_ASSERT(n == n_again && memcmp(first, second, n) == 0);
        gr_msg_finish(&again);
    }
    gr_msg_finish(&m);
    return 0;
}
