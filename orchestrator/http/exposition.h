/* Metrics as text for Prometheus, format 0.0.4: families with their help and type, and samples with their labels. The
 * format: https://prometheus.io/docs/instrumenting/exposition_formats/ . Pure. */
#ifndef GR_ORCHESTRATOR_HTTP_EXPOSITION_H
#define GR_ORCHESTRATOR_HTTP_EXPOSITION_H

#include "orchestrator/machine/totals.h"

#include <stdio.h>

#define GR_EXPO_LABEL_MAX 2 /* of a family */

enum gr_expo_kind { GR_EXPO_COUNTER, GR_EXPO_GAUGE, GR_EXPO_HISTOGRAM };

/* All text is static. name: without `graft_', which every name begins with. label: names, NULL after the last. */
struct gr_expo_family {
    enum gr_expo_kind kind;
    const char *name, *help;
    const char *label[GR_EXPO_LABEL_MAX];
};

void gr_expo_begin(FILE *out, const struct gr_expo_family *f);
/* value: of each label of the family, any bytes that are UTF-8; NULL where it has no label. */
void gr_expo_count(FILE *out, const struct gr_expo_family *f, const char *const *value, uint64_t n);
void gr_expo_number(FILE *out, const struct gr_expo_family *f, const char *const *value, double x);
/* In seconds. The family has no label. */
void gr_expo_histogram(FILE *out, const struct gr_expo_family *f, const struct gr_histogram *h);

#endif
