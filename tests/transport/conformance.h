/* The conformance suite: cases that run on every transport. test_conformance.c lists and runs them all. */
#ifndef GR_TESTS_TRANSPORT_CONFORMANCE_H
#define GR_TESTS_TRANSPORT_CONFORMANCE_H

#include "tests/transport/pair.h"

/* A case's state names its transport. */
static inline enum gr_transport_kind kind_of(void **state)
{
    return *(const enum gr_transport_kind *)*state;
}

/* ---- conformance_load.c ---- */

void test_soak(void **state);
void test_bulk_never_first(void **state);

#endif
