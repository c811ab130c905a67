"""Random and nasty texts for tokenizers, the same ones for a seed: code, prose of many scripts, blanks of all kinds, line
ends, emoji with joiners, long runs, combining marks, control tokens and pieces of them. Characters are of Unicode 14, which
every library in use here knows."""
import random
import unicodedata

SCRIPTS = [(0x41, 0x5b), (0x61, 0x7b), (0xc0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x531, 0x588), (0x5d0, 0x5eb),
           (0x620, 0x6ff), (0x900, 0x980), (0xe01, 0xe5c), (0x10a0, 0x1100), (0x1100, 0x1200), (0x1e00, 0x2000),
           (0x3041, 0x3100), (0x4e00, 0x9fa6), (0xac00, 0xd7a4), (0x10400, 0x10450), (0x20000, 0x20100)]
SIGNS = [(0x21, 0x30), (0x3a, 0x41), (0x5b, 0x61), (0x7b, 0x7f), (0xa1, 0xc0), (0x2010, 0x2060), (0x2070, 0x20a0),
         (0x20a0, 0x20c0), (0x2100, 0x2190), (0x2190, 0x2400), (0x2460, 0x2500), (0x2500, 0x2600), (0x3000, 0x3040),
         (0xff00, 0xffe0), (0x1d400, 0x1d500)]
DIGITS = [(0x30, 0x3a), (0x660, 0x66a), (0x966, 0x970), (0xbc, 0xbf), (0x2160, 0x2170), (0xff10, 0xff1a)]
MARKS = [(0x300, 0x370), (0x591, 0x5be), (0x64b, 0x660), (0x93e, 0x94e), (0xe31, 0xe32), (0x1ab0, 0x1abf), (0x20d0, 0x20f0)]
BLANKS = [" ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u00a0", "\u1680", "\u180e",
          "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff"]
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea",
         "\U0001f3f3\ufe0f\u200d\U0001f308", "1\ufe0f\u20e3", "\u200d", "\ufe0f"]
WORDS = ["the", "The", "def", "return", "import os", "self.", "don't", "I'LL", "we've", "'s", "'S", "n't", "'\u017f", "naïve", "x_1",
         "http://a.b/c?d=e&f", "3.14", "1,000,000", "0x1F", "1e-5", "C++", "#include <stdio.h>", "</div>", "{\"a\": [1, 2]}", "==",
         "!=", "...", "--", "***", "こんにちは", "北京", "Привет", "नमस्ते", "สวัสดี", "안녕", "שלום", "مرحبا", "e\u0301", "\u212b",
         "\ufb01", "\u0958", "\u1100\u1161\u11a8", "a\u0323\u0302", "\u2581", "\u2581a", "Ġ", "<0x0A>", "<|", "|>", "<s", "[INST]"]


class Texts:
    """tokens: the vocabulary's own words, as text; special: its added tokens."""

    def __init__(self, seed, tokens=(), special=()):
        self.r = random.Random(seed)
        self.tokens, self.special = list(tokens), list(special) or [""]
        self.pools = [self.word, self.letters, self.sign, self.blank, self.digits, self.emoji, self.marked, self.run, self.token,
                      self.control, self.any_character]

    def of(self, ranges):
        return chr(self.r.randrange(*self.r.choice(ranges)))

    def word(self):
        return self.r.choice(WORDS)

    def letters(self):
        ranges = [self.r.choice(SCRIPTS)]
        return "".join(self.of(ranges) for _ in range(self.r.randrange(1, 9)))

    def sign(self):
        return self.of(SIGNS)

    def blank(self):
        return self.r.choice(BLANKS)

    def digits(self):
        ranges = [self.r.choice(DIGITS)]
        return "".join(self.of(ranges) for _ in range(self.r.randrange(1, 8)))

    def emoji(self):
        return self.r.choice(EMOJI)

    def marked(self):
        return self.of(SCRIPTS) + "".join(self.of(MARKS) for _ in range(self.r.randrange(1, 4)))

    def run(self):
        return self.r.choice([" ", "\n", "a", "=", "-", "\t", "1", "é", "\u6f22", "\u2581", "\r\n"]) * self.r.randrange(2, 60)

    def token(self):
        return self.r.choice(self.tokens) if self.tokens else self.word()

    def control(self):
        text = self.r.choice(self.special)
        return text if self.r.random() < 0.7 else text[:self.r.randrange(len(text) + 1)]

    def any_character(self):
        return self.of([(0, 0x20), (0x7f, 0xa0), (0x80, 0xd800), (0xe000, 0x10000), (0x10000, 0x11000), (0x1f300, 0x1f6fb)])

    def text(self):
        weights = [self.r.random() ** 3 for _ in self.pools]
        n = self.r.randrange(1, 25)
        whole = "".join(pool() for pool in self.r.choices(self.pools, weights, k=n))
        return "".join(c for c in whole if unicodedata.category(c) not in ("Cn", "Cs"))
