#include "orchestrator/cli/options.h"

#include "common/base/address.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/protocol/specpv.h"
#include "transport/verbs/verbs.h"
#include "transport/worker/worker_args.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ONCE: a text that is an error when it is given twice. */
enum kind {
    KIND_FLAG,
    KIND_TEXT,
    KIND_ONCE,
    KIND_INT,
    KIND_INT_OR_0,
    KIND_NUMBER,
    KIND_SHARE,
    KIND_ADDRESS,
    KIND_STOP,
    KIND_IDS
};

#define AT(member) offsetof(struct gr_run_options, member)
#define TURN (GR_CMD_RUN | GR_CMD_OPEN | GR_CMD_SEND)
#define NEW (GR_CMD_RUN | GR_CMD_OPEN) /* what is fixed when a session is opened */
#define ENGINE (GR_CMD_RUN | GR_CMD_SERVE)
#define CLIENT (TURN | GR_CMD_LOOK | GR_CMD_CLOSE | GR_CMD_PING | GR_CMD_WAIT)
#define ALL (CLIENT | GR_CMD_SERVE)

static const struct option_info {
    const char *name;
    enum kind kind;
    size_t offset;
    double min, max; /* KIND_ADDRESS: min is the least port */
    const char *argument, *help;
    unsigned commands; /* set of enum gr_command */
} infos[] = {
    {"model", KIND_TEXT, AT(model), 0, 0, "DIR", "the target model, a Hugging Face folder (required)",
     TURN | GR_CMD_SERVE},
    {"draft", KIND_TEXT, AT(draft), 0, 0, "DIR", "the draft model or head", ENGINE | GR_CMD_WAIT},
    {"method", KIND_TEXT, AT(method), 0, 0, "M",
     "none | draft_model | eagle3 (default: none without --draft, else by "
     "the folder)",
     NEW | GR_CMD_SERVE},
    {"prompt", KIND_ONCE, AT(prompt), 0, 0, "TEXT", "prompt; BOS is put in front as the tokenizer's template says",
     TURN},
    {"prompt-file", KIND_ONCE, AT(prompt_file), 0, 0, "F", "prompt from a file, byte for byte (-: standard input)",
     TURN},
    {"prompt-ids", KIND_ONCE, AT(prompt_ids), 0, 0, "F", "prompt as a JSON array of token ids (-: standard input)",
     TURN},
    {"max-tokens", KIND_INT, AT(max_tokens), 1, 16777216, "N", "tokens to generate (default 256)", TURN},
    {"ignore-eos", KIND_FLAG, AT(ignore_eos), 0, 0, NULL, "go on after an end-of-sequence token", TURN},
    {"stop", KIND_STOP, 0, 0, 0, "S", "stop string, or a special token; may be given up to 8 times", TURN},
    {"stop-token-ids", KIND_IDS, 0, 0, 4194303, "N,N,...", "token ids that end the text", TURN},
    {"temperature", KIND_NUMBER, AT(temperature), 0, 100, "T", "below 0.00001 is greedy (default 0)", NEW},
    {"top-p", KIND_NUMBER, AT(top_p), 1e-6, 1, "P", "nucleus sampling (default 1: off)", NEW},
    {"top-k", KIND_INT, AT(top_k), 0, 4194304, "K", "sample among the K likeliest (default 0: off)", NEW},
    {"min-p", KIND_NUMBER, AT(min_p), 0, 1, "P", "drop tokens below P times the likeliest (default 0: off)", NEW},
    {"seed", KIND_INT, AT(seed), -1, 9.2e18, "S", "sampling seed (default -1: a random one)", NEW},
    {"num-speculative-tokens", KIND_TEXT, AT(num_speculative_tokens), 0, 0, "auto|N",
     "nodes of the token tree, 0 to 63", NEW},
    {"tree-shape", KIND_TEXT, AT(tree_shape), 0, 0, "S", "dynamic | chain (default dynamic)", NEW},
    {"draft-depth", KIND_INT, AT(draft_depth), 1, 63, "N", "levels of the tree (default 8)", NEW},
    {"draft-top-k", KIND_INT, AT(draft_top_k), 1, 64, "K", "children and expansions a level (default 10)", NEW},
    {"specpv", KIND_TEXT, AT(specpv), 0, 0, "M",
     "off | lossy | exact | auto, on (as --specpv-mode): verify under a partial view of a long context (default off)",
     NEW | GR_CMD_SERVE},
    {"specpv-mode", KIND_TEXT, AT(specpv_mode), 0, 0, "M",
     "what --specpv on means: lossy | exact | auto (default exact)", NEW | GR_CMD_SERVE},
    {"specpv-n-sink-blocks", KIND_INT, AT(specpv_n_sink), 0, GR_SPECPV_BLOCKS_MAX, "N",
     "SpecPV: first blocks of 16 tokens that are always seen (default 2)", NEW | GR_CMD_SERVE},
    {"specpv-n-retrieval-blocks", KIND_INT, AT(specpv_n_retrieval), 0, GR_SPECPV_BLOCKS_MAX, "N",
     "SpecPV: blocks chosen by score (default 256)", NEW | GR_CMD_SERVE},
    {"specpv-n-window-blocks", KIND_INT, AT(specpv_n_window), 0, GR_SPECPV_BLOCKS_MAX, "N",
     "SpecPV: last blocks that are always seen (default 8)", NEW | GR_CMD_SERVE},
    {"specpv-n-spec-tokens-buf", KIND_INT, AT(specpv_n_buffer), 0, GR_SPECPV_BUFFER_MAX, "N",
     "SpecPV: tokens that may lack full KV (default 128)", NEW | GR_CMD_SERVE},
    {"specpv-block-size", KIND_INT, AT(specpv_block_size), 1, 1024, "N", "SpecPV: 16", NEW | GR_CMD_SERVE},
    {"specpv-partial-threshold", KIND_INT, AT(specpv_threshold), 0, 16777216, "N",
     "SpecPV: for contexts of more than N tokens (default 4096)", NEW | GR_CMD_SERVE},
    {"specpv-full-refresh-interval", KIND_INT, AT(specpv_interval), 0, 16777216, "N",
     "SpecPV: partial rounds to a refresh at most (default 32)", NEW | GR_CMD_SERVE},
    {"specpv-refresh-fraction", KIND_NUMBER, AT(specpv_fraction), 0, 1, "X",
     "SpecPV: refresh when X times retrieval and window have come (default 0: off)", NEW | GR_CMD_SERVE},
    {"specpv-score-reduce", KIND_TEXT, AT(specpv_score_reduce), 0, 0, "R",
     "SpecPV: blocks are scored by the mean | max over queries (default mean)", ENGINE},
    {"specpv-exact-max-provisional", KIND_INT, AT(specpv_max_provisional), 0, GR_SPECPV_BUFFER_MAX, "N",
     "SpecPV exact: tokens that may wait to be judged (default: the buffer)", NEW | GR_CMD_SERVE},
    {"transport", KIND_TEXT, AT(transport), 0, 0, "T",
     "loop | shm | tcp | verbs (default: the first that works of shm, "
     "verbs, tcp)",
     NEW | GR_CMD_SERVE},
    {"require-rdma", KIND_FLAG, AT(require_rdma), 0, 0, NULL, "an error if the data path is not RDMA", ENGINE},
    {"target-device", KIND_TEXT, AT(target_device), 0, 0, "D", "cpu | cuda:N (default cpu)", ENGINE},
    {"draft-device", KIND_TEXT, AT(draft_device), 0, 0, "D", "cpu | cuda:N (default cpu)", ENGINE},
    {"config", KIND_TEXT, AT(config), 0, 0, "F.yaml", "configuration file", ALL},
    {"connect", KIND_ADDRESS, AT(connect), 1, 0, "HOST:PORT", "the running orchestrator to ask", CLIENT},
    {"session", KIND_TEXT, AT(session), 0, 0, "ID", "with --connect: continue this session", GR_CMD_RUN},
    {"control", KIND_ADDRESS, AT(control), 0, 0, "HOST:PORT",
     "where workers (and clients) come (default: run 127.0.0.1:0, serve " GR_SERVE_ADDRESS ")", ENGINE},
    {"json", KIND_FLAG, AT(json), 0, 0, NULL, "print one JSON object instead of text",
     TURN | GR_CMD_LOOK | GR_CMD_CLOSE | GR_CMD_PING},
    {"trace", KIND_FLAG, AT(trace), 0, 0, NULL, "draw each round's tree on standard error", TURN},
    {"trace-file", KIND_TEXT, AT(trace_file), 0, 0, "F", "write a Chrome trace", TURN},
    {"verify-lossless", KIND_FLAG, AT(verify_lossless), 0, 0, NULL, "compare with plain decoding afterwards",
     GR_CMD_RUN},
    {"kv-blocks", KIND_TEXT, AT(kv_blocks), 0, 0, "N|auto", "KV blocks of 16 tokens (default auto: from free memory)",
     ENGINE},
    {"target-ib-hca", KIND_TEXT, AT(target_ib_hca), 0, 0, "DEV",
     "RDMA device of the target, NAME or NAME:PORT (default: the first that is up)", ENGINE},
    {"draft-ib-hca", KIND_TEXT, AT(draft_ib_hca), 0, 0, "DEV", "RDMA device of the drafter", ENGINE},
    {"gid-index", KIND_INT, AT(gid_index), -1, GR_VERBS_GID_INDEX_MAX, "N",
     "index of both RDMA devices' address (default -1: RoCE v2 on IPv4)", ENGINE},
    {"verbs-mode", KIND_TEXT, AT(verbs_mode), 0, 0, "M",
     "one_sided | two_sided: bulk frames into memory that the peer may write, or not (default one_sided)", ENGINE},
    {"verbs-spin-us", KIND_INT, AT(verbs_spin_us), 0, GR_VERBS_SPIN_US_MAX, "US",
     "how long a worker polls its RDMA device before it sleeps (default 20)", ENGINE},
    {"ship-features", KIND_TEXT, AT(ship_features), 0, 0, "F",
     "fused | raw: what an EAGLE-3 head is sent (default fused)", ENGINE},
    {"capture-layers", KIND_TEXT, AT(capture_layers), 0, 0, "L,L,L",
     "inputs of the target's layers that feed an EAGLE-3 head (default: as its config says)", ENGINE},
    {"feature-keep", KIND_INT, AT(feature_keep), GR_FEATURE_KEEP_MIN, GR_FEATURE_KEEP_MAX, "N",
     "positions of a session whose features are kept for a head that attaches (default 2048)", ENGINE},
    {"draft-context", KIND_INT_OR_0, AT(draft_context), GR_DRAFT_CONTEXT_MIN, GR_DRAFT_CONTEXT_MAX, "N",
     "positions that an EAGLE-3 head looks back (default 2048; 0: all)", ENGINE},
    {"max-model-len", KIND_INT, AT(max_model_len), 0, 16777216, "N", "context length (default 0: the model's)", ENGINE},
    {"threads", KIND_INT, AT(threads), 0, 1024, "N", "CPU threads of the target (default 0: all)", ENGINE},
    {"draft-threads", KIND_INT, AT(draft_threads), 0, 1024, "N", "CPU threads of the drafter (default 0: all)", ENGINE},
    {"geometry", KIND_TEXT, AT(geometry), 0, 0, "NAME",
     "for benchmarks: target and EAGLE-3 head expanded in memory (llama-3.2-1b, ...)", ENGINE},
    {"tuned", KIND_TEXT, AT(tuned), 0, 0, "FILE",
     "shapes that graft-bench tune measured, for the models that are on a GPU", ENGINE},
    {"require-tuned", KIND_FLAG, AT(require_tuned), 0, 0, NULL,
     "an error if a shape of theirs is not in it, or the GPU is another", ENGINE},
    {"round-deadline-ms", KIND_INT, AT(round_deadline_ms), 1, 600000, "MS",
     "how long a pass waits for a tree (default 2000)", ENGINE},
    {"prefill-share", KIND_SHARE, AT(prefill_share), 0, 0, "X|off",
     "share of the target's time that prompts may take while other sessions decode (default 0.5)", ENGINE},
    {"draft-ahead", KIND_TEXT, AT(draft_ahead), 0, 0, "A",
     "auto | on | off: grow on while the target verifies (default "
     "auto: off if both share this host's CPUs)",
     NEW},
    {"force-single-token", KIND_FLAG, AT(force_single_token), 0, 0, NULL, "verify no trees; drafters stay attached",
     NEW | GR_CMD_SERVE},
    {"disable-multi-token", KIND_FLAG, AT(disable_multi_token), 0, 0, NULL, "no drafter at all, as --method none",
     NEW | GR_CMD_SERVE},
    {"disable-specpv", KIND_FLAG, AT(disable_specpv), 0, 0, NULL, "full verification only", NEW | GR_CMD_SERVE},
    {"require-same-numerics", KIND_FLAG, AT(require_same_numerics), 0, 0, NULL,
     "a text begun at a target never goes on at one with another order of sums", ENGINE},
    {"keep", KIND_FLAG, AT(keep), 0, 0, NULL, "with --connect: leave the session open and tell its id", GR_CMD_RUN},
    {"spawn", KIND_FLAG, AT(spawn), 0, 0, NULL, "start the workers of the configuration on this host", GR_CMD_SERVE},
    {"sessions", KIND_INT, AT(n_session), 1, 256, "N", "session slots of the workers that --spawn starts (default 8)",
     GR_CMD_SERVE},
    {"session-ttl", KIND_INT, AT(session_ttl), 0, 31536000, "S",
     "close a session after S idle seconds (default 600; 0: "
     "never)",
     GR_CMD_SERVE},
    {"ready-file", KIND_TEXT, AT(ready_file), 0, 0, "F", "write HOST:PORT there when workers and clients may come",
     GR_CMD_SERVE},
    {"make-key", KIND_TEXT, AT(make_key), 0, 0, "F", "write a new shared key into F (mode 0600) and exit",
     GR_CMD_SERVE},
    {"http", KIND_TEXT, AT(http), 0, 0, "HOST:PORT|off", "not in this version: anything but off is an error", ENGINE},
    {"key-file", KIND_TEXT, AT(key_file), 0, 0, "F", "the shared key: 64 hex digits, readable by its owner alone", ALL},
    {"timeout", KIND_INT, AT(timeout), 0, 86400, "S", "how long to wait (default 60)", GR_CMD_WAIT},
    {"count", KIND_INT, AT(count), 1, 100000, "N", "pings to each worker (default 10)", GR_CMD_PING},
    {"help", KIND_FLAG, AT(help), 0, 0, NULL, "this text", ALL},
};

_Static_assert(GR_ARRAY_LEN(infos) <= GR_ARRAY_LEN(((struct gr_run_options *)0)->set_by), "raise set_by");

static const struct command_info {
    enum gr_command command;
    const char *name, *usage;
} commands[] = {
    {GR_CMD_RUN, "run",
     "graft run --model DIR [options]\n\nGenerates text: a target worker verifies token trees that a draft worker "
     "proposes."},
    {GR_CMD_SERVE, "serve",
     "graft serve [--config F.yaml] [--spawn] [options]\n\nThe orchestrator as a process of its own, for workers and "
     "clients, until a signal ends it."},
    {GR_CMD_LOOK, "session",
     "graft session list | show ID | refresh [ID] | purge  [options]\n\nAsks a running orchestrator: all sessions, one "
     "of them, a full SpecPV refresh, an end for those that are idle.\n`graft session open --help', `send --help' and "
     "`close --help' tell the options of the other verbs."},
    {GR_CMD_CLOSE, "session", "graft session close ID [options]\n\nEnds a session of a running orchestrator."},
    {GR_CMD_OPEN, "session",
     "graft session open [options]\n\nBegins a session at a running orchestrator and prints its id. Needs a prompt and "
     "--model (its tokenizer)."},
    {GR_CMD_SEND, "session",
     "graft session send ID [options]\n\nThe next turn of a session. Needs a prompt and --model (its tokenizer); what "
     "was fixed when the session was opened (sampling, tree, SpecPV) is not taken."},
    {GR_CMD_PING, "ping",
     "graft ping [options]\n\nRound trips from the orchestrator to each worker: median, least, most."},
    {GR_CMD_WAIT, "wait",
     "graft wait [--timeout S] [options]\n\nWaits until a target has joined (and a drafter, if --draft or the "
     "configuration names one)."},
};

static const struct command_info *command_of(const struct gr_run_options *o)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(commands); i++) {
        if (commands[i].command == o->command) {
            return &commands[i];
        }
    }
    return &commands[0];
}

static bool takes(const struct gr_run_options *o, const struct option_info *info)
{
    return (info->commands & o->command) != 0;
}

void gr_run_options_default(struct gr_run_options *o, enum gr_command command)
{
    *o = (struct gr_run_options){.command = command,
                                 .max_tokens = 256,
                                 .top_p = 1.0,
                                 .seed = -1,
                                 .num_speculative_tokens = "auto",
                                 .tree_shape = "dynamic",
                                 .draft_depth = 8,
                                 .draft_top_k = 10,
                                 .specpv = "off",
                                 .specpv_mode = "exact",
                                 .specpv_n_sink = -1,
                                 .specpv_n_retrieval = -1,
                                 .specpv_n_window = -1,
                                 .specpv_score_reduce = "mean",
                                 .specpv_block_size = GR_SPECPV_BLOCK_TOKENS,
                                 .transport = "",
                                 .gid_index = -1,
                                 .verbs_mode = "one_sided",
                                 .verbs_spin_us = GR_VERBS_SPIN_US_DEFAULT,
                                 .target_device = "cpu",
                                 .draft_device = "cpu",
                                 .kv_blocks = "auto",
                                 .round_deadline_ms = 2000,
                                 .prefill_share = GR_PREFILL_SHARE_DEFAULT,
                                 .feature_keep = GR_FEATURE_KEEP_DEFAULT,
                                 .draft_context = GR_DRAFT_CONTEXT_DEFAULT,
                                 .draft_ahead = "auto",
                                 .session_ttl = 600,
                                 .n_session = 8,
                                 .timeout = 60,
                                 .count = 10};
}

static const struct option_info *find(const char *name, size_t len)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        if (strlen(infos[i].name) == len && memcmp(infos[i].name, name, len) == 0) {
            return &infos[i];
        }
    }
    return NULL;
}

static enum gr_status bad_value(const struct option_info *info, const char *value)
{
    if (info->kind == KIND_INT) {
        log_error("--%s: `%s' is not a whole number from %.0f to %.0f", info->name, value, info->min, info->max);
    } else if (info->kind == KIND_INT_OR_0) {
        log_error("--%s: `%s' is not 0 or a whole number from %.0f to %.0f", info->name, value, info->min, info->max);
    } else if (info->kind == KIND_NUMBER) {
        log_error("--%s: `%s' is not a number from %g to %g", info->name, value, info->min, info->max);
    } else if (info->kind == KIND_SHARE) {
        log_error("--%s: `%s' is not " GR_SHARE_RANGE, info->name, value);
    } else {
        log_error("--%s: `%s' is not true or false", info->name, value);
    }
    return GR_EINVAL;
}

static enum gr_status store_address(const struct option_info *info, const char *value, const char **out)
{
    char what[32];
    struct gr_address address;
    snprintf(what, sizeof(what), "--%s", info->name);
    GR_TRY(gr_address_parse(what, value, (unsigned)info->min, &address));
    *out = value;
    return GR_OK;
}

/* Is it a list that grows with each value of one source? */
static bool is_list(const struct option_info *info)
{
    return info->kind == KIND_STOP || info->kind == KIND_IDS;
}

static enum gr_status add_stop(struct gr_run_options *o, const char *value)
{
    if (o->n_stop == GR_STOP_STRING_MAX) {
        log_error("--stop: at most %d stop strings", GR_STOP_STRING_MAX);
        return GR_EINVAL;
    }
    o->stop[o->n_stop++] = value;
    return GR_OK;
}

/* One id or several with commas between them. */
static enum gr_status add_ids(struct gr_run_options *o, const struct option_info *info, const char *value)
{
    for (const char *at = value; at != NULL;) {
        const size_t len = strcspn(at, ",");
        char number[24] = "";
        int64_t id = 0;
        if (len < sizeof(number)) {
            memcpy(number, at, len);
        }
        if (!isdigit((unsigned char)number[0]) || !gr_parse_int(number, 0, (int64_t)info->max, &id)) {
            log_error("--%s: `%s' is not a list of token ids as 7,11", info->name, value);
            return GR_EINVAL;
        }
        if (o->n_stop_token_id == GR_STOP_ID_MAX) {
            log_error("--%s: at most %d token ids", info->name, GR_STOP_ID_MAX);
            return GR_EINVAL;
        }
        o->stop_token_id[o->n_stop_token_id++] = (int32_t)id;
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return GR_OK;
}

static enum gr_status store(struct gr_run_options *o, const struct option_info *info, const char *value)
{
    char *slot = (char *)o + info->offset;
    switch (info->kind) {
    case KIND_FLAG:
        if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0 && strcmp(value, "1") != 0 &&
            strcmp(value, "0") != 0) {
            return bad_value(info, value);
        }
        *(bool *)slot = value[0] == 't' || value[0] == '1';
        return GR_OK;
    case KIND_TEXT:
    case KIND_ONCE:
        *(const char **)slot = value;
        return GR_OK;
    case KIND_INT:
        return gr_parse_int(value, (int64_t)info->min, (int64_t)info->max, (int64_t *)slot) ? GR_OK
                                                                                            : bad_value(info, value);
    case KIND_INT_OR_0:
        return gr_parse_int_or_0(value, (int64_t)info->min, (int64_t)info->max, (int64_t *)slot)
                   ? GR_OK
                   : bad_value(info, value);
    case KIND_NUMBER:
        return gr_parse_number(value, info->min, info->max, (double *)slot) ? GR_OK : bad_value(info, value);
    case KIND_SHARE:
        return gr_parse_share(value, (double *)slot) ? GR_OK : bad_value(info, value);
    case KIND_ADDRESS:
        return store_address(info, value, (const char **)slot);
    case KIND_STOP:
        return add_stop(o, value);
    case KIND_IDS:
        return add_ids(o, info, value);
    }
    return GR_EINVAL;
}

enum gr_status gr_run_options_set(struct gr_run_options *o, const char *name, const char *value,
                                  enum gr_option_source source)
{
    const struct option_info *info = find(name, strlen(name));
    if (info == NULL) {
        return GR_ENOTFOUND;
    }
    uint8_t *by = &o->set_by[info - infos];
    if (source < *by) {
        return GR_OK; /* something that ranks higher has set it */
    }
    if (is_list(info) && source > *by) { /* what a lower source has listed does not count */
        o->n_stop = info->kind == KIND_STOP ? 0 : o->n_stop;
        o->n_stop_token_id = info->kind == KIND_IDS ? 0 : o->n_stop_token_id;
    }
    *by = (uint8_t)source;
    return store(o, info, value);
}

static enum gr_status read_environment(struct gr_run_options *o)
{
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        char name[64] = "GRAFT_";
        size_t n = strlen(name);
        for (const char *p = infos[i].name; *p != '\0' && n < sizeof(name) - 1; p++) {
            name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        }
        name[n] = '\0';
        const char *value = getenv(name);
        if (value != NULL && infos[i].offset != AT(help) && takes(o, &infos[i])) {
            GR_TRY(gr_run_options_set(o, infos[i].name, value, GR_FROM_ENV));
        }
    }
    return GR_OK;
}

static const char *verb(const struct gr_run_options *o)
{
    return o->verb != NULL ? o->verb : "";
}

static const char *gap(const struct gr_run_options *o)
{
    return o->verb != NULL ? " " : "";
}

static enum gr_status parse_one(struct gr_run_options *o, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    if (strcmp(arg, "-h") == 0) {
        o->help = true;
        return GR_OK;
    }
    if (strncmp(arg, "--", 2) != 0) {
        log_error("`%s': options start with --; see graft %s%s%s --help", arg, command_of(o)->name, gap(o), verb(o));
        return GR_EINVAL;
    }
    const char *name = arg + 2;
    const size_t len = strcspn(name, "=");
    const struct option_info *info = find(name, len);
    if (info == NULL || !takes(o, info)) {
        log_error(info == NULL ? "unknown option --%.*s; see graft %s%s%s --help"
                               : "--%.*s is not for this command; see graft %s%s%s --help",
                  (int)len, name, command_of(o)->name, gap(o), verb(o));
        return GR_EINVAL;
    }
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    if (info->kind == KIND_FLAG) {
        value = value != NULL ? value : "true";
    } else if (value == NULL) {
        if (*i + 1 >= argc) {
            log_error("--%s needs a value (%s)", info->name, info->argument);
            return GR_EINVAL;
        }
        value = argv[++*i];
    }
    if (info->kind == KIND_ONCE && o->set_by[info - infos] == GR_FROM_CLI) {
        log_error("--%s is given twice; a turn has one prompt", info->name);
        return GR_EINVAL;
    }
    return gr_run_options_set(o, info->name, value, GR_FROM_CLI);
}

enum gr_status gr_run_options_parse(struct gr_run_options *o, int argc, char **argv)
{
    GR_TRY(read_environment(o));
    for (int i = 1; i < argc; i++) {
        GR_TRY(parse_one(o, argc, argv, &i));
    }
    return GR_OK;
}

bool gr_run_options_from_cli(const struct gr_run_options *o, const char *name)
{
    const struct option_info *info = find(name, strlen(name));
    return info != NULL && o->set_by[info - infos] == GR_FROM_CLI;
}

void gr_run_options_help(const struct gr_run_options *o, FILE *out)
{
    fprintf(out, "usage: %s\n\n", command_of(o)->usage);
    for (size_t i = 0; i < GR_ARRAY_LEN(infos); i++) {
        if (!takes(o, &infos[i])) {
            continue;
        }
        char left[64];
        snprintf(left, sizeof(left), "--%s %s", infos[i].name, infos[i].argument != NULL ? infos[i].argument : "");
        fprintf(out, "  %-34s %s\n", left, infos[i].help);
    }
    fprintf(out, "\nEvery option can be set in the environment: --max-tokens is GRAFT_MAX_TOKENS.\n"
                 "Mean acceptance length = 1 + accepted/drafts. Exit status: 0 done, 1 failed, 2 usage.\n");
}
