#include "orchestrator/http/exposition.h"

#include <inttypes.h>

static const char *const kinds[] = {
    [GR_EXPO_COUNTER] = "counter", [GR_EXPO_GAUGE] = "gauge", [GR_EXPO_HISTOGRAM] = "histogram"};

/* Of help and of a label's value: what would end the line, or the value, is written as two characters. */
static void write_escaped(FILE *out, const char *text, bool quoted)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\n') {
            fputs("\\n", out);
        } else if (*p == '\\' || (quoted && *p == '"')) {
            fprintf(out, "\\%c", *p);
        } else {
            fputc(*p, out);
        }
    }
}

void gr_expo_begin(FILE *out, const struct gr_expo_family *f)
{
    fprintf(out, "# HELP graft_%s ", f->name);
    write_escaped(out, f->help, false);
    fprintf(out, "\n# TYPE graft_%s %s\n", f->name, kinds[f->kind]);
}

static void write_labels(FILE *out, const struct gr_expo_family *f, const char *const *value)
{
    for (int i = 0; i < GR_EXPO_LABEL_MAX && f->label[i] != NULL; i++) {
        fprintf(out, "%c%s=\"", i == 0 ? '{' : ',', f->label[i]);
        write_escaped(out, value[i], true);
        fputc('"', out);
    }
    fputs(f->label[0] != NULL ? "} " : " ", out);
}

void gr_expo_count(FILE *out, const struct gr_expo_family *f, const char *const *value, uint64_t n)
{
    fprintf(out, "graft_%s", f->name);
    write_labels(out, f, value);
    fprintf(out, "%" PRIu64 "\n", n);
}

void gr_expo_number(FILE *out, const struct gr_expo_family *f, const char *const *value, double x)
{
    fprintf(out, "graft_%s", f->name);
    write_labels(out, f, value);
    fprintf(out, "%.9g\n", x);
}

void gr_expo_histogram(FILE *out, const struct gr_expo_family *f, const struct gr_histogram *h)
{
    uint64_t n = 0;
    for (int i = 0; i < GR_HISTOGRAM_CEILINGS; i++) {
        n += h->n[i];
        fprintf(out, "graft_%s_bucket{le=\"%g\"} %" PRIu64 "\n", f->name, (double)gr_histogram_ceiling_ns(i) / 1e9, n);
    }
    n += h->n[GR_HISTOGRAM_CEILINGS];
    fprintf(out, "graft_%s_bucket{le=\"+Inf\"} %" PRIu64 "\ngraft_%s_sum %.9g\ngraft_%s_count %" PRIu64 "\n", f->name,
            n, f->name, (double)h->sum_ns / 1e9, f->name, n);
}
