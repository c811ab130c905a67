#include "bench/table.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum gr_status gr_table_format_by_name(const char *name, enum gr_table_format *out)
{
    static const char *const names[] = {"md", "csv", "json", "jsonl"};
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum gr_table_format)i;
            return GR_OK;
        }
    }
    return GR_ENOTFOUND;
}

static void cpu_model(char *out, size_t cap)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, cap, "unknown CPU");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            snprintf(out, cap, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
}

static void header(const struct gr_table *t, const char *what, const char *note)
{
    char cpu[256];
    char date[32];
    struct utsname u;
    const time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &tm);
    cpu_model(cpu, sizeof(cpu));
    uname(&u);
    /* In JSON the header would be no row: it goes to standard error. */
    FILE *out = t->format == GR_TABLE_MD || t->format == GR_TABLE_CSV ? t->out : stderr;
    fprintf(out, "# graft-bench %s, graft %s, %s, %s, %ld CPUs, %s\n", what, GR_VERSION, date, cpu,
            sysconf(_SC_NPROCESSORS_ONLN), u.release);
    if (note != NULL) {
        fprintf(out, "# %s\n", note);
    }
}

void gr_table_begin(struct gr_table *t, enum gr_table_format format, FILE *out, const char *what, const char *note,
                    const char *const *column, int n_column)
{
    GR_ASSERT(n_column <= GR_TABLE_COLUMN_MAX);
    *t = (struct gr_table){.format = format, .out = out, .n_column = n_column};
    memcpy(t->column, column, (size_t)n_column * sizeof(*column));
    header(t, what, note);
    if (format == GR_TABLE_JSON) {
        fputs("[\n", out);
        return;
    }
    for (int i = 0; format != GR_TABLE_JSONL && i < n_column; i++) {
        fprintf(out, format == GR_TABLE_MD ? "| %s " : i == 0 ? "%s" : ",%s", column[i]);
    }
    fputs(format == GR_TABLE_MD ? "|\n" : format == GR_TABLE_CSV ? "\n" : "", out);
    for (int i = 0; format == GR_TABLE_MD && i < n_column; i++) {
        fputs(i == 0 ? "|---" : "|---:", out);
    }
    fputs(format == GR_TABLE_MD ? "|\n" : "", out);
}

/* Opens a cell: separators, and the key in JSON. */
static void open_cell(struct gr_table *t)
{
    const bool json = t->format == GR_TABLE_JSON || t->format == GR_TABLE_JSONL;
    if (t->at == 0 && json) {
        fputs(t->format == GR_TABLE_JSON && t->n_row > 0 ? ",\n{" : "{", t->out);
    }
    if (json) {
        fprintf(t->out, "%s\"%s\":", t->at > 0 ? "," : "", t->column[t->at]);
    } else if (t->format == GR_TABLE_CSV) {
        fputs(t->at > 0 ? "," : "", t->out);
    } else {
        fputs("| ", t->out);
    }
}

static void close_cell(struct gr_table *t)
{
    fputs(t->format == GR_TABLE_MD ? " " : "", t->out);
    if (++t->at < t->n_column) {
        return;
    }
    t->at = 0;
    t->n_row++;
    static const char *const ends[] = {"|\n", "\n", "}", "}\n"};
    fputs(ends[t->format], t->out);
    fflush(t->out);
}

/* Texts come from files, too. */
static void json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *p = text; *p != '\0'; p++) {
        const unsigned char c = (unsigned char)*p;
        fprintf(out, c < 0x20 ? "\\u%04x" : c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    fputc('"', out);
}

void gr_table_text(struct gr_table *t, const char *text)
{
    open_cell(t);
    if (t->format == GR_TABLE_JSON || t->format == GR_TABLE_JSONL) {
        json_text(t->out, text);
    } else {
        fputs(text, t->out);
    }
    close_cell(t);
}

void gr_table_number(struct gr_table *t, double value, int n_digit)
{
    open_cell(t);
    fprintf(t->out, "%.*f", n_digit, value);
    close_cell(t);
}

void gr_table_mean(struct gr_table *t, const double *sample, int n, int n_digit)
{
    open_cell(t);
    fprintf(t->out, "%.*f", n_digit, gr_mean(sample, n));
    if (t->format == GR_TABLE_MD && n > 1) {
        fprintf(t->out, " +- %.*f", n_digit, gr_stddev(sample, n));
    }
    close_cell(t);
}

void gr_table_end(struct gr_table *t)
{
    fputs(t->format == GR_TABLE_JSON ? "\n]\n" : "", t->out);
    fflush(t->out);
}

double gr_mean(const double *sample, int n)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += sample[i];
    }
    return n > 0 ? sum / n : 0.0;
}

double gr_stddev(const double *sample, int n)
{
    const double mean = gr_mean(sample, n);
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += (sample[i] - mean) * (sample[i] - mean);
    }
    return n > 1 ? sqrt(sum / (n - 1)) : 0.0;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

double gr_median(double *sample, int n)
{
    qsort(sample, (size_t)n, sizeof(*sample), ascending);
    return n == 0 ? 0.0 : n % 2 != 0 ? sample[n / 2] : 0.5 * (sample[n / 2 - 1] + sample[n / 2]);
}
