#include "orchestrator/cli/report.h"

#include "common/base/log.h"
#include "common/base/out_guard.h"
#include "common/base/session_id.h"
#include "common/base/utf8.h"
#include "orchestrator/answer/token_text.h"

#include <errno.h>
#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

static const char *const finish_names[] = {"error", "stop", "length", "error", "closed"};

static double ratio(uint64_t a, uint64_t b)
{
    return b > 0 ? (double)a / (double)b : 0.0;
}

static json_t *metrics_json(const struct gr_session_metrics *m)
{
    json_t *per_position = json_array();
    int n_position = 0;
    for (int i = 0; i < GR_NODE_MAX; i++) {
        n_position = m->accepted_per_position[i] > 0 ? i + 1 : n_position;
    }
    for (int i = 0; i < n_position; i++) {
        json_array_append_new(per_position, json_integer((json_int_t)m->accepted_per_position[i]));
    }
    const uint64_t generated = m->completion_tokens > 0 ? m->completion_tokens - 1 : 0;
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {
        {"prompt_tokens", m->prompt_tokens},
        {"cached_tokens", m->cached_tokens},
        {"completion_tokens", m->completion_tokens},
        {"num_drafts", m->num_drafts},
        {"num_draft_tokens", m->num_draft_tokens},
        {"num_accepted_tokens", m->num_accepted_tokens},
        {"num_rewound_tokens", m->num_rewound_tokens},
        {"rewind_steps", m->rewind_steps},
        {"rounds", m->rounds},
        {"root_only_rounds", m->root_only_rounds},
        {"late_trees", m->late_trees},
        {"late_trees_rerooted", m->late_trees_rerooted},
        {"draft_ahead_hits", m->draft_ahead_hits},
        {"desyncs", m->desyncs},
        {"feature_gaps", m->feature_gaps},
        {"fallbacks", m->fallbacks},
        {"reopens", m->reopens},
        {"acceptance_alarms", m->acceptance_alarms},
        {"partial_rounds", m->partial_rounds},
        {"full_refreshes", m->full_refreshes},
        {"drift_mismatches", m->drift_mismatches},
        {"drift_checked", m->drift_checked},
    };
    json_t *o = json_object();
    for (size_t i = 0; i < GR_ARRAY_LEN(counts); i++) {
        json_object_set_new(o, counts[i].name, json_integer((json_int_t)counts[i].value));
    }
    json_object_set_new(
        o, "ttft_ms", json_real(m->first_token_ns > m->open_ns ? (double)(m->first_token_ns - m->open_ns) / 1e6 : 0.0));
    json_object_set_new(o, "decode_tokens_per_second", json_real(gr_metrics_tokens_per_second(m)));
    json_object_set_new(o, "mean_acceptance_length", json_real(gr_metrics_mean_acceptance_length(m)));
    json_object_set_new(o, "draft_acceptance_rate", json_real(ratio(m->num_accepted_tokens, m->num_draft_tokens)));
    json_object_set_new(o, "accepted_per_position", per_position);
    json_object_set_new(o, "first_token_expected",
                        json_real(m->n_first > 0 ? m->first_expected / (double)m->n_first : 0.0));
    json_object_set_new(o, "first_token_accepted", json_real(ratio(m->n_first_hit, m->n_first)));
    json_object_set_new(o, "wire_bytes_per_token", json_real(ratio(m->wire_bytes, m->wire_tokens)));
    json_object_set_new(o, "tokens_per_round", json_real(ratio(generated, m->rounds)));
    json_object_set_new(o, "transport", json_string(m->transport[0] != '\0' ? m->transport : "none"));
    json_object_set_new(o, "verify_ms_per_round", json_real(ratio(m->verify_ns, m->rounds) / 1e6));
    json_object_set_new(o, "draft_ms_per_round", json_real(ratio(m->draft_ns, m->n_drafter_round) / 1e6));
    json_object_set_new(o, "wait_ms_per_round", json_real(ratio(m->wait_ns, m->rounds) / 1e6));
    json_object_set_new(o, "host_ms_per_round", json_real(ratio(m->host_ns, m->rounds) / 1e6));
    return o;
}

/* Its id, and where there is a tokenizer its text, with U+FFFD where it holds a part of a character, and its bytes. */
static json_t *id_json(const struct gr_tokenizer *tok, int32_t id)
{
    size_t len = 0;
    json_t *o = json_object();
    json_object_set_new(o, "id", json_integer(id));
    const char *bytes = tok != NULL ? gr_tokenizer_token_bytes(tok, id, &len) : NULL;
    if (bytes == NULL) {
        return o;
    }
    char text[GR_TOKEN_TEXT_MAX];
    const size_t n_text = gr_token_text(bytes, len, text);
    json_t *list = json_array();
    for (size_t i = 0; i < len; i++) {
        json_array_append_new(list, json_integer((uint8_t)bytes[i]));
    }
    json_object_set_new(o, "token", json_stringn(text, n_text));
    json_object_set_new(o, "bytes", list);
    return o;
}

/* A token: {"id":..., "token":..., "bytes":[...], "logprob":..., "top":[{the same without top}, ...]}; where something
 * ended the turn before its values came, without them. */
static json_t *token_json(const struct gr_turn_report *r, uint32_t i)
{
    const struct gr_logprobs *l = r->logprobs;
    json_t *o = id_json(r->tok, r->token[i]);
    if (i >= l->n_known) {
        return o;
    }
    const float *value = l->value + (size_t)i * l->n_each;
    json_t *top = json_array();
    for (uint32_t k = 0; k + 1 < l->n_each; k++) {
        json_t *one = id_json(r->tok, l->id[(size_t)i * (l->n_each - 1) + k]);
        json_object_set_new(one, "logprob", json_real((double)value[k + 1]));
        json_array_append_new(top, one);
    }
    json_object_set_new(o, "logprob", json_real((double)value[0]));
    json_object_set_new(o, "top", top);
    return o;
}

static json_t *logprobs_json(const struct gr_turn_report *r)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < r->n_token; i++) {
        json_array_append_new(all, token_json(r, i));
    }
    return all;
}

static enum gr_status print_object(FILE *out, json_t *root, int bad)
{
    errno = 0;
    bad |=
        json_dumpf(root, out, JSON_COMPACT | JSON_PRESERVE_ORDER) != 0 || fputc('\n', out) == EOF || fflush(out) != 0;
    const int error = errno;
    json_decref(root);
    if (bad != 0) {
        if (gr_out_cut_by() != 0) {
            return GR_ECANCELED;
        }
        if (error == EPIPE) {
            return GR_ECLOSED; /* nobody reads it any more, which is nothing to tell */
        }
        log_error("cannot write the JSON result to standard output");
        return GR_EIO;
    }
    return GR_OK;
}

enum gr_status gr_report_json(FILE *out, const struct gr_turn_report *r)
{
    json_t *root = json_object();
    json_t *ids = json_array();
    for (uint32_t i = 0; i < r->n_token; i++) {
        json_array_append_new(ids, json_integer(r->token[i]));
    }
    int bad = json_object_set_new(root, "token_ids", ids);
    bad |= json_object_set_new(root, "text", json_stringn(r->text, r->text_len)); /* fails where it is not UTF-8 */
    if (r->logprobs->n_each > 0) {
        bad |= json_object_set_new(root, "logprobs", logprobs_json(r));
    }
    bad |= json_object_set_new(root, "finish_reason", json_string(finish_names[r->finish]));
    if (r->finish == GR_FINISH_LENGTH) {
        bad |= json_object_set_new(root, "finish_detail", json_string(r->at_context ? "context" : "max_tokens"));
    }
    if (r->error != NULL) {
        bad |= json_object_set_new(root, "error", json_string(r->error));
    }
    if (r->undrafted[0] != '\0') {
        bad |= json_object_set_new(root, "undrafted", json_string(r->undrafted));
    }
    if (r->session != 0) {
        char id[GR_SESSION_ID_DIGITS + 1];
        gr_session_id_spell(r->session, id);
        bad |= json_object_set_new(root, "session", json_string(id));
    }
    if (r->has_seed) {
        bad |= json_object_set_new(root, "seed", json_integer((json_int_t)r->seed));
    }
    if (r->has_choice) {
        bad |= json_object_set_new(root, "choice", json_integer((json_int_t)r->choice));
    }
    if (r->compared) {
        bad |= json_object_set_new(root, "lossless", json_boolean(r->first_difference < 0));
    }
    if (r->compared && r->first_difference >= 0) {
        bad |= json_object_set_new(root, "first_difference", json_integer((json_int_t)r->first_difference));
    }
    bad |= json_object_set_new(root, "metrics", metrics_json(r->metrics));
    return print_object(out, root, bad);
}

const char *gr_report_error(void)
{
    const char *line = gr_log_last_error();
    return line[0] != '\0' ? line : "the lines on standard error say what is wrong";
}

int gr_report_failure(const struct gr_options *o, int status)
{
    if (status != 0 && o->json) {
        json_t *root = json_object();
        const int bad = json_object_set_new(root, "error", json_string(gr_report_error()));
        (void)print_object(stdout, root, bad); /* the status says that it failed, whatever is written */
    }
    return status;
}

void gr_report_summary(FILE *out, const struct gr_session_metrics *m, const char *end)
{
    fprintf(out, "%" PRIu64 " prompt + %" PRIu64 " generated tokens", m->prompt_tokens, m->completion_tokens);
    if (m->completion_tokens > 1) {
        fprintf(out, ", %.1f tokens/s after the first", gr_metrics_tokens_per_second(m));
    }
    if (m->first_token_ns > m->open_ns) {
        fprintf(out, ", ttft %.1f ms", (double)(m->first_token_ns - m->open_ns) / 1e6);
    }
    if (m->num_drafts > 0) {
        fprintf(out,
                "; mean acceptance length %.2f (1 + %" PRIu64 " accepted / %" PRIu64 " drafts), %" PRIu64
                " rounds, %" PRIu64 " root-only, transport %s",
                gr_metrics_mean_acceptance_length(m), m->num_accepted_tokens, m->num_drafts, m->rounds,
                m->root_only_rounds, m->transport[0] != '\0' ? m->transport : "none");
    }
    if (m->partial_rounds > 0) {
        fprintf(out,
                "; %" PRIu64 " partial rounds, %" PRIu64 " refreshes, %" PRIu64 " of %" PRIu64
                " judged tokens were others",
                m->partial_rounds, m->full_refreshes, m->drift_mismatches, m->drift_checked);
    }
    fprintf(out, "%s%s\n", end[0] != '\0' ? "; " : "", end);
}

/* ---- the tree ---- */

/* A token may be a part of a character: its bytes are spelled then. */
static void print_token(FILE *out, const struct gr_tokenizer *tok, int32_t id)
{
    char shown[4 * GR_TOKEN_BYTES_MAX + 1];
    size_t len = 0;
    if (tok == NULL) {
        fprintf(out, "%d", id);
        return;
    }
    const char *bytes = gr_tokenizer_token_bytes(tok, id, &len);
    (void)gr_utf8_show(bytes != NULL ? bytes : "", len, shown, sizeof(shown));
    fprintf(out, "'%s'", shown);
}

/* The drawing recurses over parents: what came must be a tree, whatever the target sent. */
static bool is_tree(const struct gr_msg_commit *m)
{
    if (m->tree_ids.n != m->tree_parents.n || m->path.n > m->tree_ids.n || m->ids.n == 0) {
        return false;
    }
    for (uint32_t i = 0; i < m->tree_parents.n; i++) {
        if (m->tree_parents.p[i] < -1 || m->tree_parents.p[i] >= (int32_t)i) {
            return false;
        }
    }
    return true;
}

static bool on_path(const struct gr_msg_commit *m, int node)
{
    for (uint32_t i = 0; i < m->path.n; i++) {
        if (m->path.p[i] == node) {
            return true;
        }
    }
    return false;
}

static void print_children(FILE *out, const struct gr_tokenizer *tok, const struct gr_msg_commit *m, int parent,
                           char *prefix, size_t len)
{
    int last = -1;
    for (uint32_t i = 0; i < m->tree_ids.n; i++) {
        last = m->tree_parents.p[i] == parent ? (int)i : last;
    }
    for (uint32_t i = 0; i < m->tree_ids.n; i++) {
        if (m->tree_parents.p[i] != parent) {
            continue;
        }
        const bool is_last = (int)i == last;
        fprintf(out, "%s%s%s", prefix, is_last ? "`-" : "|-", on_path(m, (int)i) ? "* " : "  ");
        print_token(out, tok, m->tree_ids.p[i]);
        fputc('\n', out);
        if (len + 4 < 64 * 4) {
            memcpy(prefix + len, is_last ? "    " : "|   ", 5);
            print_children(out, tok, m, (int)i, prefix, len + 4);
            prefix[len] = '\0';
        }
    }
}

void gr_report_tree(FILE *out, const struct gr_tokenizer *tok, const struct gr_msg_commit *m)
{
    char prefix[64 * 4 + 8] = "";
    if (!is_tree(m)) {
        return;
    }
    fprintf(out, "round %u: %u nodes, %u on the accepted path (*), bonus ", m->round, m->tree_ids.n, m->path.n);
    print_token(out, tok, m->ids.p[m->ids.n - 1]);
    fputc('\n', out);
    print_children(out, tok, m, -1, prefix, 0);
}
