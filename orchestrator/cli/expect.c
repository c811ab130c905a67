#include "orchestrator/cli/expect.h"

#include "common/base/log.h"
#include "common/base/parse.h"

#include <stdio.h>
#include <string.h>

/* One ROLE=N of len bytes. */
static enum gr_status take_item(const char *item, size_t len, struct gr_expect *e)
{
    char word[32];
    int64_t n = 0;
    snprintf(word, sizeof(word), "%.*s", (int)GR_MIN(len, sizeof(word) - 1), item);
    char *equals = strchr(word, '=');
    uint32_t *slot = NULL;
    if (equals != NULL) {
        *equals = '\0';
        slot = strcmp(word, "target") == 0 ? &e->n_target : strcmp(word, "draft") == 0 ? &e->n_draft : NULL;
    }
    if (slot == NULL || *slot != 0 || !gr_parse_int(equals + 1, 1, GR_ORCH_WORKER_MAX, &n)) {
        log_error("--expect: `%.*s' is not target=N or draft=N with N from 1 to %d, each at most once", (int)len, item,
                  GR_ORCH_WORKER_MAX);
        return GR_EINVAL;
    }
    *slot = (uint32_t)n;
    return GR_OK;
}

enum gr_status gr_expect_parse(const char *text, struct gr_expect *out)
{
    struct gr_expect e = {0};
    while (text != NULL) {
        const size_t len = strcspn(text, ",");
        GR_TRY(take_item(text, len, &e));
        text = text[len] == ',' ? text + len + 1 : NULL;
    }
    *out = e;
    return GR_OK;
}

bool gr_expect_met(const struct gr_expect *e, const struct gr_orch *orch, char *text, size_t text_bytes)
{
    const uint32_t n_target = gr_orch_n_worker(orch, GR_WORKER_TARGET);
    const uint32_t n_draft = gr_orch_n_worker(orch, GR_WORKER_DRAFT);
    const bool lacks_target = n_target < e->n_target;
    const bool lacks_draft = n_draft < e->n_draft;
    size_t n = 0;
    text[0] = '\0';
    if (lacks_target) {
        snprintf(text, text_bytes, "%u of %u target workers", n_target, e->n_target);
        n = strlen(text);
    }
    if (lacks_draft) {
        snprintf(text + n, text_bytes - n, "%s%u of %u draft workers", n > 0 ? ", " : "", n_draft, e->n_draft);
    }
    return !lacks_target && !lacks_draft;
}
