/* Rows of results in the manner of llama-bench: markdown, CSV (RFC 4180), JSON or JSON lines, with their provenance:
 * version, commit, compiler, options, machine, date. Markdown has it in lines before the table; JSON is an object
 * {"provenance": {}, "rows": []}; of JSON lines the first is {"provenance": {}}; CSV is rows alone. Where the table is
 * no markdown the lines go to standard error, too. A cell is a text, a number, or empty: `-' in markdown, nothing in
 * CSV, null in JSON. */
#ifndef GR_BENCH_TABLE_H
#define GR_BENCH_TABLE_H

#include "common/base/status.h"

#include <stdbool.h>
#include <stdio.h>

#define GR_TABLE_COLUMN_MAX 64 /* columns of a table, at most */
#define GR_TABLE_LIST_MAX 64   /* numbers of a cell */

struct json_t;

enum gr_table_format { GR_TABLE_MD, GR_TABLE_CSV, GR_TABLE_JSON, GR_TABLE_JSONL };

struct gr_table {
    enum gr_table_format format;
    FILE *out;
    int n_column, n_row, at;
    const char *column[GR_TABLE_COLUMN_MAX]; /* borrowed */
    struct json_t *row;                      /* owned: the cells of a JSON row so far; NULL: none yet */
};

/* GR_ENOTFOUND: not one of md, csv, json, jsonl. */
GR_NODISCARD enum gr_status gr_table_format_by_name(const char *name, enum gr_table_format *out);
/* What the program was started with, for the provenance; borrowed. Before the first table. */
void gr_table_command(int argc, char **argv);
/* Where results of this build and machine come from, of the provenance what no command changes: version, commit,
 * compiler, machine. Owned by the caller. */
struct json_t *gr_table_about(void);
/* More members of the provenance of all tables that begin after this; borrowed. NULL: none. */
void gr_table_also(const struct json_t *members);
/* Tables that are no markdown tell their provenance to standard error no more; false: they do again. */
void gr_table_quiet(bool quiet);
/* Prints the header. what: the benchmark's name; note: one line about method, or NULL. */
void gr_table_begin(struct gr_table *t, enum gr_table_format format, FILE *out, const char *what, const char *note,
                    const char *const *column, int n_column);
void gr_table_text(struct gr_table *t, const char *text);
/* NaN and infinity are empty cells. */
void gr_table_number(struct gr_table *t, double value, int n_digit);
/* A list: an array in JSON, with spaces between them elsewhere; at most GR_TABLE_LIST_MAX. NaN and infinity in it are
 * null in JSON, `-' elsewhere. */
void gr_table_numbers(struct gr_table *t, const double *value, int n, int n_digit);
void gr_table_none(struct gr_table *t);
/* mean +- stddev over n samples */
void gr_table_mean(struct gr_table *t, const double *sample, int n, int n_digit);
void gr_table_end(struct gr_table *t);

/* a / b; NaN, which is an empty cell, where b is 0 or less: nothing was counted. */
double gr_ratio(double a, double b);
double gr_mean(const double *sample, int n);
double gr_stddev(const double *sample, int n); /* of the sample, n - 1; 0 for n < 2 */
void gr_sort(double *sample, size_t n);        /* rising */
double gr_median(double *sample, int n);       /* sorts */

#endif
