#include "orchestrator/cli/yaml_config.h"

#include "common/base/log.h"
#include "orchestrator/cli/report.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct gr_yaml_config {
    yaml_document_t document;
};

/* How a key's value becomes an option's. */
enum rule {
    RULE_SAME,       /* as it is */
    RULE_METHOD_OFF, /* enable_speculative_decoding: false means --method none */
    RULE_TREE_SHAPE, /* enable_target_tree: false means a chain */
    RULE_SPECPV,     /* enable_specpv: true means --specpv on */
    RULE_LIST,       /* one value or a sequence of them */
};

static const struct key {
    const char *section, *name, *option;
    enum rule rule;
} keys[] = {
    {"orchestrator", "control", "control", RULE_SAME},
    {"orchestrator", "http", "http", RULE_SAME},
    {"orchestrator", "key_file", "key-file", RULE_SAME},
    {"orchestrator", "ready_file", "ready-file", RULE_SAME},
    {"orchestrator", "session_ttl", "session-ttl", RULE_SAME},
    {"orchestrator", "round_deadline_ms", "round-deadline-ms", RULE_SAME},
    {"target", "model", "model", RULE_SAME},
    {"target", "device", "target-device", RULE_SAME},
    {"target", "threads", "threads", RULE_SAME},
    {"target", "kv_blocks", "kv-blocks", RULE_SAME},
    {"target", "feature_keep", "feature-keep", RULE_SAME},
    {"target", "prefill_share", "prefill-share", RULE_SAME},
    {"target", "max_model_len", "max-model-len", RULE_SAME},
    {"target", "n_session_max", "sessions", RULE_SAME},
    {"target", "tuned", "tuned", RULE_SAME},
    {"target", "require_tuned", "require-tuned", RULE_SAME},
    {"draft", "model", "draft", RULE_SAME},
    {"draft", "device", "draft-device", RULE_SAME},
    {"draft", "threads", "draft-threads", RULE_SAME},
    {"draft", "context", "draft-context", RULE_SAME},
    {"transport", "kind", "transport", RULE_SAME},
    {"transport", "require_rdma", "require-rdma", RULE_SAME},
    {"transport", "target_ib_hca", "target-ib-hca", RULE_SAME},
    {"transport", "draft_ib_hca", "draft-ib-hca", RULE_SAME},
    {"transport", "gid_index", "gid-index", RULE_SAME},
    {"transport", "verbs_mode", "verbs-mode", RULE_SAME},
    {"transport", "verbs_spin_us", "verbs-spin-us", RULE_SAME},
    {"session", "max_tokens", "max-tokens", RULE_SAME},
    {"session", "ignore_eos", "ignore-eos", RULE_SAME},
    {"session", "stop", "stop", RULE_LIST},
    {"session", "stop_token_ids", "stop-token-ids", RULE_LIST},
    {"session", "temperature", "temperature", RULE_SAME},
    {"session", "top_p", "top-p", RULE_SAME},
    {"session", "top_k", "top-k", RULE_SAME},
    {"session", "min_p", "min-p", RULE_SAME},
    {"session", "seed", "seed", RULE_SAME},
    {"speculative_config", "enable_speculative_decoding", "method", RULE_METHOD_OFF},
    {"speculative_config", "method", "method", RULE_SAME},
    {"speculative_config", "enable_target_tree", "tree-shape", RULE_TREE_SHAPE},
    {"speculative_config", "tree_shape", "tree-shape", RULE_SAME},
    {"speculative_config", "num_speculative_tokens", "num-speculative-tokens", RULE_SAME},
    {"speculative_config", "draft_depth", "draft-depth", RULE_SAME},
    {"speculative_config", "draft_top_k", "draft-top-k", RULE_SAME},
    {"speculative_config", "ship_features", "ship-features", RULE_SAME},
    {"speculative_config", "capture_layers", "capture-layers", RULE_SAME},
    {"speculative_config", "draft_ahead", "draft-ahead", RULE_SAME},
    {"speculative_config", "force_single_token", "force-single-token", RULE_SAME},
    {"speculative_config", "disable_multi_token", "disable-multi-token", RULE_SAME},
    {"speculative_config", "disable_specpv", "disable-specpv", RULE_SAME},
    {"speculative_config", "enable_specpv", "specpv", RULE_SPECPV},
    {"speculative_config", "specpv_mode", "specpv-mode", RULE_SAME},
    {"speculative_config", "specpv_block_size", "specpv-block-size", RULE_SAME},
    {"speculative_config", "specpv_n_sink_blocks", "specpv-n-sink-blocks", RULE_SAME},
    {"speculative_config", "specpv_n_retrieval_blocks", "specpv-n-retrieval-blocks", RULE_SAME},
    {"speculative_config", "specpv_n_window_blocks", "specpv-n-window-blocks", RULE_SAME},
    {"speculative_config", "specpv_n_spec_tokens_buf", "specpv-n-spec-tokens-buf", RULE_SAME},
    {"speculative_config", "specpv_partial_threshold", "specpv-partial-threshold", RULE_SAME},
    {"speculative_config", "specpv_full_refresh_interval", "specpv-full-refresh-interval", RULE_SAME},
    {"speculative_config", "specpv_refresh_fraction", "specpv-refresh-fraction", RULE_SAME},
    {"speculative_config", "specpv_score_reduce", "specpv-score-reduce", RULE_SAME},
    {"speculative_config", "specpv_exact_max_provisional", "specpv-exact-max-provisional", RULE_SAME},
};

static enum gr_status complain(const char *path, const yaml_node_t *at, const char *what, const char *name)
{
    log_error("%s:%zu:%zu: %s `%s'", path, at->start_mark.line + 1, at->start_mark.column + 1, what, name);
    return GR_EFORMAT;
}

static bool is_section(const char *name)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(keys); i++) {
        if (strcmp(keys[i].section, name) == 0) {
            return true;
        }
    }
    return false;
}

static const struct key *find(const char *section, const char *name)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(keys); i++) {
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

/* The option's text for a key's text; NULL: nothing to set. */
static const char *option_text(enum rule rule, const char *text)
{
    const bool on = strcmp(text, "true") == 0;
    switch (rule) {
    case RULE_SAME:
    case RULE_LIST:
        return text;
    case RULE_METHOD_OFF:
        return on ? NULL : "none";
    case RULE_TREE_SHAPE:
        return on ? NULL : "chain";
    case RULE_SPECPV:
        return on ? "on" : "off";
    }
    return NULL;
}

static enum gr_status apply(const char *path, const yaml_node_t *value, const struct key *k, struct gr_run_options *o)
{
    const char *text = (const char *)value->data.scalar.value;
    const bool is_free = k->rule == RULE_SAME || k->rule == RULE_LIST;
    if (!is_free && strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
        return complain(path, value, "true or false is wanted, not", text);
    }
    text = option_text(k->rule, text);
    if (text != NULL && gr_run_options_set(o, k->option, text, GR_FROM_YAML) != GR_OK) {
        return complain(path, value, "the value above is that of key", k->name);
    }
    return GR_OK;
}

static const char *scalar(const yaml_node_t *node)
{
    return node != NULL && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

/* `null' in one of YAML's spellings, or nothing: as if the key were not there. Quoted it is a text. */
static bool is_null(const yaml_node_t *node)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    if (node->type != YAML_SCALAR_NODE) {
        return false;
    }
    if (strcmp((const char *)node->tag, YAML_NULL_TAG) == 0) {
        return true;
    }
    for (size_t i = 0; node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && i < GR_ARRAY_LEN(words); i++) {
        if (strcmp((const char *)node->data.scalar.value, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

static enum gr_status apply_list(const char *path, yaml_document_t *doc, const yaml_node_t *list, const struct key *k,
                                 struct gr_run_options *o)
{
    for (const yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
        const yaml_node_t *value = yaml_document_get_node(doc, *i);
        if (scalar(value) == NULL || is_null(value)) {
            return complain(path, value, "single values are wanted in the list of", k->name);
        }
        GR_TRY(apply(path, value, k, o));
    }
    return GR_OK;
}

/* YAML's own types say nothing that the options do not know; another tag asks for something that is not done here. */
static enum gr_status check_tags(const char *path, const yaml_document_t *doc)
{
    static const char *const known[] = {YAML_NULL_TAG,  YAML_BOOL_TAG, YAML_STR_TAG, YAML_INT_TAG,
                                        YAML_FLOAT_TAG, YAML_SEQ_TAG,  YAML_MAP_TAG};
    for (const yaml_node_t *n = doc->nodes.start; n < doc->nodes.top; n++) {
        bool fits = false;
        for (size_t i = 0; i < GR_ARRAY_LEN(known); i++) {
            fits = fits || strcmp((const char *)n->tag, known[i]) == 0;
        }
        if (!fits) {
            return complain(path, n, "this tag is not supported; leave it out:", (const char *)n->tag);
        }
    }
    return GR_OK;
}

static bool seen_before(yaml_document_t *doc, const yaml_node_t *map, const yaml_node_pair_t *pair, const char *name)
{
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < pair; p++) {
        const char *other = scalar(yaml_document_get_node(doc, p->key));
        if (other != NULL && strcmp(other, name) == 0) {
            return true;
        }
    }
    return false;
}

static enum gr_status read_section(const char *path, yaml_document_t *doc, const char *section, const yaml_node_t *map,
                                   struct gr_run_options *o)
{
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(doc, p->key);
        const yaml_node_t *value = yaml_document_get_node(doc, p->value);
        const char *name = scalar(key);
        const struct key *k = name != NULL ? find(section, name) : NULL;
        if (k == NULL) {
            return complain(path, key, "unknown key", name != NULL ? name : "(not a word)");
        }
        if (seen_before(doc, map, p, name)) {
            return complain(path, key, "given twice:", name);
        }
        if (is_null(value)) {
            continue;
        }
        if (k->rule == RULE_LIST && value->type == YAML_SEQUENCE_NODE) {
            GR_TRY(apply_list(path, doc, value, k, o));
            continue;
        }
        if (scalar(value) == NULL) {
            return complain(path, value, "a single value is wanted for", name);
        }
        GR_TRY(apply(path, value, k, o));
    }
    return GR_OK;
}

static enum gr_status read_document(const char *path, yaml_document_t *doc, struct gr_run_options *o)
{
    const yaml_node_t *root = yaml_document_get_root_node(doc);
    if (root == NULL || is_null(root)) {
        return GR_OK; /* an empty file sets nothing */
    }
    if (root->type != YAML_MAPPING_NODE) {
        return complain(path, root, "sections are wanted:",
                        "orchestrator, target, draft, transport, session, "
                        "speculative_config");
    }
    for (const yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(doc, p->key);
        const yaml_node_t *value = yaml_document_get_node(doc, p->value);
        const char *name = scalar(key);
        if (name == NULL || !is_section(name)) {
            return complain(path, key, "unknown section", name != NULL ? name : "(not a word)");
        }
        if (seen_before(doc, root, p, name)) {
            return complain(path, key, "given twice:", name);
        }
        if (is_null(value)) {
            continue;
        }
        if (value->type != YAML_MAPPING_NODE) {
            return complain(path, value, "keys are wanted in section", name);
        }
        GR_TRY(read_section(path, doc, name, value, o));
    }
    return GR_OK;
}

static enum gr_status load_document(const char *path, yaml_parser_t *parser, yaml_document_t *out)
{
    if (yaml_parser_load(parser, out) != 0) {
        return GR_OK;
    }
    log_error("%s:%zu:%zu: %s", path, parser->problem_mark.line + 1, parser->problem_mark.column + 1,
              parser->problem != NULL ? parser->problem : "not valid YAML");
    return GR_EFORMAT;
}

/* One document is all that is read: what a second one says would be lost. */
static enum gr_status expect_end(const char *path, yaml_parser_t *parser)
{
    yaml_document_t more;
    GR_TRY(load_document(path, parser, &more));
    const yaml_node_t *root = yaml_document_get_root_node(&more);
    enum gr_status st = GR_OK;
    if (root != NULL) {
        log_error("%s:%zu:%zu: a second YAML document begins here; one file has one", path, more.start_mark.line + 1,
                  more.start_mark.column + 1);
        st = GR_EFORMAT;
    }
    yaml_document_delete(&more);
    return st;
}

static enum gr_status parse(const char *path, FILE *f, struct gr_yaml_config *c)
{
    yaml_parser_t parser;
    if (yaml_parser_initialize(&parser) == 0) {
        log_error("out of memory");
        return GR_ENOMEM;
    }
    yaml_parser_set_input_file(&parser, f);
    enum gr_status st = load_document(path, &parser, &c->document);
    if (st == GR_OK) {
        st = expect_end(path, &parser);
        if (st == GR_OK) {
            st = check_tags(path, &c->document);
        }
        if (st != GR_OK) {
            yaml_document_delete(&c->document);
        }
    }
    yaml_parser_delete(&parser);
    return st;
}

enum gr_status gr_yaml_config_load(const char *path, struct gr_run_options *o, struct gr_yaml_config **config_out)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        log_error("%s: %s", path, strerror(errno));
        return GR_EIO;
    }
    if (fseek(f, 0, SEEK_END) != 0 || ftell(f) < 0 || (unsigned long)ftell(f) > GR_YAML_BYTES_MAX) {
        log_error("%s: not a regular file, or larger than %u bytes", path, GR_YAML_BYTES_MAX);
        fclose(f);
        return GR_ELIMIT;
    }
    rewind(f);
    struct gr_yaml_config *c = calloc(1, sizeof(*c));
    enum gr_status st = c != NULL ? parse(path, f, c) : GR_ENOMEM;
    fclose(f);
    if (st != GR_OK) {
        free(c);
        return st;
    }
    st = read_document(path, &c->document, o);
    if (st != GR_OK) {
        gr_yaml_config_destroy(c);
        return st;
    }
    *config_out = c;
    return GR_OK;
}

void gr_yaml_config_destroy(struct gr_yaml_config *config)
{
    if (config != NULL) {
        yaml_document_delete(&config->document);
        free(config);
    }
}

int gr_options_load(struct gr_run_options *o, int argc, char **argv, struct gr_yaml_config **config_out)
{
    if (gr_run_options_parse(o, argc, argv) != GR_OK) {
        return 2;
    }
    if (o->help) {
        gr_run_options_help(o, stdout);
        return 0;
    }
    if (o->config != NULL && gr_yaml_config_load(o->config, o, config_out) != GR_OK) {
        return gr_report_failure(o, 1);
    }
    if (o->http != NULL && strcmp(o->http, "off") != 0) {
        log_error(
            "--http %s: the HTTP API is not in this version of graft; use `graft serve' with `graft run --connect' or "
            "`graft session', or --http off",
            o->http);
        return gr_report_failure(o, 2);
    }
    if (sodium_init() < 0) {
        log_error("libsodium cannot start");
        return gr_report_failure(o, 1);
    }
    return -1;
}
