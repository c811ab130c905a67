/* Command lines of a fleet's processes. Pure. */
#ifndef GR_BENCH_SWEEP_LINE_H
#define GR_BENCH_SWEEP_LINE_H

#include "bench/sweep/sweep.h"
#include "common/process/child_args.h"

#define GR_LINE_TEXT_MAX 40
#define GR_LINE_WORDS_MAX 300 /* bytes of --worker-options */
#define GR_LINE_N_WORD 16

struct gr_line {
    struct gr_child_args args;
    char text[GR_LINE_TEXT_MAX][320]; /* words that are made here */
    int n_text;
    char program[PATH_MAX];
};

/* program: one of this build's, by its name. */
void gr_line_begin(struct gr_line *l, const char *program);
/* A copy of a text that lives as long as the line. */
const char *gr_line_keep(struct gr_line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The words of a text, which have blanks between them: at most GR_LINE_N_WORD, of GR_LINE_WORDS_MAX bytes together.
 * text NULL: none. */
void gr_line_words(struct gr_line *l, const char *text);
/* "graft-target --join ... --model ..." of worker i of a fleet, which stands at `place'. join: as --join takes it. */
void gr_line_target(struct gr_line *l, const struct gr_sweep *s, const struct gr_sweep_life *life,
                    const struct gr_place *place, const char *join);
void gr_line_draft(struct gr_line *l, const struct gr_sweep *s, const struct gr_place *place, const char *join);
/* "graft-bench clients ..." of a life. connect: NULL: GRAFT_CONNECT says it. */
void gr_line_clients(struct gr_line *l, const struct gr_sweep *s, const struct gr_sweep_life *life,
                     const char *connect);
/* The devices of n places from `first' on: "cuda:2,cuda:3", or "cpu". */
const char *gr_line_devices(struct gr_line *l, const struct gr_sweep *s, int first, int n);
/* A line of words, NULL after the last, as a shell takes them. */
void gr_words_print(const char *const *word, FILE *out);

#endif
