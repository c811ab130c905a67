#!/usr/bin/env python3
"""SpecPV end to end on the demo models: exact gives the text of full verification however small the view, and however
often what a partial round accepts is falsified; lossy with a view of everything does; and both say what they did. Views
are made small, so that refreshes find other tokens.

Prompts: those of tests/golden/prompts.json, four joined: 1.2k tokens each, and a threshold that is lower still.
GRAFT_TEST_LONG=1: eight joined, contexts of 4k to 30k tokens at the default threshold, every method over every
transport, and more kills. Long prompts are what GRAFT_TEST_PROMPTS names (lines of JSON with id and text), else the 16
again and again.

usage: test_specpv.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import re
import sys
import tempfile

from harness import DRAFT, ENDLESS, HEAD, ROOT, TARGET, case, generate, main, refused, run, wait_for
from served import FIXED, UNKNOWN, Folder, Serve, one_line, worker
from stream import Stream, killed

LONG = os.environ.get("GRAFT_TEST_LONG", "") != ""
N_TOKEN = 160
CORRUPT = 7  # every so many-th partial pass of a session is falsified
LONG_LENGTHS = (4096, 8192, 16384, 30000)
with open(os.path.join(ROOT, "tests/golden/prompts.json"), encoding="utf-8") as f:
    SHORT = json.load(f)
FOLDER = tempfile.TemporaryDirectory()


def prompt_file(name, text):
    path = os.path.join(FOLDER.name, name)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    return path


N_JOINED = 8 if LONG else 4
EIGHT = prompt_file("eight", "\n\n".join(SHORT[:8]))
PROMPTS = [prompt_file("a", "\n\n".join(SHORT[:N_JOINED])), prompt_file("b", "\n\n".join(SHORT[8:8 + N_JOINED]))]
VIEW = ("--specpv-n-retrieval-blocks", "8", "--specpv-n-window-blocks", "1", "--specpv-n-sink-blocks", "1")
EARLY = ("--specpv-partial-threshold", "1000")
SMALL = (*VIEW, *EARLY)
TREE = ("--num-speculative-tokens", "12", "--draft-depth", "5", "--draft-top-k", "4")
METHODS = {"none": (), "draft_model": ("--draft", DRAFT, *TREE), "eagle3": ("--draft", HEAD, *TREE)}
PLAIN = {}


def args_of(prompt, *more):
    return ("--prompt-file", prompt, "--max-tokens", str(N_TOKEN), "--ignore-eos", *more)


def plain(prompt, *more):
    key = (prompt, *more)
    if key not in PLAIN:
        PLAIN[key] = generate(*args_of(prompt, *more))
    return PLAIN[key]


def say(what, m):
    print(f"# {what}: {m['partial_rounds']} partial rounds, {m['full_refreshes']} refreshes, "
          f"{m['drift_mismatches']} of {m['drift_checked']} judged tokens were others; mean acceptance length "
          f"{m['mean_acceptance_length']:.2f}", flush=True)


def exact(prompt, method, transport, *more):
    """An exact run, compared with plain decoding; how many roll-backs it had (each mismatch that is found is one)."""
    out = generate(*args_of(prompt, "--specpv", "exact", "--transport", transport, *SMALL, *METHODS[method], *more))
    m = out["metrics"]
    say(f"prompt {os.path.basename(prompt)}, {method}, {transport}", m)
    assert out["token_ids"] == plain(prompt)["token_ids"], method
    assert m["partial_rounds"] > 10 and m["full_refreshes"] > 2, m
    assert m["drift_checked"] > 0 and m["desyncs"] + m["fallbacks"] == 0, m
    return m["drift_mismatches"]


@case
def exact_is_full_verification():
    n_other = 0
    for prompt, transport in zip(PROMPTS, ("shm", "tcp")):
        for method in METHODS:
            transports = ("shm", "tcp") if LONG and method != "none" else (transport,)
            n_other += sum(exact(prompt, method, t) for t in transports)
    assert n_other > 10, n_other


@contextlib.contextmanager
def by_hand(folder, address, method, transport, *target_args):
    """Both workers with options that only tests give them."""
    target = ["--specpv", "on", *target_args]
    drafter = HEAD if method == "eagle3" else DRAFT
    target += ["--head", HEAD] if method == "eagle3" else []
    target += ["--colocate-draft", drafter] if transport == "loop" else ["--transport", transport]
    with contextlib.ExitStack() as stack:
        stack.enter_context(worker("graft-target", folder, address, *target))
        if method != "none" and transport != "loop":
            head = ("--target", TARGET) if method == "eagle3" else ()
            stack.enter_context(worker("graft-draft", folder, address, "--transport", transport, *head, model=drafter))
        yield


@case
def forced_mismatches():
    """The target falsifies every seventh partial pass of the session: each is taken back, and the text is unchanged."""
    folder = Folder()
    ways = [("none", "shm")] + [(m, t) for m in ("draft_model", "eagle3") for t in ("loop", "shm", "tcp")]
    for i, (method, transport) in enumerate(ways if LONG else ways[::2]):
        prompt = PROMPTS[i % 2]
        with (Serve(spawn=False, folder=folder) as s,
              by_hand(folder, s.address, method, transport, *VIEW, "--test-specpv-corrupt", str(CORRUPT))):
            s.wait(*METHODS[method][:2])
            tree = ("--method", "none") if method == "none" else TREE
            out = s.generate("--specpv", "exact", "--prompt-file", prompt, "--max-tokens", str(N_TOKEN), *SMALL, *tree)
            m = out["metrics"]
            say(f"{method}, {transport}", m)
            assert out["token_ids"] == plain(prompt)["token_ids"], (method, transport)
            assert m["partial_rounds"] >= 4 * CORRUPT and m["desyncs"] + m["fallbacks"] == 0, m
            assert m["drift_mismatches"] >= m["partial_rounds"] // (2 * CORRUPT), m
            s.end()


@case
def exact_with_temperature():
    sampling = ("--temperature", "0.9", "--top-p", "0.95", "--seed", "5")
    for method in ("draft_model", "eagle3"):
        out = generate(*args_of(PROMPTS[0], "--specpv", "exact", *SMALL, *METHODS[method], *sampling))
        say(method, out["metrics"])
        assert out["token_ids"] == plain(PROMPTS[0], *sampling)["token_ids"]
        assert out["metrics"]["partial_rounds"] > 10


def session_with_provisional_tokens(s):
    """A session that decodes with tokens after the last judgement, as far as one can see from outside."""
    found = []

    def look():
        found[:] = [x for x in s.sessions() if x["state"] == "running" and x["partial_rounds_since_refresh"] > 0]
        return found
    wait_for(look)
    return found[0]


@case
def ends_in_provisional_text():
    """The limit, a stop string, the end of the text and a client that leaves, wherever they fall."""
    whole = plain(PROMPTS[0])
    with Serve("--specpv", "exact", *VIEW) as s:
        ask = ("--specpv", "exact", "--prompt-file", PROMPTS[0], *EARLY, *TREE)
        for n in (1, 2, 3, 17, 40, 41, 42, 43):
            out = s.generate(*ask, "--max-tokens", str(n))
            assert out["token_ids"] == whole["token_ids"][:n] and out["finish_reason"] == "length", n
        for at in (60, 150):
            stop = ("--stop", whole["text"][at:at + 6])
            want = plain(PROMPTS[0], *stop)
            out = s.generate(*ask, "--max-tokens", str(N_TOKEN), *stop)
            assert out["token_ids"] == want["token_ids"] and out["text"] == want["text"], stop
            assert out["finish_reason"] == "stop"
        for leave in ("close", "kill"):
            p = s.start(*ask, tokens=ENDLESS)
            name = session_with_provisional_tokens(s)["id"]
            if leave == "close":
                s.graft("session", "close", name)
            else:
                p.kill()
            p.communicate(timeout=60)
            wait_for(lambda: not s.sessions())
        out = s.generate(*ask, "--max-tokens", str(N_TOKEN))  # nothing of them is left
        assert out["token_ids"] == whole["token_ids"] and out["metrics"]["fallbacks"] == 0


@case
def ends_by_itself():
    """Two sampled texts that the model ends, after 15 tokens and after 104."""
    for seed, method in (("2", "draft_model"), ("7", "eagle3")):
        ask = ("--prompt-file", EIGHT, "--max-tokens", str(N_TOKEN), "--temperature", "1.1", "--seed", seed)
        want = generate(*ask)
        out = generate(*ask, "--specpv", "exact", *SMALL, *METHODS[method])
        assert want["finish_reason"] == out["finish_reason"] == "stop" and len(want["token_ids"]) < N_TOKEN
        assert out["token_ids"] == want["token_ids"] and out["text"] == want["text"], seed
        assert out["metrics"]["partial_rounds"] > 0, out["metrics"]


@case
def lossy_that_sees_everything():
    for method, draft in METHODS.items():
        out = generate(*args_of(PROMPTS[0], "--specpv", "lossy", *EARLY, *draft))
        m = out["metrics"]
        say(method, m)
        assert out["token_ids"] == plain(PROMPTS[0])["token_ids"], method
        assert m["partial_rounds"] > 10 and m["drift_mismatches"] == 0, m


@case
def lossy_tells_its_drift():
    out = generate(*args_of(PROMPTS[0], "--specpv", "lossy", *SMALL, *METHODS["eagle3"]))
    m = out["metrics"]
    say("lossy", m)
    assert len(out["token_ids"]) == N_TOKEN and m["partial_rounds"] > 10 and m["drift_checked"] > 0, m


@case
def workers_killed_in_the_middle():
    n = "400"
    with Stream("--prompt-file", PROMPTS[1], "--max-tokens", n) as base:
        assert base.finish() == 0, base.lines[-3:]
    ways = [(m, t, w) for m in ("draft_model", "eagle3") for t in ("shm", "tcp") for w in ("draft", "target")]
    for method, transport, name in ways if LONG else ways[1:7:5] + ways[4:5]:
        args = ("--specpv", "exact", "--transport", transport, *SMALL, *METHODS[method], "--prompt-file", PROMPTS[1],
                "--max-tokens", n, "--round-deadline-ms", "200")
        r, _, _ = killed(args, 12, "graft-" + name)
        assert r.text == base.text, (method, transport, name)


@case
def it_says_why_not():
    small = ("--prompt-file", PROMPTS[0], "--max-tokens", "4", "--model", TARGET)
    for more, words in ((("--max-model-len", "3000", "--specpv-n-retrieval-blocks", "400"), "larger than the context"),
                        (("--specpv-n-spec-tokens-buf", "8", "--draft", DRAFT, *TREE), "buffer is too small"),
                        (("--specpv-exact-max-provisional", "4", "--draft", DRAFT, *TREE), "max_provisional")):
        done = run("run", *small, "--specpv", "exact", *more)
        # The first: GR_FALLBACK_NO_VIEWS; the target says why when it starts, and each session that it has none.
        assert done.returncode == 0 and done.stderr.count("[specpv][fallback]") == 1, done.stderr
        assert words in done.stderr and "without SpecPV" not in done.stderr, done.stderr
        out = generate(*small, "--specpv", "exact", *more)
        assert out["metrics"]["fallbacks"] == 1, out["metrics"]
    out = generate(*args_of(PROMPTS[0], *EARLY, "--specpv", "exact", "--disable-specpv"))
    assert out["metrics"]["partial_rounds"] == 0 and out["metrics"]["fallbacks"] == 0, out["metrics"]
    for bad, words in ((("--specpv", "maybe"), "maybe"),
                       (("--specpv", "exact", "--specpv-block-size", "32"), "blocks of the KV pool"),
                       (("--specpv", "exact", "--specpv-score-reduce", "median"), "median"),
                       (("--specpv", "exact", "--specpv-n-sink-blocks", "0"), "1 is the least"),
                       (("--specpv", "exact", "--specpv-n-retrieval-blocks", "0"), "1 is the least"),
                       (("--specpv", "exact", "--specpv-n-window-blocks", "0"), "1 is the least")):
        refused((*small, *bad), 2, words)


@case
def yaml_keys():
    path = prompt_file("c.yaml", "speculative_config:\n  specpv_mode: lossy\n  enable_specpv: true\n"
                       "  specpv_n_retrieval_blocks: 8\n  specpv_n_window_blocks: 1\n  specpv_n_sink_blocks: 1\n"
                       "  specpv_partial_threshold: 100\n  specpv_full_refresh_interval: 3\n"
                       "  specpv_n_spec_tokens_buf: 64\n  specpv_refresh_fraction: 0.5\n  specpv_score_reduce: max\n"
                       "  specpv_exact_max_provisional: 32\n  specpv_block_size: 16\n")
    m = generate(*args_of(PROMPTS[0], "--config", path))["metrics"]
    say("by a file", m)
    assert m["partial_rounds"] > 10 and m["full_refreshes"] >= m["partial_rounds"] // 3 - 1, m


@case
def a_served_session():
    with Serve("--specpv", "exact", *SMALL) as s:
        more = (*FIXED, *EARLY)
        out = s.generate("--specpv", "exact", "--prompt-file", PROMPTS[0], "--max-tokens", str(N_TOKEN), *more)
        assert out["token_ids"] == plain(PROMPTS[0])["token_ids"]
        assert out["metrics"]["partial_rounds"] > 10, out["metrics"]
        m = s.generate("--prompt-file", PROMPTS[0], "--max-tokens", "20", *more)["metrics"]
        assert m["partial_rounds"] == 0 and m["fallbacks"] == 0, m  # views are there, and it did not ask
        opened = ("session", "open", "--model", TARGET, "--prompt-file", PROMPTS[0], "--max-tokens", "40",
                  "--ignore-eos", "--specpv", "exact", *more)
        name = s.graft(*opened).stdout.strip()
        shown = s.sessions()[0]
        assert shown["specpv"] == "exact" and shown["full_refreshes"] > 0 and shown["drift_checked"] > 0, shown
        assert "SpecPV exact" in s.graft("session", "show", name).stdout
        assert "0 running sessions" in s.graft("session", "refresh", name).stdout
        assert "0 running sessions" in s.graft("session", "refresh").stdout
        one_line(s.graft("session", "refresh", UNKNOWN, status=1), "no session " + UNKNOWN)
        s.graft("session", "close", name)
        name = s.graft(*opened, "--specpv-n-spec-tokens-buf", "4").stdout.strip()
        assert s.sessions()[0]["specpv"] == "off", s.sessions()  # the target could not do as asked, and said so
        one_line(s.graft("session", "refresh", name, status=1), "SpecPV is off")


# ---- memory ----

FORMULA = re.compile(r"SpecPV: ([0-9.]+) MiB a session: (\d+) layers x (\d+) KV heads x \((\d+) listed blocks x "
                     r"4 bytes \+ (\d+) blocks x 2 x (\d+) x 4 bytes\)")


def memory_of_target(n_session, *args):
    """Bytes of address space that a target of n_session sessions has, and its log."""
    with (Serve(spawn=False) as s,
          worker("graft-target", s.folder, s.address, "--sessions", str(n_session), "--kv-blocks", "4096", *args) as t):
        s.wait()
        with open(f"/proc/{t.pid}/status", encoding="utf-8") as status:
            fields = dict(line.split(":", 1) for line in status)
        t.terminate()
        return int(fields["VmSize"].split()[0]) << 10, t.communicate(timeout=60)[1]


@case
def memory_is_as_printed():
    """What a session more costs with SpecPV, less what it costs without: the formula of the log. Off takes nothing."""
    n_more = 8
    size, log = {}, {}
    for args in ((), ("--specpv", "off"), ("--specpv", "on")):
        few, log[args] = memory_of_target(1, *args)
        size[args] = (few, memory_of_target(1 + n_more, *args)[0] - few)
    off, on = ("--specpv", "off"), ("--specpv", "on")
    assert "SpecPV" not in log[()] + log[off], log
    found = FORMULA.search(log[on])
    assert found, log[on]
    n_layer, n_head, n_list, n_block, width = [int(x) for x in found.groups()[1:]]
    formula = n_layer * n_head * (4 * n_list + n_block * 2 * width * 4)
    assert abs(float(found.group(1)) - formula / 2**20) < 0.06, found.group(0)
    taken = (size[on][1] - size[off][1]) / n_more
    print(f"# a session's view: {taken / 2**20:.2f} MiB taken, {formula / 2**20:.2f} MiB by the formula; off: "
          f"{(size[off][0] - size[()][0]) / 2**20:.2f} MiB more than without the option", flush=True)
    assert abs(taken - formula) < 0.01 * formula, (taken, formula)
    # The allocator keeps a buffer of the hand-shake (0.4 MiB) or gives it back: less than a tenth of one session's view.
    slack = formula / 10
    assert abs(size[off][0] - size[()][0]) < slack and abs(size[off][1] - size[()][1]) < slack, size


# ---- long contexts ----

def long_prompts():
    path = os.environ.get("GRAFT_TEST_PROMPTS", "")
    if path:
        with open(path, encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        return [prompt_file(r["id"], r["text"]) for r in records if len(r["text"]) > 8000]
    text = "\n\n".join(SHORT * 8)
    return [prompt_file(f"of {n} tokens", text[:int(3.2 * n)]) for n in LONG_LENGTHS]


def exact_on_long_prompts():
    """At the default view and threshold, and again with a view that is far too small and falsified picks. One pair of
    workers for all prompts of a method."""
    want = {}
    sums = {}
    prompts = long_prompts()
    n_token = ("--max-tokens", "128")
    for method in METHODS:
        for view, target in (("default", ()), ("small, falsified", (*VIEW, "--test-specpv-corrupt", "11"))):
            folder = Folder()
            with (Serve(spawn=False, folder=folder) as s,
                  by_hand(folder, s.address, method, "shm", *target, "--max-model-len", "32768")):
                s.wait(*METHODS[method][:2])
                how = ("--method", "none") if method == "none" else TREE
                for prompt in prompts:
                    if prompt not in want:
                        want[prompt] = s.generate("--prompt-file", prompt, *n_token, "--method", "none", timeout=300)
                    early = EARLY if view != "default" else ()
                    out = s.generate("--specpv", "exact", "--prompt-file", prompt, *n_token, *how, *early, timeout=300)
                    m = out["metrics"]
                    say(f"{os.path.basename(prompt)}, {method}, view {view}", m)
                    assert out["token_ids"] == want[prompt]["token_ids"], (prompt, method, view)
                    assert m["fallbacks"] + m["desyncs"] == 0, m
                    total = sums.setdefault((method, view), [0, 0])
                    total[0] += m["partial_rounds"]
                    total[1] += m["drift_mismatches"]
    for (method, view), (n_partial, n_mismatch) in sums.items():
        print(f"# {method}, view {view}: {n_partial} partial rounds, {n_mismatch} roll-backs", flush=True)
        assert n_partial > 20 * len(prompts) // 2 and (view == "default" or n_mismatch > len(prompts)), sums


@case
def a_model_with_windows_has_no_views():
    """That is told by warnings: the run goes on, and gives its text."""
    with tempfile.TemporaryDirectory() as d:
        for name in os.listdir(TARGET):
            if name != "config.json":
                os.symlink(os.path.join(TARGET, name), os.path.join(d, name))
        with open(os.path.join(TARGET, "config.json"), encoding="utf-8") as file:
            config = json.load(file) | {"architectures": ["MistralForCausalLM"], "sliding_window": 64}
        with open(os.path.join(d, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        args = ("run", "--model", d, "--prompt", "import os", "--max-tokens", "8")
        plain, done = run(*args), run(*args, "--specpv", "exact")
    assert done.returncode == 0 and done.stdout == plain.stdout, done
    assert "error:" not in done.stderr and "warning: " in done.stderr and "has a window of 64 tokens" in done.stderr, done


if LONG:
    case(exact_on_long_prompts)
if __name__ == "__main__":
    sys.exit(main())
