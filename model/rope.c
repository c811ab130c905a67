#include "model/rope.h"

#include <math.h>
#include <stddef.h>

#include "common/base/log.h"

#define TABLES_LARGE ((uint64_t)1 << 30) /* bytes: contexts of two million tokens with heads of 128 */

static double llama3_frequency(const struct gr_hf_config *hf, double f)
{
    const double wavelength = 2.0 * M_PI / f;
    const double original = hf->rope.original_max_pos;
    if (wavelength > original / hf->rope.low_freq_factor) {
        return f / hf->rope.factor;
    }
    if (wavelength < original / hf->rope.high_freq_factor) {
        return f;
    }
    const double smooth =
        (original / wavelength - hf->rope.low_freq_factor) / (hf->rope.high_freq_factor - hf->rope.low_freq_factor);
    return (1.0 - smooth) * f / hf->rope.factor + smooth * f;
}

/* Dimension (as a real number) that turns n_rotation times over the original context. */
static double yarn_dimension(const struct gr_hf_config *hf, double n_rotation)
{
    return hf->head_dim * log(hf->rope.original_max_pos / (n_rotation * 2.0 * M_PI)) / (2.0 * log(hf->rope_theta));
}

static double yarn_frequency(const struct gr_hf_config *hf, double f, int i)
{
    double low = yarn_dimension(hf, hf->rope.beta_fast);
    double high = yarn_dimension(hf, hf->rope.beta_slow);
    if (hf->rope.truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, hf->head_dim - 1.0);
    if (high <= low) {
        high = low + 0.001;
    }
    const double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
    return f / hf->rope.factor * ramp + f * (1.0 - ramp);
}

void gr_rope_tables(const struct gr_hf_config *hf, int n_pos, float *cos_out, float *sin_out)
{
    const int half = hf->head_dim / 2;
    double magnitude = 1.0;
    if (hf->rope_kind == GR_ROPE_YARN) {
        magnitude = hf->rope.attention_factor > 0.0 ? hf->rope.attention_factor : 0.1 * log(hf->rope.factor) + 1.0;
    }
    for (int i = 0; i < half; i++) {
        double f = pow(hf->rope_theta, -2.0 * i / hf->head_dim);
        if (hf->rope_kind == GR_ROPE_LINEAR) {
            f /= hf->rope.factor;
        } else if (hf->rope_kind == GR_ROPE_LLAMA3) {
            f = llama3_frequency(hf, f);
        } else if (hf->rope_kind == GR_ROPE_YARN) {
            f = yarn_frequency(hf, f, i);
        }
        for (int p = 0; p < n_pos; p++) {
            /* The reference multiplies in f32: a position times a rounded frequency. */
            const double angle = (double)((float)p * (float)f);
            cos_out[(size_t)p * (size_t)half + (size_t)i] = (float)(magnitude * cos(angle));
            sin_out[(size_t)p * (size_t)half + (size_t)i] = (float)(magnitude * sin(angle));
        }
    }
}

void gr_rope_local_tables(const struct gr_hf_config *hf, int n_pos, float *cos_out, float *sin_out)
{
    struct gr_hf_config local = *hf;
    local.rope_kind = GR_ROPE_PLAIN;
    local.rope_theta = hf->rope_local_theta;
    gr_rope_tables(&local, n_pos, cos_out, sin_out);
}

/* ---- memory ---- */

uint64_t gr_rope_bytes(const struct gr_hf_config *hf, int n_pos)
{
    const uint64_t n_table = hf->rope_local_theta > 0.0 ? 4 : 2;
    return n_table * (uint64_t)n_pos * (uint64_t)(hf->head_dim / 2) * sizeof(float);
}

enum gr_status gr_rope_fit(const char *what, const struct gr_hf_config *hf, int n_pos,
                           const struct gr_free_memory *left)
{
    const uint64_t bytes = gr_rope_bytes(hf, n_pos);
    const double gib = (double)bytes / (double)(1 << 30);
    if (bytes < TABLES_LARGE) {
        return GR_OK;
    }
    if (bytes > left->bytes) {
        log_error("%s: max_position_embeddings (context_length) = %d: rotary tables of contexts of %d tokens take %.1f "
                  "GiB, %.1f GiB are free (%s); give a lower --max-model-len",
                  what, hf->max_pos, n_pos, gib, (double)left->bytes / (double)(1 << 30), left->from);
        return GR_ENOMEM;
    }
    log_warn("%s: max_position_embeddings (context_length) = %d: rotary tables of contexts of %d tokens take %.1f GiB; "
             "--max-model-len makes them shorter",
             what, hf->max_pos, n_pos, gib);
    return GR_OK;
}
