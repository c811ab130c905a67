/* Where the rows of features lie that sessions keep, and those of the job in flight: in the host's memory, or in far
 * memory where a network card writes them and the model reads them (gr_drafter_config.far). Then they are moved by
 * copies that end later, so a job waits for them. What goes wrong with far memory is told by it and ends the worker
 * with the next job; until then wrong features make drafts worse, and no text other. Decision D-185. */
#include "common/base/log.h"
#include "draft_worker/machine/drafter_internal.h"

#include <stdlib.h>
#include <string.h>

static size_t row_values(const struct gr_drafter *d)
{
    return (size_t)d->config.feature_width;
}

static enum gr_status take(struct gr_drafter *d, size_t n, uint16_t **out)
{
    const struct gr_far_memory *far = d->config.far;
    uint8_t *p = NULL;
    if (far == NULL) {
        *out = calloc(n, sizeof(**out));
        return *out != NULL ? GR_OK : GR_ENOMEM;
    }
    GR_TRY(far->take(far->ctx, gr_far_whole_pages(n * sizeof(**out)), &p));
    *out = (uint16_t *)(void *)p;
    return GR_OK;
}

static void give(const struct gr_drafter *d, uint16_t *p)
{
    const struct gr_far_memory *far = d->config.far;
    if (far != NULL && p != NULL) {
        far->give(far->ctx, (uint8_t *)p);
    } else if (far == NULL) {
        free(p);
    }
}

enum gr_status drafter_rows_create(struct gr_drafter *d)
{
    const struct gr_drafter_config *c = &d->config;
    const size_t n = (size_t)c->n_session_max * row_values(d);
    if (n == 0) {
        return GR_OK;
    }
    enum gr_status st = take(d, n * (size_t)c->feature_window, &d->feature);
    if (st == GR_OK) {
        st = take(d, n * (size_t)c->prefill_chunk, &d->job_feature);
    }
    if (st != GR_OK) {
        log_error("out of memory for the features of %d positions of %d sessions, %zu MiB", c->feature_window,
                  c->n_session_max, n * (size_t)(c->feature_window + c->prefill_chunk) * sizeof(*d->feature) >> 20);
    }
    return st;
}

void drafter_rows_destroy(struct gr_drafter *d)
{
    give(d, d->feature);
    give(d, d->job_feature);
}

static void copy(struct gr_drafter *d, uint16_t *to, const void *from, int32_t n_row)
{
    const size_t bytes = (size_t)n_row * row_values(d) * sizeof(*to);
    if (d->config.far == NULL) {
        memcpy(to, from, bytes);
        return;
    }
    const enum gr_status st = d->config.far->copy(d->config.far->ctx, to, from, bytes);
    (void)st;
    d->rows_on_their_way = true;
}

/* Of position `pos` of a session. */
static uint16_t *row_at(const struct gr_drafter *d, int32_t slot, int32_t pos)
{
    const int32_t window = d->config.feature_window;
    return d->feature + ((size_t)slot * (size_t)window + (size_t)(pos % window)) * row_values(d);
}

/* Rows from pos on that lie side by side, up to `end`. */
static int32_t run_of(const struct gr_drafter *d, int32_t pos, int32_t end)
{
    const int32_t window = d->config.feature_window;
    return GR_MIN(end - pos, window - pos % window);
}

void drafter_rows_keep(struct gr_drafter *d, int32_t slot, int32_t pos, int32_t end, const uint8_t *from)
{
    for (int32_t n = 0; pos < end; pos += n) {
        n = run_of(d, pos, end);
        copy(d, row_at(d, slot, pos), from, n);
        from += (size_t)n * row_values(d) * sizeof(uint16_t);
    }
}

const uint16_t *drafter_rows_for_job(struct gr_drafter *d, int i_seq, int32_t slot, int32_t pos, int32_t end)
{
    uint16_t *const first = d->job_feature + (size_t)i_seq * (size_t)d->config.prefill_chunk * row_values(d);
    uint16_t *to = first;
    for (int32_t n = 0; pos < end; pos += n) {
        n = run_of(d, pos, end);
        copy(d, to, row_at(d, slot, pos), n);
        to += (size_t)n * row_values(d);
    }
    return first;
}

void drafter_rows_wait(struct gr_drafter *d)
{
    if (d->rows_on_their_way) {
        const enum gr_status st = d->config.far->wait(d->config.far->ctx);
        (void)st;
        d->rows_on_their_way = false;
    }
}
