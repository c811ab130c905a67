"""Stage train: the head is fed with its own output, as in use.

Each batch runs --fed-steps draft steps at every position: step 0 reads captured states of the target, step k the
head's output of step k-1 beside the next true token. The loss is the cross-entropy to the target's probabilities over the
draft vocabulary, weighted by --step-decay^k, fully where an answer is guessed and by --given-weight elsewhere. The target
runs along, so that the text is all that is stored.
"""
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

from head import Head
from head_files import head_config
from settings import depends
from text import ANSWER, PAD

SIZES = (1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
WARM_UP, RATE_LEAST = 0.03, 0.01
MEASURED_STEPS, MEASURED_ROWS = 6, 96


def choose_vocabulary(a, rows, n_vocab, say):
    """The most frequent tokens of the answers, rising: so many that they cover enough of the held-out answers."""
    tokens, kinds, n_held = rows
    held, train = (t[k == ANSWER] for t, k in ((tokens[-n_held:], kinds[-n_held:]), (tokens[:-n_held], kinds[:-n_held])))
    order = np.argsort(-np.bincount(train, minlength=n_vocab), kind="stable")
    sizes = [n for n in SIZES if n < n_vocab] + [n_vocab]
    cover = {n: float(np.isin(held, order[:n]).mean()) for n in sizes}
    n = a.draft_vocabulary or next((n for n in sizes if cover[n] >= a.coverage), n_vocab)
    share = float(np.isin(held, order[:n]).mean())
    say(f"draft vocabulary: {n} of {n_vocab} tokens cover {share:.4f} of the held-out answers")
    return torch.from_numpy(np.sort(order[:n]))


class Rows:
    """Rows on the device, in a new random order each epoch."""

    def __init__(self, tokens, kinds, device, seed):
        self.tokens, self.kinds = (torch.from_numpy(x).to(device) for x in (tokens, kinds))
        self.random, self.order, self.epochs = np.random.default_rng(seed), np.zeros(0, np.int64), 0

    def batch(self, n):
        while self.order.size < n:
            self.order = np.append(self.order, self.random.permutation(self.tokens.shape[0]))
            self.epochs += 1
        i, self.order = torch.from_numpy(self.order[:n]).to(self.tokens.device), self.order[n:]
        return self.tokens[i].long(), self.kinds[i]


class Trainer:
    """The head, what it learns from, and where training stands."""

    def __init__(self, a, target, keep, target_config):
        self.a, self.target, self.keep = a, target, keep.to(target.device)
        self.config = head_config(target_config, keep.numel(), a.layers)
        torch.manual_seed(a.seed)
        self.head = Head(self.config, len(a.layers), a.length + a.fed_steps).to(target.device)
        self.head.reset(target, self.keep)
        self.known = torch.zeros(self.config["vocab_size"], dtype=torch.bool, device=target.device)
        self.known[self.keep] = True
        self.optimizer = self.make_optimizer()
        self.loss = torch.compile(self.plain_loss, dynamic=False) if a.compile else self.plain_loss
        self.step = 0
        self.spent = 0.0  # seconds of training, those before a resumption included

    def make_optimizer(self):
        groups = [{"params": [p for p in self.head.parameters() if p.dim() == 2], "weight_decay": 0.05},
                  {"params": [p for p in self.head.parameters() if p.dim() < 2], "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.a.rate, betas=(0.9, 0.95))

    def autocast(self):
        return torch.autocast("cuda", torch.bfloat16, enabled=self.target.gpu)

    def labels(self, ids, kinds):
        """-> captures, wanted probabilities, weights; index t speaks of token t+1."""
        last, captured = self.target.states(ids)
        weight = torch.zeros(ids.shape, device=ids.device)
        following = kinds[:, 1:]
        weight[:, :-1] = (following != PAD) * self.a.given_weight + (following == ANSWER) * (1 - self.a.given_weight)
        weight = weight * self.known[self.target.likeliest(last)]
        return captured, self.target.probabilities(last, self.keep), weight

    def draft(self, ids, captured, steps):
        """The head's output at positions 0 to n-1 for each step, the true tokens given."""
        n = ids.shape[1] - steps - 1
        h, first, chain = self.head.fc(captured[:, :n]).float(), None, []
        for k in range(steps):
            at = slice(1 + k, 1 + k + n)
            h, first, chain = self.head.step(F.embedding(ids[:, at], self.target.embedding), h, first, chain)
            yield self.head.logits(h).float(), at

    def plain_loss(self, ids, captured, p, weight):
        total = norm = 0.0
        for k, (logits, at) in enumerate(self.draft(ids, captured, self.a.fed_steps)):
            w, share = weight[:, at], self.a.step_decay ** k
            entropy = logits.logsumexp(-1) - (p[:, at] * logits).sum(-1)
            total, norm = total + share * (entropy * w).sum() / w.sum().clamp(min=1e-6), norm + share
        return total / norm

    def learn(self, ids, kinds, rate):
        for g in self.optimizer.param_groups:
            g["lr"] = rate
        captured, p, weight = self.labels(ids, kinds)
        with self.autocast():
            loss = self.loss(ids, captured, p, weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    @torch.no_grad()
    def measure(self, tokens, kinds, batch=8):
        """Share of answer positions where step k names the target's likeliest token, for each k."""
        hit, seen = torch.zeros(MEASURED_STEPS), 0
        for i in range(0, len(tokens), batch):
            ids, kind = (torch.from_numpy(x[i:i + batch]).to(self.target.device) for x in (tokens, kinds))
            ids = ids.long()
            last, captured = self.target.states(ids)
            top, mask = self.target.likeliest(last), F.pad(kind[:, 1:] == ANSWER, (0, 1))
            with self.autocast():
                for k, (logits, at) in enumerate(self.draft(ids, captured, MEASURED_STEPS)):
                    right = self.keep[logits.argmax(-1)] == top[:, at]
                    hit[k] += (right & mask[:, at]).sum().cpu()
            seen += mask[:, 1:-MEASURED_STEPS].sum().item()
        return [round(x, 4) for x in (hit / max(1, seen)).tolist()]

    def done(self):
        """0 to 1: how far training is."""
        return self.step / self.a.steps if self.a.steps else self.spent / (60 * self.a.minutes)

    def rate(self):
        done = self.done()
        if done < WARM_UP:
            return self.a.rate * max(done / WARM_UP, 1e-3)
        wave = 0.5 * (1 + math.cos(math.pi * min(1.0, (done - WARM_UP) / (1 - WARM_UP))))
        return self.a.rate * (RATE_LEAST + (1 - RATE_LEAST) * wave)

    def save(self, path):
        state = {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict(), "keep": self.keep.cpu(),
                 "step": self.step, "spent": self.spent, "made_with": depends(self.a, "train"), "config": self.config}
        torch.save(state, path + ".part")
        os.replace(path + ".part", path)

    def load(self, state):
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.spent = state["step"], state["spent"]

    def train(self, rows, path, say):
        """Until it is done; the state is saved now and then, and at the end."""
        tokens, kinds, n_held = rows
        feed = Rows(tokens[:-n_held], kinds[:-n_held], self.target.device, self.a.seed + self.step)
        held = tokens[-n_held:][:MEASURED_ROWS], kinds[-n_held:][:MEASURED_ROWS]
        n = max(1, (self.a.batch_tokens or (16384 if self.target.gpu else 2048)) // self.a.length)
        losses, saved = [], time.time()
        while self.done() < 1:
            began = time.time()
            losses.append(self.learn(*feed.batch(n), self.rate()))
            self.step, self.spent = self.step + 1, self.spent + time.time() - began
            if time.time() - saved > self.a.save_every:
                self.save(path)
                say(f"step {self.step}, {self.done():.3f} done, loss {np.mean(losses):.4f}, epochs {feed.epochs}, "
                    f"held-out accuracy by draft step {self.measure(*held)}")
                losses, saved = [], time.time()
        self.save(path)
        say(f"trained: {self.step} steps of {n} rows in {self.spent:.0f} s, loss {np.mean(losses or [0]):.4f}; "
            f"held-out accuracy by draft step {self.measure(*held)}")
