#!/usr/bin/env python3
"""The prefix cache from outside: who shares with whom, what is told, what is gained, and the same text either way.

usage: test_prefix_cache.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import tempfile
import threading
import time

from forwarder import Forwarder
from harness import DRAFT, HEAD, ROOT, SLOW, TARGET, case, generate, main, wait_for
from endpoint import Endpoint, Journalled
from served import FIXED, free_port, worker

LONG = os.environ.get("GRAFT_TEST_LONG", "") != ""
OFF = ("--prefix-cache", "off")
ON = ("--prefix-cache", "on")
KEYS = ("alices-key-0123456789", "bobs-key-0123456789")


def source(n):
    """Text of the kind that the demo models know, of n characters."""
    with open(os.path.join(ROOT, "tests/system/harness.py"), encoding="utf-8") as f:
        text = f.read()
    return (text * (n // len(text) + 1))[:n]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def text_of(answer):
    return answer["choices"][0]["text"]


@contextlib.contextmanager
def two_keys(*args, kind=Endpoint, **kw):
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = os.path.join(folder, "api.keys")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
            f.write("\n".join(KEYS) + "\n")
        yield stack.enter_context(kind("--api-key-file", path, *args, key=KEYS[0], **kw))


@case
def keys_share_with_themselves_only():
    prompt = source(3000)
    with two_keys(*ON, draft=False) as s:
        def ask(key, **body):
            return s.post("/v1/completions", dict({"prompt": prompt, "temperature": 0, "max_tokens": 4}, **body),
                          headers={"Authorization": f"Bearer {KEYS[key]}"})

        first = ask(0)
        n = (first["usage"]["prompt_tokens"] - 1) // 16 * 16
        assert n > 200 and cached(first) == 0, first["usage"]
        assert cached(ask(1)) == 0  # another key
        assert cached(ask(0)) == n and cached(ask(1)) == n  # its twins: the cache is on
        assert cached(ask(0, cache_salt="a")) == 0  # divides what the key has
        assert cached(ask(0, cache_salt="a")) == n and cached(ask(0, cache_salt="b")) == 0
        assert cached(ask(1, cache_salt="a")) == 0  # and leads to nobody else's
        for want in (0, n):  # the control link has a salt of its own
            metrics = s.generate("--max-tokens", "4", prompt=prompt)["metrics"]
            assert metrics["cached_tokens"] == want, metrics
        m = s.metrics()
        assert m["graft_prompt_tokens_cached_total"] == 4 * n, m  # one of them of the control link
        wait_for(lambda: s.metrics()["graft_prefix_cache_hits_total"] == 4 * n)  # with an answer to a ping
        m = s.metrics()
        assert m["graft_prefix_cache_queries_total"] >= 10 * n and m["graft_prefix_cache_evictions_total"] == 0, m


@case
def a_conversation_is_found_again():
    """Also with trees, by which nothing of it is lost, and the counter says what answers do."""
    with Endpoint(*ON, draft=False) as s, Endpoint(*ON) as trees, Endpoint(*OFF, draft=False) as plain:
        n_cached = n_accepted = 0
        for temperature in (0, 1):
            text, before = source(700), 0
            for turn in range(5):
                body = {"prompt": text, "max_tokens": 40, "temperature": temperature, "seed": 5, "ignore_eos": True}
                got, want = s.post("/v1/completions", body), plain.post("/v1/completions", body)
                assert text_of(got) == text_of(want) and cached(want) == 0, (turn, got, want)
                n = got["usage"]["prompt_tokens"]
                assert cached(got) % 16 == 0 and cached(got) <= n - 1, got["usage"]
                # Where its text is one way only to be spelled, all but the last blocks are there.
                assert turn == 0 or cached(got) >= before // 16 * 16, (turn, before, got["usage"])
                drafted = trees.post("/v1/completions", dict(body, num_speculative_tokens=4))
                assert text_of(drafted) == text_of(want) and abs(cached(drafted) - cached(got)) <= 16, (turn, drafted, got)
                n_cached += cached(drafted)
                n_accepted += drafted["metrics"]["speculative_decoding"]["num_accepted_tokens"]
                before = n
                text += text_of(got) + "\n# and then\n"
        assert n_accepted > 0
        wait_for(lambda: trees.metrics()["graft_prompt_tokens_cached_total"] == n_cached)
        stops_are_found_again(trees, plain)


def stops_are_found_again(s, plain):
    """Turns that a stop string ends in the midst of a tree's path: the next one finds every whole block of what was returned,
    though the target may have computed more."""
    ids = s.post("/tokenize", {"prompt": "# another\n" + source(600)})["tokens"]
    for turn in range(4):
        whole = plain.turn(ids, "--method", "none", "--max-tokens", "40")
        at = len(whole["text"]) // 2 + turn
        got = s.turn(ids, *FIXED, "--max-tokens", "40", "--stop", whole["text"][at:at + 3])
        n = len(got["token_ids"])
        assert got["finish_reason"] == "stop" and 0 < n < 40 and got["token_ids"] == whole["token_ids"][:n], (got, whole)
        ids += got["token_ids"]
        other = next(x for x in ids if x != whole["token_ids"][n])
        found = s.turn(ids + [other, *ids[:20]], "--max-tokens", "1")["metrics"]["cached_tokens"]
        assert (len(ids) - 1) // 16 * 16 <= found <= len(ids), (turn, len(ids), found)
        ids += [other, *ids[:20]]
    nothing_after_a_stop_is_found(s, plain, ids)


def nothing_after_a_stop_is_found(s, plain, ids):
    """A target that has a thousand tokens to go is told of the stop long after the first of them, also where its session
    ends with the turn."""
    for keep in ((), ("--keep",)):
        ids = ids + ids[:7]  # another text: what is looked for is published
        whole = plain.turn(ids, "--method", "none", "--max-tokens", "1200")
        got = s.turn(ids, *FIXED, *keep, "--max-tokens", "1200", "--stop", whole["text"][60:70])
        n = len(got["token_ids"])
        assert got["finish_reason"] == "stop" and 0 < n < 100 and got["token_ids"] == whole["token_ids"][:n], (got, whole)
        found = s.turn(ids + whole["token_ids"], "--max-tokens", "1")["metrics"]["cached_tokens"]
        assert (len(ids) + n - 1) // 16 * 16 <= found <= len(ids) + n, (keep, len(ids), n, found)


@case
def answers_of_one_request_count_once():
    with Endpoint(*ON, draft=False) as s:
        body = {"prompt": source(1500), "n": 3, "temperature": 1, "seed": 3}
        first, again = s.complete(**body), s.complete(**body)
        n = (first["usage"]["prompt_tokens"] - 1) // 16 * 16
        assert cached(first) == 0 and cached(again) == n, (first["usage"], again["usage"])
        assert [c["text"] for c in first["choices"]] == [c["text"] for c in again["choices"]]
        events = s.stream("/v1/completions", **dict(body, max_tokens=16), stream_options={"include_usage": True})
        assert cached(events[-1]) == n, events[-1]


@case
def with_trees_specpv_heads_and_ranks():
    trees = {"num_speculative_tokens": 6}
    ways = ((("--draft", HEAD), trees), (("--draft", HEAD, "--specpv", "on"), dict(trees, specpv="exact")),
            (("--tensor-parallel-size", "2"), {}))
    rng = random.Random(int(os.environ.get("GRAFT_TEST_SEED", "1")))
    prompts = [source(rng.randrange(400, 2600)) for _ in range(2)]
    prompts += [p + "\nclass Other:\n" for p in prompts]
    with Endpoint(*OFF, draft=False) as plain:
        want = {(p, t): text_of(plain.complete(prompt=p, temperature=t, seed=2)) for p in prompts for t in (0, 1)}
    for way, body in ways:
        with Endpoint(*ON, *way, draft=False) as s:
            s.wait(*(way[:2] if HEAD in way else ()))

            def ask_both(p, s=s, way=way, **body):
                """At both temperatures: what was in the cache, whether that is all there can be, and what was accepted."""
                got = [s.complete(prompt=p, temperature=t, seed=2, **body) for t in (0, 1)]
                assert [text_of(x) for x in got] == [want[p, t] for t in (0, 1)], (way, got, want[p, 0], want[p, 1])
                return (sum(map(cached, got)), all(cached(x) == (x["usage"]["prompt_tokens"] - 1) // 16 * 16 > 0 for x in got),
                        sum(x["metrics"]["speculative_decoding"]["num_accepted_tokens"] for x in got))
            n_drafted = 0
            for p in prompts[:2]:  # nobody drafts at first, so a head has no features of what is in the cache
                _, _, n = ask_both(p, num_speculative_tokens=0, cache_salt="no trees at first")
                assert n == 0
                _, whole, n = ask_both(p, cache_salt="no trees at first", **body)
                assert whole, (way, p)
                n_drafted += n
            assert (n_drafted > 0) == (HEAD in way), (way, n_drafted)
            n_cached, _, n_drafted = map(sum, zip(*(ask_both(p, **body) for p in prompts * 2)))
            assert n_cached > 1000 and (n_drafted > 0) == (HEAD in way), (way, n_cached, n_drafted)


# ---- processes that end: what is computed is found again where it still lies, and nowhere else ----

def ask_all(s, prompt, n_cached, want):
    """Both keys and the control link, each of which has n_cached tokens of the prompt in the cache."""
    for key in KEYS:
        got = s.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 40, "ignore_eos": True},
                     headers={"Authorization": f"Bearer {key}"})
        assert cached(got) == n_cached and text_of(got) == want, (key, n_cached, got)
    got = s.generate("--max-tokens", "40", prompt=prompt)
    assert got["metrics"]["cached_tokens"] == n_cached and got["text"] == want, got


@case
def what_was_computed_outlives_the_orchestrator_and_the_link():
    """Keys are made of content: another orchestrator, and a target that was lost and has come back, find the same blocks."""
    prompt = source(1000)
    whole = generate("--prompt", prompt, "--max-tokens", "40", "--ignore-eos", *OFF)
    want, n = whole["text"], (whole["metrics"]["prompt_tokens"] - 1) // 16 * 16
    assert n > 100
    with two_keys(kind=Journalled) as s, Forwarder(s.address) as link, \
            worker("graft-target", s.folder, link.address, "--rejoin-timeout", "300"):
        s.wait()
        ask_all(s, prompt, 0, want)
        ask_all(s, prompt, n, want)
        s.restart()
        ask_all(s, prompt, n, want)
        joined = lambda: len(re.findall(r"target worker \d+ has joined", s.log()))  # noqa: E731
        before = joined()
        link.halve = True
        wait_for(lambda: joined() > before)
        ask_all(s, prompt, n, want)
        other = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "cache_salt": "a"})
        assert cached(other) == 0, other  # and divides as ever


@case
def a_target_without_its_kv_is_asked_for_none():
    """Another process in its seat and at its address, with an empty pool: nothing counts as found, in no text and no metric."""
    prompt, more = source(1000), "\nclass Other:\n"
    with two_keys("--model", TARGET, spawn=False) as s:
        place = ("--seat", "t1", "--listen", f"127.0.0.1:{free_port()}")
        with worker("graft-target", s.folder, s.address, *place) as target:
            s.wait()
            want = s.generate("--max-tokens", "40", prompt=prompt)["text"]
            body = {"prompt": prompt, "max_tokens": 4}
            n = cached((s.post("/v1/completions", body), s.post("/v1/completions", body))[1])
            kept = s.generate("--keep", "--max-tokens", "40", prompt=prompt)
            assert n > 100 and kept["metrics"]["cached_tokens"] == n, kept
            hits = "graft_prefix_cache_hits_total"
            wait_for(lambda: s.metrics()[hits] == 2 * n)
            target.kill()
            target.wait()
        with worker("graft-target", s.folder, s.address, *place):
            s.wait()
            ask_all(s, prompt, 0, want)
            ask_all(s, prompt, n, want)
            wait_for(lambda: s.metrics()[hits] == 5 * n)
        with worker("graft-target", s.folder, s.address, *place):  # and the session that is idle since the first one
            s.wait()
            got = s.generate("--session", kept["session"], "--max-tokens", "40", prompt=more)
            assert got["metrics"]["cached_tokens"] == 0, got
            before = s.post("/tokenize", {"prompt": prompt})["tokens"]
            after = s.post("/tokenize", {"prompt": more, "add_special_tokens": False})["tokens"]
        ids = before + kept["token_ids"] + after  # the joined text may be cut into other tokens
        whole = generate("--prompt-ids", "-", "--max-tokens", "40", "--ignore-eos", *OFF, stdin=json.dumps(ids))
        assert got["token_ids"] == whole["token_ids"], (got, whole)


# ---- who shares a prefix with those that leave ----

class Leavers:
    """Clients that share a prefix, break their streams at a random moment, and ask again; others that share it stay."""

    def __init__(self, s, prompts, n_round, rng):
        self.s, self.prompts, self.n_left, self.rng = s, prompts, n_round, rng
        self.lock, self.n_stayed, self.wrong = threading.Lock(), 0, []

    def ask(self, name):
        body, want = self.prompts[name]
        got = self.s.complete(**body)
        if (text_of(got), cached(got) > 0) != (want, True):
            self.wrong.append((name, body, got))

    def round(self):
        """When this client is to go, in seconds after its request; None: there were enough."""
        with self.lock:
            self.n_left -= 1
            return self.rng.uniform(.002, .04) if self.n_left >= 0 else None

    def leave(self, name):
        while (after := self.round()) is not None and not self.wrong:
            body, _ = self.prompts[name]
            c = self.s.connect()
            c.request("POST", "/v1/completions", json.dumps(dict(body, stream=True)), {"Content-Type": "application/json"})
            time.sleep(after)  # the moment is what is drawn
            c.close()
            self.ask(name)

    def stay(self, name):
        goes_on = True
        while goes_on:
            self.ask(name)
            with self.lock:
                self.n_stayed += 1
            goes_on = self.n_left > 0 and not self.wrong

    def run(self, leavers, bystanders):
        calls = [(self.leave, x) for x in leavers] + [(self.stay, x) for x in bystanders]
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            for done in [pool.submit(f, x) for f, x in calls]:
                done.result()
        assert not self.wrong, self.wrong[0]


def free_blocks(s):
    """Of each worker's KV pool, by its last answer to a ping, and how many there are."""
    return {w["role"]: (w["kv_free_blocks"], w["kv_blocks"]) for w in s.ask("GET", "/v1/graft/fleet")[1]["workers"]}


def some_leave(draft):
    """draft: the model that the drafter has, a small one or a head."""
    n_round = 1000 if LONG else 30 if SLOW < 10 else 16
    rng = random.Random(int(os.environ.get("GRAFT_TEST_SEED", "1")))
    names = [f"client{i}" for i in range(8)] + [f"bystander{i}" for i in range(4)]
    bodies = {x: {"prompt": source(400) + f"\nclass {x}:\n", "max_tokens": 24, "ignore_eos": True, "temperature": i % 2, "seed": i,
                  "num_speculative_tokens": 4} for i, x in enumerate(names)}
    with Endpoint("--sessions", "8", "--kv-blocks", "400", *OFF) as plain:
        prompts = {x: (b, text_of(plain.complete(**dict(b, num_speculative_tokens=0)))) for x, b in bodies.items()}
    with Endpoint("--spawn", "--model", TARGET, "--draft", draft, "--sessions", "8", "--kv-blocks", "400", *ON, spawn=False) as s:
        s.wait("--draft", draft)
        s.complete(prompt=source(400), max_tokens=1)
        load = Leavers(s, prompts, n_round, rng)
        load.run(names[:8], names[8:])
        assert load.n_stayed >= 4, load.n_stayed
        wait_for(s.is_quiet)
        wait_for(lambda: all(free == n > 0 for free, n in free_blocks(s).values()))  # with the next answers to pings
        ends = {k: v for k, v in s.metrics().items() if k.startswith("graft_request_success_total") and v}
        print(f"# {n_round} left, {load.n_stayed} answers of those who stayed; ends: {ends}", flush=True)
        assert ends['graft_request_success_total{finished_reason="abort"}'] > 0, ends


@case
def who_leaves_takes_nothing_from_who_stays():
    some_leave(DRAFT)


if LONG:
    @case
    def who_leaves_takes_nothing_where_a_head_drafts():
        some_leave(HEAD)


# ---- caches of one session on several workers, each of which is lost alone ----

class Turns:
    """A session that is kept at s, whose every turn must be that of plain decoding of its whole text."""

    def __init__(self, s, plain):
        self.s, self.plain, self.session = s, plain, None
        self.ids = s.post("/tokenize", {"prompt": source(700)})["tokens"]
        self.more, self.n_accepted = self.ids[5:12], 0

    def turn(self):
        """How much of the text before it was not computed for it: 1 is all but its last token."""
        before = len(self.ids)
        if self.session is None:
            got = self.s.turn(self.ids, "--keep", *FIXED, "--max-tokens", "30")
        else:
            got = self.s.turn(self.more, "--session", self.session, "--max-tokens", "30")
            self.ids = self.ids + self.more
        want = self.plain.turn(self.ids, "--method", "none", "--max-tokens", "30")
        assert got["token_ids"] == want["token_ids"], (got, want)
        self.ids, self.session = self.ids + got["token_ids"], got["session"]
        self.n_accepted += got["metrics"]["num_accepted_tokens"]
        return got["metrics"]["cached_tokens"] / (before - 1)


def make_the_target_forget(s):
    """Others need its room: what no session holds is given up, and then the session that is idle."""
    before = s.metrics()["graft_evictions_total"]
    for i in (1, 2):
        s.complete(prompt=[(i * 37 + k * k) % 400 + 3 for k in range(700)], max_tokens=1)
    wait_for(lambda: s.metrics()["graft_evictions_total"] > before)


@case
def each_cache_of_a_session_is_lost_alone():
    """The drafter's, the target's, and both at once: texts are the same, and nobody is told again and again that prefixes differ."""
    for model, more in ((HEAD, ("--head", HEAD)), (DRAFT, ()))[:2 if LONG else 1]:
        with Endpoint(*OFF, draft=False) as plain, Endpoint("--model", TARGET, spawn=False) as s, contextlib.ExitStack() as stack:
            stack.enter_context(worker("graft-target", s.folder, s.address, "--kv-blocks", "56", *more, *ON))

            def another_drafter(s=s, stack=stack, model=model):
                stack.enter_context(worker("graft-draft", s.folder, s.address, "--target", TARGET, model=model))
                s.wait("--draft", model)

            def lose_drafter(s=s, another_drafter=another_drafter):
                os.kill(next(w["pid"] for w in s.list()["workers"] if w["role"] == "draft"), signal.SIGKILL)
                wait_for(lambda: len(s.list()["workers"]) == 1)
                another_drafter()
            another_drafter()
            turns = Turns(s, plain)
            assert turns.turn() == 0 and turns.turn() == 1
            lose_drafter()
            assert turns.turn() == 1
            make_the_target_forget(s)
            assert turns.turn() < .5
            lose_drafter()
            make_the_target_forget(s)
            assert turns.turn() < .5
            assert turns.turn() == 1 and turns.n_accepted > 0, turns.n_accepted
            m = s.metrics()
            desyncs = {k: v for k, v in m.items() if k.startswith("graft_desyncs_total")}
            assert len(desyncs) == 2 and sum(desyncs.values()) <= 4, desyncs
            assert m['graft_workers_lost_total{role="draft"}'] == 2 and m['graft_workers_lost_total{role="target"}'] == 0, m


def first_token_s(s, prompt):
    begin = time.monotonic()
    answer = s.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 1})
    return time.monotonic() - begin, answer


@case
def a_second_prompt_of_2500_tokens_begins_at_once():
    with Endpoint(*ON, "--threads", "1", draft=False) as s:
        prompt = source(8000)
        ids = s.post("/tokenize", {"prompt": prompt})["tokens"][:2500]
        assert len(ids) == 2500, len(ids)
        cold_s, cold = first_token_s(s, ids)
        warm = [first_token_s(s, ids) for _ in range(5)]
        assert all(cached(a) == 2496 and text_of(a) == text_of(cold) for _, a in warm), warm
        warm_s = min(t for t, _ in warm)
        print(f"# the first token of 2,500: {1000 * cold_s:.1f} ms, again {1000 * warm_s:.1f} ms")
        assert warm_s < cold_s / 10, (cold_s, warm_s)


main()
