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

struct key {
    const char *name, *option;
    enum rule rule;
};

/* Keys that mean an option in other words. All others are in the options' own table. */
#define SPECIAL_SECTION "speculative_config"
static const struct key special[] = {
    {"enable_speculative_decoding", "method", RULE_METHOD_OFF},
    {"enable_target_tree", "tree-shape", RULE_TREE_SHAPE},
    {"enable_specpv", "specpv", RULE_SPECPV},
};

static enum gr_status complain(const char *path, const yaml_node_t *at, const char *what, const char *name)
{
    log_error("%s:%zu:%zu: %s `%s'", path, at->start_mark.line + 1, at->start_mark.column + 1, what, name);
    return GR_EINVAL;
}

/* False: there is no such key. */
static bool find(const char *section, const char *name, struct key *out)
{
    const char *option = gr_option_of_key(section, name);
    if (option != NULL) {
        *out = (struct key){name, option, gr_option_is_list(option) ? RULE_LIST : RULE_SAME};
        return true;
    }
    for (size_t i = 0; strcmp(section, SPECIAL_SECTION) == 0 && i < GR_ARRAY_LEN(special); i++) {
        if (strcmp(special[i].name, name) == 0) {
            *out = special[i];
            return true;
        }
    }
    return false;
}

/* section NULL: the name is one's. */
static enum gr_status unknown(const char *path, const yaml_node_t *at, const char *section, const char *name)
{
    char also[80];
    struct gr_suggest near = {.word = name, .len = name != NULL ? strlen(name) : 0};
    gr_option_offer_keys(section, &near);
    for (size_t i = 0; section != NULL && strcmp(section, SPECIAL_SECTION) == 0 && i < GR_ARRAY_LEN(special); i++) {
        gr_suggest_offer(&near, special[i].name);
    }
    log_error("%s:%zu:%zu: unknown %s `%s'%s", path, at->start_mark.line + 1, at->start_mark.column + 1,
              section == NULL ? "section" : "key", name != NULL ? name : "(not a word)",
              gr_suggest_text(&near, "", also, sizeof(also)));
    return GR_EINVAL;
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
        struct key k;
        if (name == NULL || !find(section, name, &k)) {
            return unknown(path, key, section, name);
        }
        if (seen_before(doc, map, p, name)) {
            return complain(path, key, "given twice:", name);
        }
        if (is_null(value)) {
            continue;
        }
        if (k.rule == RULE_LIST && value->type == YAML_SEQUENCE_NODE) {
            GR_TRY(apply_list(path, doc, value, &k, o));
            continue;
        }
        if (scalar(value) == NULL) {
            return complain(path, value, "a single value is wanted for", name);
        }
        GR_TRY(apply(path, value, &k, o));
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
        if (name == NULL || !gr_option_section(name)) {
            return unknown(path, key, NULL, name);
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
    return GR_EINVAL;
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
        st = GR_EINVAL;
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
    const enum gr_status st = o->config != NULL ? gr_yaml_config_load(o->config, o, config_out) : GR_OK;
    if (st != GR_OK) {
        return gr_report_failure(o, st == GR_EINVAL ? 2 : 1); /* a file that cannot be read is no usage error */
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
