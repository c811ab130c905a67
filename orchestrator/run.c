/* `graft run`: one session from prompt to text. Starts the target and the draft worker as child processes (or both in
 * one, for --transport loop), streams, and cleans up whatever happens. */
#include "common/clock.h"
#include "common/log.h"
#include "common/parse.h"
#include "common/program.h"
#include "model/hf_config.h"
#include "orchestrator/children.h"
#include "orchestrator/commands.h"
#include "orchestrator/hub.h"
#include "orchestrator/options.h"
#include "orchestrator/prompt.h"
#include "orchestrator/report.h"
#include "orchestrator/yaml_config.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AUTO_NODE 7 /* fixed size behind "auto" until the size is chosen from measured costs */
#define DRAFTER_START_NS (60 * GR_S)

enum phase { PHASE_START, PHASE_SPECULATIVE, PHASE_PLAIN, PHASE_OVER };

struct run {
    struct gr_run_options o;
    struct gr_yaml_config *yaml;
    bool with_draft, colocated;
    uint32_t n_node;
    struct gr_hf_config hf;
    struct gr_tokenizer *tok;
    int32_t *prompt;
    uint32_t n_prompt;
    struct gr_hub *hub;
    struct gr_children children;
    int target_child, draft_child; /* -1: none */
    bool target_joined, draft_joined, draft_failed;
    uint64_t target_tokenizer, draft_tokenizer;
    /* the session */
    enum phase phase;
    struct gr_session_request request;
    uint64_t session, start_ns;
    struct gr_text_stream text;
    int32_t *token; /* owned: what the speculative session generated */
    uint32_t n_token, cap_token, n_plain;
    int64_t first_difference; /* --verify-lossless; -1: none so far */
    double last_gap, gap;     /* logit gap of plain decoding's last pick, and at the first difference */
    bool stop_hit, interrupted, failed, progress_shown;
    enum gr_finish finish;
    struct gr_session_metrics metrics;
};

/* ---- the progress line ---- */

static void progress(struct run *r, const char *fmt, uint64_t a, uint64_t b)
{
    if (isatty(STDERR_FILENO) && !r->o.trace) {
        fputs("\r\033[K", stderr);
        fprintf(stderr, fmt, a, b);
        fflush(stderr);
        r->progress_shown = true;
    }
}

static void clear_progress(struct run *r)
{
    if (r->progress_shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        r->progress_shown = false;
    }
}

/* ---- client events ---- */

static void fail(struct run *r, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        clear_progress(r);
        log_error("%s", text);
    }
    r->failed = true;
}

static void show_text(struct run *r)
{
    size_t len = 0;
    const char *text = gr_text_stream_take(&r->text, &len);
    if (r->o.json || len == 0) {
        return;
    }
    if (isatty(STDOUT_FILENO)) {
        clear_progress(r);
    }
    if (fwrite(text, 1, len, stdout) != len || fflush(stdout) != 0) {
        fail(r, "cannot write to standard output");
        gr_orch_stop(gr_hub_orch(r->hub), r->session, r->n_token, GR_FINISH_ERROR);
    }
}

static void keep_token(struct run *r, int32_t id)
{
    GR_ASSERT(r->n_token < r->cap_token);
    bool stopped = false;
    r->token[r->n_token++] = id;
    if (gr_text_stream_push(&r->text, id, &stopped) != GR_OK) {
        r->failed = true;
    }
    r->stop_hit = r->stop_hit || stopped;
}

static void compare_token(struct run *r, int32_t id)
{
    if (r->first_difference < 0 && (r->n_plain >= r->n_token || r->token[r->n_plain] != id)) {
        r->first_difference = r->n_plain;
        r->gap = r->last_gap;
    }
    r->n_plain++;
    if (r->n_plain >= r->n_token) {
        gr_orch_stop(gr_hub_orch(r->hub), r->session, r->n_plain, GR_FINISH_STOP);
    }
}

static void on_tokens(void *ctx, uint64_t session, void *user, const int32_t *id, uint32_t n)
{
    struct run *r = ctx;
    (void)user;
    for (uint32_t i = 0; i < n && !r->stop_hit && r->phase == PHASE_SPECULATIVE; i++) {
        keep_token(r, id[i]);
    }
    for (uint32_t i = 0; i < n && r->phase == PHASE_PLAIN; i++) {
        compare_token(r, id[i]);
    }
    if (r->phase != PHASE_SPECULATIVE) {
        return;
    }
    show_text(r);
    if (!isatty(STDOUT_FILENO)) {
        progress(r, "generating: %" PRIu64 " of at most %" PRIu64 " tokens", r->n_token, (uint64_t)r->o.max_tokens);
    }
    if (r->stop_hit) {
        gr_orch_stop(gr_hub_orch(r->hub), session, r->n_token, GR_FINISH_STOP);
    }
}

static void on_progress(void *ctx, uint64_t session, void *user, uint32_t n)
{
    struct run *r = ctx;
    (void)session;
    (void)user;
    progress(r, "prefill: %" PRIu64 " of %" PRIu64 " tokens", n, r->n_prompt);
}

static void on_trace(void *ctx, uint64_t session, void *user, const struct gr_trace_round *round)
{
    struct run *r = ctx;
    (void)session;
    (void)user;
    if (r->phase == PHASE_SPECULATIVE) {
        gr_report_tree(stderr, r->tok, round);
    }
    r->last_gap = round->gap;
}

static void on_done(void *ctx, uint64_t session, void *user, enum gr_finish finish, const char *text)
{
    struct run *r = ctx;
    (void)user;
    if (finish == GR_FINISH_ERROR && !r->interrupted) {
        fail(r, text);
    }
    if (r->phase == PHASE_SPECULATIVE) {
        r->metrics = *gr_orch_metrics(gr_hub_orch(r->hub), session);
        r->finish = finish;
        if (gr_text_stream_end(&r->text) != GR_OK) {
            r->failed = true;
        }
        show_text(r);
    }
    const bool again = r->phase == PHASE_SPECULATIVE && r->o.verify_lossless && !r->failed && !r->interrupted;
    r->phase = again ? PHASE_START : PHASE_OVER;
}

static void on_join(void *ctx, const struct gr_msg *m)
{
    struct run *r = ctx;
    if (m->role == GR_ROLE_TARGET) {
        r->target_joined = true;
        r->target_tokenizer = m->tokenizer_fingerprint;
    } else {
        r->draft_joined = true;
        r->draft_tokenizer = m->tokenizer_fingerprint;
    }
    if (r->target_joined && r->draft_joined && r->target_tokenizer != r->draft_tokenizer) {
        fail(r, "--draft: its tokenizer differs from the target's (fingerprints do not match); a pair needs one "
                "tokenizer");
    }
}

/* ---- preparation ---- */

static enum gr_status not_built(const char *what)
{
    log_error("%s is not part of this build", what);
    return GR_EUNSUPPORTED;
}

static enum gr_status choose_method(struct run *r)
{
    struct gr_run_options *o = &r->o;
    struct gr_hf_config draft;
    if (o->method == NULL && o->draft == NULL) {
        o->method = "none";
    }
    if (o->draft != NULL) {
        GR_TRY(gr_hf_config_load(o->draft, &draft));
        const bool eagle = strcmp(draft.architecture, "LlamaForCausalLMEagle3") == 0;
        const char *inferred = eagle ? "eagle3" : "draft_model";
        if (o->method != NULL && strcmp(o->method, "none") != 0 && strcmp(o->method, inferred) != 0) {
            log_error("--method %s: %s holds a %s (architecture %s)", o->method, o->draft, inferred,
                      draft.architecture);
            return GR_EINVAL;
        }
        o->method = o->method != NULL ? o->method : inferred;
    }
    if (strcmp(o->method, "eagle3") == 0) {
        return not_built("method eagle3");
    }
    if (strcmp(o->method, "none") != 0 && strcmp(o->method, "draft_model") != 0) {
        log_error("--method: `%s' is not one of none, draft_model, eagle3", o->method);
        return GR_EINVAL;
    }
    r->with_draft = strcmp(o->method, "draft_model") == 0;
    if (r->with_draft && o->draft == NULL) {
        log_error("--method draft_model needs --draft DIR");
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status check_fixed_choices(struct run *r)
{
    const struct gr_run_options *o = &r->o;
    enum gr_transport_kind kind = GR_TRANSPORT_TCP;
    if (o->model == NULL) {
        log_error("--model DIR is needed; see graft run --help");
        return GR_EINVAL;
    }
    if (strcmp(o->specpv, "off") != 0) {
        const bool known = strcmp(o->specpv, "lossy") == 0 || strcmp(o->specpv, "exact") == 0;
        if (!known) {
            log_error("--specpv: `%s' is not one of off, lossy, exact", o->specpv);
            return GR_EINVAL;
        }
        return not_built("SpecPV (--specpv lossy|exact)");
    }
    if (strncmp(o->target_device, "cuda:", 5) == 0 || strncmp(o->draft_device, "cuda:", 5) == 0) {
        return not_built("CUDA (--target-device, --draft-device cuda:N)");
    }
    if (strcmp(o->target_device, "cpu") != 0 || strcmp(o->draft_device, "cpu") != 0) {
        log_error("--target-device and --draft-device: cpu or cuda:N");
        return GR_EINVAL;
    }
    if (o->connect != NULL || o->session != NULL) {
        return not_built("--connect, --session");
    }
    if (o->trace_file != NULL) {
        return not_built("--trace-file");
    }
    if (o->target_ib_hca != NULL || o->draft_ib_hca != NULL || o->gid_index != NULL) {
        return not_built("RDMA (--target-ib-hca, --draft-ib-hca, --gid-index)");
    }
    if (o->ship_features != NULL) {
        return not_built("--ship-features");
    }
    if (o->transport[0] != '\0') {
        GR_TRY(gr_transport_by_name(o->transport, &kind));
        if ((gr_transport_built_mask() >> kind & 1) == 0) {
            return not_built("--transport verbs");
        }
    }
    if (o->require_rdma && kind != GR_TRANSPORT_VERBS) {
        log_error("--require-rdma: this build has no RDMA transport");
        return GR_EUNSUPPORTED;
    }
    r->colocated = o->transport[0] != '\0' && kind == GR_TRANSPORT_LOOP;
    return GR_OK;
}

static enum gr_status choose_tree(struct run *r)
{
    const struct gr_run_options *o = &r->o;
    r->n_node = AUTO_NODE;
    if (strcmp(o->num_speculative_tokens, "auto") != 0) {
        int64_t n = 0;
        if (!gr_parse_int(o->num_speculative_tokens, 0, GR_NODE_MAX, &n)) {
            log_error("--num-speculative-tokens: `%s' is not auto or a whole number from 0 to %d",
                      o->num_speculative_tokens, GR_NODE_MAX);
            return GR_EINVAL;
        }
        r->n_node = (uint32_t)n;
    }
    if (strcmp(o->tree_shape, "dynamic") != 0 && strcmp(o->tree_shape, "chain") != 0) {
        log_error("--tree-shape: `%s' is not one of dynamic, chain", o->tree_shape);
        return GR_EINVAL;
    }
    return GR_OK;
}

static enum gr_status prepare(struct run *r)
{
    GR_TRY(check_fixed_choices(r));
    GR_TRY(choose_method(r));
    GR_TRY(choose_tree(r));
    GR_TRY(gr_hf_config_load(r->o.model, &r->hf));
    GR_TRY(gr_tokenizer_load(r->o.model, &r->tok));
    const int32_t n_vocab = GR_MIN(r->hf.n_vocab, gr_tokenizer_n_vocab(r->tok));
    GR_TRY(gr_prompt_read(&r->o, r->tok, n_vocab, &r->prompt, &r->n_prompt));
    GR_TRY(gr_text_stream_init(&r->text, r->tok, r->o.stop, r->o.n_stop));
    r->cap_token = (uint32_t)r->o.max_tokens + GR_TREE_MAX;
    r->token = malloc(r->cap_token * sizeof(*r->token));
    if (r->token == NULL) {
        log_error("out of memory for %" PRId64 " tokens", r->o.max_tokens);
        return GR_ENOMEM;
    }
    return GR_OK;
}

/* ---- workers ---- */

struct arguments {
    const char *argv[GR_CHILD_ARG_MAX + 1];
    char number[8][32];
    int n, n_number;
};

static void add(struct arguments *a, const char *name, const char *value)
{
    a->argv[a->n++] = name;
    a->argv[a->n++] = value;
}

static void add_number(struct arguments *a, const char *name, int64_t value)
{
    char *text = a->number[a->n_number++];
    snprintf(text, sizeof(a->number[0]), "%" PRId64, value);
    add(a, name, text);
}

static enum gr_status start_target(struct run *r)
{
    const struct gr_run_options *o = &r->o;
    struct arguments a = {.n = 1};
    add(&a, "--model", o->model);
    add(&a, "--join", gr_hub_address(r->hub));
    add(&a, "--kv-blocks", o->kv_blocks);
    add_number(&a, "--max-model-len", o->max_model_len);
    add_number(&a, "--threads", o->threads);
    add_number(&a, "--sessions", 1);
    add_number(&a, "--round-deadline-ms", o->round_deadline_ms);
    if (r->colocated && r->with_draft) {
        add(&a, "--colocate-draft", o->draft);
        add_number(&a, "--draft-threads", o->draft_threads);
    } else if (o->transport[0] != '\0' && !r->colocated) {
        add(&a, "--transport", o->transport);
    }
    a.argv[0] = gr_program_sibling("graft-target");
    return gr_children_start(&r->children, "target", a.argv, &r->target_child);
}

static enum gr_status start_draft(struct run *r)
{
    const struct gr_run_options *o = &r->o;
    struct arguments a = {.n = 1};
    add(&a, "--model", o->draft);
    add(&a, "--join", gr_hub_address(r->hub));
    add_number(&a, "--threads", o->draft_threads);
    add_number(&a, "--sessions", 1);
    if (o->max_model_len > 0) {
        add_number(&a, "--max-model-len", o->max_model_len);
    }
    if (o->transport[0] != '\0') {
        add(&a, "--transport", o->transport);
    }
    a.argv[0] = gr_program_sibling("graft-draft");
    return gr_children_start(&r->children, "draft", a.argv, &r->draft_child);
}

static enum gr_status start_all(struct run *r)
{
    struct gr_hub_config c = {.listen = r->o.control,
                              .io = {.ctx = r, .on_progress = on_progress, .on_tokens = on_tokens,
                                     .on_trace = on_trace, .on_done = on_done},
                              .on_join = on_join};
    char key_hex[2 * GR_KEY_BYTES + 1];
    GR_TRY(gr_key_random(c.key, key_hex));
    GR_TRY(gr_hub_create(&c, &r->hub));
    GR_TRY(gr_children_init(&r->children, key_hex));
    GR_TRY(start_target(r));
    if (r->with_draft && !r->colocated) {
        GR_TRY(start_draft(r));
    }
    return GR_OK;
}

/* ---- the session ---- */

static void fill_request(struct run *r, bool plain)
{
    const struct gr_run_options *o = &r->o;
    r->request = (struct gr_session_request){
        .prompt = r->prompt, .n_prompt = r->n_prompt, .max_tokens = (uint32_t)o->max_tokens,
        .sampling = {.temperature = (float)o->temperature, .top_p = (float)o->top_p, .min_p = (float)o->min_p,
                     .top_k = (int32_t)o->top_k, .seed = r->request.sampling.seed},
        .want_draft = r->with_draft && !plain, .want_trace = o->trace || plain,
        .tree_shape = strcmp(o->tree_shape, "chain") == 0 ? GR_SHAPE_CHAIN : GR_SHAPE_DYNAMIC,
        .draft_depth = (uint32_t)o->draft_depth, .draft_top_k = (uint32_t)o->draft_top_k, .n_node = r->n_node};
    for (int i = 0; i < r->hf.n_eos && !o->ignore_eos; i++) {
        r->request.stop_id[r->request.n_stop_id++] = r->hf.eos_id[i];
    }
    if (!r->colocated) {
        snprintf(r->request.transport, sizeof(r->request.transport), "%s", o->transport);
    }
}

static void submit(struct run *r, bool plain)
{
    fill_request(r, plain);
    r->phase = plain ? PHASE_PLAIN : PHASE_SPECULATIVE;
    if (gr_orch_submit(gr_hub_orch(r->hub), &r->request, gr_clock_ns(), &r->session) != GR_OK) {
        r->failed = true;
    }
}

/* The session opens when both workers are there, or when the drafter will not come soon. */
static bool workers_ready(const struct run *r)
{
    const bool patience = gr_clock_ns() - r->start_ns < DRAFTER_START_NS;
    return r->target_joined && (!r->with_draft || r->draft_joined || r->draft_failed || !patience);
}

static void watch_children(struct run *r)
{
    for (;;) {
        int index = -1;
        bool interrupted = false;
        const enum gr_child_event e = gr_children_poll(&r->children, &interrupted, &index);
        if (interrupted && !r->interrupted) {
            r->interrupted = true;
            clear_progress(r);
            gr_orch_stop(gr_hub_orch(r->hub), r->session, r->n_token, GR_FINISH_ERROR);
        }
        if (e == GR_CHILD_NONE) {
            return;
        }
        if (e == GR_CHILD_KILLED && index == r->draft_child) {
            r->draft_failed = true; /* goes on root-only; a restarted one is attached when it joins */
        }
        if (e == GR_CHILD_KILLED && index == r->target_child) {
            r->target_joined = false;
        }
        if (e == GR_CHILD_FAILED || (e == GR_CHILD_ENDED && r->phase != PHASE_OVER)) {
            fail(r, e == GR_CHILD_ENDED ? "a worker ended before the session did" : "");
        }
    }
}

static int nearer(int a_ms, int b_ms)
{
    return a_ms < 0 ? b_ms : b_ms < 0 ? a_ms : GR_MIN(a_ms, b_ms);
}

static void serve(struct run *r)
{
    bool submitted = false;
    progress(r, "loading %" PRIu64 " prompt tokens", r->n_prompt, 0);
    while (r->phase != PHASE_OVER && !r->failed && !r->interrupted) {
        const int restart_ms = gr_children_restart(&r->children, gr_clock_ns());
        gr_hub_pump(r->hub, nearer(restart_ms, r->phase == PHASE_START ? 1000 : -1), r->children.signal_fd);
        watch_children(r);
        if (r->phase == PHASE_START && !r->failed && !r->interrupted && workers_ready(r)) {
            submit(r, submitted);
            submitted = true;
        }
    }
}

static void stop_workers(struct run *r)
{
    if (r->hub == NULL) {
        return;
    }
    gr_hub_drain(r->hub);
    if (r->children.n > 0) {
        gr_children_finish(&r->children, 2000);
    }
    gr_hub_destroy(r->hub);
}

/* ---- the end ---- */

static int report(struct run *r)
{
    clear_progress(r);
    if (r->interrupted) {
        log_error("interrupted");
        return 1;
    }
    if (r->failed) {
        return 1;
    }
    if (r->o.json && gr_report_json(stdout, r->token, r->n_token, r->text.text != NULL ? r->text.text : "",
                                    r->text.len, r->finish, &r->metrics) != GR_OK) {
        return 1;
    }
    if (!r->o.json) {
        const bool open_line = r->text.len > 0 && r->text.text[r->text.len - 1] != '\n';
        if (open_line) {
            fputc('\n', isatty(STDOUT_FILENO) ? stdout : stderr);
        }
        gr_report_summary(stderr, &r->metrics);
    }
    if (r->o.verify_lossless) {
        if (r->first_difference < 0 && r->n_plain != r->n_token) {
            r->first_difference = r->n_plain;
        }
        if (r->first_difference >= 0) {
            log_error("--verify-lossless: plain decoding differs at generated token %" PRId64 ", where its pick was %.3g "
                      "ahead of the next best", r->first_difference, r->gap);
            return 1;
        }
        fprintf(stderr, "verify-lossless: %u tokens equal plain decoding's\n", r->n_plain);
    }
    return 0;
}

static void finish(struct run *r)
{
    gr_yaml_config_destroy(r->yaml);
    gr_text_stream_finish(&r->text);
    gr_tokenizer_destroy(r->tok);
    free(r->prompt);
    free(r->token);
}

int gr_command_run(int argc, char **argv)
{
    struct run r = {.target_child = -1, .draft_child = -1, .first_difference = -1};
    gr_run_options_default(&r.o);
    if (gr_run_options_parse(&r.o, argc, argv) != GR_OK) {
        return 2;
    }
    if (r.o.help) {
        gr_run_options_help(stdout);
        return 0;
    }
    if (r.o.config != NULL && gr_yaml_config_load(r.o.config, &r.o, &r.yaml) != GR_OK) {
        return 1;
    }
    if (sodium_init() < 0) {
        log_error("libsodium cannot start");
        return 1;
    }
    enum gr_status st = prepare(&r);
    if (st != GR_OK) {
        finish(&r);
        return st == GR_EINVAL ? 2 : 1;
    }
    randombytes_buf(&r.request.sampling.seed, sizeof(r.request.sampling.seed));
    if (r.o.seed >= 0) {
        r.request.sampling.seed = (uint64_t)r.o.seed;
    }
    r.start_ns = gr_clock_ns();
    st = start_all(&r);
    if (st == GR_OK) {
        serve(&r);
    }
    stop_workers(&r);
    const int status = st == GR_OK ? report(&r) : 1;
    finish(&r);
    return status;
}
