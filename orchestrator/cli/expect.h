/* The workers that an orchestrator is told to expect (--expect target=1,draft=1). */
#ifndef GR_ORCHESTRATOR_CLI_EXPECT_H
#define GR_ORCHESTRATOR_CLI_EXPECT_H

#include "orchestrator/machine/orch.h"

struct gr_expect {
    uint32_t n_target, n_draft; /* 0: none is expected */
};

/* text: ROLE=N, separated by commas, a role once; NULL: nobody is expected. GR_EINVAL (logged). */
GR_NODISCARD enum gr_status gr_expect_parse(const char *text, struct gr_expect *out);
/* All of them are there. False: text says who is missing, "1 of 2 target workers, 0 of 1 draft workers". */
bool gr_expect_met(const struct gr_expect *e, const struct gr_orch *orch, char *text, size_t text_bytes);

#endif
