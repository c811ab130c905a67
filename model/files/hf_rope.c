/* What config.json says of rotary embedding. transformers 4 has rope_theta at the top and an object rope_scaling, whose
 * kind is rope_type or, older, type; transformers 5 has all of it in rope_parameters, for Gemma one object for each
 * type of layer. */
#include <math.h>
#include <string.h>

#include "common/base/log.h"
#include "model/files/hf_config_internal.h"

#define THETA_MIN 1.0
#define THETA_MAX 1e12
#define LOCAL_THETA_DEFAULT 1e4 /* Gemma's layers with a window */
#define KINDS_KNOWN "default, linear, llama3, yarn"

static enum gr_status parse_none(const struct gr_json_where *w, struct gr_hf_config *c)
{
    (void)w;
    (void)c;
    return GR_OK;
}

static enum gr_status parse_linear(const struct gr_json_where *w, struct gr_hf_config *c)
{
    return gr_json_double(w, "factor", true, 1.0, 1e4, &c->rope.factor);
}

static enum gr_status parse_llama3(const struct gr_json_where *w, struct gr_hf_config *c)
{
    GR_TRY(gr_json_double(w, "factor", true, 1.0, 1e4, &c->rope.factor));
    GR_TRY(gr_json_double(w, "low_freq_factor", true, 1e-3, 1e4, &c->rope.low_freq_factor));
    GR_TRY(gr_json_double(w, "high_freq_factor", true, 1e-3, 1e4, &c->rope.high_freq_factor));
    GR_TRY(gr_json_int(w, "original_max_position_embeddings", true, 1, HF_MAX_POS_MAX, &c->rope.original_max_pos));
    if (c->rope.high_freq_factor <= c->rope.low_freq_factor) {
        log_error("%s: %shigh_freq_factor = %g must be above low_freq_factor = %g", w->name, w->prefix,
                  c->rope.high_freq_factor, c->rope.low_freq_factor);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static double yarn_magnitude(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* What cos and sin are multiplied by: attention_factor itself if it is there, else the ratio that mscale and
 * mscale_all_dim make, else the rule of YaRN's section 3.4 (as transformers' _compute_yarn_parameters). */
static enum gr_status parse_yarn_magnitude(const struct gr_json_where *w, struct gr_hf_config *c)
{
    const double factor = c->rope.factor;
    double mscale = 0.0, all_dim = 0.0;
    GR_TRY(gr_json_double(w, "mscale", false, 0.0, 1e3, &mscale));
    GR_TRY(gr_json_double(w, "mscale_all_dim", false, 0.0, 1e3, &all_dim));
    c->rope.attention_factor = mscale > 0.0 && all_dim > 0.0
                                   ? yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim)
                                   : yarn_magnitude(factor, 1.0);
    return gr_json_double(w, "attention_factor", false, 1e-3, 1e3, &c->rope.attention_factor);
}

static enum gr_status parse_yarn(const struct gr_json_where *w, struct gr_hf_config *c)
{
    GR_TRY(gr_json_double(w, "factor", true, 1.0, 1e4, &c->rope.factor));
    c->rope.beta_fast = 32.0;
    c->rope.beta_slow = 1.0;
    c->rope.truncate = true;
    c->rope.original_max_pos = c->max_pos;
    GR_TRY(gr_json_double(w, "beta_fast", false, 1e-3, 1e6, &c->rope.beta_fast));
    GR_TRY(gr_json_double(w, "beta_slow", false, 1e-3, 1e6, &c->rope.beta_slow));
    GR_TRY(gr_json_bool(w, "truncate", false, &c->rope.truncate));
    GR_TRY(gr_json_int(w, "original_max_position_embeddings", false, 1, HF_MAX_POS_MAX, &c->rope.original_max_pos));
    if (c->rope.beta_fast < c->rope.beta_slow) {
        char fast[GR_JSON_KEY_BYTES], slow[GR_JSON_KEY_BYTES];
        log_error("%s: %s = %g must not be below %s = %g", w->name, gr_json_key(w, "beta_fast", fast),
                  c->rope.beta_fast, gr_json_key(w, "beta_slow", slow), c->rope.beta_slow);
        return GR_EFORMAT;
    }
    return parse_yarn_magnitude(w, c);
}

#define COMMON_KEYS "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor"
static const char *const common_keys[] = {
    COMMON_KEYS, "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "beta_fast", "beta_slow",       "attention_factor", "truncate",
    NULL,
};
static const char *const yarn_keys[] = {
    COMMON_KEYS,
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "truncate",
    "mscale",
    "mscale_all_dim",
    NULL,
};

static const struct kind {
    const char *name;
    enum gr_rope_kind kind;
    enum gr_status (*parse)(const struct gr_json_where *w, struct gr_hf_config *c);
    const char *const *keys; /* a key that the kind has not must not pass unseen */
} kinds[] = {
    {"default", GR_ROPE_PLAIN, parse_none, common_keys},
    {"linear", GR_ROPE_LINEAR, parse_linear, common_keys},
    {"llama3", GR_ROPE_LLAMA3, parse_llama3, common_keys},
    {"yarn", GR_ROPE_YARN, parse_yarn, yarn_keys},
};

/* Which kind of scaling is meant, nobody can know. */
static enum gr_status refuse_factor_alone(const struct gr_json_where *w)
{
    double factor = 1.0;
    GR_TRY(gr_json_double(w, "factor", false, 0, 1e9, &factor));
    if (factor != 1.0) {
        log_error("%s: %sfactor = %g without %srope_type; known: " KINDS_KNOWN, w->name, w->prefix, factor, w->prefix);
        return GR_EFORMAT;
    }
    return GR_OK;
}

static enum gr_status kind_of(const struct gr_json_where *w, const struct kind **out)
{
    const char *name = NULL, *old_name = NULL;
    GR_TRY(gr_json_string(w, "type", false, &old_name));
    name = old_name;
    GR_TRY(gr_json_string(w, "rope_type", false, &name));
    if (name == NULL) {
        GR_TRY(refuse_factor_alone(w));
        name = "default";
    }
    if (old_name != NULL && strcmp(name, old_name) != 0) {
        log_error("%s: %srope_type %.40s and %stype %.40s differ", w->name, w->prefix, name, w->prefix, old_name);
        return GR_EFORMAT;
    }
    for (size_t i = 0; i < GR_ARRAY_LEN(kinds); i++) {
        if (strcmp(name, kinds[i].name) == 0) {
            *out = &kinds[i];
            return GR_OK;
        }
    }
    log_error("%s: %srope_type %.40s is not supported; known: " KINDS_KNOWN, w->name, w->prefix, name);
    return GR_EUNSUPPORTED;
}

/* Of the top of the file, or of a rope object: only heads that are turned as a whole are known. */
static enum gr_status refuse_partial(const struct gr_json_where *w)
{
    double partial = 1.0;
    GR_TRY(gr_json_double(w, "partial_rotary_factor", false, 0, 1e6, &partial));
    if (partial != 1.0) {
        log_error("%s: %spartial_rotary_factor = %g is not supported; must be 1", w->name, w->prefix, partial);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

/* A rope object: its kind, and its theta (0: it has none). */
static enum gr_status parse_object(const struct gr_json_where *w, struct gr_hf_config *c, double *theta_out)
{
    const struct kind *kind = NULL;
    GR_TRY(gr_json_double(w, "rope_theta", false, THETA_MIN, THETA_MAX, theta_out));
    GR_TRY(kind_of(w, &kind));
    GR_TRY(gr_json_only_keys(w, kind->keys));
    GR_TRY(refuse_partial(w));
    c->rope_kind = kind->kind;
    return kind->parse(w, c);
}

/* Of layers with a window: plain, which is all that Gemma's files have. */
static enum gr_status parse_local(const struct gr_json_where *w, struct gr_hf_config *c)
{
    struct gr_hf_config local = {.max_pos = c->max_pos};
    GR_TRY(parse_object(w, &local, &c->rope_local_theta));
    if (local.rope_kind != GR_ROPE_PLAIN) {
        log_error("%s: %srope_type: only default is supported for layers with a window", w->name, w->prefix);
        return GR_EUNSUPPORTED;
    }
    return GR_OK;
}

/* rope_parameters with an object for each type of layer. */
static enum gr_status parse_nested(const struct gr_json_where *w, struct gr_hf_config *c, double *theta_out)
{
    static const char *const keys[] = {"full_attention", "sliding_attention", NULL};
    struct gr_json_where full = {.name = w->name, .prefix = "rope_parameters.full_attention."};
    struct gr_json_where sliding = {.name = w->name, .prefix = "rope_parameters.sliding_attention."};
    GR_TRY(gr_json_only_keys(w, keys));
    GR_TRY(gr_json_object(w, "full_attention", true, &full.obj));
    GR_TRY(gr_json_object(w, "sliding_attention", true, &sliding.obj));
    GR_TRY(parse_object(&full, c, theta_out));
    return parse_local(&sliding, c);
}

static enum gr_status find_object(const struct gr_json_where *w, struct gr_json_where *out)
{
    const json_t *params = NULL, *scaling = NULL;
    GR_TRY(gr_json_object(w, "rope_parameters", false, &params));
    GR_TRY(gr_json_object(w, "rope_scaling", false, &scaling));
    if (params != NULL && scaling != NULL && !json_equal(params, scaling)) {
        log_error("%s: rope_parameters and rope_scaling differ; keep one of them", w->name);
        return GR_EFORMAT;
    }
    *out = *w;
    out->prefix = params != NULL ? "rope_parameters." : "rope_scaling.";
    out->obj = params != NULL ? params : scaling;
    return GR_OK;
}

enum gr_status gr_hf_parse_rope(const struct gr_json_where *w, const struct gr_family *f, struct gr_hf_config *c)
{
    struct gr_json_where object;
    double outer = 0, inner = 0;
    GR_TRY(refuse_partial(w));
    GR_TRY(find_object(w, &object));
    GR_TRY(gr_json_double(w, "rope_theta", false, THETA_MIN, THETA_MAX, &outer));
    if (f->gemma) {
        c->rope_local_theta = LOCAL_THETA_DEFAULT;
        GR_TRY(gr_json_double(w, "rope_local_base_freq", false, THETA_MIN, THETA_MAX, &c->rope_local_theta));
    }
    if (f->gemma && json_object_get(object.obj, "full_attention") != NULL) {
        GR_TRY(parse_nested(&object, c, &inner));
    } else if (object.obj != NULL) {
        GR_TRY(parse_object(&object, c, &inner));
    }
    if (outer != 0 && inner != 0 && outer != inner) {
        log_error("%s: rope_theta = %g at the top and %g in the rope object", w->name, outer, inner);
        return GR_EFORMAT;
    }
    c->rope_theta = inner != 0 ? inner : outer != 0 ? outer : f->rope_theta;
    return GR_OK;
}
