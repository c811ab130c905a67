#!/usr/bin/env python3
"""Two models under one `graft serve`: each request gets the text of the model that it names, with drafters of its own, and
the end of one model's worker moves no session to the other.

usage: test_models.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import signal
import sys

from harness import DRAFT, HEAD, ROOT, SLOW, TARGET, case, main, run, wait_for
from served import FIXED, PROMPT, Serve, one_line, worker

N_TOKEN = 400
NAMES = {"large": TARGET, "small": DRAFT}  # the demo's draft model has its tokenizer, and serves as well
with open(os.path.join(ROOT, "tests/golden/demo-greedy.json"), encoding="utf-8") as golden:
    PROMPT_IDS = json.load(golden)["cases"][1]["prompt_ids"]
MORE_IDS = PROMPT_IDS[5:12]


def text_of(model, *args, **kw):
    done = run("run", "--json", "--model", model, "--ignore-eos", *args, **kw)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["token_ids"]


def of_ids(model, ids, n):
    return text_of(model, "--prompt-ids", "-", "--max-tokens", str(n), stdin=json.dumps(ids))


def workers(s):
    return json.loads(s.graft("worker", "list", "--json").stdout)["workers"]


@contextlib.contextmanager
def fleet():
    """The large model with its head and both with the draft model; a list of the small one's target, which may be replaced."""
    with Serve(spawn=False) as s, contextlib.ExitStack() as stack:
        start = lambda program, *args, **kw: stack.enter_context(worker(program, s.folder, s.address, *args, **kw))
        start("graft-target", "--head", HEAD, "--served-model-name", "large")
        small = [start("graft-target", "--served-model-name", "small", model=DRAFT)]
        start("graft-draft", "--target", TARGET, model=HEAD)
        start("graft-draft", model=DRAFT)
        wait_for(lambda: len(workers(s)) == 4, 60)
        s.restart_small = lambda: small.append(
            start("graft-target", "--served-model-name", "small", model=DRAFT))
        yield s, small


def number_of(s, role, model):
    return next(w["worker"] for w in workers(s) if w["role"] == role and w["model"] == model)


@case
def each_request_gets_its_model():
    want = {name: text_of(path, "--prompt", PROMPT, "--max-tokens", str(N_TOKEN)) for name, path in NAMES.items()}
    assert want["large"] != want["small"]
    with fleet() as (s, _):
        clients = [(name, s.start("--served-model-name", name, "--keep", *FIXED, tokens=N_TOKEN))
                   for name in 3 * list(NAMES)]
        sessions = {}
        for name, p in clients:
            out, err = p.communicate(timeout=120 * SLOW)
            assert p.returncode == 0, err
            out = json.loads(out)
            assert out["token_ids"] == want[name], name
            assert out["metrics"]["num_drafts"] > 0, (name, out["metrics"])
            sessions[out["session"]] = name
        head = number_of(s, "draft", os.path.basename(HEAD))
        for x in s.sessions():
            assert x["target"] == number_of(s, "target", sessions[x["id"]]), s.list()
            assert sessions[x["id"]] == "large" or x["drafter"] != head, s.list()
        assert "small" in s.graft("worker", "list").stdout
        refused = s.graft("run", "--connect", s.address, "--model", TARGET, "--prompt", "x", status=1)
        one_line(refused, "several models", "`large'", "`small'")
        refused = s.graft("run", "--connect", s.address, "--model", TARGET, "--prompt", "x", "--served-model-name", "big",
                          status=1)
        one_line(refused, "no model `big'", "`large'")


@case
def a_lost_worker_moves_no_session_to_another_model():
    with fleet() as (s, small):
        ids = s.folder.path("ids")

        def begin(tokens, ask, *args):
            with open(ids, "w", encoding="utf-8") as f:
                json.dump(ask, f)
            return s.start("--prompt-ids", ids, *args, tokens=tokens)

        def end(p):
            out, err = p.communicate(timeout=120 * SLOW)
            assert p.returncode == 0, err
            return json.loads(out)
        out = end(begin(16, PROMPT_IDS, "--served-model-name", "small", "--keep"))
        assert out["token_ids"] == of_ids(DRAFT, PROMPT_IDS, 16)
        so_far = PROMPT_IDS + out["token_ids"] + MORE_IDS
        small[0].send_signal(signal.SIGKILL)
        wait_for(lambda: len(workers(s)) == 3)
        p = begin(N_TOKEN, MORE_IDS, "--session", out["session"])
        wait_for(lambda: [x["state"] for x in s.sessions()] == ["waiting"])
        large = end(begin(16, PROMPT_IDS, "--served-model-name", "large"))
        assert large["token_ids"] == of_ids(TARGET, PROMPT_IDS, 16)
        one_line(s.graft("run", "--connect", s.address, "--model", TARGET, "--prompt", "x", status=1), "`small' (away)")
        s.restart_small()
        assert end(p)["token_ids"] == of_ids(DRAFT, so_far, N_TOKEN)


@case
def a_name_is_one_models():
    with Serve(spawn=False) as s, worker("graft-target", s.folder, s.address, "--served-model-name", "m"):
        wait_for(lambda: len(workers(s)) == 1, 60)
        with worker("graft-target", s.folder, s.address, "--served-model-name", "m", model=DRAFT) as other:
            err = other.communicate(timeout=60 * SLOW)[1]
            assert other.returncode == 1 and "model `m'" in err and "target worker 1" in err, err
        assert len(workers(s)) == 1
        assert s.generate("--max-tokens", "4")["token_ids"] == text_of(TARGET, "--prompt", PROMPT, "--max-tokens", "4")


if __name__ == "__main__":
    sys.exit(main())
