/* Templates of models that think before they answer: what becomes of the thoughts of earlier answers. */
#include <stdlib.h>
#include <string.h>

#include "model/chat/chat_internal.h"

#define BEGIN "<think>"
#define END "</think>"

static const char *find(struct gr_chat_piece p, const char *what)
{
    return p.len > 0 ? memmem(p.text, p.len, what, strlen(what)) : NULL;
}

/* After the last place of what; all if there is none. */
static struct gr_chat_piece after_last(struct gr_chat_piece p, const char *what)
{
    const char *hit;
    while ((hit = find(p, what)) != NULL) {
        p.len -= (size_t)(hit - p.text) + strlen(what);
        p.text = hit + strlen(what);
    }
    return p;
}

static void put(struct gr_chat_writer *w, struct gr_chat_piece p)
{
    gr_chat_put_plain(w, p.text, p.len);
}

/* ---- Qwen3 ---- */

static bool is_tool_response(const struct gr_chat_message *m)
{
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    const size_t n_begin = sizeof(begin) - 1, n_end = sizeof(end) - 1;
    return m->len >= n_begin && memcmp(m->text, begin, n_begin) == 0 && m->len >= n_end &&
           memcmp(m->text + m->len - n_end, end, n_end) == 0;
}

/* The last question of a user. */
static size_t last_query(const struct gr_chat_writer *w)
{
    for (size_t i = w->n_message; i-- > 0;) {
        if (w->messages[i].role == GR_CHAT_USER && !is_tool_response(&w->messages[i])) {
            return i;
        }
    }
    return w->n_message - 1;
}

/* Thoughts of answers to earlier questions are left out. */
void gr_chat_qwen3_answer(struct gr_chat_writer *w, size_t i)
{
    struct gr_chat_piece text = {w->messages[i].text, w->messages[i].len}, thought = {NULL, 0};
    const char *end = find(text, END);
    if (end != NULL) {
        thought = (struct gr_chat_piece){text.text, (size_t)(end - text.text)};
        thought = gr_chat_strip_newlines(after_last(gr_chat_strip_newlines(thought, true), BEGIN), false);
        text = gr_chat_strip_newlines(after_last(text, END), false);
    }
    if (i > last_query(w) && (i + 1 == w->n_message || thought.len > 0)) {
        gr_chat_put(w, BEGIN "\n");
        put(w, thought);
        gr_chat_put(w, "\n" END "\n\n");
        text = gr_chat_strip_newlines(text, false);
    }
    put(w, text);
}

/* ---- SmolLM3 ---- */

#define THINK "/think"
#define NO_THINK "/no_think"

static struct gr_chat_piece system_of(const struct gr_chat_writer *w)
{
    const struct gr_chat_message *m = &w->messages[0];
    return m->role == GR_CHAT_SYSTEM ? (struct gr_chat_piece){m->text, m->len} : (struct gr_chat_piece){NULL, 0};
}

/* The system's message may say it. */
bool gr_chat_smollm3_silent(const struct gr_chat_writer *w)
{
    const struct gr_chat_piece system = system_of(w);
    return find(system, NO_THINK) != NULL || (find(system, THINK) == NULL && w->c->no_thinking);
}

/* Takes every place of what out of a text of its own; returns its new length. */
static size_t take_out(char *text, size_t len, const char *what)
{
    const size_t n = strlen(what);
    struct gr_chat_piece rest = {text, len};
    size_t kept = 0;
    for (const char *hit = find(rest, what); hit != NULL; hit = find(rest, what)) {
        const size_t before = (size_t)(hit - rest.text);
        memmove(text + kept, rest.text, before);
        kept += before;
        rest = (struct gr_chat_piece){hit + n, rest.len - before - n};
    }
    memmove(text + kept, rest.text, rest.len);
    return kept + rest.len;
}

static const char default_thinking[] =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face. Your role as an assistant involves "
    "thoroughly exploring questions through a systematic thinking process before providing the final precise and "
    "accurate solutions. This requires engaging in a comprehensive cycle of analysis, summarizing, exploration, "
    "reassessment, reflection, backtracking, and iteration to develop well-considered thinking process. Please "
    "structure your response into two main sections: Thought and Solution using the specified format: <think> Thought "
    "section </think> Solution section. In the Thought section, detail your reasoning process in steps. Each step "
    "should include detailed considerations such as analysing questions, summarizing relevant findings, brainstorming "
    "new ideas, verifying the accuracy of the current steps, refining any errors, and revisiting previous steps. In "
    "the Solution section, based on various attempts, explorations, and reflections from the Thought section, "
    "systematically present the final solution that you deem correct. The Solution section should be logical, "
    "accurate, and concise and detail necessary steps needed to reach the conclusion.";

/* The system's message without the words that switch thoughts; false: nothing is left. */
static bool put_instructions(struct gr_chat_writer *w)
{
    const struct gr_chat_piece system = system_of(w);
    char *text = malloc(system.len + 1);
    if (text == NULL) {
        w->failed = true;
        return true;
    }
    memcpy(text, system.len > 0 ? system.text : "", system.len);
    struct gr_chat_piece p = {text, take_out(text, system.len, NO_THINK)};
    p.len = take_out(text, p.len, THINK);
    p.len = gr_chat_strip_end(p).len;
    put(w, p);
    free(text);
    return p.len > 0;
}

void gr_chat_smollm3_head(struct gr_chat_writer *w)
{
    const bool silent = gr_chat_smollm3_silent(w);
    gr_chat_put(w, "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nReasoning Mode: ");
    gr_chat_put(w, silent ? NO_THINK : THINK);
    gr_chat_put(w, "\n\n## Custom Instructions\n\n");
    if (!put_instructions(w)) {
        gr_chat_put(w, silent ? "You are a helpful AI assistant named SmolLM, trained by Hugging Face."
                              : default_thinking);
    }
    gr_chat_put(w, "\n\n<|im_end|>\n");
}

void gr_chat_smollm3_answer(struct gr_chat_writer *w, size_t i)
{
    const struct gr_chat_piece text = {w->messages[i].text, w->messages[i].len};
    gr_chat_put(w, gr_chat_smollm3_silent(w) ? w->c->form->no_thinking : "");
    put(w, gr_chat_strip_newlines(text, false));
}
