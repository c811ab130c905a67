"""Stage text: rows of token ids to train on, written by the target itself or taken from a JSONL file.

A row has a fixed length and is padded at its end. Beside each token stands what it is: PAD, GIVEN (a prompt's) or
ANSWER. A target with a chat template plays both sides of dialogues: it writes the user's message after the template's
words, then answers; part of the messages get first words (starters.json), for variety. A target without one writes
freely from its first token. In JSONL, a line is {"text": "..."}, {"messages": [{"role": ..., "content": ...}, ...]} or
{"conversations": [{"from": "human" | "gpt", "value": ...}, ...]}; the answers are written anew by the target, or kept.
"""
import json
import os
import random
import time

import numpy as np

from settings import Wrong
from target import Manner

PAD, GIVEN, ANSWER = 0, 1, 2
ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "system": "system"}
MARK = "<<MESSAGE>>"
USER_TOKENS, USER_MIN_P, TURNS = 160, 0.03, 2
DISTINCT_MIN, TOKENS_MIN = 0.4, 24


class Dialogues:
    """Conversations as text and ids, by the tokenizer's chat template."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def render(self, messages, ask):
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)

    def encode(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def before_user(self, messages):
        """The template's words up to where the next message of a user begins."""
        return self.render(messages + [{"role": "user", "content": MARK}], False).split(MARK)[0]

    def row(self, messages):
        """-> (ids, kinds): answers are what the template puts between asking for one and going on."""
        ids, kinds, done = [], [], ""
        for i, m in enumerate(messages):
            if m["role"] == "assistant":
                asked, answered = self.render(messages[:i], True), self.render(messages[:i + 1], False)
                if not (asked.startswith(done) and answered.startswith(asked)):
                    return [], []  # a template that rewrites earlier turns
                for text, kind in ((asked[len(done):], GIVEN), (answered[len(asked):], ANSWER)):
                    part = self.encode(text)
                    ids += part
                    kinds += [kind] * len(part)
                done = answered
        return ids, kinds


def is_varied(ids):
    """Whether enough of its 4-grams are distinct: not so where a text goes round in circles."""
    grams = list(zip(ids, ids[1:], ids[2:], ids[3:]))
    return not grams or len(set(grams)) / len(grams) >= DISTINCT_MIN


class Writer:
    """What the target writes by itself, some rows side by side."""

    def __init__(self, a, target, tokenizer):
        self.a, self.target, self.tokenizer = a, target, tokenizer
        self.random, self.dialogues, self.turn = random.Random(a.seed), Dialogues(tokenizer), 0
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "starters.json"), encoding="utf-8") as f:
            self.starters = json.load(f)

    def manner(self):
        """Of an answer: the temperatures in turn."""
        self.turn += 1
        return Manner(self.a.temperatures[self.turn % len(self.a.temperatures)])

    def free_rows(self, n):
        """Without a chat template: a first token, and what follows it."""
        bos = self.tokenizer.bos_token_id
        begin = [[] if bos is None else [bos]] * n
        begin = [b + [self.random.randrange(self.target.config.vocab_size)] if not b else b for b in begin]
        new = self.target.write(begin, self.a.length // 8, Manner(1.0, USER_MIN_P, ends=False))
        begin = [b + x for b, x in zip(begin, new)]
        new = self.target.write(begin, self.a.length - len(begin[0]), self.manner())
        return [(b + x, [GIVEN] * len(b) + [ANSWER] * len(x)) for b, x in zip(begin, new)]

    def ask(self, chats):
        """Adds a user's message to each."""
        words = [self.random.choice(self.starters) if self.random.random() < 0.4 else "" for _ in chats]
        prompts = [self.dialogues.encode(self.dialogues.before_user(c) + w) for c, w in zip(chats, words)]
        new = self.target.write(prompts, self.user_room(), Manner(1.0, USER_MIN_P))
        for chat, word, ids in zip(chats, words, new):
            text = word + self.tokenizer.decode(ids, skip_special_tokens=True)
            chat.append({"role": "user", "content": text.strip() or "Hello"})

    def user_room(self):
        """Tokens of a user's message, at most; the answers get what is left of a row."""
        return min(USER_TOKENS, self.a.length // (2 * TURNS))

    def answer(self, chats):
        prompts = [self.dialogues.encode(self.dialogues.render(c, True)) for c in chats]
        room = max(16, self.a.length // TURNS - self.user_room())
        new = self.target.write(prompts, room, self.manner())
        for chat, ids in zip(chats, new):
            chat.append({"role": "assistant", "content": self.tokenizer.decode(ids, skip_special_tokens=True).strip()})

    def dialogue_rows(self, n):
        chats = [[] for _ in range(n)]
        for _ in range(TURNS):
            self.ask(chats)
            self.answer(chats)
        return [self.dialogues.row(c) for c in chats]

    def rows(self, n):
        return self.dialogue_rows(n) if self.tokenizer.chat_template else self.free_rows(n)

    def answers_anew(self, chats):
        """The same conversations with the target's answers; later ones see these."""
        fresh = [[] for _ in chats]
        for i in range(max(map(len, chats))):
            here = [k for k, c in enumerate(chats) if i < len(c)]
            asked = [k for k in here if chats[k][i]["role"] == "assistant" and fresh[k]]
            if asked:
                self.answer([fresh[k] for k in asked])
            for k in here:
                if chats[k][i]["role"] != "assistant":
                    fresh[k].append(chats[k][i])
        return [self.dialogues.row(c) for c in fresh]


def read_lines(path):
    """-> texts, chats."""
    texts, chats = [], []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                add_line(json.loads(line), texts, chats)
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                raise Wrong(f"{path}:{number}: not a text or a conversation ({type(e).__name__}: {e})") from None
    return texts, chats


def add_line(value, texts, chats):
    if "text" in value:
        texts.append(value["text"] + "")
    elif "messages" in value:
        chats.append([{"role": ROLES[m["role"]], "content": m["content"] + ""} for m in value["messages"]])
    else:
        chats.append([{"role": ROLES[m["from"]], "content": m["value"] + ""} for m in value["conversations"]])


def text_rows(tokenizer, text, length):
    """A text in pieces of a row each. All of it is to be guessed."""
    ids = tokenizer(text)["input_ids"]
    return [(ids[i:i + length], [ANSWER] * len(ids[i:i + length])) for i in range(0, len(ids), length)]


def file_rows(a, writer, n):
    """Rows of --text, at most --tokens of them; n conversations are answered side by side."""
    texts, chats = read_lines(a.text)
    if chats and not writer.tokenizer.chat_template:
        raise Wrong(f"{a.text}: has conversations, but {a.model} has no chat_template; give texts")
    for text in texts:
        yield from text_rows(writer.tokenizer, text, a.length)
    for i in range(0, len(chats), n):
        part = chats[i:i + n]
        yield from map(writer.dialogues.row, part) if a.answers == "given" else writer.answers_anew(part)


def own_rows(writer, n):
    while True:
        yield from writer.rows(n)


def as_arrays(rows, length, pad):
    tokens = np.full((len(rows), length), pad, np.int32)
    kinds = np.full((len(rows), length), PAD, np.uint8)
    for i, (ids, kind) in enumerate(rows):
        tokens[i, :len(ids)], kinds[i, :len(ids)] = ids, kind
    return tokens, kinds


def collect(source, a, say):
    """Rows of use, until there are --tokens; the same beginning is taken once."""
    rows, seen, n_token, n_dropped, told = [], set(), 0, 0, time.time()
    for ids, kinds in source:
        ids, kinds = ids[:a.length], kinds[:a.length]
        if len(ids) < TOKENS_MIN or ANSWER not in kinds or not is_varied(ids) or tuple(ids[:64]) in seen:
            n_dropped += 1
            if n_dropped > 1000 + 20 * len(rows):
                break
            continue
        seen.add(tuple(ids[:64]))
        rows.append((ids, kinds))
        n_token += len(ids)
        if time.time() - told > 15:
            say(f"{len(rows)} rows, {n_token} tokens")
            told = time.time()
        if n_token >= a.tokens:
            break
    say(f"{len(rows)} rows with {n_token} tokens; {n_dropped} dropped (short, without an answer, repetitive or twice)")
    return rows


def make(a, target, tokenizer, say):
    """-> tokens [n, length], kinds [n, length], n_held: so many rows at the end are held out."""
    writer = Writer(a, target, tokenizer)
    n = a.rows or (256 if target.gpu else 32)
    rows = collect(file_rows(a, writer, n) if a.text else own_rows(writer, n), a, say)
    n_held = max(1, round(a.held_out * len(rows)))
    if len(rows) < 2 * n_held + 2:
        raise Wrong(f"only {len(rows)} rows of text; more are needed: raise --tokens, or give more in --text")
    writer.random.shuffle(rows)
    return (*as_arrays(rows, a.length, target.pad), n_held)
