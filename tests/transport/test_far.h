/* Far memory without a GPU (common/base/far_memory.h). Guarded: a pointer into it can be followed by nobody, copies are
 * done when somebody waits for them, and what a device in memory writes is seen only after arrived(): whoever forgets
 * one of these reads what was there before. Not guarded: memory of the host that real devices can be given. */
#ifndef GR_TESTS_TRANSPORT_TEST_FAR_H
#define GR_TESTS_TRANSPORT_TEST_FAR_H

#include "common/base/far_memory.h"

#include <stdbool.h>

#define TEST_FAR_N_OP 512

struct test_far_op {
    uint8_t *to; /* in the far memory, as the tests see it */
    const uint8_t *from;
    uint8_t *stash; /* owned: what was at from, where that is the host's */
    size_t bytes;
};

struct test_far {
    struct gr_far_memory memory;
    bool guarded;
    int export_errno; /* 0: it works */
    bool fails;       /* copies do */
    /* counted */
    int n_taken, n_wait, n_arrived;
    struct test_far_op copy[TEST_FAR_N_OP], written[TEST_FAR_N_OP]; /* not done, not arrived yet */
    int n_copy, n_written;
};

void test_far_init(struct test_far *f, const char *name, bool guarded);
/* Where a test, or a device in memory, finds what is at an address of any far memory; of the host's: the address. */
uint8_t *test_far_at(const void *p);
bool test_far_is(const void *p);
/* What a device in memory does. */
void test_far_write(void *to, const void *from, size_t bytes);
/* How it moves bytes where neither address is of a memory of this file; NULL: memcpy. */
extern void (*test_far_move)(void *to, const void *from, size_t bytes);

#endif
