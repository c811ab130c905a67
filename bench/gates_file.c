#include "bench/gates_file.h"

#include "common/base/log.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define N_KEY_MAX 8 /* of a row */

/* ---- loading ---- */

/* Keys that are not among the names are typing mistakes. */
static enum gr_status check_keys(const char *path, const char *what, json_t *o, const char *const *names)
{
    const char *key;
    json_t *value;
    if (!json_is_object(o)) {
        log_error("%s: %s is no object", path, what);
        return GR_EFORMAT;
    }
    json_object_foreach(o, key, value)
    {
        int i = 0;
        while (names[i] != NULL && strcmp(names[i], key) != 0) {
            i++;
        }
        if (names[i] == NULL) {
            log_error("%s: %s: unknown key \"%s\"", path, what, key);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

static enum gr_status take_command(const char *path, const char *name, json_t *o, struct gr_gate_command *c)
{
    static const char *const keys[] = {"run", "micro", NULL};
    const json_t *run = json_object_get(o, "run");
    const json_t *micro = json_object_get(o, "micro");
    size_t i;
    json_t *word;
    GR_TRY(check_keys(path, name, o, keys));
    if (name[0] == '\0' || strpbrk(name, "./") != NULL) {
        log_error("%s: command \"%s\": its results are in files of its name, so it has no dot and no slash", path,
                  name);
        return GR_EFORMAT;
    }
    *c = (struct gr_gate_command){.name = name, .micro = json_is_true(micro)};
    if (json_array_size(run) == 0 || json_array_size(run) > GR_GATE_ARG_MAX ||
        (micro != NULL && !json_is_boolean(micro))) {
        log_error("%s: command %s needs \"run\", a list of at most %d words, and may have \"micro\", true or false",
                  path, name, GR_GATE_ARG_MAX);
        return GR_EFORMAT;
    }
    json_array_foreach(run, i, word)
    {
        c->arg[c->n_arg++] = json_string_value(word);
        if (!json_is_string(word)) {
            log_error("%s: command %s: word %zu of \"run\" is no text", path, name, i + 1);
            return GR_EFORMAT;
        }
    }
    return GR_OK;
}

static enum gr_status take_commands(const char *path, struct gr_gates_file *f)
{
    const char *name;
    json_t *o;
    json_t *commands = json_object_get(f->root, "commands");
    if (json_object_size(commands) == 0 || json_object_size(commands) > GR_GATE_COMMAND_MAX) {
        log_error("%s: \"commands\" must be an object of 1 to %d commands", path, GR_GATE_COMMAND_MAX);
        return GR_EFORMAT;
    }
    json_object_foreach(commands, name, o)
    {
        GR_TRY(take_command(path, name, o, &f->command[f->n_command++]));
    }
    return GR_OK;
}

static enum gr_status find_command(const char *path, const struct gr_gates_file *f, const char *gate, const char *name,
                                   int *out)
{
    for (int i = 0; name != NULL && i < f->n_command; i++) {
        if (strcmp(f->command[i].name, name) == 0) {
            *out = i;
            return GR_OK;
        }
    }
    log_error("%s: gate \"%s\": \"command\": %s is not one of \"commands\"", path, gate,
              name != NULL ? name : "nothing");
    return GR_EFORMAT;
}

static enum gr_status take_row(const char *path, json_t *row, struct gr_gate *g)
{
    const char *key;
    json_t *value;
    bool good = json_object_size(row) > 0 && json_object_size(row) <= N_KEY_MAX;
    json_object_foreach(row, key, value)
    {
        good = good && (json_is_string(value) || json_is_number(value));
    }
    if (!good) {
        log_error("%s: gate \"%s\": \"row\" must be an object of 1 to %d columns with a text or a number each", path,
                  g->name, N_KEY_MAX);
        return GR_EFORMAT;
    }
    g->row = row;
    return GR_OK;
}

static enum gr_status take_limit(const char *path, const json_t *o, struct gr_gate *g)
{
    const json_t *most = json_object_get(o, "at_most");
    const json_t *least = json_object_get(o, "at_least");
    if ((most == NULL) == (least == NULL) || !json_is_number(most != NULL ? most : least)) {
        log_error("%s: gate \"%s\" needs one of \"at_most\" and \"at_least\", a number", path, g->name);
        return GR_EFORMAT;
    }
    g->at_most = most != NULL;
    g->limit = json_number_value(most != NULL ? most : least);
    return GR_OK;
}

static enum gr_status take_gate(const char *path, const struct gr_gates_file *f, size_t i, json_t *o, struct gr_gate *g)
{
    static const char *const keys[] = {"name", "command", "row", "column", "at_most", "at_least", NULL};
    char what[32];
    snprintf(what, sizeof(what), "gate %zu", i + 1);
    GR_TRY(check_keys(path, what, o, keys));
    *g = (struct gr_gate){.name = json_string_value(json_object_get(o, "name")),
                          .column = json_string_value(json_object_get(o, "column"))};
    if (g->name == NULL || g->column == NULL) {
        log_error("%s: %s needs \"name\" and \"column\", texts", path, what);
        return GR_EFORMAT;
    }
    GR_TRY(find_command(path, f, g->name, json_string_value(json_object_get(o, "command")), &g->command));
    GR_TRY(take_row(path, json_object_get(o, "row"), g));
    return take_limit(path, o, g);
}

static enum gr_status take_all(const char *path, struct gr_gates_file *f)
{
    static const char *const keys[] = {"machine", "commands", "gates", NULL};
    const json_t *gates = json_object_get(f->root, "gates");
    const char *machine = json_string_value(json_object_get(f->root, "machine"));
    size_t i;
    json_t *o;
    GR_TRY(check_keys(path, "the file", f->root, keys));
    f->machine = machine != NULL ? machine : "";
    GR_TRY(take_commands(path, f));
    if (json_array_size(gates) == 0 || json_array_size(gates) > GR_GATE_MAX) {
        log_error("%s: \"gates\" must be a list of 1 to %d gates", path, GR_GATE_MAX);
        return GR_EFORMAT;
    }
    json_array_foreach(gates, i, o)
    {
        GR_TRY(take_gate(path, f, i, o, &f->gate[f->n_gate++]));
    }
    return GR_OK;
}

enum gr_status gr_gates_load(const char *path, struct gr_gates_file *out)
{
    json_error_t error;
    *out = (struct gr_gates_file){.root = json_load_file(path, JSON_REJECT_DUPLICATES, &error)};
    if (out->root == NULL) {
        const bool unread = json_error_code(&error) == json_error_cannot_open_file;
        if (unread) {
            log_error("%s: %s", path, strerror(errno));
        } else {
            log_error("%s:%d:%d: %s", path, error.line, error.column, error.text);
        }
        return unread ? GR_EIO : GR_EINVAL;
    }
    const enum gr_status st = take_all(path, out);
    if (st != GR_OK) {
        gr_gates_free(out);
    }
    return st == GR_OK ? GR_OK : GR_EINVAL;
}

void gr_gates_free(struct gr_gates_file *f)
{
    json_decref(f->root);
    f->root = NULL;
}

/* ---- a cell ---- */

static bool is_like(const json_t *cell, const json_t *wanted)
{
    const char *text = json_string_value(wanted);
    const char *in = json_string_value(cell);
    if (text == NULL) {
        return json_is_number(cell) && json_number_value(cell) == json_number_value(wanted);
    }
    const size_t len = strlen(text);
    const bool open = len > 0 && text[len - 1] == '*';
    return in != NULL && (open ? strncmp(in, text, len - 1) == 0 : strcmp(in, text) == 0);
}

static bool is_row_of(const struct gr_gate *gate, const json_t *row)
{
    const char *key;
    json_t *wanted;
    json_object_foreach(gate->row, key, wanted)
    {
        if (!is_like(json_object_get(row, key), wanted)) {
            return false;
        }
    }
    return json_is_object(row);
}

/* A column that no row has is a mistake in the gates file, not a result that is missing. */
static bool has_column(const json_t *rows, const char *column)
{
    return json_object_get(json_array_get(rows, 0), column) != NULL;
}

static enum gr_status check_columns(const struct gr_gate *gate, const json_t *rows, const char *where)
{
    const char *key;
    json_t *wanted;
    const char *unknown = has_column(rows, gate->column) ? NULL : gate->column;
    json_object_foreach(gate->row, key, wanted)
    {
        unknown = unknown == NULL && !has_column(rows, key) ? key : unknown;
    }
    if (unknown != NULL) {
        log_error("gate \"%s\": the results of %s have no column \"%s\"", gate->name, where, unknown);
        return GR_ENOTFOUND;
    }
    return GR_OK;
}

enum gr_status gr_gate_cell(const struct gr_gate *gate, const json_t *rows, const char *where, double *value_out)
{
    size_t i;
    json_t *row;
    int n = 0;
    const json_t *cell = NULL;
    GR_TRY(check_columns(gate, rows, where));
    json_array_foreach(rows, i, row)
    {
        if (is_row_of(gate, row)) {
            cell = json_object_get(row, gate->column);
            n++;
        }
    }
    if (n != 1) {
        log_error("gate \"%s\": %d rows of the results of %s match, one is wanted", gate->name, n, where);
        return GR_ENOTFOUND;
    }
    if (!json_is_number(cell)) {
        log_error("gate \"%s\": \"%s\" of %s is no number", gate->name, gate->column, where);
        return GR_EFORMAT;
    }
    *value_out = json_number_value(cell);
    return GR_OK;
}

bool gr_gate_is_met(const struct gr_gate *gate, double value)
{
    return isfinite(value) && (gate->at_most ? value <= gate->limit : value >= gate->limit);
}
