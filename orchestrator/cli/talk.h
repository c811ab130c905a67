/* A conversation beside the session that holds it: what was said, and which tokens the session has. The ids of a turn
 * are always those of the whole conversation rendered anew; what the session has of them stays, the rest is cut and
 * appended. So a template may change what it wrote before (thoughts that are left out, a system message that moves),
 * and an answer whose tokens are not those of its text is no matter. Pure. */
#ifndef GR_ORCHESTRATOR_CLI_TALK_H
#define GR_ORCHESTRATOR_CLI_TALK_H

#include "model/chat/chat.h"

struct gr_talk {
    const struct gr_chat *chat;       /* borrowed */
    const struct gr_tokenizer *tok;   /* borrowed */
    struct gr_chat_message *messages; /* owned, their texts too */
    size_t n_message, cap;
    bool has_system; /* the first message, which a reset leaves */
    int32_t *has;    /* owned: what the session has */
    size_t n_has;    /* 0: there is no session */
    int32_t *whole;  /* owned: ids of the conversation up to the turn at hand */
    size_t n_whole;
};

/* system: NULL: none. */
GR_NODISCARD enum gr_status gr_talk_init(struct gr_talk *t, const struct gr_chat *chat, const struct gr_tokenizer *tok,
                                         const char *system);
void gr_talk_finish(struct gr_talk *t);
/* Nothing was said yet, and there is no session. */
void gr_talk_reset(struct gr_talk *t);
/* The session is gone; what was said stays. */
void gr_talk_lost_session(struct gr_talk *t);

/* What the session is to be given. */
struct gr_talk_turn {
    size_t n_keep;      /* tokens that it keeps; 0: it is a new session */
    uint64_t hash;      /* of those (common/rules/hash.h) */
    const int32_t *ids; /* the rest, at least one; borrowed until the next call */
    size_t n_ids;
};

/* A user says something. */
GR_NODISCARD enum gr_status gr_talk_ask(struct gr_talk *t, const char *text, size_t len);
/* The turn that the last message asks for. */
struct gr_talk_turn gr_talk_next(const struct gr_talk *t);
/* The answer to it: its text, and the tokens that the session has now after those it was given. */
GR_NODISCARD enum gr_status gr_talk_answer(struct gr_talk *t, const char *text, size_t len, const int32_t *ids,
                                           size_t n);
/* There is no answer: the last message was not said. */
void gr_talk_take_back(struct gr_talk *t);

#endif
