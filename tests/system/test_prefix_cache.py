#!/usr/bin/env python3
"""The prefix cache from outside: who shares with whom, what is told, what is gained, and the same text either way.

usage: test_prefix_cache.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import os
import random
import tempfile
import time

from harness import HEAD, ROOT, TARGET, case, main, wait_for
from endpoint import Endpoint

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
def two_keys(*args):
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = os.path.join(folder, "api.keys")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
            f.write("\n".join(KEYS) + "\n")
        yield stack.enter_context(Endpoint("--api-key-file", path, *args, key=KEYS[0], draft=False))


@case
def keys_share_with_themselves_only():
    prompt = source(3000)
    with two_keys(*ON) as s:
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
    with Endpoint(*ON, draft=False) as s, Endpoint(*OFF, draft=False) as plain:
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
                before = n
                text += text_of(got) + "\n# and then\n"


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
            n_cached = n_drafted = 0
            for p in prompts * 2:
                for t in (0, 1):
                    got = s.complete(prompt=p, temperature=t, seed=2, **body)
                    assert text_of(got) == want[p, t], (way, got, want[p, t])
                    n_cached += cached(got)
                    n_drafted += got["metrics"]["speculative_decoding"]["num_accepted_tokens"]
            assert n_cached > 1000 and (n_drafted > 0) == (HEAD in way), (way, n_cached, n_drafted)


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
