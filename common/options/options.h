/* The options of graft, graft-target and graft-draft: rows of table.inc. Every option has a twin GRAFT_<NAME> in the
 * environment and most a key in the YAML file. option.h says what a row is and who reads it. */
#ifndef GR_COMMON_OPTIONS_OPTIONS_H
#define GR_COMMON_OPTIONS_OPTIONS_H

#include "common/options/option.h"
#include "common/protocol/specpv.h"
#include "common/protocol/wire.h"
#include "common/rules/accept.h"
#include "common/rules/adjust.h"
#include "common/rules/logprob.h"
#include "common/rules/token_tree.h"

/* The commands that take options, as a set. */
enum gr_command {
    GR_CMD_RUN = 1 << 0,
    GR_CMD_SERVE = 1 << 1,
    GR_CMD_OPEN = 1 << 2, /* graft session open */
    GR_CMD_PING = 1 << 3,
    GR_CMD_WAIT = 1 << 4,
    GR_CMD_SEND = 1 << 5,     /* graft session send */
    GR_CMD_LOOK = 1 << 6,     /* graft session list, purge; graft worker list */
    GR_CMD_CLOSE = 1 << 7,    /* graft session close */
    GR_CMD_TARGET = 1 << 8,   /* graft-target */
    GR_CMD_DRAFT = 1 << 9,    /* graft-draft */
    GR_CMD_REFRESH = 1 << 10, /* graft session refresh */
    GR_CMD_OPTIONS = 1 << 11,
    GR_CMD_COMPLETION = 1 << 12,
    GR_CMD_CHAT = 1 << 13,
    GR_CMD_LAUNCH = 1 << 14,
    GR_CMD_STOP = 1 << 15,
    GR_CMD_DRAIN = 1 << 16, /* graft worker drain, undrain */
    GR_CMD_TOP = 1 << 17,
    GR_CMD_SHOW = 1 << 18, /* graft session show */
};

#define GR_SERVE_ADDRESS "127.0.0.1:5055" /* where `graft serve` listens, and clients ask, unless told otherwise */
#define GR_ANSWERS_MAX 16                 /* of one prompt, in a run */
#define GR_STOP_STRING_MAX 8              /* stop strings of a turn */
#define GR_SERVED_MODEL_MAX 16            /* models that `graft serve` serves */
#define GR_SPIN_AUTO (-1)                 /* --spin-ms: by device and number of CPUs */

/* Values of the CHOICE rows of these names, in the order of their choices; GR_UNSET: none was given. test_options holds
 * each against its text. */
enum gr_top_sort { GR_TOP_BY_SPEED, GR_TOP_BY_TOKENS, GR_TOP_BY_ACCEPTANCE, GR_TOP_BY_IDLE, GR_TOP_BY_TARGET };
enum gr_method { GR_METHOD_NONE, GR_METHOD_DRAFT_MODEL, GR_METHOD_EAGLE3 };
enum gr_dtype_choice { GR_CHOICE_DTYPE_AUTO, GR_CHOICE_DTYPE_BF16, GR_CHOICE_DTYPE_F32 };
enum gr_features_form { GR_FEATURES_FUSED, GR_FEATURES_RAW };
enum gr_shape_choice { GR_CHOICE_DYNAMIC, GR_CHOICE_CHAIN };
enum gr_ahead_choice { GR_CHOICE_AHEAD_OFF, GR_CHOICE_AHEAD_ON, GR_CHOICE_AHEAD_AUTO };
enum gr_specpv_choice { /* those before ON are enum gr_specpv_mode's */
                        GR_CHOICE_SPECPV_OFF,
                        GR_CHOICE_SPECPV_LOSSY,
                        GR_CHOICE_SPECPV_EXACT,
                        GR_CHOICE_SPECPV_AUTO,
                        GR_CHOICE_SPECPV_ON
};
enum gr_views_choice { GR_VIEWS_OFF, GR_VIEWS_ON };
enum gr_prefix_cache_choice { GR_PREFIX_CACHE_OFF, GR_PREFIX_CACHE_ON };
enum gr_reduce_choice { GR_REDUCE_MEAN, GR_REDUCE_MAX };
enum gr_transport_choice { GR_CHOICE_LOOP, GR_CHOICE_SHM, GR_CHOICE_TCP, GR_CHOICE_VERBS };
enum gr_verbs_choice { GR_VERBS_ONE_SIDED, GR_VERBS_TWO_SIDED };
enum gr_tp_transport_choice { GR_CHOICE_TP_AUTO, GR_CHOICE_TP_PEER, GR_CHOICE_TP_NCCL };
enum gr_tp_allreduce_choice { GR_CHOICE_TP_TREE, GR_CHOICE_TP_ALLREDUCE_NCCL };
enum gr_http_unknown_choice { GR_CHOICE_HTTP_UNKNOWN_REFUSE, GR_CHOICE_HTTP_UNKNOWN_LOG };
enum gr_thinking_choice { GR_CHOICE_THINKING_ON, GR_CHOICE_THINKING_OFF };
/* enum gr_ranks (orchestrator/launch/who.h) has their meaning. */
enum gr_ranks_choice {
    GR_CHOICE_RANKS_AUTO,
    GR_CHOICE_RANKS_SLURM,
    GR_CHOICE_RANKS_OMPI,
    GR_CHOICE_RANKS_PMIX,
    GR_CHOICE_RANKS_PMI,
    GR_CHOICE_RANKS_TORCHRUN,
    GR_CHOICE_RANKS_NONE
};
/* enum gr_secrecy (transport/connect/secrecy.h) has their meaning. */
enum gr_secrecy_choice { GR_CHOICE_SECRECY_OFF, GR_CHOICE_SECRECY_ON, GR_CHOICE_SECRECY_REQUIRED };
enum gr_shell { GR_SHELL_BASH, GR_SHELL_ZSH };

/* The rows' numbers: GR_OPTION_model ... */
enum gr_option_id {
#define GR_OPTION(kind, id, ...) GR_OPTION_##id,
#include "common/options/table.inc"
#undef GR_OPTION
    GR_N_OPTION
};
_Static_assert(GR_N_OPTION <= GR_OPTION_ROW_MAX, "a row of the table has a place in gr_option_values");

/* A member for each row, by its id. */
struct gr_options {
    struct gr_option_values values;
#define GR_OPTION(kind, id, ...) GR_SLOT_##kind id;
#include "common/options/table.inc"
#undef GR_OPTION
};

extern const struct gr_option gr_option_rows[GR_N_OPTION];
extern const struct gr_option_table gr_option_table;

/* ---- table.c ---- */

/* The defaults of the first entry of that command. */
void gr_options_default(struct gr_options *o, enum gr_command command);
/* Is it settled when a session is opened, and not to be changed afterwards? */
bool gr_option_is_fixed(const struct gr_option *option);
/* Takes the twins of options out of the environment, so that children see only what they are handed. Strings that the
 * options have borrowed from there stay valid. */
void gr_options_clear_environment(void);
/* As gr_option_values_parse(), and sets the log level. */
int gr_options_parse(struct gr_options *o, int argc, char **argv);

static inline bool gr_option_from_cli(const struct gr_options *o, enum gr_option_id id)
{
    return o->values.source[id] == GR_FROM_CLI;
}
/* Where its value is from, for a message: --bad-words, GRAFT_BAD_WORDS, or FILE:LINE: session.bad_words. */
const char *gr_option_shown(const struct gr_options *o, enum gr_option_id id, char *out, size_t cap);
/* The text of a CHOICE, or NULL where none was given. */
static inline const char *gr_option_choice(const struct gr_options *o, enum gr_option_id id)
{
    char unused[GR_OPTION_TEXT_MAX];
    return gr_option_text(&o->values, &gr_option_rows[id], unused);
}

#endif
