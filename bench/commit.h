/* The commit that this build was made of, as `git describe --always --dirty' tells it; "unknown" outside a checkout. */
#ifndef GR_BENCH_COMMIT_H
#define GR_BENCH_COMMIT_H

extern const char gr_commit[];

#endif
