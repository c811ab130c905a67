/* graft-bench e2e: `graft run` as a user starts it, over the same prompts: plain, co-located (loop) and pair. Every
 * repetition runs the three in turn, so that a slow minute of the machine hits all alike; the first is warm-up and does
 * not count. With --geometry target and EAGLE-3 head are expanded in memory (model/expand.h): the cost is that of the
 * geometry, the acceptance that of the small pair. Speeds are decode tokens per second (without the first token) over
 * all prompts; the round is split into
 *   draft:  the drafter's own compute,
 *   verify: the target's forward pass,
 *   host:   sampling, walk and commit on the target,
 *   wire:   what is left of the wait from VERDICT to DRAFT: frames both ways, wake-ups, both I/O loops.
 * bytes/token: frames of the data path, both ways, while decoding; features of an EAGLE-3 head are most of it.
 * With --context it is another measurement: long.c. */
#include "bench/bench.h"
#include "bench/graft_run.h"
#include "common/log.h"
#include "common/parse.h"
#include "common/program.h"
#include "model/expand.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_MODE 3
#define N_REP_MAX 50

struct options {
    const char *model, *draft, *max_tokens, *reps, *nodes, *shape, *temperature, *transport, *prompts, *geometry;
    const char *target_device, *draft_device;
};

struct totals {
    double tokens, seconds, accepted, drafts, rounds;
    double draft_ms, verify_ms, wait_ms, host_ms, wire_bytes;
};

static bool measure(const struct options *o, int mode, const char *prompt, struct totals *t)
{
    const char *argv[48];
    int n = 0;
    const char *const fixed[] = {gr_program_sibling("graft"), "run", "--json", "--ignore-eos", "--seed", "1",
                                 "--model", o->model, "--prompt", prompt, "--max-tokens", o->max_tokens,
                                 "--temperature", o->temperature, "--target-device", o->target_device};
    const char *const speculative[] = {"--draft", o->draft, "--num-speculative-tokens", o->nodes,
                                       "--tree-shape", o->shape, "--draft-device", o->draft_device};
    for (size_t i = 0; i < GR_ARRAY_LEN(fixed); i++) {
        argv[n++] = fixed[i];
    }
    for (size_t i = 0; mode > 0 && i < GR_ARRAY_LEN(speculative); i++) {
        argv[n++] = speculative[i];
    }
    if (o->geometry != NULL) {
        argv[n++] = "--geometry";
        argv[n++] = o->geometry;
    }
    const char *transport = mode == 1 ? "loop" : mode == 2 ? o->transport : "";
    if (transport[0] != '\0') {
        argv[n++] = "--transport";
        argv[n++] = transport;
    }
    argv[n] = NULL;
    json_t *root = gr_bench_run_graft((char **)(uintptr_t)argv);
    if (root == NULL) {
        return false;
    }
    const json_t *m = json_object_get(root, "metrics");
    const double generated = gr_bench_metric(m, "completion_tokens") - 1;
    const double rounds = gr_bench_metric(m, "rounds");
    t->tokens += generated;
    t->seconds += generated / gr_bench_metric(m, "decode_tokens_per_second");
    t->accepted += gr_bench_metric(m, "num_accepted_tokens");
    t->drafts += gr_bench_metric(m, "num_drafts");
    t->rounds += rounds;
    t->draft_ms += gr_bench_metric(m, "draft_ms_per_round") * rounds;
    t->verify_ms += gr_bench_metric(m, "verify_ms_per_round") * rounds;
    t->wait_ms += gr_bench_metric(m, "wait_ms_per_round") * rounds;
    t->host_ms += gr_bench_metric(m, "host_ms_per_round") * rounds;
    t->wire_bytes += gr_bench_metric(m, "wire_bytes_per_token") * generated;
    json_decref(root);
    return true;
}

static void add_totals(struct totals *sum, const struct totals *t)
{
    sum->tokens += t->tokens;
    sum->seconds += t->seconds;
    sum->accepted += t->accepted;
    sum->drafts += t->drafts;
    sum->rounds += t->rounds;
    sum->draft_ms += t->draft_ms;
    sum->verify_ms += t->verify_ms;
    sum->wait_ms += t->wait_ms;
    sum->host_ms += t->host_ms;
    sum->wire_bytes += t->wire_bytes;
}

/* Two processes would take turns on one GPU, so there is no pair. */
static int n_mode_of(const struct options *o)
{
    return strncmp(o->target_device, "cuda:", 5) == 0 && strcmp(o->target_device, o->draft_device) == 0 ? N_MODE - 1
                                                                                                        : N_MODE;
}

static void print_rows(struct gr_table *t, const struct options *o, double speed[N_MODE][N_REP_MAX], int n_rep,
                       const struct totals *sum)
{
    static const char *const names[N_MODE] = {"plain", "co-located", "pair"};
    const double plain = gr_mean(speed[0], n_rep);
    for (int mode = 0; mode < n_mode_of(o); mode++) {
        const struct totals *s = &sum[mode];
        const double rounds = s->rounds > 0 ? s->rounds : 1;
        const double draft = mode > 0 ? s->draft_ms / rounds : 0;
        const double host = s->host_ms / rounds;
        gr_table_text(t, names[mode]);
        gr_table_text(t, mode == 0 ? "-" : mode == 1 ? "loop" : o->transport[0] != '\0' ? o->transport : "auto");
        gr_table_mean(t, speed[mode], n_rep, 1);
        gr_table_number(t, gr_mean(speed[mode], n_rep) / plain, 2);
        gr_table_number(t, s->drafts > 0 ? 1 + s->accepted / s->drafts : 1, 2);
        gr_table_number(t, s->seconds * 1e3 / rounds, 3);
        gr_table_number(t, draft, 3);
        gr_table_number(t, mode > 0 ? fmax(s->wait_ms / rounds - draft, 0) : 0, 3);
        gr_table_number(t, s->verify_ms / rounds, 3);
        gr_table_number(t, host, 3);
        gr_table_number(t, s->wire_bytes / s->tokens, 0);
    }
}

static bool asks_for_contexts(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--context") == 0) {
            return true;
        }
    }
    return false;
}

int gr_bench_e2e(int argc, char **argv)
{
    const char *contexts = NULL;
    if (asks_for_contexts(argc, argv)) {
        return gr_bench_long(argc, argv);
    }
    struct options o = {.model = "models/demo/target", .max_tokens = "256", .reps = "5",
                        .nodes = "auto", .shape = "dynamic", .temperature = "0", .transport = "",
                        .target_device = "cpu", .draft_device = "cpu"};
    const struct gr_bench_option options[] = {
        {"model", &o.model, "target folder (default models/demo/target)"},
        {"draft", &o.draft, "draft folder (default models/demo/draft; with --geometry models/demo/eagle3)"},
        {"geometry", &o.geometry, "expand target and head in memory: llama-3.2-1b (docs/USAGE.md)"},
        {"target-device", &o.target_device, "cpu | cuda:N (default cpu)"},
        {"draft-device", &o.draft_device, "cpu | cuda:N (default cpu); on the target's GPU there is no pair, only co-located"},
        {"max-tokens", &o.max_tokens, "tokens a prompt (default 256)"},
        {"reps", &o.reps, "repetitions after the warm-up (default 5)"},
        {"nodes", &o.nodes, "--num-speculative-tokens (default auto)"},
        {"tree-shape", &o.shape, "dynamic | chain"},
        {"temperature", &o.temperature, "default 0"},
        {"transport", &o.transport, "of the pair (default: what graft run chooses)"},
        {"prompts", &o.prompts, "JSON array of prompt texts (default: four short ones)"},
        {"context", &contexts, "long contexts and SpecPV instead: see graft-bench e2e --help --context 4k"},
    };
    enum gr_table_format format;
    int64_t n_rep = 0;
    const int status = gr_bench_options("e2e", argc, argv, &format, options, (int)GR_ARRAY_LEN(options));
    if (status >= 0) {
        return status;
    }
    if (!gr_parse_int(o.reps, 1, N_REP_MAX, &n_rep)) {
        log_error("--reps: `%s' is not a whole number from 1 to %d", o.reps, N_REP_MAX);
        return 2;
    }
    const struct gr_geometry *geometry = NULL;
    if (gr_geometry_find(o.geometry, &geometry) != GR_OK) {
        return 2;
    }
    if (o.draft == NULL) {
        o.draft = geometry != NULL ? "models/demo/eagle3" : "models/demo/draft";
    }
    const char *prompt[GR_BENCH_PROMPT_MAX];
    const int n_prompt = gr_bench_load_prompts(o.prompts, prompt);
    static double speed[N_MODE][N_REP_MAX];
    struct totals sum[N_MODE] = {{0}};
    for (int rep = -1; rep < (int)n_rep && n_prompt > 0; rep++) {
        for (int mode = 0; mode < n_mode_of(&o); mode++) {
            struct totals t = {0};
            for (int p = 0; p < n_prompt; p++) {
                if (!measure(&o, mode, prompt[p], &t)) {
                    return 1;
                }
            }
            if (rep >= 0) {
                speed[mode][rep] = t.tokens / t.seconds;
                add_totals(&sum[mode], &t);
            }
        }
    }
    if (n_prompt == 0) {
        return 1;
    }
    static const char *const columns[] = {"mode", "transport", "tok/s", "x plain", "mean acceptance length",
                                          "round ms", "draft ms", "wire ms", "verify ms", "host ms", "bytes/token"};
    struct gr_table t;
    char note[300];
    snprintf(note, sizeof(note), "decode tokens/s without the first token, mean +- stddev; mean acceptance "
             "length = 1 + accepted/drafts%s%s%s", geometry != NULL ? "; cost that of " : "",
             geometry != NULL ? geometry->name : "", geometry != NULL ? ", acceptance that of the folders' pair" : "");
    gr_table_begin(&t, format, stdout, "e2e", note, columns, (int)GR_ARRAY_LEN(columns));
    print_rows(&t, &o, speed, (int)n_rep, sum);
    gr_table_end(&t);
    return 0;
}
