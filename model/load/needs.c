#include "model/load/needs.h"

#include "common/base/free_memory.h"
#include "common/base/log.h"
#include "common/rules/kv_block.h"

#include <inttypes.h>
#include <stdio.h>

#define AMOUNT_BYTES 32

static const char *amount(uint64_t bytes, char out[AMOUNT_BYTES])
{
    const double mib = (double)bytes / 1048576.0;
    snprintf(out, AMOUNT_BYTES,
             mib >= 1000.0 ? "%.1f GiB"
             : mib >= 9.95 ? "%.0f MiB"
                           : "%.1f MiB",
             mib >= 1000.0 ? mib / 1024.0 : mib);
    return out;
}

static uint64_t kv_bytes(const struct gr_needs *n, int n_block)
{
    return ((uint64_t)n_block + (uint64_t)n->n_scratch_block) * n->block_bytes;
}

uint64_t gr_needs_bytes(const struct gr_needs *n, int n_block)
{
    return gr_needs_weights(n) + n->other_bytes + kv_bytes(n, n_block);
}

static void weights_text(const struct gr_needs *n, char *out, size_t cap)
{
    char bf16[AMOUNT_BYTES], f32[AMOUNT_BYTES], most[AMOUNT_BYTES];
    int at = 0;
    if (n->f32_bytes == 0) {
        at = snprintf(out, cap, "%s as bf16", amount(n->bf16_bytes, bf16));
    } else if (n->bf16_bytes == 0) {
        at = snprintf(out, cap, "%s as f32", amount(n->f32_bytes, f32));
    } else {
        at = snprintf(out, cap, "%s as bf16 and %s as f32", amount(n->bf16_bytes, bf16), amount(n->f32_bytes, f32));
    }
    if (n->wider_bytes > 0) {
        snprintf(out + at, cap - (size_t)at, " (up to %s where values are wider than bf16)",
                 amount(gr_needs_weights(n) + n->wider_bytes, most));
    }
}

enum gr_status gr_needs_fit(const struct gr_needs *n, const struct gr_needs_of *of, int *n_block_out)
{
    const uint64_t least = gr_needs_bytes(n, n->n_block_least);
    char all[AMOUNT_BYTES], kv[AMOUNT_BYTES], left[AMOUNT_BYTES], weights[160];
    if (least > of->free_bytes) {
        weights_text(n, weights, sizeof(weights));
        log_error("%s%s needs %s (weights %s, KV of %d blocks %s), %s are free (%s); lower --max-model-len, "
                  "--sessions or --kv-blocks",
                  of->where, of->what, amount(least, all), weights, n->n_block_least,
                  amount(kv_bytes(n, n->n_block_least), kv), amount(of->free_bytes, left), of->free_by);
        return GR_ENOMEM;
    }
    const uint64_t beside = of->free_bytes - least;
    uint64_t for_more = beside - (n->spare_bytes <= beside ? n->spare_bytes : 0);
    for_more -= n->leaves_room ? for_more / 4 : 0;
    const uint64_t more = for_more / n->block_bytes;
    const uint64_t wanted = (uint64_t)GR_MAX(n->n_block - n->n_block_least, 0);
    *n_block_out = n->n_block_least + (int)GR_MIN(wanted, more);
    return GR_OK;
}

void gr_needs_tell(const struct gr_needs *n, const struct gr_needs_of *of, int n_block)
{
    char all[AMOUNT_BYTES], kv[AMOUNT_BYTES], other[AMOUNT_BYTES], left[AMOUNT_BYTES], weights[160], text[1000];
    const int per_session = (n->n_ctx + GR_KV_BLOCK_TOKENS - 1) / GR_KV_BLOCK_TOKENS;
    const char *less = n_block < per_session * n->n_session ? "less than " : "";
    weights_text(n, weights, sizeof(weights));
    snprintf(
        text, sizeof(text),
        "%sloading %.400s: weights %s, KV %s for %s%d session%s of %d tokens, %s else, in all %s; %s are free (%.160s)",
        of->where, of->what, weights, amount(kv_bytes(n, n_block), kv), less, n->n_session, n->n_session > 1 ? "s" : "",
        n->n_ctx, amount(n->other_bytes, other), amount(gr_needs_bytes(n, n_block), all), amount(of->free_bytes, left),
        of->free_by);
    if (gr_needs_weights(n) >= GR_LOAD_LARGE) {
        gr_log_notice("%s", text);
    } else {
        log_info("%s", text);
    }
}

enum gr_status gr_needs_fit_host(const struct gr_needs *n, const char *what, int *n_block_out)
{
    struct gr_free_memory available;
    char where[32] = "";
    gr_memory_available(&available);
    if (n->n_rank > 1) {
        snprintf(where, sizeof(where), "each of %d ranks: ", n->n_rank);
    }
    const struct gr_needs_of of = {.what = what,
                                   .where = where,
                                   .free_bytes = available.bytes / (uint64_t)GR_MAX(n->n_rank, 1),
                                   .free_by = available.from};
    GR_TRY(gr_needs_fit(n, &of, n_block_out));
    if (!n->quiet) {
        gr_needs_tell(n, &of, *n_block_out);
    }
    return GR_OK;
}
