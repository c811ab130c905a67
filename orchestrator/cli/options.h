/* Options of the commands of `graft`; each knows which commands take it. Every option has a twin GRAFT_<NAME> in the
 * environment and most a key in the YAML file; precedence: command line > GRAFT_* > YAML > default. Strings are
 * borrowed from argv, the environment or the YAML document, all of which outlive the options. */
#ifndef GR_ORCHESTRATOR_CLI_OPTIONS_H
#define GR_ORCHESTRATOR_CLI_OPTIONS_H

#include "common/rules/accept.h"
#include "common/base/status.h"
#include "common/base/suggest.h"
#include "orchestrator/cli/text_stream.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The commands, as a set. */
enum gr_command {
    GR_CMD_RUN = 1,
    GR_CMD_SERVE = 2,
    GR_CMD_OPEN = 4, /* graft session open */
    GR_CMD_PING = 8,
    GR_CMD_WAIT = 16,
    GR_CMD_SEND = 32,   /* graft session send */
    GR_CMD_LOOK = 64,   /* graft session list, show, refresh, purge */
    GR_CMD_CLOSE = 128, /* graft session close */
};

#define GR_SERVE_ADDRESS "127.0.0.1:5055" /* where `graft serve` listens, and clients ask, unless told otherwise */

struct gr_run_options {
    enum gr_command command;
    const char *verb; /* of `graft session', for messages; NULL: another command */
    const char *model, *draft, *method;
    const char *prompt, *prompt_file, *prompt_ids, *http;
    int64_t max_tokens;
    bool ignore_eos;
    const char *stop[GR_STOP_STRING_MAX];
    int n_stop;
    int32_t stop_token_id[GR_STOP_ID_MAX];
    int n_stop_token_id;
    double temperature, top_p, min_p;
    int64_t top_k, seed; /* seed -1: draw one */
    const char *num_speculative_tokens, *tree_shape;
    int64_t draft_depth, draft_top_k;
    const char *specpv, *specpv_mode, *specpv_score_reduce, *transport;
    int64_t specpv_block_size;
    int64_t specpv_n_sink, specpv_n_retrieval, specpv_n_window;                         /* -1: default */
    int64_t specpv_n_buffer, specpv_threshold, specpv_interval, specpv_max_provisional; /* 0: default */
    double specpv_fraction;                                                             /* 0: off */
    bool require_rdma;
    const char *target_device, *draft_device;
    const char *config, *connect, *session, *control; /* control, connect: NULL if not given */
    const char *draft_ahead, *key_file, *make_key, *ready_file;
    bool force_single_token, disable_multi_token, disable_specpv, require_same_numerics;
    bool keep, spawn;
    int64_t session_ttl, n_session, timeout, count;
    bool json, trace, verify_lossless;
    const char *trace_file, *kv_blocks;
    const char *target_ib_hca, *draft_ib_hca, *verbs_mode, *ship_features, *capture_layers, *geometry, *tuned;
    bool require_tuned;
    int64_t gid_index, verbs_spin_us;
    int64_t feature_keep, draft_context;
    int64_t max_model_len, threads, draft_threads; /* 0: default */
    int64_t round_deadline_ms;
    double prefill_share; /* 0: no limit */
    bool help;
    const char *help_group; /* one group alone; NULL: all */
    uint8_t set_by[112];    /* enum gr_option_source of each option, in the order of the table */
};

/* Values that name themselves in messages: where an option got its value from. */
enum gr_option_source { GR_FROM_DEFAULT, GR_FROM_YAML, GR_FROM_ENV, GR_FROM_CLI };

void gr_run_options_default(struct gr_run_options *o, enum gr_command command);
/* Was it set on the command line? */
bool gr_run_options_from_cli(const struct gr_run_options *o, const char *name);
/* Sets one option by its long name without dashes, if `source` does not rank below what set it before.
 * GR_EINVAL (one line logged that names the option, the value and what is allowed), GR_ENOTFOUND: no such option. */
GR_NODISCARD enum gr_status gr_run_options_set(struct gr_run_options *o, const char *name, const char *value,
                                               enum gr_option_source source);
/* What the table says of options beside their values. */
enum gr_option_flag {
    GR_OPTION_OF_WORKERS = 1, /* about workers: without effect where these were started elsewhere */
    GR_OPTION_OF_OPEN = 2,    /* fixed when a session is opened */
};
/* The first option of that sort that the command line has; NULL: none. */
const char *gr_run_options_given(const struct gr_run_options *o, enum gr_option_flag flag);
/* The option of a YAML key; NULL: it is no option's twin. */
const char *gr_option_of_key(const char *section, const char *key);
bool gr_option_section(const char *section);
/* A list grows with each value. */
bool gr_option_is_list(const char *name);
/* Offers the keys of a section, or (NULL) the sections. */
void gr_option_offer_keys(const char *section, struct gr_suggest *near);
/* The tables of docs/options.md. */
void gr_run_options_markdown(FILE *out);
/* argv[0] is the command's name. Reads the environment, too. GR_EINVAL: usage, logged. */
GR_NODISCARD enum gr_status gr_run_options_parse(struct gr_run_options *o, int argc, char **argv);
void gr_run_options_help(const struct gr_run_options *o, FILE *out);

#endif
