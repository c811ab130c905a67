/* Options of all programs, read from one table (table.inc). Every option has a twin GRAFT_<NAME> in the environment and
 * most a key in the YAML file; precedence: command line > GRAFT_* > YAML > default. Strings are borrowed from argv, the
 * environment or the YAML document, all of which outlive the options. Used by the one thread that starts a program. */
#ifndef GR_COMMON_OPTIONS_OPTIONS_H
#define GR_COMMON_OPTIONS_OPTIONS_H

#include "common/base/status.h"
#include "common/protocol/specpv.h"
#include "common/protocol/wire.h"
#include "common/rules/accept.h"
#include "common/rules/token_tree.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The commands that take options, as a set. */
enum gr_command {
    GR_CMD_RUN = 1 << 0,
    GR_CMD_SERVE = 1 << 1,
    GR_CMD_OPEN = 1 << 2, /* graft session open */
    GR_CMD_PING = 1 << 3,
    GR_CMD_WAIT = 1 << 4,
    GR_CMD_SEND = 1 << 5,   /* graft session send */
    GR_CMD_LOOK = 1 << 6,   /* graft session list, show, refresh, purge */
    GR_CMD_CLOSE = 1 << 7,  /* graft session close */
    GR_CMD_TARGET = 1 << 8, /* graft-target */
    GR_CMD_DRAFT = 1 << 9,  /* graft-draft */
};

#define GR_SERVE_ADDRESS "127.0.0.1:5055" /* where `graft serve` listens, and clients ask, unless told otherwise */
#define GR_STOP_STRING_MAX 8              /* stop strings of a turn */
#define GR_SPIN_AUTO (-1)                 /* --spin-ms: by device and number of CPUs */
#define GR_AUTO (-1)                      /* the value of an AUTO option that says auto */

/* What a value is, with the member that holds it:
 * FLAG: true or false. TEXT: anything. CHOICE: one of the row's choices. INT: a whole number. INT_OR_0: 0, or in range.
 * NUMBER: a real number. SHARE: off or between 0 and 1. AUTO: auto or a whole number. ADDRESS: HOST:PORT, whose port is
 * min at least. DEVICE: cpu or cuda:N. WORDS: texts, at most max of them. IDS: token ids up to max, commas between. */
enum gr_option_kind {
    GR_KIND_FLAG,
    GR_KIND_TEXT,
    GR_KIND_CHOICE,
    GR_KIND_INT,
    GR_KIND_INT_OR_0,
    GR_KIND_NUMBER,
    GR_KIND_SHARE,
    GR_KIND_AUTO,
    GR_KIND_ADDRESS,
    GR_KIND_DEVICE,
    GR_KIND_WORDS,
    GR_KIND_IDS,
};

struct gr_option_words {
    const char *word[GR_STOP_STRING_MAX];
    int n;
};

struct gr_option_ids {
    int32_t id[GR_STOP_ID_MAX];
    int n;
};

#define GR_SLOT_FLAG bool
#define GR_SLOT_TEXT const char *
#define GR_SLOT_CHOICE const char *
#define GR_SLOT_INT int64_t
#define GR_SLOT_INT_OR_0 int64_t
#define GR_SLOT_NUMBER double
#define GR_SLOT_SHARE double
#define GR_SLOT_AUTO int64_t
#define GR_SLOT_ADDRESS const char *
#define GR_SLOT_DEVICE const char *
#define GR_SLOT_WORDS struct gr_option_words
#define GR_SLOT_IDS struct gr_option_ids

/* The rows' numbers: GR_OPTION_model ... */
enum gr_option_id {
#define GR_OPTION(kind, id, ...) GR_OPTION_##id,
#include "common/options/table.inc"
#undef GR_OPTION
    GR_N_OPTION
};

/* Where an option got its value from; a higher one wins. */
enum gr_option_source { GR_FROM_DEFAULT, GR_FROM_YAML, GR_FROM_ENV, GR_FROM_CLI };

/* A member for each row, by its id; NULL, 0 and false where a row has no default. */
struct gr_options {
    enum gr_command command;
    const char *verb; /* of `graft session', for messages; NULL: another command */
#define GR_OPTION(kind, id, ...) GR_SLOT_##kind id;
#include "common/options/table.inc"
#undef GR_OPTION
    uint8_t source[GR_N_OPTION]; /* enum gr_option_source of each row */
};

enum gr_option_group {
    GR_GROUP_GENERAL,
    GR_GROUP_MODEL,
    GR_GROUP_PROMPT,
    GR_GROUP_SAMPLING,
    GR_GROUP_TREE,
    GR_GROUP_SPECPV,
    GR_GROUP_TRANSPORT,
    GR_GROUP_WORKERS,
    GR_GROUP_SERVING,
    GR_GROUP_TESTS,
    GR_N_GROUP
};

/* Commands that would not heed an option, and so refuse it. */
enum gr_option_refusal { GR_WITH_CONNECT = 1, GR_WITHOUT_SPAWN = 2 };

/* When what graft was told is handed on to the workers that it starts. */
enum gr_option_when {
    GR_WHEN_ALWAYS,
    GR_WHEN_HEAD,  /* the drafter is an EAGLE-3 head */
    GR_WHEN_VIEWS, /* SpecPV is on */
    GR_WHEN_TUNED, /* the worker has a model on a GPU */
    GR_WHEN_APART, /* both workers are processes of their own */
};

struct gr_option {
    const char *name; /* without dashes */
    enum gr_option_kind kind;
    size_t at; /* offset of the member in struct gr_options */
    double min, max;
    const char *choices;                    /* CHOICE: with a comma and a blank between */
    const char *initial;                    /* the default as a text; NULL: none */
    const char *argument;                   /* the value in --help; NULL: takes none */
    const char *help;                       /* one line without the default */
    const char *why;                        /* why nothing else than the range is allowed; NULL: nothing to say */
    const char *yaml;                       /* "section.key"; NULL: none */
    const char *yaml_switch;                /* a key that is true or false and says one of two values; NULL: none */
    const char *switched_on, *switched_off; /* those values; NULL: nothing is set */
    unsigned commands;                      /* set of enum gr_command */
    enum gr_option_group group;
    char alias;          /* one letter, as in -h; 0: none */
    bool once;           /* given twice on the command line is an error */
    bool fixed;          /* cannot be changed in an open session, though `session open' does not take it either */
    bool no_environment; /* has no twin there */
    bool inherited;      /* its twin stays in the environment of workers that are started */
    unsigned refused;    /* set of enum gr_option_refusal */
    /* The option of a worker that it becomes: of the target; of a draft worker; of a target with a co-located drafter.
     */
    const char *target_as, *draft_as, *pair_as;
    enum gr_option_when when;
};

extern const struct gr_option gr_option_table[GR_N_OPTION];

/* ---- table.c ---- */

/* The row of that name which the command takes, or NULL. len: of the name. */
const struct gr_option *gr_option_find(unsigned command, const char *name, size_t len);
/* Is it settled when a session is opened, and not to be changed afterwards? */
bool gr_option_is_fixed(const struct gr_option *option);
/* GRAFT_<NAME>; empty: it has no twin. */
void gr_option_environment(const struct gr_option *option, char name[static 64]);

/* ---- options.c: command line and environment ---- */

void gr_options_default(struct gr_options *o, enum gr_command command);
/* Reads the environment and the command line; argv[0] is skipped. --help and --version are answered. Exit status to
 * leave with at once (0 after --help, 2 after a usage error, which is logged), or -1: go on. */
int gr_options_parse(struct gr_options *o, int argc, char **argv);
/* Takes the twins of options out of the environment, so that children see only what they are handed. Strings that the
 * options have borrowed from there stay valid. */
void gr_options_clear_environment(void);
static inline bool gr_option_from_cli(const struct gr_options *o, enum gr_option_id id)
{
    return o->source[id] == GR_FROM_CLI;
}
/* ---- values.c: texts and values ---- */

/* Sets one option, if `source` does not rank below what set it before. what: who says so, for the message
 * ("--max-tokens", "GRAFT_MAX_TOKENS", "a.yaml:3:5: ..."). GR_EINVAL: one line logged with the value and the range. */
GR_NODISCARD enum gr_status gr_option_set(struct gr_options *o, const struct gr_option *option, const char *what,
                                          const char *value, enum gr_option_source source);
/* The value as a text that gr_option_set() would take; NULL: there is none. text: used where it is a number. */
const char *gr_option_text(const struct gr_options *o, const struct gr_option *option, char text[static 64]);

/* ---- help.c ---- */

/* group: one by its name, or NULL: all. GR_ENOTFOUND: logged. */
GR_NODISCARD enum gr_status gr_options_help(const struct gr_options *o, const char *group, FILE *out);
/* The words that start the command, as `graft session list'. */
void gr_options_called(const struct gr_options *o, char name[static 64]);
/* docs/options.md. */
void gr_options_page(FILE *out);

#endif
