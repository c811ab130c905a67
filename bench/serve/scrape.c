#include "bench/serve/scrape.h"

#include "common/base/status.h"

#include <stdlib.h>
#include <string.h>

#define STEM "spec_decode_num_"
#define PER_POSITION STEM "accepted_tokens_per_pos_total"
#define LABEL "position=\""

/* The value of a sample, which follows its labels. */
static double value_of(const char *line, size_t n)
{
    size_t at = n;
    while (at > 0 && line[at - 1] != ' ') {
        at--;
    }
    return strtod(line + at, NULL);
}

static void take_line(struct gr_spec_counts *c, const char *line, size_t n)
{
    const struct {
        const char *name;
        double *to;
    } rows[] = {{"drafts_total", &c->drafts},
                {"draft_tokens_total", &c->draft_tokens},
                {"accepted_tokens_total", &c->accepted_tokens}};
    const size_t n_name = strcspn(line, "{ \n");
    for (int i = 0; i < 3; i++) {
        const size_t n_tail = strlen(STEM) + strlen(rows[i].name);
        const char *tail = line + n_name - n_tail;
        if (n_name > n_tail && n > n_name && strncmp(tail, STEM, strlen(STEM)) == 0 &&
            strncmp(tail + strlen(STEM), rows[i].name, strlen(rows[i].name)) == 0) {
            *rows[i].to += value_of(line, n);
            c->known = true;
        }
    }
}

/* Of graft the name has `graft_' before it, of vLLM `vllm:'. */
static void take_position(struct gr_spec_counts *c, const char *line, size_t n)
{
    const size_t n_name = strcspn(line, "{ \n"), n_tail = strlen(PER_POSITION);
    const bool is_one = n_name > n_tail && n_name < n && strncmp(line + n_name - n_tail, PER_POSITION, n_tail) == 0;
    const char *label = is_one ? strstr(line + n_name, LABEL) : NULL;
    if (label != NULL && label < line + n) {
        char *end = NULL;
        const unsigned long at = strtoul(label + strlen(LABEL), &end, 10);
        if (*end == '"' && at < GR_SPEC_POSITION_MAX) {
            c->accepted_per_position[at] += value_of(line, n);
            c->n_position = GR_MAX(c->n_position, (int)at + 1);
        }
    }
}

struct gr_spec_counts gr_spec_counts_read(const char *page)
{
    struct gr_spec_counts c = {.known = false};
    while (*page != '\0') {
        const size_t n = strcspn(page, "\n");
        if (page[0] != '#') {
            take_line(&c, page, n);
            take_position(&c, page, n);
        }
        page += n + (page[n] == '\n');
    }
    return c;
}
