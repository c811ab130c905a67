/* Where the rows of features lie that sessions keep: in the host's memory, or in far memory where the model makes them
 * and a network card fetches them (gr_target_config.far). Then they are moved by copies that end later, so a pass that
 * would write over their sources waits for them. What goes wrong with far memory is told by it and ends the worker with
 * the next pass; until then wrong features make drafts worse, and no text other. Decision D-132. */
#include "common/base/log.h"
#include "target_worker/machine/target_internal.h"

#include <stdlib.h>
#include <string.h>

static enum gr_status take_far(struct gr_target *t, size_t bytes, uint16_t **out)
{
    const struct gr_far_memory *far = t->config.far;
    uint8_t *p = NULL;
    GR_TRY(far->take(far->ctx, gr_far_whole_pages(bytes), &p));
    *out = (uint16_t *)(void *)p;
    return GR_OK;
}

/* n values; none: nothing is taken. */
static enum gr_status take(struct gr_target *t, size_t n, uint16_t **out)
{
    if (n > 0 && t->config.far != NULL) {
        return take_far(t, n * sizeof(**out), out);
    }
    *out = n > 0 ? calloc(n, sizeof(**out)) : NULL;
    return n == 0 || *out != NULL ? GR_OK : GR_ENOMEM;
}

static void give(struct gr_target *t, uint16_t *rows)
{
    if (t->config.far != NULL && rows != NULL) {
        t->config.far->give(t->config.far->ctx, (uint8_t *)rows);
    } else {
        free(rows);
    }
}

static enum gr_status create_of_blocks(struct gr_target *t)
{
    const struct gr_target_config *c = &t->config;
    const size_t n = c->prefix_features ? (size_t)c->n_pool_block * GR_KV_BLOCK_TOKENS * (size_t)c->feature_width : 0;
    const enum gr_status st = take(t, n, &t->block_feature);
    if (st != GR_OK) {
        log_error("out of memory for the features of the prefix cache's %d blocks, %zu MiB: lower --kv-blocks, or use "
                  "--prefix-cache off",
                  c->n_pool_block, n * sizeof(*t->block_feature) >> 20);
    }
    return st;
}

enum gr_status target_rows_create(struct gr_target *t)
{
    const struct gr_target_config *c = &t->config;
    const size_t n = (size_t)c->n_session_max * (size_t)c->feature_keep * (size_t)c->feature_width;
    GR_TRY(create_of_blocks(t));
    const enum gr_status st = take(t, n, &t->feature);
    if (st != GR_OK) {
        log_error("out of memory for the features of %d positions of %d sessions, %zu MiB: lower target.feature_keep",
                  c->feature_keep, c->n_session_max, n * sizeof(*t->feature) >> 20);
    }
    return st;
}

void target_rows_destroy(struct gr_target *t)
{
    give(t, t->feature);
    give(t, t->block_feature);
}

void target_rows_copy(struct gr_target *t, void *to, const void *from, int32_t n_row)
{
    const size_t bytes = (size_t)n_row * (size_t)t->config.feature_width * sizeof(uint16_t);
    if (t->config.far == NULL) {
        memcpy(to, from, bytes);
        return;
    }
    const enum gr_status st = t->config.far->copy(t->config.far->ctx, to, from, bytes);
    (void)st;
    t->rows_on_their_way = true;
}

void target_rows_wait(struct gr_target *t)
{
    if (t->rows_on_their_way) {
        const enum gr_status st = t->config.far->wait(t->config.far->ctx);
        (void)st;
        t->rows_on_their_way = false;
    }
}
