/* A script has three functions that are made from the tables, which both shells read: the subcommands after a command,
 * the options of a command, and what the value of an option is. A command is told as its words: 'graft session list'.
 * The rest of each script is the same whatever the tables say. */
#include "common/options/complete.h"

#include <string.h>

struct tables {
    const struct gr_option_table *const *table;
    int n;
    FILE *out;
};

/* ---- subcommands ---- */

/* Length of the word of `c` after its first n bytes, which are `before`; 0: it does not begin so. */
static size_t next_word(const struct gr_option_command *c, const char *before, const char **word_out)
{
    const size_t n = strlen(before);
    if (strncmp(c->word, before, n) != 0) {
        return 0;
    }
    *word_out = c->word + n;
    return strcspn(c->word + n, " ");
}

static void print_words_after(const struct gr_option_table *t, const char *program, const char *before, FILE *out)
{
    const char *gap = "", *last = "", *word = "";
    size_t last_len = 0;
    for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
        const size_t len = strcmp(c->program, program) == 0 ? next_word(c, before, &word) : 0;
        const bool again = len == last_len && strncmp(word, last, len) == 0; /* entries of one word are side by side */
        if (len > 0 && word[0] != '-' && !again) {
            fprintf(out, "%s%.*s", gap, (int)len, word);
            gap = " ";
            last = word;
            last_len = len;
        }
    }
}

static void print_subcommands(const struct tables *s)
{
    fprintf(s->out, "_graft_subcommands()\n{\n    case $1 in\n");
    static const struct {
        const char *program, *before, *key;
    } keys[] = {{"graft", "", "graft"},
                {"graft", "session ", "graft session"},
                {"graft", "worker ", "graft worker"},
                {"graft-bench", "", "graft-bench"}};
    for (int i = 0; i < s->n; i++) {
        for (size_t k = 0; k < GR_ARRAY_LEN(keys); k++) {
            if (strcmp(s->table[i]->command[0].program, keys[k].program) == 0) {
                fprintf(s->out, "    '%s') list='", keys[k].key);
                print_words_after(s->table[i], keys[k].program, keys[k].before, s->out);
                fprintf(s->out, "' ;;\n");
            }
        }
    }
    fprintf(s->out, "    *) list= ;;\n    esac\n}\n\n");
}

/* ---- options ---- */

/* Inside single quotes. */
static void print_quoted(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        fprintf(out, *text == '\'' ? "'\\''" : "%c", *text);
    }
}

static void print_options_of(const struct gr_option_table *t, const struct gr_option_command *c, bool described,
                             FILE *out)
{
    const char *gap = "";
    for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
        if (!gr_option_is_for(r, c->command) || gr_option_is_word(r, c->command) || r->kind == GR_KIND_WORKERS) {
            continue;
        }
        if (described) {
            fprintf(out, "\n        '--%s:", r->name);
            print_quoted(r->help, out);
            fprintf(out, "'");
        } else {
            fprintf(out, "%s--%s", gap, r->name);
        }
        gap = " ";
    }
}

static void print_options(const struct tables *s, bool described)
{
    char called[64];
    fprintf(s->out, "_graft_options()\n{\n    case $1 in\n");
    for (int i = 0; i < s->n; i++) {
        const struct gr_option_table *t = s->table[i];
        for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
            gr_option_called(c, called);
            fprintf(s->out, "    '%s') list=%s", called, described ? "(" : "'");
            print_options_of(t, c, described, s->out);
            fprintf(s->out, "%s ;;\n", described ? "\n    )" : "'");
        }
    }
    fprintf(s->out, "    *) list=%s ;;\n    esac\n}\n\n", described ? "()" : "");
}

/* ---- values ---- */

/* folder, file, choice, list (choices with commas between), flag, or word: nothing is known of it. */
static const char *kind_of(const struct gr_option *r)
{
    if (r->kind == GR_KIND_SECRET || r->path == GR_PATH_FILE) {
        return "file";
    }
    switch (r->kind) {
    case GR_KIND_FLAG:
        return "flag";
    case GR_KIND_CHOICE:
    case GR_KIND_DEVICE:
        return "choice";
    case GR_KIND_CHOICES:
    case GR_KIND_DEVICES:
        return "list";
    default:
        return r->path == GR_PATH_FOLDER ? "folder" : r->choices != NULL ? "choice" : "word";
    }
}

static void print_choices(const struct gr_option *r, FILE *out)
{
    if (r->kind == GR_KIND_DEVICE || r->kind == GR_KIND_DEVICES) {
        fprintf(out, "cpu cuda:0");
        return;
    }
    if (r->kind == GR_KIND_FLAG) {
        fprintf(out, "true false");
        return;
    }
    for (int i = 0; r->choices != NULL && r->choices[i] != NULL; i++) {
        fprintf(out, "%s%s", i > 0 ? " " : "", r->choices[i]);
    }
}

/* 'graft run --model' of each command that takes it; as a word without dashes: 'graft completion -'. */
static void print_value(const struct gr_option_table *t, const struct gr_option *r, bool positional, FILE *out)
{
    const char *gap = "    ";
    char called[64];
    for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
        if (gr_option_is_for(r, c->command) && gr_option_is_word(r, c->command) == positional) {
            gr_option_called(c, called);
            fprintf(out, "%s'%s %s%s'", gap, called, positional ? "-" : "--", positional ? "" : r->name);
            gap = " | \\\n    ";
            if (r->alias != 0) {
                fprintf(out, " | '%s -%c'", called, r->alias);
            }
            if (r->brief != NULL) {
                fprintf(out, " | '%s -%s'", called, r->brief);
            }
        }
    }
    if (strcmp(gap, "    ") == 0) {
        return;
    }
    fprintf(out, ") kind=%s list='", kind_of(r));
    print_choices(r, out);
    fprintf(out, "' ;;\n");
}

/* --help takes a group, if it is followed by one. */
static void print_groups(const struct gr_option_table *t, FILE *out)
{
    char called[64];
    for (const struct gr_option_command *c = t->command; c < t->command + t->n_command; c++) {
        gr_option_called(c, called);
        fprintf(out, "    '%s --help'%s", called, c + 1 < t->command + t->n_command ? " | \\\n" : "");
    }
    fprintf(out, ") kind=choice list='");
    for (int i = 0; i < t->n_group; i++) {
        fprintf(out, "%s%s", i > 0 ? " " : "", t->group[i].name);
    }
    fprintf(out, "' ;;\n");
}

static void print_values(const struct tables *s)
{
    fprintf(s->out, "_graft_value()\n{\n    case \"$1 $2\" in\n");
    for (int i = 0; i < s->n; i++) {
        const struct gr_option_table *t = s->table[i];
        print_groups(t, s->out);
        for (const struct gr_option *r = t->row; r < t->row + t->n_row; r++) {
            print_value(t, r, false, s->out);
            print_value(t, r, true, s->out);
        }
    }
    fprintf(s->out, "    *) kind=none list= ;;\n    esac\n}\n\n");
}

/* ---- the scripts ---- */

/* bash takes `--name=value' and `cuda:0' apart into words. */
static const char bash_begin[] = "# bash completion of graft, as `graft completion bash' prints it.\n\n";
static const char bash_end[] =
    "# Choices for the value $1; with $2 'list' for the part after its last comma.\n"
    "_graft_choices()\n"
    "{\n"
    "    local prefix=\n"
    "    [[ $2 == list ]] && prefix=${1%\"${1##*,}\"}\n"
    "    mapfile -t COMPREPLY < <(compgen -P \"$prefix\" -W \"$list\" -- \"${1#\"$prefix\"}\")\n"
    "}\n\n"
    "_graft_paths()\n"
    "{\n"
    "    compopt -o filenames 2> /dev/null\n"
    "    mapfile -t COMPREPLY < <(compgen \"$2\" -- \"$1\")\n"
    "}\n\n"
    "_graft()\n"
    "{\n"
    "    local key=${COMP_WORDS[0]##*/} cur=${COMP_WORDS[COMP_CWORD]} at=1 option list kind equals=\n"
    "    COMPREPLY=()\n"
    "    _graft_subcommands \"$key\"\n"
    "    while [[ -n $list ]]; do\n"
    "        if ((COMP_CWORD == at)); then\n"
    "            list=\"$list --help\"\n"
    "            [[ $key == *' '* ]] || list=\"$list --version\"\n"
    "            _graft_choices \"$cur\"\n"
    "            return\n"
    "        fi\n"
    "        key=\"$key ${COMP_WORDS[at++]}\"\n"
    "        _graft_subcommands \"$key\"\n"
    "    done\n"
    "    [[ $key == 'graft-bench e2e' && \" ${COMP_WORDS[*]} \" == *' --context '* ]] && key=\"$key --context\"\n"
    "    option=${COMP_WORDS[COMP_CWORD - 1]}\n"
    "    if [[ $cur == = ]]; then\n"
    "        cur= equals=1\n"
    "    elif [[ $option == = ]]; then\n"
    "        option=${COMP_WORDS[COMP_CWORD - 2]} equals=1\n"
    "    fi\n"
    "    _graft_value \"$key\" \"$option\"\n"
    "    case $kind:$equals in\n"
    "    flag: | none:) ;;\n"
    "    file:*) _graft_paths \"$cur\" -f; return ;;\n"
    "    folder:*) _graft_paths \"$cur\" -d; return ;;\n"
    "    *) _graft_choices \"$cur\" \"$kind\"; return ;;\n"
    "    esac\n"
    "    _graft_value \"$key\" -\n"
    "    if [[ $cur != -* && -n $list ]]; then\n"
    "        _graft_choices \"$cur\"\n"
    "    else\n"
    "        _graft_options \"$key\"\n"
    "        _graft_choices \"$cur\"\n"
    "    fi\n"
    "}\n\n"
    "complete -F _graft graft graft-target graft-draft graft-bench\n";

static const char zsh_begin[] = "#compdef graft graft-target graft-draft graft-bench\n"
                                "# zsh completion of graft, as `graft completion zsh' prints it.\n\n";
static const char zsh_end[] =
    "_graft_choices()\n"
    "{\n"
    "    [[ $1 == list ]] && compset -P '*,'\n"
    "    compadd -- ${=list}\n"
    "}\n\n"
    "_graft()\n"
    "{\n"
    "    local key=${words[1]:t} at=2 option kind\n"
    "    local -a list\n"
    "    _graft_subcommands $key\n"
    "    while [[ -n $list ]]; do\n"
    "        if ((CURRENT == at)); then\n"
    "            _graft_choices\n"
    "            compadd -- --help\n"
    "            [[ $key == *' '* ]] || compadd -- --version\n"
    "            return\n"
    "        fi\n"
    "        key=\"$key ${words[at]}\"\n"
    "        ((at += 1))\n"
    "        _graft_subcommands $key\n"
    "    done\n"
    "    [[ $key == 'graft-bench e2e' && \" $words \" == *' --context '* ]] && key=\"$key --context\"\n"
    "    option=${words[CURRENT - 1]}\n"
    "    if [[ ${words[CURRENT]} == --*=* ]]; then\n"
    "        option=${words[CURRENT]%%=*}\n"
    "        compset -P '*='\n"
    "        _graft_value $key $option\n"
    "    else\n"
    "        _graft_value $key $option\n"
    "        [[ $kind == flag ]] && kind=none\n"
    "    fi\n"
    "    case $kind in\n"
    "    none) ;;\n"
    "    file) _files; return ;;\n"
    "    folder) _files -/; return ;;\n"
    "    *) _graft_choices $kind; return ;;\n"
    "    esac\n"
    "    _graft_value $key -\n"
    "    if [[ ${words[CURRENT]} != -* && -n $list ]]; then\n"
    "        _graft_choices\n"
    "    else\n"
    "        _graft_options $key\n"
    "        _describe -o option list\n"
    "    fi\n"
    "}\n\n"
    "if [[ $funcstack[1] == _graft ]]; then\n"
    "    _graft \"$@\"\n"
    "else\n"
    "    compdef _graft graft graft-target graft-draft graft-bench\n"
    "fi\n";

void gr_option_complete_bash(const struct gr_option_table *const *table, int n_table, FILE *out)
{
    const struct tables s = {.table = table, .n = n_table, .out = out};
    fprintf(out, "%s", bash_begin);
    print_subcommands(&s);
    print_options(&s, false);
    print_values(&s);
    fprintf(out, "%s", bash_end);
}

void gr_option_complete_zsh(const struct gr_option_table *const *table, int n_table, FILE *out)
{
    const struct tables s = {.table = table, .n = n_table, .out = out};
    fprintf(out, "%s", zsh_begin);
    print_subcommands(&s);
    print_options(&s, true);
    print_values(&s);
    fprintf(out, "%s", zsh_end);
}
