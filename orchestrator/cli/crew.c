#include "orchestrator/cli/crew.h"

#include "common/base/device.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What says who is in one role. */
struct source {
    const struct gr_option_workers *list;
    enum gr_option_id list_row, count_row, device_row;
    int64_t count, tp; /* tp: ranks of each, where an item does not say */
    bool splits;       /* it can have several ranks */
    bool tp_is_said;
    struct gr_devices devices;
};

static bool is_this_host(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "::1"};
    char own[256] = "";
    bool found = host == NULL || (gethostname(own, sizeof(own) - 1) == 0 && strcmp(host, own) == 0);
    for (size_t i = 0; i < GR_ARRAY_LEN(names); i++) {
        found = found || strcmp(host, names[i]) == 0;
    }
    return found;
}

static bool was_said(const struct gr_options *o, enum gr_option_id row)
{
    return o->values.source[row] != GR_FROM_DEFAULT;
}

static enum gr_status check_item(const char *name, const struct source *s, const struct gr_option_worker *w)
{
    const char *host = w->hosts != NULL ? w->hosts : w->host;
    if (w->hosts != NULL || !is_this_host(w->host)) {
        log_error(
            "%s: host %s is not this one; a command starts workers on its own host alone, `graft launch' on several",
            name, host);
        return GR_EINVAL;
    }
    if (w->tp > 1 && !s->splits) {
        log_error("%s: tp %d: a drafter is not split", name, (int)w->tp);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status add(const char *name, const struct gr_devices *devices, int64_t tp, struct gr_crew_role *r)
{
    if (r->n == GR_ORCH_WORKER_MAX) {
        log_error("%s: more than %d workers", name, GR_ORCH_WORKER_MAX);
        return GR_EINVAL;
    }
    r->devices[r->n] = *devices;
    r->tp[r->n++] = (int)tp;
    return GR_OK;
}

/* Ranks of an only worker that gets all of these devices; 0: not said. */
static int64_t ranks_of(const struct source *s, const struct gr_devices *devices, int64_t count)
{
    const bool follows = s->splits && !s->tp_is_said && count == 1 && devices->n > 1;
    return follows ? gr_devices_ranks(devices) : 0;
}

static enum gr_status read_list(const struct gr_options *o, const struct source *s, struct gr_crew_role *out)
{
    const char *name = gr_option_rows[s->list_row].yaml;
    for (int i = 0; i < s->list->n; i++) {
        const struct gr_option_worker *w = &s->list->item[i];
        GR_TRY(check_item(name, s, w));
        if (w->devices.n > 0 && o->values.source[s->device_row] == GR_FROM_YAML) {
            log_error("%s: its device is said by %s, too; one of them is enough", name,
                      gr_option_rows[s->device_row].yaml);
            return GR_EINVAL;
        }
        for (int64_t k = 0; k < w->count; k++) {
            const struct gr_devices *all = w->devices.n > 0 ? &w->devices : &s->devices;
            const struct gr_devices own = gr_devices_deal(all, w->tp > 0 ? w->tp : s->tp, k, w->count);
            GR_TRY(add(name, &own, w->tp > 0 ? w->tp : ranks_of(s, &own, w->count), out));
        }
    }
    return GR_OK;
}

/* A list of the option is for all, or has one for each worker, or one for each rank of all. Of a target that is alone
 * plan.c tells what is wrong. */
static enum gr_status check_devices(const struct source *s)
{
    char text[GR_DEVICES_TEXT], ranks[64] = "";
    const int n = s->devices.n;
    if (n <= 1 || n == s->count || n == s->count * s->tp || (s->splits && s->count == 1)) {
        return GR_OK;
    }
    if (s->tp > 1) {
        snprintf(ranks, sizeof(ranks), ", or one for each rank (%" PRId64 ", with -tp %" PRId64 ")", s->count * s->tp,
                 s->tp);
    }
    gr_devices_text(&s->devices, text, sizeof(text));
    if (s->count == 1) {
        log_error("--%s %s: %d devices for one drafter, and a drafter is not split; name one",
                  gr_option_rows[s->device_row].name, text, n);
        return GR_EINVAL;
    }
    log_error("--%s %s: %d devices for %" PRId64 " workers (--%s); name one for all, or one for each%s",
              gr_option_rows[s->device_row].name, text, n, s->count, gr_option_rows[s->count_row].name, ranks);
    return GR_EINVAL;
}

static enum gr_status read_role(const struct gr_options *o, const struct source *s, struct gr_crew_role *out)
{
    const struct gr_option *count = &gr_option_rows[s->count_row];
    if (s->list->n > 0 && was_said(o, s->count_row)) {
        log_error("--%s and the list %s of the YAML file both say how many; one of them is enough", count->name,
                  gr_option_rows[s->list_row].yaml);
        return GR_EINVAL;
    }
    if (s->list->n > 0) {
        return read_list(o, s, out);
    }
    GR_TRY(check_devices(s));
    const int64_t n_each = s->devices.n == s->count ? 1 : s->tp;
    for (int64_t i = 0; i < s->count; i++) {
        const struct gr_devices own = gr_devices_deal(&s->devices, n_each, i, s->count);
        GR_TRY(add(count->name, &own, ranks_of(s, &own, s->count), out));
    }
    return GR_OK;
}

enum gr_status gr_crew_check_size(int n_target, int n_draft)
{
    if (n_target + n_draft > GR_ORCH_WORKER_MAX) {
        log_error("%d targets and %d draft workers: an orchestrator takes %d workers together", n_target, n_draft,
                  GR_ORCH_WORKER_MAX);
        return GR_EINVAL;
    }
    return GR_OK;
}

/* The rows are those of `graft serve'; a command that lacks n-target and n-draft has their defaults, which are one. */
static enum gr_status check_number(const struct gr_options *o, bool several, const struct gr_crew *c)
{
    const bool targets = c->target.n > 1;
    if (!several && (targets || c->draft.n > 1)) {
        log_error("%s: %d workers are asked for, and graft %s starts one; `graft serve --spawn' starts several",
                  gr_option_rows[targets ? GR_OPTION_targets : GR_OPTION_drafts].yaml,
                  targets ? c->target.n : c->draft.n, o->values.called->word);
        return GR_EINVAL;
    }
    return gr_crew_check_size(c->target.n, c->draft.n);
}

enum gr_status gr_crew_read(const struct gr_options *o, bool several, struct gr_crew *out)
{
    const struct source target = {.list = &o->targets,
                                  .list_row = GR_OPTION_targets,
                                  .count_row = GR_OPTION_n_target,
                                  .device_row = GR_OPTION_target_device,
                                  .count = o->n_target,
                                  .tp = o->tensor_parallel_size,
                                  .splits = true,
                                  .tp_is_said = was_said(o, GR_OPTION_tensor_parallel_size),
                                  .devices = o->target_device};
    const struct source draft = {.list = &o->drafts,
                                 .list_row = GR_OPTION_drafts,
                                 .count_row = GR_OPTION_n_draft,
                                 .device_row = GR_OPTION_draft_device,
                                 .count = o->n_draft,
                                 .tp = 1,
                                 .devices = o->draft_device};
    *out = (struct gr_crew){0};
    GR_TRY(read_role(o, &target, &out->target));
    GR_TRY(read_role(o, &draft, &out->draft));
    return check_number(o, several, out);
}

bool gr_crew_is_pair(const struct gr_crew *c)
{
    return c->target.n == 1 && c->draft.n <= 1;
}

static int n_on(const struct gr_crew_role *r, int device)
{
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        n += gr_devices_has(&r->devices[i], device);
    }
    return n;
}

int gr_crew_shared_gpu(const struct gr_crew *c)
{
    const struct gr_crew_role *roles[] = {&c->target, &c->draft};
    for (size_t r = 0; r < GR_ARRAY_LEN(roles); r++) {
        for (int i = 0; i < roles[r]->n * GR_DEVICES_MAX; i++) {
            const struct gr_devices *d = &roles[r]->devices[i / GR_DEVICES_MAX];
            const int device = i % GR_DEVICES_MAX < d->n ? d->device[i % GR_DEVICES_MAX] : GR_DEVICE_CPU;
            if (device != GR_DEVICE_CPU && n_on(&c->target, device) + n_on(&c->draft, device) > 1) {
                return device;
            }
        }
    }
    return -1;
}
