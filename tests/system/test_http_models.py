#!/usr/bin/env python3
"""Several models after one endpoint: which requests and which targets are whose.

usage: test_http_models.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import sys
import tempfile

from harness import DRAFT, TARGET, case, main, run, wait_for
from endpoint import PROMPT, Endpoint
from served import one_line, worker
from weights import with_other_tokenizer

N_TOKEN = 24
TWO = ("--model", "large=" + TARGET, "--model", "small=" + DRAFT)  # the demo's draft model has its tokenizer, and serves as well


def text_of(model):
    done = run("run", "--json", "--model", model, "--prompt", PROMPT, "--max-tokens", str(N_TOKEN))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["text"]


def text_at(s, **body):
    return s.complete(max_tokens=N_TOKEN, **body)["choices"][0]["text"]


def health(s):
    status, answer, _ = s.ask("GET", "/health")
    return status, answer["status"], answer["targets"]


def models(s):
    return {m["id"]: m["max_model_len"] for m in s.ask("GET", "/v1/models")[1]["data"]}


@case
def each_model_answers_with_its_own_text():
    want = {"large": text_of(TARGET), "small": text_of(DRAFT)}
    assert want["large"] != want["small"]
    with Endpoint(*TWO, spawn=False) as s, contextlib.ExitStack() as stack:
        start = lambda *args, **kw: stack.enter_context(worker("graft-target", s.folder, s.address, *args, **kw))
        assert "serving large, small at" in s.log(), s.log()
        assert list(models(s)) == ["large", "small"] and health(s) == (503, "no target", 0), (models(s), health(s))
        start("--served-model-name", "large")
        wait_for(lambda: health(s) == (200, "a model without target", 1), 60)
        assert s.ask("GET", "/ready")[0] == 503
        assert text_at(s, model="large") == want["large"]
        away, answer, head = s.ask("POST", "/v1/completions", {"prompt": PROMPT, "model": "small"})
        assert away == 503 and "model `small' has joined yet" in answer["error"]["message"] and head.getheader("Retry-After"), (away, answer)
        start("--served-model-name", "small", "--max-model-len", "256", model=DRAFT)
        wait_for(lambda: health(s) == (200, "ok", 2), 60)
        assert s.ask("GET", "/ready")[0] == 200
        lengths = models(s)
        assert lengths["small"] == 256 < lengths["large"], lengths
        for name in 2 * list(want):
            got = s.complete(max_tokens=N_TOKEN, model=name)
            assert got["choices"][0]["text"] == want[name] and got["model"] == name, (name, got)
        s.post("/v1/completions", {"prompt": PROMPT, "model": "small", "max_tokens": 300}, status=400)
        s.post("/v1/completions", {"prompt": PROMPT, "model": "large", "max_tokens": 300, "temperature": 0})
        unknown = s.post("/v1/completions", {"prompt": PROMPT, "model": "big"}, status=404)["error"]
        assert unknown["code"] == "model_not_found" and "large, small" in unknown["message"], unknown
        missing = s.post("/v1/completions", {"prompt": PROMPT}, status=400)["error"]
        assert missing["param"] == "model" and "large, small" in missing["message"], missing
        assert s.post("/tokenize", {"prompt": PROMPT, "model": "small"})["max_model_len"] == 256
        fleet = {m["id"]: m["targets"] for m in s.ask("GET", "/v1/graft/fleet")[1]["models"]}
        assert fleet == {"large": 1, "small": 1}, fleet


@case
def a_model_without_a_name_has_its_folders():
    with Endpoint("--model", TARGET, "--model", DRAFT, spawn=False) as s, worker("graft-target", s.folder, s.address, model=DRAFT):
        assert s.log().count("each has the template of its own files") == 2 and "--chat-template" not in s.log(), s.log()
        wait_for(lambda: health(s)[0] == 200, 60)
        assert list(models(s)) == ["target", "draft"], models(s)
        assert text_at(s, model="draft") == text_of(DRAFT)


@case
def a_target_of_another_tokenizer_serves_nothing():
    """Whether the endpoint's model has a name or not; it serves when the right target comes."""
    want = text_of(TARGET)
    with with_other_tokenizer(TARGET) as other:
        for name, foreign in (((), ()), (("--served-model-name", "m"), ("--served-model-name", "m"))):
            with Endpoint("--model", TARGET, *name, spawn=False) as s:
                with worker("graft-target", s.folder, s.address, *foreign, model=other):
                    wait_for(lambda: len(s.list()["workers"]) == 1, 60)
                    assert health(s) == (503, "no target", 0), health(s)
                    status, answer, _ = s.ask("POST", "/v1/completions", {"prompt": PROMPT})
                    assert status == 503 and "tokenizer" in answer["error"]["message"], (status, answer)
                wait_for(lambda: not s.list()["workers"])
                with worker("graft-target", s.folder, s.address, *name):
                    wait_for(lambda: health(s)[0] == 200, 60)
                    assert text_at(s) == want


@case
def the_first_target_settles_the_values_of_a_name():
    """A second one of the same tokenizer and other values, under another name, serves nothing."""
    want = text_of(TARGET)
    with Endpoint("--model", TARGET, spawn=False) as s, worker("graft-target", s.folder, s.address, "--served-model-name", "first"):
        wait_for(lambda: health(s)[0] == 200, 60)
        with worker("graft-target", s.folder, s.address, "--served-model-name", "second", model=DRAFT):
            wait_for(lambda: len(s.list()["workers"]) == 2, 60)
            assert health(s) == (200, "ok", 1), health(s)
            assert [text_at(s) for _ in range(4)] == 4 * [want]


@case
def what_cannot_be_served_is_one_line():
    with tempfile.TemporaryDirectory() as d:
        for args, status, *words in (
                (("a=" + TARGET, "a=" + DRAFT), 2, "are both called `a'", "NAME=PATH"),
                ((TARGET, TARGET), 2, "are both called `target'"),
                (("=" + TARGET,), 2, "NAME is empty"), (("a=",), 2, "PATH is empty"),
                (("b=" + d, "a=" + TARGET), 1, d), ((d,), 1, d),
                (17 * (TARGET,), 2, "--model", "16"),
                (("a=" + TARGET, "b=" + DRAFT, "--spawn"), 2, "--spawn", "--served-model-name NAME")):
            line = [w for a in args for w in ((a,) if a.startswith("--") else ("--model", a))]
            done = run("serve", "--control", "127.0.0.1:0", "--http", "127.0.0.1:0", *line, env={"GRAFT_KEY": "ab" * 32})
            assert done.returncode == status, (args, done.returncode, done.stderr)
            one_line(done, *words)


@case
def a_named_model_is_started_under_its_name():
    """--spawn starts the workers of one model, whose target gets the name, from a list of the YAML file as well."""
    with tempfile.TemporaryDirectory() as d:
        config = os.path.join(d, "serve.yaml")
        with open(config, "w", encoding="utf-8") as f:
            f.write(f"target:\n  model: [\"mine={TARGET}\"]\n")
        with Endpoint("--config", config, "--spawn", spawn=False) as s:
            wait_for(lambda: health(s)[0] == 200, 60)
            assert list(models(s)) == ["mine"] and [w["model"] for w in s.list()["workers"]] == ["mine"], s.list()
            assert text_at(s, model="mine") == text_of(TARGET)
            s.graft("wait", "--config", config)  # who takes no model reads the list over
            one_line(s.graft("session", "open", "--config", config, "--prompt", "x", status=2), "a single value is wanted", "model")


if __name__ == "__main__":
    sys.exit(main())
