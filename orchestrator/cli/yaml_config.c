#include "orchestrator/cli/yaml_config.h"

#include "common/base/in_file.h"
#include "common/base/log.h"
#include "common/process/program.h"
#include "common/base/suggest.h"
#include "orchestrator/cli/report.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct gr_yaml_config {
    yaml_document_t document;
};

/* A key of the file: an option, or the switch that says one of two of its values. */
struct key {
    const struct gr_option *option;
    bool is_switch;
};

static enum gr_status complain(const char *path, const yaml_node_t *at, const char *what, const char *name)
{
    log_error("%s:%zu:%zu: %s `%s'", path, at->start_mark.line + 1, at->start_mark.column + 1, what, name);
    return GR_EFORMAT;
}

/* The part of "section.key" after the dot, if the section is this one; else NULL. */
static const char *key_in(const char *path, const char *section)
{
    const size_t len = strlen(section);
    return path != NULL && strncmp(path, section, len) == 0 && path[len] == '.' ? path + len + 1 : NULL;
}

static bool names(const char *path, const char *section, const char *name)
{
    const char *key = key_in(path, section);
    return key != NULL && strcmp(key, name) == 0;
}

static bool is_section(const struct gr_option_table *t, const char *name)
{
    for (int i = 0; i < t->n_row; i++) {
        if (key_in(t->row[i].yaml, name) != NULL) {
            return true;
        }
    }
    return false;
}

/* Where two rows have the key, the one that the command takes; of those that it does not take the first, which is a
 * list where one of them is. */
static bool find(const struct gr_option_values *v, const char *section, const char *name, struct key *key_out)
{
    const struct gr_option_table *t = v->table;
    bool found = false;
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        const bool is_switch = names(r->yaml_switch, section, name);
        const bool is_key = is_switch || names(r->yaml, section, name);
        if (is_key && (!found || gr_option_is_for(r, v->called->command))) {
            *key_out = (struct key){r, is_switch};
            found = true;
        }
    }
    return found;
}

/* ---- what is not known ---- */

static enum gr_status unknown(const char *path, const yaml_node_t *at, const char *what, const struct gr_suggest *near)
{
    char meant[96];
    gr_suggest_text(near, "", meant, sizeof(meant));
    log_error("%s:%zu:%zu: unknown %s `%s'%s", path, at->start_mark.line + 1, at->start_mark.column + 1, what,
              near->word, meant);
    return GR_EINVAL;
}

static enum gr_status unknown_key(const struct gr_option_table *t, const char *path, const yaml_node_t *at,
                                  const char *section, const char *name)
{
    struct gr_suggest near = {.word = name, .len = strlen(name)};
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        const char *keys[] = {key_in(r->yaml, section), key_in(r->yaml_switch, section)};
        for (size_t k = 0; k < GR_ARRAY_LEN(keys); k++) {
            if (keys[k] != NULL) {
                gr_suggest_offer(&near, keys[k]);
            }
        }
    }
    return unknown(path, at, "key", &near);
}

static enum gr_status unknown_section(const char *path, const yaml_node_t *at, const char *name)
{
    static const char *const sections[] = {"orchestrator", "target",  "draft",  "transport",
                                           "session",      "targets", "drafts", "speculative_config"};
    struct gr_suggest near = {.word = name, .len = strlen(name)};
    for (size_t i = 0; i < GR_ARRAY_LEN(sections); i++) {
        gr_suggest_offer(&near, sections[i]);
    }
    return unknown(path, at, "section", &near);
}

/* ---- values ---- */

/* For messages of who looks at the value later. */
static enum gr_status set(const yaml_node_t *at, const struct key *k, const char *what, const char *text,
                          struct gr_option_values *v)
{
    const ptrdiff_t row = k->option - v->table->row;
    if (v->source[row] < GR_FROM_YAML) {
        v->line[row] = (uint32_t)at->start_mark.line + 1;
    }
    return gr_option_set(v, k->option, what, text, GR_FROM_YAML);
}

static enum gr_status apply(const char *path, const yaml_node_t *value, const struct key *k, struct gr_option_values *v)
{
    const char *text = (const char *)value->data.scalar.value;
    char what[4400];
    if (k->is_switch) {
        const bool on = strcmp(text, "true") == 0;
        if (!on && strcmp(text, "false") != 0) {
            return complain(path, value, "true or false is wanted, not", text);
        }
        text = on ? k->option->switched_on : k->option->switched_off;
    }
    if (text == NULL) {
        return GR_OK;
    }
    snprintf(what, sizeof(what), "%.4096s:%zu:%zu: %s", path, value->start_mark.line + 1, value->start_mark.column + 1,
             k->is_switch ? k->option->yaml_switch : k->option->yaml);
    return set(value, k, what, text, v);
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

static enum gr_status apply_list(const char *path, yaml_document_t *doc, const yaml_node_t *list, const char *name,
                                 const struct key *k, struct gr_option_values *v)
{
    for (const yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
        const yaml_node_t *value = yaml_document_get_node(doc, *i);
        if (scalar(value) == NULL || is_null(value)) {
            return complain(path, value, "single values are wanted in the list of", name);
        }
        GR_TRY(apply(path, value, k, v));
    }
    return GR_OK;
}

/* {7: 1.5, 11: -1} as 7=1.5 and 11=-1. */
static enum gr_status apply_map(const char *path, yaml_document_t *doc, const yaml_node_t *map, const struct key *k,
                                struct gr_option_values *v)
{
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(doc, p->key);
        const yaml_node_t *value = yaml_document_get_node(doc, p->value);
        char what[4400], pair[128];
        if (scalar(key) == NULL || scalar(value) == NULL) {
            return complain(path, key, "ids and numbers are wanted in", k->option->yaml);
        }
        snprintf(what, sizeof(what), "%.4096s:%zu:%zu: %s", path, key->start_mark.line + 1, key->start_mark.column + 1,
                 k->option->yaml);
        snprintf(pair, sizeof(pair), "%s=%s", scalar(key), scalar(value));
        GR_TRY(set(key, k, what, pair, v));
    }
    return GR_OK;
}

/* A NUL byte would end a value early, unseen. */
static enum gr_status check_bytes(const char *path, const yaml_document_t *doc)
{
    for (const yaml_node_t *n = doc->nodes.start; n < doc->nodes.top; n++) {
        if (n->type == YAML_SCALAR_NODE && strlen((const char *)n->data.scalar.value) != n->data.scalar.length) {
            return complain(path, n, "a NUL byte ends", (const char *)n->data.scalar.value);
        }
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
                                   struct gr_option_values *v)
{
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(doc, p->key);
        const yaml_node_t *value = yaml_document_get_node(doc, p->value);
        const char *name = scalar(key);
        struct key k;
        if (name == NULL) {
            return complain(path, key, "unknown key", "(not a word)");
        }
        if (!find(v, section, name, &k)) {
            return unknown_key(v->table, path, key, section, name);
        }
        if (seen_before(doc, map, p, name)) {
            return complain(path, key, "given twice:", name);
        }
        if (is_null(value)) {
            continue;
        }
        if (k.option->kind == GR_KIND_MAP && value->type == YAML_MAPPING_NODE) {
            GR_TRY(apply_map(path, doc, value, &k, v));
            continue;
        }
        if (gr_option_is_list(k.option) && value->type == YAML_SEQUENCE_NODE) {
            GR_TRY(apply_list(path, doc, value, name, &k, v));
            continue;
        }
        if (scalar(value) == NULL) {
            return complain(path, value, "a single value is wanted for", name);
        }
        GR_TRY(apply(path, value, &k, v));
    }
    return GR_OK;
}

/* ---- lists of workers ---- */

static const struct gr_option *find_list(const struct gr_option_table *t, const char *name)
{
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        if (r->kind == GR_KIND_WORKERS && r->yaml != NULL && strcmp(r->yaml, name) == 0) {
            return r;
        }
    }
    return NULL;
}

static enum gr_status unknown_item_key(const char *path, const yaml_node_t *at, const char *name)
{
    struct gr_suggest near = {.word = name, .len = strlen(name)};
    for (int i = 0; gr_option_worker_keys[i] != NULL; i++) {
        gr_suggest_offer(&near, gr_option_worker_keys[i]);
    }
    return unknown(path, at, "key", &near);
}

static enum gr_status read_item(const char *path, yaml_document_t *doc, const char *list, const yaml_node_t *map,
                                struct gr_option_worker *w)
{
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(doc, p->key);
        const yaml_node_t *value = yaml_document_get_node(doc, p->value);
        const char *name = scalar(key);
        char what[4400];
        if (name == NULL) {
            return complain(path, key, "unknown key", "(not a word)");
        }
        if (seen_before(doc, map, p, name)) {
            return complain(path, key, "given twice:", name);
        }
        if (scalar(value) == NULL) {
            return complain(path, value, "a single value is wanted for", name);
        }
        snprintf(what, sizeof(what), "%.4096s:%zu:%zu: %s.%s", path, value->start_mark.line + 1,
                 value->start_mark.column + 1, list, name);
        const enum gr_status st = gr_option_set_worker(w, name, what, scalar(value));
        if (st != GR_OK) {
            return st == GR_ENOTFOUND ? unknown_item_key(path, key, name) : st;
        }
    }
    return GR_OK;
}

static enum gr_status read_list(const char *path, yaml_document_t *doc, const struct gr_option *option,
                                const yaml_node_t *list, struct gr_option_values *v)
{
    if (list->type != YAML_SEQUENCE_NODE) {
        return complain(path, list, "a list of workers, with count, host and device, is wanted for", option->yaml);
    }
    for (const yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
        const yaml_node_t *item = yaml_document_get_node(doc, *i);
        struct gr_option_worker *w = NULL;
        if (item->type != YAML_MAPPING_NODE) {
            return complain(path, item, "count, host and device are wanted in each item of", option->yaml);
        }
        if (gr_option_add_worker(v, option, option->yaml, &w) != GR_OK) {
            return GR_EINVAL;
        }
        GR_TRY(read_item(path, doc, option->yaml, item, w));
    }
    return GR_OK;
}

/* One top-level key: a section, or a list of workers. */
static enum gr_status read_part(const char *path, yaml_document_t *doc, const char *name, const yaml_node_t *value,
                                struct gr_option_values *v)
{
    const struct gr_option *list = find_list(v->table, name);
    if (is_null(value)) {
        return GR_OK;
    }
    if (list != NULL) {
        return read_list(path, doc, list, value, v);
    }
    if (value->type != YAML_MAPPING_NODE) {
        return complain(path, value, "keys are wanted in section", name);
    }
    return read_section(path, doc, name, value, v);
}

static enum gr_status read_document(const char *path, yaml_document_t *doc, struct gr_option_values *v)
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
        if (name == NULL) {
            return complain(path, key, "unknown section", "(not a word)");
        }
        if (!is_section(v->table, name) && find_list(v->table, name) == NULL) {
            return unknown_section(path, key, name);
        }
        if (seen_before(doc, root, p, name)) {
            return complain(path, key, "given twice:", name);
        }
        GR_TRY(read_part(path, doc, name, value, v));
    }
    return GR_OK;
}

static enum gr_status load_document(const char *path, yaml_parser_t *parser, yaml_document_t *out)
{
    if (yaml_parser_load(parser, out) != 0) {
        return GR_OK;
    }
    if (parser->error == YAML_READER_ERROR) { /* it has no line yet */
        log_error("%s: byte %zu: %s", path, parser->problem_offset, parser->problem);
        return GR_EINVAL;
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

/* libyaml's time grows with the square of the depth, so it is looked at event by event before all is loaded. Other
 * errors are left to that. */
static enum gr_status check_depth(const char *path, FILE *f)
{
    yaml_parser_t parser;
    yaml_event_t e;
    int depth = 0;
    if (yaml_parser_initialize(&parser) == 0) {
        log_error("no memory for reading YAML");
        return GR_ENOMEM;
    }
    yaml_parser_set_input_file(&parser, f);
    for (bool more = true; more && depth <= GR_YAML_DEPTH_MAX && yaml_parser_parse(&parser, &e) != 0;) {
        depth += e.type == YAML_MAPPING_START_EVENT || e.type == YAML_SEQUENCE_START_EVENT;
        depth -= e.type == YAML_MAPPING_END_EVENT || e.type == YAML_SEQUENCE_END_EVENT;
        more = e.type != YAML_STREAM_END_EVENT;
        if (depth > GR_YAML_DEPTH_MAX) {
            log_error("%s:%zu:%zu: nested deeper than %d", path, e.start_mark.line + 1, e.start_mark.column + 1,
                      GR_YAML_DEPTH_MAX);
        }
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&parser);
    rewind(f);
    return depth > GR_YAML_DEPTH_MAX ? GR_EFORMAT : GR_OK;
}

static enum gr_status parse(const char *path, FILE *f, struct gr_yaml_config *c)
{
    GR_TRY(check_depth(path, f));
    yaml_parser_t parser;
    if (yaml_parser_initialize(&parser) == 0) {
        log_error("no memory for reading YAML");
        return GR_ENOMEM;
    }
    yaml_parser_set_input_file(&parser, f);
    enum gr_status st = load_document(path, &parser, &c->document);
    if (st == GR_OK) {
        st = expect_end(path, &parser);
        if (st == GR_OK) {
            st = check_tags(path, &c->document);
        }
        if (st == GR_OK) {
            st = check_bytes(path, &c->document);
        }
        if (st != GR_OK) {
            yaml_document_delete(&c->document);
        }
    }
    yaml_parser_delete(&parser);
    return st;
}

enum gr_status gr_yaml_config_load(const char *path, struct gr_option_values *v, struct gr_yaml_config **config_out)
{
    FILE *f = gr_in_file_stream(path);
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
    st = read_document(path, &c->document, v);
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

int gr_options_load(struct gr_options *o, int argc, char **argv, struct gr_yaml_config **config_out)
{
    const int status = gr_options_parse(o, argc, argv);
    if (status >= 0) {
        return gr_report_failure(o, status);
    }
    const enum gr_status st = o->config != NULL ? gr_yaml_config_load(o->config, &o->values, config_out) : GR_OK;
    if (st != GR_OK) {
        return gr_report_failure(o, gr_program_refused(st == GR_EFORMAT ? GR_EINVAL : st)); /* what it says is wrong */
    }
    const bool serves = (o->values.called->command & (GR_CMD_SERVE | GR_CMD_LAUNCH)) != 0;
    if (o->http != NULL && !serves && gr_option_from_cli(o, GR_OPTION_http)) {
        log_error(
            "--http %s: only `graft serve' and the orchestrator of `graft launch' have an endpoint; leave it out, or "
            "give --http off",
            o->http);
        return gr_report_failure(o, 2);
    }
    if (sodium_init() < 0) {
        log_error("libsodium cannot start");
        return gr_report_failure(o, 1);
    }
    return -1;
}
