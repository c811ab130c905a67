/* Shared by the files of chat templates; nobody else includes it. Reading order: this, templates.c (the rows),
 * render.c, reasoning.c (what two of them do with thoughts), fingerprints.c. */
#ifndef GR_MODEL_CHAT_CHAT_INTERNAL_H
#define GR_MODEL_CHAT_CHAT_INTERNAL_H

#include "model/chat/chat.h"

/* In a row's texts these stand for what is known only when a conversation is rendered. */
#define BOS "\x01"
#define EOS "\x02"
#define DATE "\x03"

/* Where the system's message goes. */
enum gr_chat_system_place {
    GR_CHAT_OWN_TURN,   /* wherever it stands */
    GR_CHAT_FIRST_USER, /* in front of the first user's message; it may only come first */
    GR_CHAT_LAST_USER,  /* in front of the last one, where the conversation ends with it; likewise */
    GR_CHAT_NOWHERE     /* it is refused */
};

/* Which white space at both ends of a message goes (Python's strip()). */
enum gr_chat_strip {
    GR_CHAT_KEEP,
    GR_CHAT_STRIP,
    GR_CHAT_STRIP_ANSWERS, /* of the assistant's messages alone */
    GR_CHAT_STRIP_JOINED   /* where a system message was put in front, of both as one text */
};

struct gr_chat_writer {
    const struct gr_chat *c;
    const struct gr_chat_message *messages;
    size_t n_message;
    struct gr_chat_text *out;
    bool failed; /* no memory */
};

typedef void gr_chat_head_fn(struct gr_chat_writer *w);
typedef void gr_chat_answer_fn(struct gr_chat_writer *w, size_t i);
typedef bool gr_chat_silent_fn(const struct gr_chat_writer *w);

struct gr_chat_template {
    const char *name;
    const char *bos, *eos, *date; /* where nothing else is known */
    const char *begin;            /* before all turns */
    struct {
        const char *before, *after;
    } turn[GR_CHAT_N_ROLE];  /* GR_CHAT_FIRST_USER, LAST_USER: the system's stands within the user's */
    const char *answer;      /* where the assistant's next turn begins */
    const char *no_thinking; /* follows where it is told not to think; NULL: it cannot be told */
    const char *system;      /* the system's message where there is none; NULL: no turn then */
    const char *lead;        /* before the text of the first system message */
    const char *end[GR_CHAT_N_END_MAX];
    enum gr_chat_system_place place;
    enum gr_chat_strip strip;
    bool alternates;               /* user, assistant, user, ... */
    bool one_system;               /* system messages after the first are left out */
    gr_chat_head_fn *head;         /* writes the system's turn; NULL: as the row says */
    gr_chat_answer_fn *old_answer; /* writes the text of message i, an assistant's; NULL: as it is */
    gr_chat_silent_fn *silent;     /* is the assistant not to think? NULL: as it is told */
};

/* ---- render.c ---- */

struct gr_chat_piece {
    const char *text;
    size_t len;
};
struct gr_chat_piece gr_chat_strip_end(struct gr_chat_piece p);                   /* Python's rstrip() */
struct gr_chat_piece gr_chat_strip_piece(struct gr_chat_piece p);                 /* strip() */
struct gr_chat_piece gr_chat_strip_newlines(struct gr_chat_piece p, bool at_end); /* lstrip('\n'), or rstrip('\n') */

void gr_chat_put(struct gr_chat_writer *w, const char *text); /* the template's */
void gr_chat_put_plain(struct gr_chat_writer *w, const char *text, size_t len);

/* ---- reasoning.c ---- */

gr_chat_answer_fn gr_chat_qwen3_answer, gr_chat_smollm3_answer;
gr_chat_head_fn gr_chat_smollm3_head;
gr_chat_silent_fn gr_chat_smollm3_silent;

#endif
