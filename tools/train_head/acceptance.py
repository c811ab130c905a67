"""Stage evaluate: how many drafted tokens the target accepts, for chains and trees.

The target answers held-out prompts greedily. A round begins where the last one ended (the accepted tokens and one
more); the mean acceptance length is 1 + accepted / rounds, as graft counts it. A tree grows by levels: the likeliest
`width` children of each node that is expanded, the `width` best of a level (by the sum of log-probabilities along the
path) are expanded next, and the best `nodes` of all levels are proposed.
"""
import dataclasses

import torch
import torch.nn.functional as F

from target import Manner
from text import ANSWER

NONE = -1e30


@dataclasses.dataclass
class Shape:
    """levels: how deep; width: children of a node, and nodes of a level that are expanded; nodes: of the tree."""

    levels: int
    width: int
    nodes: int


SHAPES = {"chain of 6": Shape(6, 1, 6), "tree of 15": Shape(6, 6, 15), "tree of 31": Shape(8, 8, 31),
          "tree of 63": Shape(8, 10, 63)}


def pick(x, index):
    """x [P, F, ...] and index [P, G] -> [P, G, ...]."""
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand(*index.shape, *x.shape[2:]))


def attend(head, q, past, own, upto):
    """q [P, F, heads, hd] sees step 0's keys of its text [R, kv, hd] up to position upto [P], then those of its own
    path [P, F, n, kv, hd]. -> [P, F, heads * hd]."""
    p, f = q.shape[:2]
    g, r = q.view(p, f, head.kv, head.group, head.head_dim), past[0].shape[0]
    far = torch.einsum("pfkgd,rkd->pfkgr", g, past[0])
    hidden = torch.arange(r, device=q.device)[None] > upto[:, None]
    far = far.masked_fill(hidden[:, None, None, None], float("-inf"))
    w = (torch.cat([far, torch.einsum("pfkgd,pfnkd->pfkgn", g, own[0])], -1) / head.head_dim ** 0.5).softmax(-1)
    o = torch.einsum("pfkgr,rkd->pfkgd", w[..., :r], past[1]) + torch.einsum("pfkgn,pfnkd->pfkgd", w[..., r:], own[1])
    return o.reshape(p, f, -1)


class Draft:
    """Step 0 at all positions of one text."""

    def __init__(self, target, head, keep, ids):
        self.head, self.keep, self.ids, self.embedding = head, keep, ids, target.embedding
        captured = target.states(ids[None])[1]
        h, first, _ = head.step(F.embedding(ids[None, 1:], target.embedding), head.fc(captured[:, :-1]), None, [])
        self.hidden, self.logits = h[0], head.logits(h)[0]
        self.past = [x[0].transpose(0, 1) for x in first]  # k, v [R, kv, head_dim]


class Trees:
    """Trees that are drafted at positions t [P] of one text: the nodes of a level that are expanded, and where among
    them the text's own next tokens are."""

    def __init__(self, draft, t, shape):
        self.d, self.t, self.shape = draft, t, shape
        self.every = []  # scores of all nodes, a level each [P, n]
        self.right = []  # score of the node that is the text's own, or NONE: a level each [P]
        value, index = draft.logits[t].log_softmax(-1).topk(shape.width)
        self.scores, self.tokens = value, draft.keep[index]
        self.every.append(value)
        self.slot = self.find(self.note(value, self.tokens, 0))  # which expanded node is the text's own, -1: none
        self.hidden = draft.hidden[t][:, None].expand(-1, shape.width, -1)
        self.own = None  # keys and values along the path of each expanded node

    def wanted(self, level):
        return self.d.ids[(self.t + 2 + level).clamp(max=self.d.ids.numel() - 1)]

    @staticmethod
    def find(equal):
        """equal [P, n] -> where it is true, -1: nowhere."""
        return torch.where(equal.any(1), equal.float().argmax(1), -1)

    def note(self, scores, tokens, level):
        """scores, tokens [P, n]: nodes whose parents are right, or with score NONE. -> which are right themselves."""
        equal = tokens == self.wanted(level)[:, None]
        self.right.append(scores.masked_fill(~equal, NONE).amax(1))
        return equal

    def run(self, level):
        """The head's output for the expanded nodes; their keys and values join those of their paths."""
        head, d = self.d.head, self.d
        cos, sin = (x[self.t + level][:, None, None] for x in (head.cos, head.sin))
        q, k, v = head.qkv(F.embedding(self.tokens, d.embedding), self.hidden, cos, sin)
        new = [x[:, :, None] for x in (k, v)]
        self.own = new if self.own is None else [torch.cat(x, 2) for x in zip(self.own, new)]
        return head.rest(self.hidden, attend(head, q, d.past, self.own, self.t))

    def expand(self, level):
        """One level more."""
        out = self.run(level)
        value, index = self.d.head.logits(out).log_softmax(-1).topk(self.shape.width)
        child, token = self.scores[..., None] + value, self.d.keep[index]
        self.every.append(child.flatten(1))
        self.select(out, child, token, self.follow(child, token, level))

    def follow(self, child, token, level):
        """Which child [P], counted over a level's children, is the text's own; -1: none."""
        at = self.slot.clamp(min=0)[:, None]
        mine = torch.where((self.slot >= 0)[:, None], pick(child, at)[:, 0], NONE)
        here = self.find(self.note(mine, pick(token, at)[:, 0], level) & (self.slot >= 0)[:, None])
        return torch.where(here >= 0, self.slot * self.shape.width + here, -1)

    def select(self, out, child, token, right):
        """The best of a level go on. right: as follow() says."""
        self.scores, best = child.flatten(1).topk(self.shape.width)
        self.slot = self.find(best == right[:, None])
        self.tokens, parent = token.flatten(1).gather(1, best), best // self.shape.width
        self.hidden = pick(out, parent)
        self.own = [pick(x, parent) for x in self.own]

    def accepted(self):
        """How many tokens of each tree the target takes: the text's own nodes, as far as they are among the best."""
        for level in range(1, self.shape.levels):
            self.expand(level)
        every = torch.cat(self.every, 1)
        least = every.topk(min(self.shape.nodes, every.shape[1])).values[:, -1]
        return (torch.stack(self.right, 1) >= least[:, None]).long().cumprod(1).sum(1)


def count_rounds(accepted, n):
    """accepted[j]: of a round whose first token to guess is the j-th of n. -> rounds, accepted tokens."""
    at = rounds = total = 0
    while at < n:
        taken = min(accepted[at], n - at)
        rounds, total, at = rounds + 1, total + taken, at + taken + 1
    return rounds, total


def rounds_of(draft, prompt_len, shape, chunk=32):
    """-> rounds and accepted tokens of one text. The first token of an answer comes with the prompt, and position t
    guesses token t + 2."""
    places = torch.arange(prompt_len - 1, draft.ids.numel() - 2, device=draft.ids.device)
    shape = Shape(shape.levels, min(shape.width, draft.keep.numel()), shape.nodes)
    taken = [x for part in places.split(chunk) for x in Trees(draft, part, shape).accepted().tolist()]
    return count_rounds(taken, len(taken))


@torch.no_grad()
def acceptance(target, head, keep, texts):
    """texts: [(prompt ids, greedy ids)] -> {name of a shape: mean acceptance length}."""
    counts = {name: [0, 0] for name in SHAPES}
    for prompt, answer in texts:
        draft = Draft(target, head, keep, torch.tensor(prompt + answer, device=target.device))
        for name, shape in SHAPES.items():
            counts[name] = [x + y for x, y in zip(counts[name], rounds_of(draft, len(prompt), shape))]
    return {name: round(1 + total / max(1, rounds), 3) for name, (rounds, total) in counts.items()}


def prompts(rows, most, n):
    """The beginnings of n held-out rows: up to the first answer, or an eighth of a row where all is one text."""
    tokens, kinds, n_held = rows
    out = []
    for ids, kind in zip(tokens[-n_held:][:n], kinds[-n_held:][:n]):
        first = int((kind == ANSWER).argmax())
        out.append(ids[:first if first > 1 else most // 8].tolist())
    return out


def greedy_texts(target, rows, a):
    """The target's own greedy answers to held-out prompts, the end token not among them."""
    texts = []
    for prompt in prompts(rows, a.length, a.texts):
        new = target.write([prompt], a.new_tokens, Manner())[0]
        new = new[:-1] if new[-1] in target.stops() else new
        if len(new) > 8:
            texts.append((prompt, new))
    return texts
