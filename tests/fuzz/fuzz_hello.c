/* Any bytes as a HELLO record: an answer without a read past the end, and what is accepted keeps
 * its bounds and survives encode + decode. */
#include "transport/connect/hello.h"
#include "transport/impl.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gr_hello h, again;
    if (size > GR_HELLO_BYTES_MAX || gr_hello_decode(data, size, &h) != GR_OK) {
        return 0;
    }
    uint8_t bytes[GR_HELLO_BYTES_MAX];
    size_t n = 0;
    GR_ASSERT(gr_hello_encode(&h, bytes, sizeof(bytes), &n) == GR_OK);
    GR_ASSERT(n <= size); /* the shortest encoding */
    GR_ASSERT(gr_hello_decode(bytes, n, &again) == GR_OK);
    GR_ASSERT(memcmp(&h, &again, sizeof(h)) == 0);
    GR_ASSERT(gr_hello_compare(&h, &again) == GR_EMISMATCH); /* equal roles */
    return 0;
}
