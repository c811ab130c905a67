#include "orchestrator/cli/prompt.h"

#include "common/base/log.h"
#include "model/tokenizer/tokenizer_of_model.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_BYTES_MAX (16u << 20) /* bytes of a prompt's text, at most */

static enum gr_status read_all(const char *path, char **text_out, size_t *len_out)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (f == NULL) {
        log_error("%s: %s", path, strerror(errno));
        return GR_EIO;
    }
    char *text = malloc(PROMPT_BYTES_MAX + 1);
    size_t n = text != NULL ? fread(text, 1, PROMPT_BYTES_MAX + 1, f) : 0;
    const bool failed = text == NULL || ferror(f) != 0;
    if (f != stdin) {
        fclose(f);
    }
    if (failed || n > PROMPT_BYTES_MAX) {
        log_error(failed ? "%s: cannot be read" : "%s: larger than the limit of 16 MiB", path);
        free(text);
        return failed ? GR_EIO : GR_ELIMIT;
    }
    *text_out = text;
    *len_out = n;
    return GR_OK;
}

static enum gr_status encode(const struct gr_tokenizer *tok, const char *text, size_t len, unsigned flags,
                             int32_t **ids_out, uint32_t *n_out)
{
    const size_t cap = gr_tokenizer_encode_bound(tok, len);
    int32_t *ids = malloc((cap > 0 ? cap : 1) * sizeof(*ids));
    size_t n = 0;
    if (ids == NULL) {
        log_error("out of memory for the prompt");
        return GR_ENOMEM;
    }
    const enum gr_status st = gr_tokenizer_encode(tok, text, len, flags, ids, cap, &n);
    if (st != GR_OK) {
        free(ids);
        return st;
    }
    *ids_out = ids;
    *n_out = (uint32_t)n;
    return GR_OK;
}

/* One turn of a conversation. */
static enum gr_status encode_chat(const struct gr_options *o, const struct gr_tokenizer *tok,
                                  const struct gr_chat *chat, struct gr_chat_message user, int32_t **ids_out,
                                  uint32_t *n_out)
{
    const struct gr_chat_message messages[2] = {{GR_CHAT_SYSTEM, o->system, o->system != NULL ? strlen(o->system) : 0},
                                                user};
    const size_t first = o->system == NULL;
    size_t n = 0;
    GR_TRY(gr_chat_ids(chat, tok, messages + first, 2 - first, ids_out, &n));
    *n_out = (uint32_t)n;
    return GR_OK;
}

static enum gr_status encode_text(const struct gr_options *o, const struct gr_tokenizer *tok,
                                  const struct gr_chat *chat, struct gr_chat_message text, int32_t **ids_out,
                                  uint32_t *n_out)
{
    if (chat != NULL) {
        return encode_chat(o, tok, chat, text, ids_out, n_out);
    }
    /* What goes on with a session gets no BOS. */
    const unsigned flags = (o->session == 0 ? GR_ENCODE_BOS : 0u) | (o->no_special ? GR_ENCODE_NO_SPECIAL : 0u);
    return encode(tok, text.text, text.len, flags, ids_out, n_out);
}

static enum gr_status take_ids(const char *path, const json_t *array, int32_t n_vocab, int32_t *ids)
{
    size_t i;
    json_t *e;
    json_array_foreach(array, i, e)
    {
        if (!json_is_integer(e) || json_integer_value(e) < 0 || json_integer_value(e) >= n_vocab) {
            log_error("%s: element %zu is not a token id from 0 to %d", path, i, n_vocab - 1);
            return GR_EINVAL;
        }
        ids[i] = (int32_t)json_integer_value(e);
    }
    return GR_OK;
}

static enum gr_status parse_ids(const char *path, const char *text, size_t len, int32_t n_vocab, int32_t **ids_out,
                                uint32_t *n_out)
{
    json_error_t error;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL || !json_is_array(root)) {
        log_error("%s:%d: %s", path, root == NULL ? error.line : 1,
                  root == NULL ? error.text : "not a JSON array of token ids");
        json_decref(root);
        return GR_EINVAL;
    }
    const size_t n = json_array_size(root);
    int32_t *ids = malloc((n > 0 ? n : 1) * sizeof(*ids));
    enum gr_status st = ids == NULL ? GR_ENOMEM : take_ids(path, root, n_vocab, ids);
    json_decref(root);
    if (st != GR_OK) {
        free(ids);
        return st;
    }
    *ids_out = ids;
    *n_out = (uint32_t)n;
    return GR_OK;
}

static enum gr_status refuse_of_chats(const struct gr_options *o)
{
    static const enum gr_option_id ids[] = {GR_OPTION_system, GR_OPTION_chat_template, GR_OPTION_chat_date,
                                            GR_OPTION_chat_thinking};
    for (size_t i = 0; i < GR_ARRAY_LEN(ids); i++) {
        if (gr_option_from_cli(o, ids[i])) {
            log_error("--%s is about a chat: give --chat, too", gr_option_rows[ids[i]].name);
            return GR_EINVAL;
        }
    }
    return GR_OK;
}

static enum gr_status check_options(const struct gr_options *o, const struct gr_tokenizer *tok,
                                    const struct gr_chat *chat)
{
    if ((o->prompt != NULL) + (o->prompt_file != NULL) + (o->prompt_ids != NULL) != 1) {
        log_error("give exactly one of --prompt, --prompt-file and --prompt-ids");
        return GR_EINVAL;
    }
    if (tok == NULL && o->prompt_ids == NULL) {
        log_error("%s: has no " GR_TOKENIZER_PLACES ": give the prompt as --prompt-ids F", o->model);
        return GR_ENOTFOUND;
    }
    if (chat != NULL && o->prompt_ids != NULL) {
        log_error("--chat makes a conversation of text: --prompt-ids cannot be a user's message");
        return GR_EINVAL;
    }
    if (chat != NULL && o->session != 0) {
        log_error("--chat begins a conversation, and --session goes on with a session; `graft chat' does both");
        return GR_EINVAL;
    }
    return chat == NULL ? refuse_of_chats(o) : GR_OK;
}

static enum gr_status read_prompt(const struct gr_options *o, const struct gr_tokenizer *tok,
                                  const struct gr_chat *chat, int32_t n_vocab, int32_t **ids_out, uint32_t *n_out)
{
    GR_TRY(check_options(o, tok, chat));
    if (o->prompt != NULL) {
        const struct gr_chat_message given = {GR_CHAT_USER, o->prompt, strlen(o->prompt)};
        return encode_text(o, tok, chat, given, ids_out, n_out);
    }
    const char *path = o->prompt_file != NULL ? o->prompt_file : o->prompt_ids;
    char *text = NULL;
    size_t len = 0;
    GR_TRY(read_all(path, &text, &len));
    const struct gr_chat_message read = {GR_CHAT_USER, text, len};
    const enum gr_status st = o->prompt_file != NULL ? encode_text(o, tok, chat, read, ids_out, n_out)
                                                     : parse_ids(path, text, len, n_vocab, ids_out, n_out);
    free(text);
    return st;
}

enum gr_status gr_prompt_read(const struct gr_options *o, const struct gr_tokenizer *tok, const struct gr_chat *chat,
                              int32_t n_vocab, int32_t **ids_out, uint32_t *n_out)
{
    GR_TRY(read_prompt(o, tok, chat, n_vocab, ids_out, n_out));
    if (*n_out == 0 && o->session == 0) { /* a session that goes on may be added nothing */
        log_error("the prompt is empty: give at least one token");
        free(*ids_out);
        *ids_out = NULL;
        return GR_EINVAL;
    }
    return GR_OK;
}
