/* Fall-backs: what was asked for cannot be had, and less is done instead. Every one is told and counted in one place,
 * gr_fall_back(): no other code writes a line with "[fallback]" in it (tests/unit/common/base/test_fallback.c looks).
 */
#ifndef GR_COMMON_BASE_FALLBACK_H
#define GR_COMMON_BASE_FALLBACK_H

#include <stdbool.h>
#include <stdint.h>

/*   name, topic of its line, why, what is done instead */
#define GR_FALLBACK_LIST(X)                                                                                            \
    /* target */                                                                                                       \
    X(DRAFTER_SILENT, "spec", "no tree for as long as three round deadlines", "going on root-only")                    \
    X(HEAD_UNFED, "spec", "its drafter runs a head, and this target was started without one", "going on root-only")    \
    X(HEAD_GONE, "spec", "this target cannot be made with the head that its drafters run", "trying without features")  \
    X(TREE_FAULT, "spec", "a tree round broke an invariant", "going on root-only")                                     \
    X(SPECPV_ABSENT, "specpv", "the target was started without SpecPV", "going on with full verification")             \
    X(SPECPV_UNFIT, "specpv", "its partial view does not fit", "going on with full verification")                      \
    X(SPECPV_FAULT, "specpv", "a round broke an invariant", "going on with full verification")                         \
    X(NO_VIEWS, "specpv", "the target's partial views could not be made", "sessions are verified in full")             \
    X(LONG_LIST, "logits", "bans, biases and penalties of a row are too many for the GPU", "the host picks such rows") \
    X(COLOCATED_DRAFTER, "spec", "the co-located drafter ended with an error", "going on root-only")                   \
    /* drafter */                                                                                                      \
    X(DRAFT_CONTEXT, "spec", "longer than the drafter's context", "no more trees for it")                              \
    X(DRAFT_POOL, "spec", "the drafter's KV pool is full", "no tree for it")                                           \
    X(DRAFT_ROWS, "spec", "trees as wide as --draft-top-k asks for", "its trees are narrower")                         \
    X(DRAFT_NAN, "spec", "the drafter's logits hold NaN or infinity", "such trees are sent without nodes")             \
    /* whoever connects */                                                                                             \
    X(TRANSPORT, "transport", "a transport did not open", "trying the next")                                           \
    /* orchestrator */                                                                                                 \
    X(DRAFTER_LOST, "spec", "its draft worker is lost", "going on root-only")                                          \
    X(DRAFTER_ERROR, "spec", "drafter", "going on root-only")                                                          \
    X(NUMERICS, "numerics", "its target computes in another order",                                                    \
      "what follows may be another text than either's "                                                                \
      "alone")

enum gr_fallback {
    GR_FALLBACK_NONE,
#define X(name, topic, why, instead) GR_FALLBACK_##name,
    GR_FALLBACK_LIST(X)
#undef X
        GR_N_FALLBACK
};

/* Those of a session, or of a process. Begins as zeros. */
struct gr_fallbacks {
    uint32_t n[GR_N_FALLBACK]; /* by reason */
    uint32_t n_untold;         /* of all of them those that the next message counts: its sender sets this to 0 */
};

/* Whether the nth time of what repeats is worth a line: the first, the 10th, the 100th ... is. */
bool gr_is_told(uint32_t n);

/* Counts one and writes its line: a warning. A reason that repeats is told the first time, the 10th, the 100th ...,
 * with how often it has been. session 0: it is the process's; round 0: no round is named; detail may be NULL. */
void gr_fall_back(struct gr_fallbacks *f, enum gr_fallback reason, uint64_t session, uint32_t round,
                  const char *detail);
/* Its name in the list. */
const char *gr_fallback_name(enum gr_fallback reason);

#endif
