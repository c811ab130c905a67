/* What a journal's records say of sessions, as a table: replayed when a process begins, and kept up with what it
 * journals itself, so that what the next process will read is known at any time. docs/journal.md tells which records
 * there are. Pure: messages in, sessions out.
 *
 * Nothing is guessed. A session whose records do not fit together is damaged: it stays in the table without a text, so
 * that whoever asks for it is told so, not that there is no such session. */
#ifndef GR_ORCHESTRATOR_LEDGER_LEDGER_H
#define GR_ORCHESTRATOR_LEDGER_LEDGER_H

#include "common/protocol/msg.h"
#include "orchestrator/journal/record.h"
#include "orchestrator/machine/orch.h"
#include "orchestrator/machine/transcript.h"

#define GR_LEDGER_SESSION_MAX (1u << 16)
#define GR_LEDGER_KIND 1 /* a record whose body is one control message (msg.h), about the record's session */

enum gr_ledger_state {
    GR_LEDGER_TURN, /* its turn goes on */
    GR_LEDGER_IDLE, /* it is kept open, and waits for a turn */
    GR_LEDGER_OVER, /* it has ended; its text can be read until it is closed */
    GR_LEDGER_DAMAGED,
};

struct gr_ledger_session {
    uint64_t id;
    uint64_t n_record; /* that are about it */
    uint64_t last_seq; /* number of the last of them in the journal */
    bool unwritten;    /* DAMAGED: by nothing but that this process could not journal it any more */
    enum gr_ledger_state state;
    uint32_t epoch;
    uint32_t turn;               /* its number, from 1 */
    uint32_t turn_base;          /* length of the transcript before the turn's ids */
    uint32_t turn_len;           /* its length with them, where generated tokens begin */
    struct gr_transcript text;   /* while a turn goes on, its generated tokens as far as they were noted */
    enum gr_finish finish;       /* of the last turn; GR_FINISH_NONE: it goes on */
    char error[GR_MSG_TEXT_MAX]; /* what went wrong in it */
    uint64_t tokenizer_fingerprint, model_fingerprint;
    char model[GR_MODEL_NAME_MAX], numerics_id[GR_NUMERICS_ID_MAX], trace_id[GR_TRACE_ID_MAX];
    char *answer;            /* owned: OPEN's; NULL: it has none */
    struct gr_wishes wishes; /* those of the turn are of the one that goes on, or was last */
};

struct gr_ledger;

/* GR_ENOMEM: logged. */
GR_NODISCARD enum gr_status gr_ledger_create(struct gr_ledger **out);
void gr_ledger_destroy(struct gr_ledger *l);

/* A message of a record, in the record's order. GR_EINVAL: it does not fit what was said of the session before (not
 * logged), which is as it was; GR_ELIMIT: there are too many sessions (logged); GR_ENOMEM: logged, and the session is
 * not to be used. */
GR_NODISCARD enum gr_status gr_ledger_apply(struct gr_ledger *l, const struct gr_msg *m);
/* A record is on its way to the journal, or was read from it, as number seq: its session's next one has the next
 * number.
 */
void gr_ledger_count(struct gr_ledger *l, uint64_t session, uint64_t seq);
/* The journal did not get what was applied last: tokens of a turn, of which so many were there before. They can be
 * noted later. */
void gr_ledger_take_back(struct gr_ledger *l, uint64_t session, uint32_t len);
/* The same, of what cannot be taken back: the session is damaged here, and the next process has it as it was before. */
void gr_ledger_give_up(struct gr_ledger *l, uint64_t session);

/* For gr_journal_config (journal.h), ctx is the ledger: a record that was read. One that does not fit damages its
 * session, with a warning. GR_ELIMIT, GR_ENOMEM: logged. */
GR_NODISCARD enum gr_status gr_ledger_take(void *ledger, const struct gr_record *r);
/* The same: records of the session are lost. */
void gr_ledger_damage(void *ledger, uint64_t session);

/* NULL: there is no such session, or it was closed. Valid until the next message. */
const struct gr_ledger_session *gr_ledger_find(const struct gr_ledger *l, uint64_t session);
/* The i-th, i < n, in no order. */
const struct gr_ledger_session *gr_ledger_at(const struct gr_ledger *l, uint32_t i);
uint32_t gr_ledger_n(const struct gr_ledger *l);

/* Tokens that the turn may still generate; 0: none, or no turn goes on. */
uint32_t gr_ledger_tokens_left(const struct gr_ledger_session *s);
/* Can the rest of its turn be computed as it was the first time, where that is not in the table? Not under lossy
 * SpecPV, whose picks depend on when views were made: that turn is to be ended with an error. */
bool gr_ledger_goes_on(const struct gr_ledger_session *s);
/* What gr_orch_restore() is to be given, without a user; it borrows from s. False: the session is over or damaged, so
 * that it is none of the machine's. */
bool gr_ledger_fill_restored(const struct gr_ledger_session *s, struct gr_restored_session *out);
/* Says the messages that make the session as it is, in their order; what they point at is borrowed for the call. A
 * damaged one has none. Stops at what say returns, if that is not GR_OK. */
GR_NODISCARD enum gr_status gr_ledger_retell(const struct gr_ledger_session *s, void *ctx,
                                             enum gr_status (*say)(void *ctx, const struct gr_msg *m));

#endif
