#include "common/base/device.h"

#include "common/base/log.h"
#include "common/base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEVICE_MAX 255 /* the largest N of cuda:N */

enum gr_status gr_device_placed(const char *what, int device)
{
    if (device == GR_DEVICE_LOCAL) {
        log_error("%s cuda:local: only `graft launch' knows which GPU of its host a rank has; take cuda:N", what);
        return GR_EINVAL;
    }
    return GR_OK;
}

enum gr_status gr_device_parse(const char *what, const char *text, int *device_out)
{
    int64_t n = 0;
    if (strcmp(text, "cpu") == 0) {
        *device_out = GR_DEVICE_CPU;
        return GR_OK;
    }
    if (strcmp(text, "cuda:local") == 0) {
        *device_out = GR_DEVICE_LOCAL;
        return GR_OK;
    }
    if (strncmp(text, "cuda:", 5) != 0 || !gr_parse_int(text + 5, 0, DEVICE_MAX, &n)) {
        log_error("%s: `%s' is not cpu, cuda:N (N from 0 to %d) or cuda:local", what, text, DEVICE_MAX);
        return GR_EINVAL;
    }
    *device_out = (int)n;
    return GR_OK;
}

/* ---- lists ---- */

static int device_text(int device, char *text, size_t cap)
{
    return device == GR_DEVICE_CPU     ? snprintf(text, cap, "cpu")
           : device == GR_DEVICE_LOCAL ? snprintf(text, cap, "cuda:local")
                                       : snprintf(text, cap, "cuda:%d", device);
}

void gr_devices_text(const struct gr_devices *d, char *text, size_t cap)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < d->n && at + 1 < cap; i++) {
        at += (size_t)snprintf(text + at, cap - at, "%s", i > 0 ? "," : "");
        at += at < cap ? (size_t)device_text(d->device[i], text + at, cap - at) : 0;
    }
}

struct gr_devices gr_devices_deal(const struct gr_devices *all, int64_t n_rank, int64_t i, int64_t count)
{
    struct gr_devices own = {.n = (int)GR_MIN(n_rank, (int64_t)GR_DEVICES_MAX)};
    if (all->n <= 1 || count == 1) {
        return *all;
    }
    for (int r = 0; r < own.n; r++) {
        own.device[r] = all->device[(i * n_rank + r) % all->n];
    }
    return own;
}

bool gr_devices_has(const struct gr_devices *d, int device)
{
    bool has = false;
    for (int i = 0; i < d->n; i++) {
        has = has || d->device[i] == device;
    }
    return has;
}

static bool is_group(int n_rank)
{
    return n_rank == 2 || n_rank == 4 || n_rank == 8;
}

int gr_devices_ranks(const struct gr_devices *d)
{
    return gr_devices_on_gpu(d) && is_group(d->n) ? d->n : 1;
}

static enum gr_status wrong_number(const char *what, const struct gr_devices *d, int64_t n_rank)
{
    char text[GR_DEVICES_TEXT], wanted[GR_DEVICES_TEXT];
    struct gr_devices w = {.n = (int)n_rank};
    for (int i = 0; i < w.n; i++) {
        w.device[i] = i;
    }
    gr_devices_text(d, text, sizeof(text));
    gr_devices_text(&w, wanted, sizeof(wanted));
    if (n_rank == 1 && !is_group(d->n)) {
        log_error("%s %s: %d GPUs; a target has one for each rank, and 1, 2, 4 or 8 ranks", what, text, d->n);
        return GR_EINVAL;
    }
    if (n_rank == 1) {
        log_error("%s %s: %d GPUs for a model in one process; a target can have one for each rank "
                  "(--tensor-parallel-size %d)",
                  what, text, d->n, d->n);
        return GR_EINVAL;
    }
    log_error("%s %s: %d GPU%s for %" PRId64 " ranks (--tensor-parallel-size %" PRId64
              "); each rank has one, as in %s; or take cpu",
              what, text, d->n, d->n > 1 ? "s" : "", n_rank, n_rank, wanted);
    return GR_EINVAL;
}

/* A GPU that is there before as well. */
static bool is_again(const struct gr_devices *d, int i)
{
    bool again = false;
    for (int k = 0; k < i; k++) {
        again = again || d->device[k] == d->device[i];
    }
    return again;
}

enum gr_status gr_devices_check(const char *what, const struct gr_devices *d, int64_t n_rank)
{
    char text[GR_DEVICES_TEXT];
    gr_devices_text(d, text, sizeof(text));
    if (gr_devices_has(d, GR_DEVICE_CPU)) {
        if (d->n > 1) {
            log_error("%s %s: cpu stands alone, and for all ranks", what, text);
            return GR_EINVAL;
        }
        return GR_OK;
    }
    if (gr_devices_has(d, GR_DEVICE_LOCAL)) {
        return gr_device_placed(what, GR_DEVICE_LOCAL);
    }
    if (d->n != n_rank) {
        return wrong_number(what, d, n_rank);
    }
    for (int i = 0; i < d->n; i++) {
        if (is_again(d, i)) {
            log_error("%s %s: cuda:%d is there twice; each rank has a GPU of its own", what, text, d->device[i]);
            return GR_EINVAL;
        }
    }
    return GR_OK;
}

enum gr_status gr_devices_beside(const struct gr_devices *target, const char *what, int draft)
{
    for (int i = 1; draft >= 0 && i < target->n; i++) {
        if (target->device[i] == draft && target->device[0] != draft) {
            log_error("%s cuda:%d is the GPU of the target's rank %d, where the two would take turns; take cuda:%d "
                      "(rank 0's, in one process), or another",
                      what, draft, i, target->device[0]);
            return GR_EINVAL;
        }
    }
    return GR_OK;
}
