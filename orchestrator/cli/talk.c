#include "orchestrator/cli/talk.h"

#include "common/base/grow.h"
#include "common/base/log.h"
#include "common/rules/hash.h"

#include <stdlib.h>
#include <string.h>

static enum gr_status no_memory(void)
{
    log_error("out of memory for the conversation");
    return GR_ENOMEM;
}

static enum gr_status say(struct gr_talk *t, enum gr_chat_role role, const char *text, size_t len)
{
    struct gr_chat_message *grown = gr_grow(t->messages, &t->cap, t->n_message + 1, sizeof(*grown));
    if (grown == NULL) {
        return no_memory();
    }
    t->messages = grown;
    char *copy = malloc(len + 1);
    if (copy == NULL) {
        return no_memory();
    }
    memcpy(copy, text, len);
    t->messages[t->n_message++] = (struct gr_chat_message){role, copy, len};
    return GR_OK;
}

static void drop_messages(struct gr_talk *t, size_t n_left)
{
    while (t->n_message > n_left) {
        free((char *)(uintptr_t)t->messages[--t->n_message].text);
    }
}

enum gr_status gr_talk_init(struct gr_talk *t, const struct gr_chat *chat, const struct gr_tokenizer *tok,
                            const char *system)
{
    *t = (struct gr_talk){.chat = chat, .tok = tok, .has_system = system != NULL};
    return system != NULL ? say(t, GR_CHAT_SYSTEM, system, strlen(system)) : GR_OK;
}

void gr_talk_finish(struct gr_talk *t)
{
    drop_messages(t, 0);
    free(t->messages);
    free(t->has);
    free(t->whole);
    *t = (struct gr_talk){0};
}

void gr_talk_lost_session(struct gr_talk *t)
{
    t->n_has = 0;
}

void gr_talk_reset(struct gr_talk *t)
{
    drop_messages(t, t->has_system);
    gr_talk_lost_session(t);
}

void gr_talk_take_back(struct gr_talk *t)
{
    drop_messages(t, t->n_message - 1);
}

enum gr_status gr_talk_ask(struct gr_talk *t, const char *text, size_t len)
{
    int32_t *ids = NULL;
    size_t n = 0;
    GR_TRY(say(t, GR_CHAT_USER, text, len));
    const enum gr_status st = gr_chat_ids(t->chat, t->tok, t->messages, t->n_message, &ids, &n);
    if (st != GR_OK) {
        gr_talk_take_back(t);
        return st;
    }
    free(t->whole);
    t->whole = ids;
    t->n_whole = n;
    return GR_OK;
}

struct gr_talk_turn gr_talk_next(const struct gr_talk *t)
{
    struct gr_talk_turn turn = {0};
    const size_t most = GR_MIN(t->n_has, t->n_whole - 1);
    while (turn.n_keep < most && t->has[turn.n_keep] == t->whole[turn.n_keep]) {
        turn.hash = gr_hash_extend(turn.hash, t->has[turn.n_keep]);
        turn.n_keep++;
    }
    turn.ids = t->whole + turn.n_keep;
    turn.n_ids = t->n_whole - turn.n_keep;
    return turn;
}

enum gr_status gr_talk_answer(struct gr_talk *t, const char *text, size_t len, const int32_t *ids, size_t n)
{
    int32_t *has = realloc(t->has, (t->n_whole + n) * sizeof(*has));
    if (has == NULL) {
        return no_memory();
    }
    memcpy(has, t->whole, t->n_whole * sizeof(*has));
    if (n > 0) {
        memcpy(has + t->n_whole, ids, n * sizeof(*has));
    }
    t->has = has;
    t->n_has = t->n_whole + n;
    return say(t, GR_CHAT_ASSISTANT, text, len);
}
