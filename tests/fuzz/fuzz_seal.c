/* Any bytes as what comes in on an encrypted link: the header, then one record. Nobody has the key, so nothing opens;
 * a true record with any of its bytes changed does not open either. */
#include "transport/connect/seal.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_forged(const struct gr_seal_keys *keys, const uint8_t *data, size_t size)
{
    static uint8_t record[4096];
    struct gr_seal s = {0};
    const size_t bytes = size - GR_SEAL_HEADER_BYTES;
    gr_seal_begin_in(&s, keys, data);
    memcpy(record, data + GR_SEAL_HEADER_BYTES, bytes);
    GR_ASSERT(gr_seal_open(&s, record, bytes) == GR_EAUTH);
    GR_ASSERT(memcmp(record, data + GR_SEAL_HEADER_BYTES, bytes) == 0);
}

/* data is the content, and what is added to the record. */
static void try_changed(const struct gr_seal_keys *keys, const uint8_t *data, size_t size)
{
    static uint8_t record[4096 + GR_SEAL_BYTES], header[GR_SEAL_HEADER_BYTES];
    struct gr_seal s = {0};
    bool changed = false;
    gr_seal_begin_out(&s, keys, header);
    gr_seal_begin_in(&s, keys, header);
    memcpy(record + GR_SEAL_CONTENT_AT, data, size);
    gr_seal_shut(&s, record, size);
    for (size_t i = 0; i < size; i++) {
        record[i] ^= data[i];
        changed = changed || data[i] != 0;
    }
    GR_ASSERT(gr_seal_open(&s, record, size + GR_SEAL_BYTES) == (changed ? GR_EAUTH : GR_OK));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct gr_seal_keys keys = {.on = true}; /* one key both ways: what is shut here is opened here */
    if (size > 4096 || sodium_init() < 0) {
        return 0;
    }
    if (size >= GR_SEAL_HEADER_BYTES) {
        try_forged(&keys, data, size);
    }
    try_changed(&keys, data, size);
    return 0;
}
