/* A response on its way from the thread that makes it to the thread that sends it: a head (status and type), then
 * bytes, then its end. Bytes that wait are bounded: who reads too slowly loses its answer, and nobody else's waits.
 * Both ends hold a reference. */
#ifndef GR_ORCHESTRATOR_HTTP_STREAM_H
#define GR_ORCHESTRATOR_HTTP_STREAM_H

#include "orchestrator/http/api_error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_STREAM_BYTES_MAX (4u << 20) /* that wait to be read */

struct gr_stream;

struct gr_stream_head {
    const char *type;
    uint64_t session; /* 0: it has no name */
    bool is_final;    /* an error that the same request would meet again */
};

/* wake: called, under the stream's lock, when a reader waits and something has come. */
GR_NODISCARD enum gr_status gr_stream_create(void (*wake)(void *ctx), void *ctx, struct gr_stream **out);
void gr_stream_hold(struct gr_stream *s);
void gr_stream_drop(struct gr_stream *s);

#define GR_STREAM_EVENTS "text/event-stream" /* the type of a response whose parts are events */

/* ---- who makes it ---- */

/* The session whose answer it is, for its head; before the head. */
void gr_stream_name(struct gr_stream *s, uint64_t session);
/* The next event tells after how many milliseconds who loses the stream is to come back; before an event. */
void gr_stream_retry(struct gr_stream *s, uint32_t ms);
/* type: static text. Once. */
void gr_stream_begin(struct gr_stream *s, int http_status, const char *type);
bool gr_stream_has_begun(struct gr_stream *s);
/* GR_ELIMIT: too much waits; the stream has ended, cut. GR_ECLOSED: nobody reads it any more. */
GR_NODISCARD enum gr_status gr_stream_write(struct gr_stream *s, const char *bytes, size_t n);
/* "data: TEXT" and a blank line, of a stream of events; all of it or nothing. */
GR_NODISCARD enum gr_status gr_stream_write_event(struct gr_stream *s, const char *text);
/* The same with a line "id: ID" before it; NULL: without. A line "retry: MS" stands in front of both, where one is due:
 * in the same event, since clients take one of its own for an event without data. */
GR_NODISCARD enum gr_status gr_stream_write_named_event(struct gr_stream *s, const char *id, const char *text);
/* Adds a comment to a stream of events that has begun; does nothing to others. As gr_stream_write(). */
GR_NODISCARD enum gr_status gr_stream_ping(struct gr_stream *s);
void gr_stream_end(struct gr_stream *s);
/* The whole response of JSON, with status 200. json: malloc, taken; NULL: there was no memory for it, status 500. */
void gr_stream_answer(struct gr_stream *s, char *json);
/* Ends it with an error: the whole response where none has begun, else one more event. */
void gr_stream_fail(struct gr_stream *s, const struct gr_api_error *e);
/* The same, with an error of no field. */
void gr_stream_refuse(struct gr_stream *s, int http_status, const char *text);

/* ---- who sends it ---- */

/* 0: nothing has begun yet. */
int gr_stream_head(struct gr_stream *s, struct gr_stream_head *out);
/* Up to cap bytes. 0 with *ended_out false: none is there; cut_out: it has ended in the middle. */
size_t gr_stream_read(struct gr_stream *s, char *to, size_t cap, bool *ended_out, bool *cut_out);
/* The reader waits, and is woken once: by the head (for_head) or by bytes or the end; at once where they are there. */
void gr_stream_wait(struct gr_stream *s, bool for_head);
/* The client has gone away: the stream ends, cut, and its reader is woken. */
void gr_stream_cut(struct gr_stream *s);
/* The reader is gone: nothing wakes it any more. */
void gr_stream_leave(struct gr_stream *s);
/* Any thread: it is of no use to write to it. */
bool gr_stream_is_left(struct gr_stream *s);

#endif
