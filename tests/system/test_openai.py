#!/usr/bin/env python3
"""The endpoint, asked by clients that were not written here: the openai package and curl. Skipped without the package, which
tools/prepare --tests installs into ~/.cache/graft/clients (GRAFT_TEST_CLIENTS names another folder).

usage: test_openai.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

from endpoint import PROMPT, Endpoint
from harness import ENDLESS, SLOW, TARGET, Skip, case, main, wait_for
from served import Folder, worker

CLIENTS = os.environ.get("GRAFT_TEST_CLIENTS", os.path.expanduser("~/.cache/graft/clients"))
FORM = ("--chat-template", "llama3")
ASKED = [{"role": "user", "content": "def add(a, b):"}]
KEY = "a-key-of-the-test-0123456789"

sys.path.insert(0, CLIENTS)
try:
    import openai
    from openai.types import completion_create_params as of_completions
    from openai.types.chat import completion_create_params as of_chats
except ImportError as e:
    print(f"1..0 # SKIP the openai package cannot be loaded from {CLIENTS}: {e}")
    sys.exit(0)


@contextlib.contextmanager
def asked(*args, api_key="none", **more):
    """A server, and the package's client of it, which tries nothing twice."""
    with Endpoint(*args, **more) as s:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key=api_key, max_retries=0, timeout=60 * SLOW) as client:
            yield s, client


def refused(kind, call, status, **fields):
    try:
        call()
    except kind as e:
        assert e.status_code == status, e
        for name, value in fields.items():
            assert value in str(getattr(e, name)), (name, value, e)
        return
    raise AssertionError(f"nothing was refused: {status} {fields}")


@case
def completions():
    with asked() as (s, client):
        want = s.complete()
        got = client.completions.create(model="target", prompt=PROMPT, temperature=0, max_tokens=16)
        assert got.choices[0].text == want["choices"][0]["text"] and got.choices[0].finish_reason == "length", got
        assert got.usage.completion_tokens == 16 and got.usage.prompt_tokens == want["usage"]["prompt_tokens"], got.usage
        many = client.completions.create(model="target", prompt=[PROMPT, "class Stack:"], temperature=0, max_tokens=8, n=2)
        assert [c.index for c in many.choices] == [0, 1, 2, 3] and many.choices[0].text == want["choices"][0]["text"][:len(many.choices[0].text)]
        assert [m.id for m in client.models.list()] == ["target"]


@case
def chat_with_log_probabilities():
    with asked(*FORM) as (s, client):
        got = client.chat.completions.create(model="target", messages=ASKED, temperature=0, max_completion_tokens=12,
                                             logprobs=True, top_logprobs=2)
        want = s.talk(logprobs=True, top_logprobs=2)["choices"][0]
        assert got.choices[0].message.content == want["message"]["content"], got
        assert got.choices[0].message.role == "assistant", got
        content = got.choices[0].logprobs.content
        assert [c.token for c in content] == [c["token"] for c in want["logprobs"]["content"]], content
        assert all(len(c.top_logprobs) == 2 for c in content), content


@case
def no_field_of_the_package_is_unknown():
    """Each that it may send, as null: what is told of it then, if anything, is that it is needed."""
    with asked(*FORM) as (s, _):
        for path, more, params in (("/v1/completions", {"prompt": PROMPT}, of_completions.CompletionCreateParamsNonStreaming),
                                   ("/v1/chat/completions", {"messages": ASKED, "max_completion_tokens": 1}, of_chats.CompletionCreateParamsNonStreaming)):
            names = {n for c in params.__mro__ for n in getattr(c, "__annotations__", ())}
            assert len(names) > 15, names
            for name in names:
                status, told, _ = s.ask("POST", path, {"max_tokens": 1, **more, name: None})
                needed = name in ("prompt", "messages")
                assert (status, needed) == (200, False) or (status, needed, told["error"]["param"]) == (400, True, name), told
            status, told, _ = s.ask("POST", path, {"max_tokens": 1, **more, "no_such_field": None})
            assert status == 400 and told["error"]["param"] == "no_such_field", (path, told)


@case
def streams():
    with asked(*FORM) as (s, client):
        whole = s.talk(max_completion_tokens=40)
        text, usage, ends = "", None, []
        for event in client.chat.completions.create(model="target", messages=ASKED, temperature=0, max_completion_tokens=40,
                                                    stream=True, stream_options={"include_usage": True}):
            usage = event.usage or usage
            text += "".join(c.delta.content or "" for c in event.choices)
            ends += [c.finish_reason for c in event.choices if c.finish_reason]
        assert text == whole["choices"][0]["message"]["content"] and ends == [whole["choices"][0]["finish_reason"]], text
        assert usage.completion_tokens == whole["usage"]["completion_tokens"], usage
        pieces = [c.text for e in client.completions.create(model="target", prompt=PROMPT, temperature=0, max_tokens=16, stream=True)
                  for c in e.choices]
        assert "".join(pieces) == s.complete()["choices"][0]["text"] and len(pieces) > 1, pieces


@case
def a_stream_that_is_left_frees_its_session():
    with asked(*FORM) as (s, client):
        stream = client.chat.completions.create(model="target", messages=ASKED, temperature=0, max_completion_tokens=2000,
                                                stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        wait_for(s.is_quiet)


MANY = 2500 if SLOW == 1 else 500  # tokens of an answer that is met in its midst


class Taken:
    """What came of a stream of `n` tokens of completions, what it said last, and the error that ended it, if one did."""

    def __init__(self, client, n, headers=None):
        self.pieces, self.reason, self.error = [], None, None
        self.events = client.completions.create(model="target", prompt=PROMPT, temperature=0, max_tokens=n, stream=True,
                                                extra_body={"ignore_eos": True}, extra_headers=headers)

    def take(self, n_piece=None):
        """Until there are so many pieces; without a number until the end."""
        try:
            while n_piece is None or len(self.pieces) < n_piece:
                choice = next(self.events).choices[0]
                self.pieces.append(choice.text)
                self.reason = choice.finish_reason or self.reason
        except StopIteration:
            pass
        except openai.APIError as e:
            self.error = e
        return self

    def text(self):
        return "".join(self.pieces)


@case
def pings_are_no_events():
    """Streams that wait for a target for longer than pings take to come go on as if nothing had been; also with event ids,
    with which a ping that ends as an event does would be taken for one."""
    with asked("--model", TARGET, spawn=False) as (s, client):
        waiting = [Taken(client, 16), Taken(client, 16, {"X-Graft-Event-Ids": "1"})]
        c, r = s.open("POST", "/v1/completions", {"prompt": PROMPT, "stream": True, "max_tokens": 1})  # is told no earlier
        with contextlib.closing(c):
            assert r.readline() == b": ping\n"
        with worker("graft-target", s.folder, s.address):
            for waits in waiting:
                assert waits.take().error is None and waits.reason == "length", waits.error
                assert waits.text() == s.complete(ignore_eos=True)["choices"][0]["text"], waits.text()


@case
def a_killed_target_leaves_a_whole_answer_or_an_error():
    """Whole where another target takes over; an error, and no reason to think that it is whole, where none does."""
    with asked(draft=False) as (s, client):
        want = s.complete(max_tokens=MANY, ignore_eos=True)["choices"][0]["text"]
        for _ in range(3):  # where it was over before the kill, the next one may be met in its midst
            got = Taken(client, MANY).take(20)
            os.kill(s.child("graft-target"), signal.SIGKILL)
            assert got.take().error is None and got.reason == "length", (got.error, got.reason)
            assert got.text() == want, len(got.text())
            if s.metrics()["graft_reopens_total"]:
                break
            wait_for(s.is_ready)
        assert s.metrics()["graft_reopens_total"] == 1
    with asked("--model", TARGET, "--queue-timeout", "1", spawn=False) as (s, client):
        with worker("graft-target", s.folder, s.address) as target:
            got = Taken(client, ENDLESS).take(20)
            target.send_signal(signal.SIGKILL)
            error = got.take().error
        assert error is not None and got.reason is None, (error, got.reason)
        assert "target" in error.message and got.text()[:len(want)] == want[:len(got.text())], error
        wait_for(s.is_quiet)


@case
def a_killed_server_leaves_an_error():
    with asked(draft=False) as (s, client):
        got = Taken(client, ENDLESS).take(20)
        s.p.kill()
        assert isinstance(got.take().error, openai.APIConnectionError) and got.reason is None, (got.error, got.reason)
        s.p.wait()


@case
def fields_of_vllm_pass_in_the_extra_body():
    with asked() as (s, client):
        got = client.completions.create(model="target", prompt=PROMPT, temperature=0, max_tokens=16,
                                        extra_body={"ignore_eos": True, "min_tokens": 4, "num_speculative_tokens": 4, "top_k": -1})
        assert got.choices[0].text == s.complete(ignore_eos=True)["choices"][0]["text"], got


@case
def errors_are_of_the_right_class():
    with asked() as (_, client):
        create = client.completions.create
        refused(openai.BadRequestError, lambda: create(model="target", prompt=PROMPT, temperature=-1), 400, param="temperature",
                message="temperature")
        refused(openai.BadRequestError, lambda: create(model="target", prompt=PROMPT, extra_body={"no_such_field": 1}), 400,
                message="no_such_field")
        refused(openai.NotFoundError, lambda: create(model="another", prompt=PROMPT), 404, message="another")
        refused(openai.BadRequestError, lambda: create(model="target", prompt=PROMPT, max_tokens=10**9), 400, message="max_tokens")


@case
def what_has_timed_out_is_not_asked_again():
    """By itself the package sends again what was answered with 408, and the work would begin anew."""
    with asked("--model", TARGET, "--queue-timeout", "0", spawn=False) as (s, client):
        retrying = client.with_options(max_retries=2)
        refused(openai.APIStatusError, lambda: retrying.completions.create(
            model="target", prompt=PROMPT, extra_body={"timeout": .2}), 408, message="timeout")
        assert s.metrics()["graft_requests_total"] == 1, s.metrics()


@case
def keys_are_asked_for():
    folder = Folder()
    keys = folder.path("keys")
    with open(keys, "w", encoding="utf-8") as f:
        f.write(f"{KEY} tester\n")
    os.chmod(keys, 0o600)
    with asked("--api-key-file", keys, api_key="wrong", folder=folder) as (s, client):
        refused(openai.AuthenticationError, client.models.list, 401)
        with openai.OpenAI(base_url=client.base_url, api_key=KEY, max_retries=0) as known:
            assert [m.id for m in known.models.list()] == ["target"], s.log()


@case
def curl_streams_without_waiting():
    """As the documentation says it: -N, and a body by --json's older form."""
    if not shutil.which("curl"):
        raise Skip("curl is not installed")
    with asked() as (s, _):
        body = json.dumps({"prompt": PROMPT, "temperature": 0, "max_tokens": 16, "stream": True})
        done = subprocess.run(["curl", "-sSN", f"http://127.0.0.1:{s.port}/v1/completions", "-H", "Content-Type: application/json",
                               "-d", body], capture_output=True, text=True, timeout=60 * SLOW, check=True)
        events = [line[6:] for line in done.stdout.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", done.stdout[-300:]
        assert "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]) == s.complete()["choices"][0]["text"]


if __name__ == "__main__":
    sys.exit(main())
