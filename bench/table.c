#include "bench/table.h"

#include "bench/commit.h"
#include "common/base/log.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifdef __clang__
#define GR_COMPILER "clang " __clang_version__
#else
#define GR_COMPILER "gcc " __VERSION__
#endif

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

static int n_word;
static char **word;

void gr_table_command(int argc, char **argv)
{
    n_word = argc;
    word = argv;
}

static bool is_json(const struct gr_table *t)
{
    return t->format == GR_TABLE_JSON || t->format == GR_TABLE_JSONL;
}

static json_t *options(void)
{
    json_t *list = json_array();
    for (int i = 1; i < n_word; i++) {
        json_array_append_new(list, json_string(word[i]));
    }
    return list;
}

json_t *gr_table_about(void)
{
    char cpu[256];
    struct utsname u;
    cpu_model(cpu, sizeof(cpu));
    uname(&u);
    return json_pack("{s:s, s:s, s:s, s:{s:s, s:i, s:s}}", "version", GR_VERSION, "commit", gr_commit, "compiler",
                     GR_COMPILER, "machine", "cpu", cpu, "cpus", (int)sysconf(_SC_NPROCESSORS_ONLN), "kernel",
                     u.release);
}

static const json_t *also;

void gr_table_also(const json_t *members)
{
    also = members;
}

static json_t *provenance(const char *what, const char *note)
{
    char date[32];
    const time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_t *about = gr_table_about();
    json_t *p = json_pack("{s:s, s:s, s:o, s:s*}", "benchmark", what, "date", date, "options", options(), "note", note);
    const bool good = p != NULL && json_object_update(p, about) == 0 &&
                      (also == NULL || json_object_update(p, (json_t *)(uintptr_t)also) == 0);
    json_decref(about);
    if (!good) {
        json_decref(p);
        return NULL;
    }
    return p;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text != NULL ? text : "";
}

/* A line, and the note in another. */
static void print_header(FILE *out, const json_t *p)
{
    const json_t *machine = json_object_get(p, "machine");
    fprintf(out, "# graft-bench %s, graft %s (%s, %s), %s, %s, %d CPUs, %s\n#", text_of(p, "benchmark"),
            text_of(p, "version"), text_of(p, "commit"), text_of(p, "compiler"), text_of(p, "date"),
            text_of(machine, "cpu"), (int)json_integer_value(json_object_get(machine, "cpus")),
            text_of(machine, "kernel"));
    for (int i = 1; i < n_word; i++) {
        fprintf(out, " %s", word[i]);
    }
    fprintf(out, "\n%s%s%s", text_of(p, "note")[0] != '\0' ? "# " : "", text_of(p, "note"),
            text_of(p, "note")[0] != '\0' ? "\n" : "");
}

/* What `also' has and no line above says. */
static void print_also(FILE *out, const json_t *p)
{
    static const char *const said[] = {"version", "commit", "compiler", "machine"};
    json_t *rest = json_deep_copy(p);
    for (size_t i = 0; i < GR_ARRAY_LEN(said); i++) {
        json_object_del(rest, said[i]);
    }
    fputs("# ", out);
    json_dumpf(rest, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(rest);
}

static bool is_quiet;

void gr_table_quiet(bool quiet)
{
    is_quiet = quiet;
}

static void header(const struct gr_table *t, const char *what, const char *note)
{
    json_t *p = provenance(what, note);
    if (p == NULL) {
        log_error("the provenance of these results is no text in UTF-8");
    } else if (is_json(t)) {
        fputs("{\"provenance\":", t->out);
        json_dumpf(p, t->out, JSON_COMPACT);
        fputs(t->format == GR_TABLE_JSON ? ",\"rows\":[\n" : "}\n", t->out);
    }
    if (p != NULL && (t->format == GR_TABLE_MD || !is_quiet)) {
        FILE *out = t->format == GR_TABLE_MD ? t->out : stderr;
        print_header(out, p);
        if (also != NULL) {
            print_also(out, also);
        }
    }
    json_decref(p);
}

/* ---- cells as text ---- */

/* Numbers are rarely wider than this; a column is as wide as its name, or this. */
#define NUMBER_WIDTH 8
#define TEXT_WIDTH 14 /* of the first column */

static int width_of(const struct gr_table *t, int i)
{
    return GR_MAX((int)strlen(t->column[i]), i == 0 ? TEXT_WIDTH : NUMBER_WIDTH);
}

static void csv_text(FILE *out, const char *text)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (const char *p = text; *p != '\0'; p++) {
        fputs(*p == '"' ? "\"\"" : (const char[]){*p, '\0'}, out);
    }
    fputc('"', out);
}

static void print_cell(struct gr_table *t, const char *text)
{
    if (t->format == GR_TABLE_CSV) {
        fputs(t->at > 0 ? "," : "", t->out);
        csv_text(t->out, text);
    } else {
        fprintf(t->out, t->at == 0 ? "| %-*s " : "| %*s ", width_of(t, t->at), text);
    }
}

static void end_text_cell(struct gr_table *t)
{
    if (++t->at == t->n_column) {
        fputs(t->format == GR_TABLE_CSV ? "\r\n" : "|\n", t->out);
        fflush(t->out);
        t->at = 0;
        t->n_row++;
    }
}

void gr_table_begin(struct gr_table *t, enum gr_table_format format, FILE *out, const char *what, const char *note,
                    const char *const *column, int n_column)
{
    GR_ASSERT(n_column <= GR_TABLE_COLUMN_MAX);
    *t = (struct gr_table){.format = format, .out = out, .n_column = n_column};
    memcpy(t->column, column, (size_t)n_column * sizeof(*column));
    header(t, what, note);
    for (int i = 0; !is_json(t) && i < n_column; i++) {
        print_cell(t, column[i]);
        end_text_cell(t);
    }
    for (int i = 0; format == GR_TABLE_MD && i < n_column; i++) {
        char line[64];
        const int n = GR_MIN(width_of(t, i), (int)sizeof(line) - 1);
        memset(line, '-', (size_t)n);
        line[n] = '\0';
        fprintf(out, i == 0 ? "|%s--" : "|%s-:", line);
    }
    fputs(format == GR_TABLE_MD ? "|\n" : "", out);
    t->n_row = 0;
}

/* ---- cells of all formats ---- */

static void end_json_row(struct gr_table *t)
{
    if (t->format == GR_TABLE_JSON && t->n_row > 0) {
        fputs(",\n", t->out);
    }
    json_dumpf(t->row, t->out, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    fputs(t->format == GR_TABLE_JSONL ? "\n" : "", t->out);
    fflush(t->out);
    json_decref(t->row);
    t->row = NULL;
    t->at = 0;
    t->n_row++;
}

/* value NULL (no memory, or a text that is not UTF-8) is an empty cell. */
static void put_json(struct gr_table *t, json_t *value)
{
    t->row = t->row != NULL ? t->row : json_object();
    json_object_set_new(t->row, t->column[t->at], value != NULL ? value : json_null());
    if (++t->at == t->n_column) {
        end_json_row(t);
    }
}

void gr_table_text(struct gr_table *t, const char *text)
{
    if (is_json(t)) {
        put_json(t, json_string(text));
        return;
    }
    print_cell(t, text);
    end_text_cell(t);
}

void gr_table_none(struct gr_table *t)
{
    if (is_json(t)) {
        put_json(t, json_null());
        return;
    }
    gr_table_text(t, t->format == GR_TABLE_CSV ? "" : "-");
}

/* NaN and infinity are no numbers of JSON. */
static void round_number(double value, int n_digit, char *out, size_t cap)
{
    if (isfinite(value)) {
        snprintf(out, cap, "%.*f", n_digit, value);
    } else {
        snprintf(out, cap, "-");
    }
}

/* As it is printed, so that all formats say the same. */
static json_t *json_rounded(const char *text)
{
    if (strcmp(text, "-") == 0) {
        return json_null();
    }
    return strchr(text, '.') != NULL ? json_real(strtod(text, NULL)) : json_integer(strtoll(text, NULL, 10));
}

void gr_table_number(struct gr_table *t, double value, int n_digit)
{
    char text[64];
    if (!isfinite(value)) {
        gr_table_none(t);
        return;
    }
    snprintf(text, sizeof(text), "%.*f", n_digit, value);
    if (is_json(t)) {
        put_json(t, json_rounded(text));
        return;
    }
    print_cell(t, text);
    end_text_cell(t);
}

void gr_table_numbers(struct gr_table *t, const double *value, int n, int n_digit)
{
    char text[GR_TABLE_LIST_MAX * 32];
    size_t len = 0;
    json_t *list = is_json(t) ? json_array() : NULL;
    GR_ASSERT(n <= GR_TABLE_LIST_MAX);
    text[0] = '\0';
    for (int i = 0; i < n; i++) {
        char one[32];
        round_number(value[i], n_digit, one, sizeof(one));
        json_array_append_new(list, json_rounded(one));
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%.30s", i > 0 ? " " : "", one);
    }
    if (is_json(t)) {
        put_json(t, list);
        return;
    }
    gr_table_text(t, text);
}

void gr_table_mean(struct gr_table *t, const double *sample, int n, int n_digit)
{
    char text[64];
    if (t->format != GR_TABLE_MD || n <= 1 || !isfinite(gr_mean(sample, n))) {
        gr_table_number(t, gr_mean(sample, n), n_digit);
        return;
    }
    snprintf(text, sizeof(text), "%.*f +- %.*f", n_digit, gr_mean(sample, n), n_digit, gr_stddev(sample, n));
    print_cell(t, text);
    end_text_cell(t);
}

void gr_table_end(struct gr_table *t)
{
    fputs(t->format == GR_TABLE_JSON ? "\n]}\n" : "", t->out);
    fflush(t->out);
}

double gr_ratio(double a, double b)
{
    return b > 0.0 ? a / b : NAN;
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

void gr_sort(double *sample, size_t n)
{
    qsort(sample, n, sizeof(*sample), ascending);
}

double gr_median(double *sample, int n)
{
    gr_sort(sample, (size_t)n);
    return n == 0 ? 0.0 : n % 2 != 0 ? sample[n / 2] : 0.5 * (sample[n / 2 - 1] + sample[n / 2]);
}
