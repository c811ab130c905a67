/* Options as rows of a table: what a row says of an option is said nowhere else. Parser, environment, YAML, --help,
 * docs/options.md, shell completion and man pages come from the rows. graft, graft-target and graft-draft share one
 * table (options.h), graft-bench has one of its own (bench/options/options.h).
 *
 * The command line goes first, then GRAFT_* in the environment, then the YAML file, then the default. Strings are
 * borrowed from argv, the environment or the YAML document, all of which outlive the values. Used by the one thread
 * that starts a program. */
#ifndef GR_COMMON_OPTIONS_OPTION_H
#define GR_COMMON_OPTIONS_OPTION_H

#include "common/base/device.h"
#include "common/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define GR_OPTION_ROW_MAX 192   /* of a table */
#define GR_OPTION_WORDS_MAX 288 /* texts of a WORDS option: the results of all commands of a gates file */
#define GR_OPTION_IDS_MAX 64    /* ids of an IDS option */
#define GR_OPTION_LIST_MAX 32   /* values of CHOICES and COUNTS */
#define GR_OPTION_TEXT_MAX GR_DEVICES_TEXT
#define GR_OPTION_MAP_MAX 300 /* pairs of a MAP */
#define GR_OPTION_SECRET_MAX 256
#define GR_OPTION_WORKERS_MAX 16 /* items of a WORKERS option */
#define GR_AUTO (-1)             /* the value of an AUTO or COUNTS option that says auto */
#define GR_UNSET (-1)            /* the value of a CHOICE without a default that was not given */

/* What a value is, with the member that holds it.
 * FLAG: true or false. TEXT: anything. CHOICE: one of the row's choices, by its place there. INT: a whole number.
 * INT_OR_0: 0, or in range. AUTO: auto or a whole number. NUMBER: a real number. SHARE: off or between 0 and 1.
 * DURATION: 500us, 20ms, 2s, 5m, 1h or a plain number of the row's unit; held in nanoseconds. ADDRESS: HOST:PORT; with
 * min 0 of who listens, with 1 of who connects (address.h), or one of its choices as it stands. ADDRESS_OR_OFF: that,
 * or off, which is NULL. SESSION: a session's id (session_id.h); 0: none. DEVICE: cpu or cuda:N. SECRET: a text that
 * is never printed; its row is called NAME-file and
 * takes the path of a file, and the variable without _FILE takes the text itself. REST: all words after `--'. WORKERS:
 * a list of the YAML file alone, whose items say count, host or hosts, device and tp. Lists. WORDS: texts, one each
 * time it is given. IDS: token ids up to max, with commas between them, added to those given before. CHOICES, COUNTS
 * (whole numbers, or auto where the row allows it), DEVICES, MAP (ID=NUMBER): commas between them; given again it
 * begins anew. A MAP's number may be ban where the row allows it. */
enum gr_option_kind {
    GR_KIND_FLAG,
    GR_KIND_TEXT,
    GR_KIND_CHOICE,
    GR_KIND_INT,
    GR_KIND_INT_OR_0,
    GR_KIND_AUTO,
    GR_KIND_NUMBER,
    GR_KIND_SHARE,
    GR_KIND_DURATION,
    GR_KIND_ADDRESS,
    GR_KIND_ADDRESS_OR_OFF,
    GR_KIND_SESSION,
    GR_KIND_DEVICE,
    GR_KIND_SECRET,
    GR_KIND_REST,
    GR_KIND_WORKERS,
    GR_KIND_WORDS,
    GR_KIND_IDS,
    GR_KIND_CHOICES,
    GR_KIND_COUNTS,
    GR_KIND_DEVICES,
    GR_KIND_MAP,
};

struct gr_option_words {
    const char *word[GR_OPTION_WORDS_MAX];
    int n;
};

struct gr_option_ids {
    int32_t id[GR_OPTION_IDS_MAX];
    int n;
};

struct gr_option_list {
    int64_t value[GR_OPTION_LIST_MAX];
    int n;
};

struct gr_option_map {
    int64_t key[GR_OPTION_MAP_MAX];
    double value[GR_OPTION_MAP_MAX];
    int n;
};

struct gr_option_secret {
    char text[GR_OPTION_SECRET_MAX]; /* "": none */
};

/* An item of a YAML list of workers. */
struct gr_option_worker {
    int64_t count;
    const char *host;          /* NULL: this one */
    const char *hosts;         /* of a group over several, with commas between them; NULL: it is on one */
    struct gr_devices devices; /* dealt out to the count in turn; n 0: not said */
    int64_t tp;                /* ranks that share its model: 1, 2, 4 or 8; 0: not said */
};

struct gr_option_workers {
    struct gr_option_worker item[GR_OPTION_WORKERS_MAX];
    int n;
};

struct gr_option_rest {
    char **word;
    int n;
};

#define GR_SLOT_FLAG bool
#define GR_SLOT_TEXT const char *
#define GR_SLOT_CHOICE int
#define GR_SLOT_INT int64_t
#define GR_SLOT_INT_OR_0 int64_t
#define GR_SLOT_AUTO int64_t
#define GR_SLOT_NUMBER double
#define GR_SLOT_SHARE double
#define GR_SLOT_DURATION int64_t
#define GR_SLOT_ADDRESS const char *
#define GR_SLOT_ADDRESS_OR_OFF const char *
#define GR_SLOT_SESSION uint64_t
#define GR_SLOT_DEVICE int
#define GR_SLOT_SECRET struct gr_option_secret
#define GR_SLOT_REST struct gr_option_rest
#define GR_SLOT_WORKERS struct gr_option_workers
#define GR_SLOT_WORDS struct gr_option_words
#define GR_SLOT_IDS struct gr_option_ids
#define GR_SLOT_CHOICES struct gr_option_list
#define GR_SLOT_COUNTS struct gr_option_list
#define GR_SLOT_DEVICES struct gr_devices
#define GR_SLOT_MAP struct gr_option_map

/* Where an option got its value from; a higher one wins. */
enum gr_option_source { GR_FROM_DEFAULT, GR_FROM_YAML, GR_FROM_ENV, GR_FROM_CLI };

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

/* What a path names, for shell completion. */
enum gr_option_path { GR_PATH_NONE, GR_PATH_FILE, GR_PATH_FOLDER };

/* A column: what a CHOICE or CHOICES option takes, and an ADDRESS beside an address. */
#define GR_CHOICES(...)              \
    .choices = (const char *const[]) \
    {                                \
        __VA_ARGS__, NULL            \
    }

struct gr_option {
    const char *name; /* without dashes */
    enum gr_option_kind kind;
    size_t at;                  /* offset of the member in the values */
    double min, max;            /* of DURATION: in the row's unit */
    const char *const *choices; /* NULL after the last; NULL: it has none */
    const char *initial;        /* the default as a text; NULL: none */
    struct {                    /* defaults of single commands, which overrule it */
        unsigned commands;
        const char *initial;
    } also[3];
    const char *argument;                   /* the value in --help; NULL: takes none */
    const char *help;                       /* one line without the default */
    const char *why;                        /* why nothing else than the range is allowed; NULL: nothing to say */
    const char *unit;                       /* of a plain number of DURATION: "s" or "ms" */
    const char *yaml;                       /* "section.key"; NULL: none */
    const char *yaml_switch;                /* a key that is true or false and says one of two values; NULL: none */
    const char *switched_on, *switched_off; /* those values; NULL: nothing is set */
    const char *http;                       /* the parameter of a request to an OpenAI-like API; NULL: none */
    unsigned commands;                      /* set of the table's commands */
    unsigned positional;                    /* of these: they take it as a word without dashes */
    unsigned needed;                        /* of those: they cannot do without */
    int group;                              /* of the table's */
    int most;                               /* values of a list; 0: as many as fit */
    enum gr_option_path path;
    char alias;          /* one letter, as in -h; 0: none */
    const char *brief;   /* with one dash, as tp in -tp; NULL: none */
    char elsewhere;      /* the letter that other programs give it, for which the error line names it; 0: none */
    bool kilo;           /* INT, COUNTS: 4k is 4096 */
    bool or_auto;        /* COUNTS: a value may be auto */
    bool or_ban;         /* MAP: a number may be ban, -INFINITY */
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

/* A program or one of its subcommands. Several may share a bit, whose rows they then share. */
struct gr_option_command {
    unsigned command;
    const char *program; /* graft-bench */
    const char *word;    /* its subcommand, as "session list"; "": the program itself */
    const char *line;    /* what follows in the usage line */
    const char *help;    /* one line; NULL: it is not listed, another entry stands for it */
    const char *text;    /* what it does, in sentences; NULL: as the line says */
};

struct gr_option_group {
    const char *name, *title;
};

struct gr_option_table {
    const struct gr_option *row;
    int n_row;
    const struct gr_option_command *command;
    int n_command;
    const struct gr_option_group *group;
    int n_group;
    bool in_environment; /* its options have twins there, and keys in a YAML file */
};

/* What one command was told. The first member of a struct that has a member for each row after it; NULL, 0 and false
 * where a row has no default. */
struct gr_option_values {
    const struct gr_option_table *table;
    const struct gr_option_command *called;
    uint8_t source[GR_OPTION_ROW_MAX]; /* enum gr_option_source of each row */
    uint32_t line[GR_OPTION_ROW_MAX];  /* of the YAML file, where its value is from there (a list: its first item) */
};

/* ---- rows.c ---- */

/* The row of that name which the command takes with dashes, or NULL. len: of the name. */
const struct gr_option *gr_option_find(const struct gr_option_table *t, unsigned command, const char *name, size_t len);
/* The entry of that word, or NULL. */
const struct gr_option_command *gr_option_command_find(const struct gr_option_table *t, const char *program,
                                                       const char *word);
/* Does this command take the option, with dashes or as a word? */
static inline bool gr_option_is_for(const struct gr_option *option, unsigned command)
{
    return (option->commands & command) != 0;
}
static inline bool gr_option_is_word(const struct gr_option *option, unsigned command)
{
    return (option->positional & command) != 0;
}
/* GRAFT_<NAME>; empty: it has no twin. */
void gr_option_environment(const struct gr_option *option, char name[static 64]);
/* "graft session list" */
void gr_option_called(const struct gr_option_command *called, char name[static 64]);
/* The default of that command as a text, or NULL. */
const char *gr_option_initial(const struct gr_option *option, unsigned command);

/* ---- options.c: defaults, environment and command line ---- */

/* v: begins a struct that is all zeroes. */
void gr_option_values_begin(struct gr_option_values *v, const struct gr_option_table *t,
                            const struct gr_option_command *called);
/* Reads the environment and the command line; argv[0] is skipped. --help and --version are answered. Exit status to
 * leave with at once (0 after --help, 2 after a usage error, 1 where a file cannot be read; logged), or -1: go on. */
int gr_option_values_parse(struct gr_option_values *v, int argc, char **argv);

/* ---- values.c: texts and values ---- */

/* Sets one option, if `source` does not rank below what set it before. what: who says so, for the message
 * ("--max-tokens", "GRAFT_MAX_TOKENS", "a.yaml:3:5: ..."). GR_EINVAL: one line logged with the value and the range;
 * GR_EIO: its file cannot be read. */
GR_NODISCARD enum gr_status gr_option_set(struct gr_option_values *v, const struct gr_option *option, const char *what,
                                          const char *value, enum gr_option_source source);
/* A SECRET by its text, not by a file. */
GR_NODISCARD enum gr_status gr_option_set_secret(struct gr_option_values *v, const struct gr_option *option,
                                                 const char *what, const char *text, enum gr_option_source source);
/* The next item of a WORKERS list. GR_ELIMIT: there are too many (logged). */
GR_NODISCARD enum gr_status gr_option_add_worker(struct gr_option_values *v, const struct gr_option *option,
                                                 const char *what, struct gr_option_worker **out);
/* Sets a member of an item by its key. GR_ENOTFOUND: there is no such key; GR_EINVAL: logged. */
GR_NODISCARD enum gr_status gr_option_set_worker(struct gr_option_worker *w, const char *key, const char *what,
                                                 const char *value);
/* The keys of an item; NULL after the last. */
extern const char *const gr_option_worker_keys[];
/* The value as a text that gr_option_set() would take; NULL: there is none, or it is another list, or secret. text:
 * used where it is a number, or devices. */
const char *gr_option_text(const struct gr_option_values *v, const struct gr_option *option,
                           char text[static GR_OPTION_TEXT_MAX]);
/* "1 .. 63", "cpu, cuda:N": what is allowed, in few words. */
void gr_option_range(const struct gr_option *option, char text[static 160]);
/* May it be given several times, or as a list? */
bool gr_option_is_list(const struct gr_option *option);

/* ---- help.c ---- */

#define GR_OPTION_STATUSES "0 done, 1 failed, 2 usage, 130 interrupted (143 terminated) before it was done."

/* group: one by its name, or NULL: all. GR_ENOTFOUND: logged. */
GR_NODISCARD enum gr_status gr_option_help(const struct gr_option_values *v, const char *group, FILE *out);
/* Help, choices and default of a row, as --help tells them. command: whose default. */
void gr_option_explain(const struct gr_option *option, unsigned command, char text[static 320]);

#endif
