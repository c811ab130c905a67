#!/usr/bin/env python3
"""A target that several processes share out (--tensor-parallel-size): texts are those of one process, whatever drafts,
whatever samples, under SpecPV; a rank that is killed or stopped ends its group, which comes back as a whole, and the
text goes on; what cannot be is refused in one line.

GRAFT_TEST_LONG: more prompts and seeds, and every size of a group with both methods.

usage: test_ranks.py BUILD_DIR SOURCE_ROOT      prints TAP"""
import json
import os
import re
import signal
import sys

from harness import (
    DRAFT, ENDLESS, HEAD, ROOT, SLOW, TARGET, Running, alive, case, children, generate, main, refused, run, wait_for
)
from ranks import interrupt_a_run, ranks_of, stop_a_rank, texts_of_llama31, wait_for_ranks
from served import Folder, Serve, worker
from stream import closed, running_again

LONG = os.environ.get("GRAFT_TEST_LONG", "") != ""
TP8 = ("--geometry", "test-tp8", "--max-model-len", "1024", "--ignore-eos")
GROUP = ("--geometry", "test-tp8", "--max-model-len", "4096")
TREE = ("--num-speculative-tokens", "8")
METHODS = {"none": (), "draft_model": ("--draft", DRAFT, *TREE), "eagle3": ("--draft", HEAD, *TREE)}
with open(os.path.join(ROOT, "tests/golden/prompts.json"), encoding="utf-8") as f:
    PROMPTS = json.load(f)


# ---- texts ----

@case
def texts_are_those_of_one_process():
    for prompt in PROMPTS[:6 if LONG else 1]:
        args = ("--prompt", prompt, "--max-tokens", "400" if LONG else "60", *TP8)
        want = generate(*args)["token_ids"]
        # A draft model is a whole model of its own, and is not expanded.
        every = [(n, name) for n in ("1", "2", "4", "8") for name in ("none", "eagle3")]
        for n, name in every if LONG else (("1", "eagle3"), ("2", "none"), ("4", "eagle3"), ("8", "none")):
            out = generate(*args, "-tp", n, *METHODS[name])
            assert out["token_ids"] == want, (n, name)
            assert (out["metrics"]["num_drafts"] > 0) == (name != "none"), out["metrics"]


@case
def of_the_demo_pair_too():
    args = ("--max-tokens", "200" if LONG else "80", "--ignore-eos")
    want = generate(*args)["token_ids"]
    for name, method in METHODS.items():
        assert generate(*args, "--tensor-parallel-size", "2", *method)["token_ids"] == want, name


@case
def of_a_model_with_eight_kv_heads():
    texts_of_llama31(lambda n: ("-tp", str(n)), (2, 4, 8), 100 if LONG else 40)


@case
def sampled_texts_and_their_probabilities():
    for seed in range(4 if LONG else 1):
        args = ("--temperature", "0.9", "--top-p", "0.95", "--top-k", "50", "--seed", str(seed), "--logprobs", "3",
                "--max-tokens", "60" if LONG else "30", *TP8)
        want = generate(*args)
        for n in ("2", "8"):
            out = generate(*args, "-tp", n, *METHODS["eagle3"])
            assert out["token_ids"] == want["token_ids"], n
            assert out["logprobs"] == want["logprobs"], n


@case
def partial_views():
    """SpecPV: each rank has the lists of its KV heads."""
    args = ("--prompt", "\n\n".join(PROMPTS[:4]), "--max-tokens", "120", "--specpv-n-retrieval-blocks", "8",
            "--specpv-n-window-blocks", "1", "--specpv-n-sink-blocks", "1", "--specpv-partial-threshold", "1000",
            "--geometry", "test-tp8", "--max-model-len", "4096", "--ignore-eos", *METHODS["eagle3"])
    for mode in ("exact", "lossy"):
        one = generate(*args, "--specpv", mode)
        four = generate(*args, "--specpv", mode, "-tp", "4")
        assert four["token_ids"] == one["token_ids"], mode
        assert four["metrics"]["partial_rounds"] > 0, four["metrics"]


@case
def several_answers_at_once():
    args = ("run", "--json", "--n", "3", "--temperature", "1", "--seed", "5", "--prompt", "import os",
            "--max-tokens", "60", "--model", TARGET, *TP8)
    texts = [[json.loads(line)["token_ids"] for line in run(*args, *more).stdout.splitlines()]
             for more in ((), ("-tp", "4"))]
    assert len(texts[0]) == 3 and texts[0] == texts[1]


@case
def turns_that_fill_their_context_or_are_left():
    """Every rank ends a turn where rank 0 does: at the last position of its context, and wherever a client goes away."""
    size = ("--max-model-len", "256", "--threads", "1", "--draft-threads", "1")
    with Serve("-tp", "2", *size) as group, Serve(*size) as alone:
        for s in (group, alone):
            s.wait()
        want = [alone.generate("--ignore-eos", "--max-tokens", "1000", prompt=prompt) for prompt in PROMPTS[:2]]
        assert all(w["metrics"]["prompt_tokens"] + len(w["token_ids"]) == 256 for w in want), [w["metrics"] for w in want]
        n_left = 0
        for i in range(40 if LONG else 6):
            prompt = i % 2
            p = group.start("--ignore-eos", prompt=PROMPTS[prompt], tokens=200)
            # On a busy machine a turn may be over before anybody has seen it.
            wait_for(lambda p=p, i=i: p.poll() is not None or group.runs(rounds=1 + i))
            p.send_signal(signal.SIGINT)
            p.communicate(timeout=60 * SLOW)
            n_left += p.returncode != 0
            got = group.generate("--ignore-eos", "--max-tokens", "1000", prompt=PROMPTS[prompt])
            assert got["token_ids"] == want[prompt]["token_ids"], (i, got)
            assert got["finish_reason"] == want[prompt]["finish_reason"] == "length", got
        assert n_left > 0 and len(group.list()["workers"]) == 2, (n_left, group.list())


# ---- memory ----

def own_mib(pid):
    """Memory of a process that is not of files."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) / 1024


def own_mib_of(n):
    """Of each rank, when the group computes; and what the line of rank 0 says that its weights take."""
    r = Running(*GROUP, *(("-tp", str(n)) if n > 1 else ()), "--kv-blocks", "260", tokens=3000, log="info")
    try:
        target = wait_for_ranks(r, n)
        weights = int(re.search(r"weights (\d+) MiB", r.said())[1])
        return [own_mib(pid) for pid in (target, *ranks_of(target))], weights
    finally:
        r.p.send_signal(signal.SIGINT)
        r.end()


@case
def a_rank_takes_its_part_of_the_weights():
    """What a rank leaves to others it has not got, but for a fifth (norms, the embedding, chance)."""
    (one,), weights = own_mib_of(1)
    for n in (2, 4):
        each, _ = own_mib_of(n)
        print(f"# weights of {weights} MiB; one process has {one:.0f} MiB of its own, {n} ranks "
              f"{', '.join(f'{m:.0f}' for m in each)}", flush=True)
        assert max(each) < one - 0.8 * weights * (n - 1) / n, (n, each, one)


# ---- ends ----

@case
def a_killed_rank_ends_the_group_and_the_text_goes_on():
    tokens = 600
    want = json.loads(Running(*GROUP, tokens=tokens).end()[1])["token_ids"]
    for which in (0, -1):
        r = Running(*GROUP, "-tp", "4", tokens=tokens, log="info")
        target = wait_for_ranks(r, 4)
        ranks = ranks_of(target)
        os.kill(ranks[which], signal.SIGKILL)
        status, out, said = r.end()
        assert status == 0, said
        out = json.loads(out)
        assert out["token_ids"] == want and out["metrics"]["reopens"] == 1, out["metrics"]
        assert "of 4 was killed by signal 9" in said, said
        assert not any(alive(pid) for pid in (target, *ranks))


@case
def a_killed_rank_0_takes_the_others_along():
    tokens = 600
    r = Running(*GROUP, "-tp", "4", tokens=tokens, log="info")
    target = wait_for_ranks(r, 4)
    ranks = ranks_of(target)
    os.kill(target, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in ranks))
    status, out, said = r.end()
    assert status == 0 and len(json.loads(out)["token_ids"]) == tokens, said


@case
def a_session_goes_on_at_a_target_of_another_size():
    """From two ranks to four, and from four to one: what ends is a whole target, and another one has the session."""
    folder = Folder()

    def target(s, n):
        return worker("graft-target", folder, s.address, *GROUP, "--threads", "1", *(("-tp", n) if n != "1" else ()))

    def number_of(s, pid):
        wait_for(lambda: any(w["pid"] == pid for w in s.list()["workers"]))
        return next(str(w["worker"]) for w in s.list()["workers"] if w["pid"] == pid)

    def hand_over(s, old, n_old, new):
        """The session runs at `old`, since the other one takes none, and `old` is killed."""
        number = number_of(s, new.pid)
        s.graft("worker", "drain", number)
        turn = s.start(tokens=ENDLESS)
        s.wait_running()
        s.graft("worker", "undrain", number)
        ranks = ranks_of(old.pid)
        assert len(ranks) == n_old - 1, ranks
        os.kill(old.pid, signal.SIGKILL)
        running_again(s.sessions)
        out = closed(s, turn)
        want = generate("--ignore-eos", "--max-tokens", str(len(out["token_ids"])), *GROUP)["token_ids"]
        assert out["token_ids"] == want and out["metrics"]["reopens"] == 1, out["metrics"]
        wait_for(lambda: not any(alive(pid) for pid in ranks))

    with Serve(spawn=False, folder=folder) as s, target(s, "2") as two:
        s.wait()
        with target(s, "4") as four:
            hand_over(s, two, 2, four)
            with target(s, "1") as one:
                hand_over(s, four, 4, one)


@case
def a_stopped_rank_is_named():
    """The limit in time ends the group, with the rank and the step, and it comes back."""
    want = generate("--prompt", "import os", "--ignore-eos", "--max-tokens", "600", *GROUP)["token_ids"]
    said, took = stop_a_rank(GROUP, 600, "2s", want)
    assert "rank 0: rank 1 has not come to step " in said and "within 2.0 s" in said, said
    assert took < 30, took


@case
def an_interrupted_run_leaves_nobody():
    interrupt_a_run((*GROUP, "-tp", "4"), 4)


@case
def a_supervised_group_comes_back_while_it_is_idle():
    """Nobody computes: the loss is seen all the same, and the next session finds a whole group."""
    folder = Folder()
    with Serve(spawn=False, folder=folder) as s, \
            worker("graft-target", folder, s.address, "-tp", "2", "--supervise") as t:
        s.wait()
        want = s.generate("--max-tokens", "40")
        target = children(t.pid)[0][0]
        wait_for(lambda: len(ranks_of(target)) == 1)
        os.kill(ranks_of(target)[0], signal.SIGKILL)
        wait_for(lambda: not alive(target))
        wait_for(lambda: children(t.pid) and len(ranks_of(children(t.pid)[0][0])) == 1)
        s.wait()
        assert s.generate("--max-tokens", "40")["token_ids"] == want["token_ids"]
        t.send_signal(signal.SIGTERM)
        assert t.wait(20) == 0


@case
def what_cannot_be_is_refused():
    args = ("--model", TARGET, "--prompt", "x")
    refused((*args, "-tp", "3"), 2, "--tensor-parallel-size 3: must be 1, 2, 4 or 8")
    refused((*args, "-tp", "4"), 2, "has 2 KV heads", "give at most 2")
    refused((*args, "-tp", "16"), 2, "`16' is not a whole number from 1 to 8")
    refused((*args, "-tp"), 2, "--tensor-parallel-size needs a value")
    refused((*args, "--geometry", "test-64", "-tp", "8"), 2, "has 4 KV heads")


if __name__ == "__main__":
    sys.exit(main())
