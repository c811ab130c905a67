/* An answer that a journal has, as who keeps the journal hands it to who tells answers. */
#ifndef GR_ORCHESTRATOR_MACHINE_KEPT_ANSWER_H
#define GR_ORCHESTRATOR_MACHINE_KEPT_ANSWER_H

#include "common/protocol/msg.h"

/* Of a turn that goes on, or of one that is over. What it points at is borrowed until something more is noted. */
struct gr_kept_answer {
    uint64_t session;
    const char *note; /* OPEN's `answer': what tells it again */
    bool in_turn;     /* else it is over */
    uint32_t epoch, turn;
    uint32_t turn_len; /* of ids, where generated ones begin */
    enum gr_finish finish;
    const char *error; /* why it has failed; or empty */
    const int32_t *ids;
    uint32_t n_ids;
};

#endif
