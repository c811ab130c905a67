/* A pair over the devices in memory, and what its tests expect. */
#ifndef GR_TESTS_TRANSPORT_VERBS_PAIR_H
#define GR_TESTS_TRANSPORT_VERBS_PAIR_H

#include "tests/transport/fake_verbs.h"
#include "tests/transport/pair.h"

/* Around each case: everything works; nothing is left, and no send met a missing receive. */
int verbs_set_up(void **state);
int verbs_nothing_left(void **state);

void open_pair(struct pair *p);
/* Neither end opens, both know why the socket is clean, and it is; the log has the word. */
void expect_no_pair(const char *word);
/* Frames of many sizes, both ways. */
void exchange(struct pair *p);
/* The connection ends so; word, or NULL: what its one line in the log has. */
void expect_end(struct gr_conn *c, enum gr_status expected, const char *word);

#endif
