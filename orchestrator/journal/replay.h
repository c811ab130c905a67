/* Reads a journal's segments, in order, into its records, and tells what is missing of whom. Pure: bytes in, records
 * and reports out. Nothing is guessed: a session of which a record is lost, or may be, is damaged, and is told as such
 * instead of with a shorter text. The records of all others are used.
 *
 * Where the last segment ends within a record, nobody was told of that record: it is cut, and this is reported, too. A
 * segment that others follow may end so as well, since a journal is never gone on with in a file of an earlier life;
 * then the sequence numbers tell whether anything is missing. */
#ifndef GR_ORCHESTRATOR_JOURNAL_REPLAY_H
#define GR_ORCHESTRATOR_JOURNAL_REPLAY_H

#include "orchestrator/journal/record.h"

#include <stdbool.h>

#define GR_REPLAY_SESSIONS_MAX (1u << 22) /* that one journal may name */

struct gr_replay;

struct gr_replay_report {
    uint64_t last_seq, last_session; /* 0: there was none */
    uint64_t n_record;               /* that were given out, or left out as of a damaged session */
    uint64_t n_lost;                 /* records that are missing before the last one, by their sequence numbers */
    uint64_t n_cut_bytes;            /* behind the last record: one that was never whole */
    uint64_t cut_session;            /* whose record that was, where it says so; else 0 */
    uint64_t bad_at;                 /* generation and offset of the first damage; generation 0: there is none */
    uint64_t bad_generation;
};

/* on_record: every whole record of a session that is not known to be damaged, in order; what it says of a session that
 * proves to be damaged later is void. It returns GR_OK, or what ends the reading. GR_ENOMEM is logged. */
GR_NODISCARD enum gr_status
gr_replay_create(void *ctx, enum gr_status (*on_record)(void *ctx, const struct gr_record *r), struct gr_replay **out);
void gr_replay_destroy(struct gr_replay *r);

/* The next segment, whose name has this generation; they rise. GR_EFORMAT: it has no head of its own, so that every
 * session may lack records (not logged);
 * GR_EUNSUPPORTED: it is of another version (not logged); GR_ELIMIT, GR_ENOMEM: logged. */
GR_NODISCARD enum gr_status gr_replay_segment(struct gr_replay *r, uint64_t generation, const uint8_t *p, size_t n);
/* Records that are missing among those that were read so far. */
uint64_t gr_replay_n_lost(const struct gr_replay *r);
/* After the last one: sessions of which it is not known whether they are whole are damaged. */
void gr_replay_end(struct gr_replay *r, struct gr_replay_report *out);
/* What is known of one session, for tests: the fuzzer holds both against what it has written. */
bool gr_replay_is_damaged(const struct gr_replay *r, uint64_t session);
/* How many of a session's records there are; 0: it is not known. */
uint64_t gr_replay_number(const struct gr_replay *r, uint64_t session);
/* The next damaged session, in no particular order; 0: there is no other one. *at: 0 before the first call. */
uint64_t gr_replay_damaged(const struct gr_replay *r, size_t *at);

#endif
