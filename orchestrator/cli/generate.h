/* A generation as its user sees it: prompt in; text, JSON, trace and metrics out. The same for a run with workers of
 * its own and for one that asks a running orchestrator: both hand in the messages that workers report (COMMIT, ...)
 * and the end of each turn, and carry out what the engine's callbacks ask for. One thread. */
#ifndef GR_ORCHESTRATOR_CLI_GENERATE_H
#define GR_ORCHESTRATOR_CLI_GENERATE_H

#include "model/files/hf_config.h"
#include "orchestrator/cli/chat_setup.h"
#include "orchestrator/answer/turn_text.h"
#include "orchestrator/cli/plan.h"
#include "orchestrator/cli/stops.h"
#include "orchestrator/cli/trace_file.h"

struct gr_engine {
    void *ctx;
    /* Failures are logged. request->wishes.fork_of is the engine's to set. */
    enum gr_status (*submit)(void *ctx, const struct gr_session_request *request);
    enum gr_status (*append)(void *ctx, const struct gr_turn_request *turn); /* to the engine's session */
    void (*stop)(void *ctx, uint32_t n_keep); /* n_keep generated tokens of this turn stay */
};

enum gr_phase { GR_PHASE_START, GR_PHASE_TEXT, GR_PHASE_PLAIN /* --verify-lossless */, GR_PHASE_OVER };

struct gr_generation {
    const struct gr_options *o; /* borrowed */
    struct gr_plan plan;        /* its wishes have the seed and the stop ids, too */
    struct gr_engine engine;
    bool append;        /* a turn of a session that is open */
    uint32_t keep_len;  /* of its transcript, this much goes on; 0: all */
    uint64_t keep_hash; /* of those tokens */
    bool silent;        /* no text on standard output */
    /* Of several answers to one prompt (answers.h): how many there are; which is shown after this one, borrowed; and
     * whether its text waits: for that of others before it, or until all of them are taken. */
    int n_answer;
    struct gr_generation *next;
    bool waits;
    struct gr_hf_config hf;
    struct gr_tokenizer *tok;
    struct gr_chat_setup chat; /* --chat; its form is NULL without */
    bool borrows;              /* tok and chat are another's: of a conversation, or of the first of several answers */
    bool talks;                /* a turn of a conversation */
    int32_t *prompt;           /* owned */
    uint32_t n_prompt;
    enum gr_phase phase;
    uint64_t session;         /* for the JSON of a session that stays open; 0: none */
    struct gr_turn_text turn; /* what the first phase generated */
    uint32_t n_plain;
    bool compared;            /* with plain decoding, to the end */
    int64_t first_difference; /* --verify-lossless; -1: none so far */
    double last_gap, gap;     /* logit gap of plain decoding's last pick, and at the first difference */
    bool again;               /* the plain phase is still to come */
    bool stop_sent, failed, progress_shown;
    bool may_cut, cut; /* ctrl-C is to end the turn, not the command; it has */
    bool bad_value;    /* it failed by a value that somebody gave */
    int interrupted;   /* the signal that interrupted it; 0: none did */
    bool pipe_closed;  /* nobody reads standard output any more */
    struct {           /* trees that wait for the end of a line of text, where both are on a terminal */
        FILE *f;       /* NULL: trees are printed as they come */
        char *text;
        size_t len;
    } held;
    char undrafted[GR_MSG_TEXT_MAX]; /* why a drafter that is there did not work for it; else "" */
    char why[GR_MSG_TEXT_MAX];       /* it failed, where no line of this process says so; else "" */
    enum gr_finish finish;
    struct gr_session_metrics metrics;
    struct gr_trace_file *trace_file; /* NULL: none is wanted */
};

void gr_generation_init(struct gr_generation *g, const struct gr_options *o);
/* Loads tokenizer, prompt and what else the options name. On failure (logged) gr_generation_report() and _finish()
 * still follow. o: outlives the generation. */
GR_NODISCARD enum gr_status gr_generation_prepare(struct gr_generation *g, const struct gr_options *o,
                                                  const struct gr_plan *plan);
void gr_generation_finish(struct gr_generation *g);
/* A conversation's: what is prepared once (model, tokenizer, chat template, wishes), without a prompt ... */
GR_NODISCARD enum gr_status gr_generation_prepare_model(struct gr_generation *g, const struct gr_options *o,
                                                        const struct gr_plan *plan);
/* ... and each turn of it, or each other answer to a prompt, which borrows the former. prompt: copied. */
GR_NODISCARD enum gr_status gr_generation_prepare_turn(struct gr_generation *g, const struct gr_generation *model,
                                                       const int32_t *prompt, uint32_t n);

/* Begins the first or, for --verify-lossless, the next phase. */
void gr_generation_begin(struct gr_generation *g);
/* PROGRESS, ATTACHED, COMMIT, DRAFT_STATS of the turn; others are ignored. */
void gr_generation_take(struct gr_generation *g, const struct gr_msg *m);
/* The turn is over; n_fallback and n_reopen: counted by the orchestrator. Phase START (once more) or OVER follows. */
void gr_generation_end(struct gr_generation *g, enum gr_finish finish, const char *text, uint32_t n_fallback,
                       uint32_t n_reopen);
/* --require-rdma, and no drafter was connected by RDMA yet: nothing is shown. */
bool gr_generation_lacks_rdma(const struct gr_generation *g);
/* The first of several answers is shown from now on, and those after it as far as they are there. */
void gr_generation_show(struct gr_generation *g);
/* SIGINT or the like came. Where it is not to end the command (may_cut) the turn ends with what there is. */
void gr_generation_signal(struct gr_generation *g, int signal_number);
/* It cannot go on. text: the line to log; "" or NULL: it has been logged. */
void gr_generation_fail(struct gr_generation *g, const char *text);
void gr_generation_progress(struct gr_generation *g, const char *fmt, uint64_t a, uint64_t b);
/* The text goes no further than --max-tokens allows, and was not at its end. */
bool gr_generation_is_cut(const struct gr_generation *g);
/* The seed, where one was drawn: on standard error. */
void gr_generation_tell_seed(const struct gr_generation *g);
/* Prints JSON, with what went wrong if something has, or the summary; writes the trace file. Returns the exit status.
 */
int gr_generation_report(struct gr_generation *g);
/* It cannot begin: reports that, and finishes g. Returns the exit status. */
int gr_generation_refuse(struct gr_generation *g, enum gr_status st);

#endif
