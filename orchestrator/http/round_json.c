#include "orchestrator/http/round_json.h"

#include "orchestrator/answer/token_text.h"
#include "orchestrator/http/ids_json.h"

#include <jansson.h>

static json_t *texts(const struct gr_tokenizer *tok, const struct gr_msg_ids *ids)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < ids->n; i++) {
        char text[GR_TOKEN_TEXT_MAX];
        size_t len = 0;
        const char *bytes = gr_tokenizer_token_bytes(tok, ids->p[i], &len);
        json_array_append_new(all, json_stringn(text, bytes != NULL ? gr_token_text(bytes, len, text) : 0));
    }
    return all;
}

/* Told with want_trace, of a round that has verified one. */
static void add_tree(json_t *round, const struct gr_tokenizer *tok, const struct gr_msg_commit *m)
{
    if (m->tree_ids.n > 0 && m->tree_ids.n == m->tree_parents.n) {
        json_object_set_new(round, "tree",
                            json_pack("{s:o, s:o, s:o}", "tokens", texts(tok, &m->tree_ids), "parents",
                                      gr_ids_json(m->tree_parents.p, m->tree_parents.n), "path",
                                      gr_ids_json(m->path.p, m->path.n)));
    }
}

/* What became of drafting ahead, by COMMIT's `ahead`. */
static const char *const ahead_words[] = {"none", "miss", "hit"};

struct json_t *gr_round_json(const struct gr_tokenizer *tok, const struct gr_msg_commit *m)
{
    static const char *const kinds[] = {"plain", "partial", "full"}; /* by enum gr_verdict_kind */
    json_t *round = json_pack(
        "{s:I, s:I, s:s, s:I, s:I, s:o, s:I, s:I, s:I, s:s}", "round", (json_int_t)m->round, "epoch",
        (json_int_t)m->epoch, "kind", kinds[m->verdict_kind], "keep_len", (json_int_t)m->keep_len, "final_len",
        (json_int_t)m->final_len, "tokens", texts(tok, &m->ids), "n_draft", (json_int_t)m->n_draft, "n_accepted",
        (json_int_t)m->n_accepted, "n_late", (json_int_t)m->n_late, "ahead", ahead_words[m->ahead]);
    json_t *times = json_pack("{s:I, s:I, s:I, s:I, s:I}", "wait_ns", (json_int_t)m->wait_ns, "draft_ns",
                              (json_int_t)m->draft_ns, "verify_ns", (json_int_t)m->verify_ns, "host_ns",
                              (json_int_t)m->host_ns, "n_row", (json_int_t)m->n_row);
    if (round == NULL || times == NULL) {
        json_decref(round);
        json_decref(times);
        return NULL;
    }
    json_object_update(round, times);
    json_decref(times);
    add_tree(round, tok, m);
    return round;
}
