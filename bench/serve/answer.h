/* One answer of an endpoint of OpenAI's kind, as its stream comes: when its pieces came, what was counted, its text,
 * and how it ended. Times are the caller's, in nanoseconds. Pure. */
#ifndef GR_BENCH_SERVE_ANSWER_H
#define GR_BENCH_SERVE_ANSWER_H

#include "bench/serve/events.h"

#include <stdbool.h>
#include <stdint.h>

/* How a request ended; the kinds of its errors. */
enum gr_answer_end {
    GR_ANSWER_NONE,    /* it was not sent, or has not ended */
    GR_ANSWER_DONE,    /* whole: its last event was [DONE] */
    GR_ANSWER_CONNECT, /* no connection */
    GR_ANSWER_STATUS,  /* another HTTP status than 200 */
    GR_ANSWER_EVENT,   /* an error event in its stream */
    GR_ANSWER_CUT,     /* its stream ended without [DONE] */
    GR_ANSWER_TIMEOUT, /* it took longer than it may */
    GR_ANSWER_FORM,    /* its stream is not what an endpoint sends */
    GR_N_ANSWER_END
};

#define GR_ANSWER_SAID_MAX 400 /* bytes of an error's text */

/* Gaps between pieces of text of all streams, in seconds. Zeroes: none. */
struct gr_gaps {
    double *s; /* owned, (n) */
    size_t n, cap;
};

/* Zeroes, and sent_ns. */
struct gr_answer {
    enum gr_answer_end end;
    int status;              /* of HTTP */
    bool done;               /* [DONE] has come */
    uint64_t due_ns;         /* when it was to be sent; sent_ns is later where too many were on their way */
    uint64_t sent_ns;        /* the request */
    uint64_t first_ns;       /* the first piece of text; 0: none has come */
    uint64_t last_ns;        /* the last one */
    uint64_t end_ns;         /* the end of the response */
    uint64_t longest_gap_ns; /* between pieces */
    uint32_t n_in, n_out;    /* tokens, by usage */
    uint32_t n_piece;
    char *text; /* owned, ends with a NUL; NULL: empty */
    size_t n_text, text_cap;
    char said[GR_ANSWER_SAID_MAX]; /* what was wrong */
};

/* An event's data. gaps: where those between its pieces go. */
void gr_answer_take(struct gr_answer *a, const char *data, size_t n, uint64_t now_ns, struct gr_gaps *gaps);
/* Bytes of a response that is no stream: an error. */
void gr_answer_take_error(struct gr_answer *a, const char *bytes, size_t n);
/* The response has ended, as HTTP has it. */
void gr_answer_finish(struct gr_answer *a, uint64_t now_ns);
/* The first failure counts. fmt: as printf's. */
void gr_answer_fail(struct gr_answer *a, enum gr_answer_end end, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void gr_answer_free(struct gr_answer *a);

#endif
