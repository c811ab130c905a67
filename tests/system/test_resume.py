#!/usr/bin/env python3
"""Streams over HTTP that resume: cut anywhere they are one text, whoever reads them, and nobody reads another's.

usage: test_resume.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import concurrent.futures
import contextlib
import json
import os
import socket

from endpoint import PROMPT, Endpoint, Journalled, read_all
from harness import case, main, wait_for
from kept import EVENT_ID, Kept, Refused, read_kept
from served import Folder, worker

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
FORM = ("--chat-template", "llama3")
LONG = 30000  # tokens of a turn that is met in its midst, and is never waited for
BODY = {"prompt": PROMPT, "temperature": 0, "max_tokens": 60, "ignore_eos": True}
ASKED = {"messages": [{"role": "user", "content": "def add(a, b):"}], "temperature": 0, "max_completion_tokens": 60}
KEYS = ("a-key-of-the-test-0123456789", "another-key-of-it-0123456789")


def endless(**more):
    return dict(BODY, max_tokens=LONG, **more)


def begun(s, body, n=3, **kw):
    """An answer of which n events were read, and whose connection is gone since."""
    k = Kept(s, COMPLETIONS, body, **kw)
    assert not k.once(cut_after=n)
    return k


def get(s, session, query="", headers=None):
    """Status and text of a GET of a stream that is refused, or is over."""
    c, r = s.open("GET", f"/v1/sessions/{session}/stream{query}", headers=headers)
    with contextlib.closing(c):
        return r.status, r.read().decode()


def stop(s, session, status=200):
    return s.post(f"/v1/sessions/{session}/stop", {}, status)


def count(s, name):
    return s.metrics()[name]


def refused(status, call):
    try:
        call()
    except Refused as e:
        assert e.status == status, e
        return
    raise AssertionError(f"nothing was refused: {status}")


@case
def a_text_that_is_cut_at_each_event_is_the_plain_one():
    with Endpoint(*FORM) as s:
        whole = s.complete(**BODY)
        for n in (1, 2, 7):
            got = read_kept(s, COMPLETIONS, BODY, cut_after=n)
            assert got.text == whole["choices"][0]["text"] and got.finish == "length", (n, got.text)
            assert got.usage == whole["usage"] and got.n_break > 0 and got.at == 61, (got.usage, got.ids[-1])
            assert len({(e["id"], e["created"], e["model"], e["object"]) for e in got.events}) == 1, got.events
        talk = s.talk(max_completion_tokens=60)
        got = read_kept(s, CHAT, ASKED, cut_after=1)
        assert got.text == talk["choices"][0]["message"]["content"] and got.finish == talk["choices"][0]["finish_reason"]
        assert [e["choices"][0]["delta"].get("role") for e in got.events if e["choices"]].count("assistant") == 1


@case
def stop_strings_and_log_probabilities_go_on():
    """A stop string that begins within a token, so that its text waits; and values of each token once."""
    with Endpoint() as s:
        text = s.complete(**BODY)["choices"][0]["text"]
        body = dict(BODY, stop=[text[41:46], "never" * 20], logprobs=2)
        whole = s.complete(**body)["choices"][0]
        assert whole["finish_reason"] == "stop" and 0 < len(whole["text"]) < len(text), whole
        for n in (1, 3):
            got = read_kept(s, COMPLETIONS, body, cut_after=n)
            assert got.text == whole["text"] and got.finish == "stop", (got.text, whole)
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert sum((x[name] for x in got.logprobs), []) == whole["logprobs"][name], name


@case
def only_who_asks_gets_ids():
    with Endpoint() as s:
        for headers, query, asked in (({}, "", False), ({"X-Graft-Event-Ids": "1"}, "", True), ({}, "?event_ids=1", True)):
            c, r = s.open("POST", COMPLETIONS + query, dict(BODY, stream=True), headers=headers)
            with contextlib.closing(c):
                session, lines = r.getheader("X-Graft-Session"), r.read().decode().splitlines()
            ids = [x[4:] for x in lines if x.startswith("id: ")]
            assert len(session) == 16 and bool(ids) == asked and all(EVENT_ID.fullmatch(x) for x in ids), (session, ids)
            assert [x.startswith("retry: ") for x in lines] == [asked] + [False] * (len(lines) - 1), lines[:9]
            status, _ = get(s, session)
            assert status == (200 if asked else 410), status
        c, r = s.open("POST", COMPLETIONS, dict(BODY, stream=True, n=2), headers={"X-Graft-Event-Ids": "1"})
        with contextlib.closing(c):
            assert len(r.getheader("X-Graft-Session")) == 16 and b"id:" not in (text := r.read()) and b"retry:" not in text
        assert get(s, r.getheader("X-Graft-Session"))[0] == 404


@case
def nobody_reads_what_is_not_his():
    folder = Folder()
    with open(folder.path("keys"), "w", encoding="utf-8") as f:
        f.write("".join(f"{k}\n" for k in KEYS))
    os.chmod(folder.path("keys"), 0o600)
    with Endpoint("--api-key-file", folder.path("keys"), key=KEYS[0], folder=folder) as s:
        one, two = (read_kept(s, COMPLETIONS, dict(BODY, prompt=p)) for p in (PROMPT, "import os"))
        other = {"Authorization": f"Bearer {KEYS[1]}"}
        session, last = one.session, one.ids[-2]
        wrong = [("", other, 404), ("?from=0", other, 404), ("?from=0", {"Authorization": None}, 401),
                 (f"?last_event_id={two.ids[0]}", None, 404), ("", {"Last-Event-ID": two.ids[0]}, 404),
                 ("?from=-1", None, 400), ("?from=1e3", None, 400), ("?from=", None, 400), ("?from=99999999999999999999", None, 400),
                 (f"?from={one.at + 10**9}", None, 400), (f"?from={one.at + 1}", None, 400),
                 ("", {"Last-Event-ID": f"{session}-1-{10**9}"}, 400), ("", {"Last-Event-ID": f"{session}-1-"}, 404),
                 ("", {"Last-Event-ID": "7"}, 404), (f"?last_event_id={last}%0Adata:x", None, 404),
                 (f"?last_event_id={last}%00", None, 404)]
        for query, headers, status in wrong:
            got = get(s, session, query, headers)
            assert got[0] == status and "data:" not in got[1] and one.text[:9] not in got[1], (query, headers, got)
        for name in ("0000000000000099", "0" * 16, session.upper() + "0", session[:-1], "x" * 16, "%0A" + session, session + "%0A",
                     "..", "x" * 2000):
            got = get(s, name)
            assert got[0] == 404 and "data:" not in got[1], (name, got)
        assert get(s, session[:-1] + "%00")[0] == 400
        assert stop(s, session)["stopped"] is False
        s.post(f"/v1/sessions/{session}/stop", {}, 404, headers=other)
        assert get(s, session, "?from=5")[0] == 200 and get(s, session.upper(), "?from=5")[0] == 200


@case
def an_id_of_a_megabyte_does_no_harm():
    with Endpoint(draft=False) as s:
        one = read_kept(s, COMPLETIONS, BODY)
        for line in (f"GET /v1/sessions/{one.session}/stream?last_event_id={'1' * 2**20} HTTP/1.1\r\nHost: localhost\r\n\r\n",
                     f"GET /v1/sessions/{one.session}/stream HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {'1' * 2**20}\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", s.port)) as c:
                with contextlib.suppress(ConnectionError):
                    c.sendall(line.encode())
                got = read_all(c)
            assert b"data:" not in got and (not got or got.split()[1] in (b"400", b"404", b"414", b"431")), got[:300]
        assert get(s, one.session)[0] == 200


@case
def two_readers_have_one_generation():
    with Endpoint() as s:
        body = dict(BODY, max_tokens=600)
        text = s.complete(**body)["choices"][0]["text"]
        before = count(s, "graft_generation_tokens_total")
        first = begun(s, body)

        def follow(at):
            k = Kept(s, COMPLETIONS, body)
            k.answer.session = first.answer.session
            if at:
                k.answer.ids = [f"{k.answer.session}-1-{at}"]
            return k.read()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            got = list(pool.map(follow, (0, 0, 1)))
        assert [x.text == text for x in got[:2]] == [True, True] and text.endswith(got[2].text), [len(x.text) for x in got]
        assert all(x.finish == "length" and x.usage["completion_tokens"] == 600 for x in got), got
        assert count(s, "graft_generation_tokens_total") == before + 600


@case
def who_has_all_of_it_is_told_so():
    with Endpoint() as s:
        one = read_kept(s, COMPLETIONS, BODY)
        turns = count(s, "graft_generation_tokens_total")
        assert one.ids[-1] == f"{one.session}-1-61"
        for query, headers in (("?from=61", None), (f"?last_event_id={one.ids[-1]}", None), ("", {"Last-Event-ID": one.ids[-1]}),
                               ("?from=0", {"Last-Event-ID": one.ids[-1]})):
            assert get(s, one.session, query, headers) == (204, ""), query
        status, text = get(s, one.session, "?from=60")  # has the text, and not its end
        events = [json.loads(e[6:]) for e in text.split("\n") if e.startswith("data: {")]
        assert status == 200 and "".join(c["text"] for e in events for c in e["choices"]) == "", text
        assert events[0]["choices"][0]["finish_reason"] == "length" and "data: [DONE]" in text, text
        assert count(s, "graft_generation_tokens_total") == turns


@case
def who_was_away_during_the_end_gets_it():
    with Endpoint() as s:
        want = s.complete(**BODY)
        k = begun(s, BODY, n=2)
        wait_for(s.is_quiet)
        got = k.read()
        assert got.text == want["choices"][0]["text"] and got.finish == "length" and got.usage == want["usage"] and got.done


@case
def an_answer_goes_on_for_its_grace():
    with Endpoint("--resume-grace", "3600") as s:
        k = begun(s, endless())
        before = count(s, "graft_generation_tokens_total")
        wait_for(lambda: count(s, "graft_generation_tokens_total") > before + 200)  # nobody reads it
        k.once(cut_after=3)
        assert count(s, "graft_num_requests_running") == 1
        assert stop(s, k.answer.session)["stopped"] is True
        wait_for(s.is_quiet)
        assert k.read().finish == "stop"
    with Endpoint("--resume-grace", "1") as s:
        k = begun(s, endless())
        wait_for(lambda: "its client is gone" in s.log())
        wait_for(s.is_quiet)
        refused(410, k.resume)


@case
def who_does_not_ask_frees_its_session_at_once():
    with Endpoint("--resume-grace", "3600") as s:
        c, r = s.open("POST", COMPLETIONS, endless(stream=True))
        r.readline()
        c.close()
        r.close()
        wait_for(s.is_quiet)
        assert "its client is gone" in s.log() and get(s, r.getheader("X-Graft-Session"))[0] == 410


@case
def stop_ends_a_turn_and_its_reader_is_told():
    with Endpoint() as s:
        k = Kept(s, COMPLETIONS, endless())
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            read = pool.submit(k.read)
            wait_for(lambda: len(k.answer.ids) > 20)
            assert stop(s, k.answer.session) == {"id": k.answer.session, "object": "session.stop", "stopped": True}
            got = read.result()
        n = got.usage["completion_tokens"]
        assert got.finish == "stop" and 20 <= n < LONG and got.at == n + 1, (got.finish, n, got.ids[-1])
        assert got.text == s.complete(**dict(BODY, max_tokens=n))["choices"][0]["text"]
        assert stop(s, k.answer.session)["stopped"] is False
        stop(s, "0000000000000099", 404)
        assert s.ask("GET", f"/v1/sessions/{k.answer.session}/stop")[0] == 405


@case
def one_key_has_one_session():
    with Endpoint() as s:
        once = lambda body, key="k 1", **kw: read_kept(s, COMPLETIONS, body, key=key, **kw)  # noqa: E731
        before = count(s, "graft_generation_tokens_total")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            one, two = pool.map(once, (BODY, BODY))
        three = once(BODY, cut_after=2)
        assert one.session == two.session == three.session and one.text == two.text == three.text and one.ids[-1] == three.ids[-1]
        assert count(s, "graft_generation_tokens_total") == before + 60
        refused(422, lambda: once(dict(BODY, max_tokens=61)))
        assert once(BODY, key="k 2").session != one.session
        whole = [s.post(COMPLETIONS, BODY, headers={"Idempotency-Key": "w"}) for _ in range(2)]
        assert whole[0] == whole[1] and whole[0]["choices"][0]["text"] == one.text, whole
        s.post(CHAT, BODY, 400, headers={"Idempotency-Key": "x"})  # never began: its key is free
        s.post(COMPLETIONS, BODY, headers={"Idempotency-Key": "x"})
        s.post(COMPLETIONS, dict(BODY, stop="."), 422, headers={"Idempotency-Key": "x"})
        for bad in ("", "x" * 256, "\u00e9"):
            s.post(COMPLETIONS, BODY, 400, headers={"Idempotency-Key": bad})
        s.post(COMPLETIONS, BODY, headers={"Idempotency-Key": "x" * 255})


@case
def a_second_post_follows_the_first_from_its_beginning():
    with Endpoint("--resume-grace", "3600") as s:
        first = begun(s, endless(), key="again")
        second = begun(s, endless(), n=20, key="again")
        assert second.answer.session == first.answer.session and second.answer.text.startswith(first.answer.text)
        stop(s, first.answer.session)
        assert first.read().text == second.read().text


@case
def followers_are_bounded():
    with Endpoint("--resume-grace", "3600") as s, contextlib.ExitStack() as stack:
        k = begun(s, endless())
        wait_for(lambda: count(s, "graft_num_requests_running") == 1)
        statuses = []
        for _ in range(20):
            c, r = k.server.open("GET", f"/v1/sessions/{k.answer.session}/stream")
            stack.callback(c.close)
            stack.callback(r.close)
            statuses.append(r.status)
        assert statuses == [200] * 16 + [429] * 4, statuses
        stop(s, k.answer.session)
        wait_for(s.is_quiet)


@contextlib.contextmanager
def journalled(*args):
    with Journalled(*args) as s, worker("graft-target", s.folder, s.address, "--rejoin-timeout", "300"):
        s.wait()
        yield s


@case
def answers_outlive_the_orchestrator():
    """Two kills in the midst, with readers and without; texts, reasons and usage are those of one that was never cut."""
    with journalled() as s:
        body = dict(BODY, max_tokens=600)
        stops = dict(body, max_tokens=1200, stop=["never" * 10])
        want = {json.dumps(b): s.complete(**b) for b in (body, stops)}
        talks = [begun(s, b, n=4) for b in (body, stops, body)]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            read = [pool.submit(k.read) for k in talks[:2]]
            s.kill()
            wait_for(lambda: s.log().count("turns go on") == 1, 60)
            wait_for(lambda: talks[0].answer.done or len(talks[0].answer.ids) > 60, 60)
            s.kill()
            got = [r.result() for r in read] + [talks[2].read()]
        for b, one in zip((body, stops, body), got):
            whole = want[json.dumps(b)]
            assert one.text == whole["choices"][0]["text"] and one.finish == whole["choices"][0]["finish_reason"], one.text
            assert {k: one.usage[k] for k in ("prompt_tokens", "completion_tokens")} == {
                k: whole["usage"][k] for k in ("prompt_tokens", "completion_tokens")}, one.usage
            assert len({(e["id"], e["created"], e["model"]) for e in one.events}) == 1, one.session
            s.kill()  # what is over is there again, whole, and by its last id nothing of it is
            wait_for(s.is_ready, 60)
            status, text = get(s, one.session)
            told = "".join(c["text"] for e in text.split("\n") if e.startswith("data: {") for c in json.loads(e[6:])["choices"])
            assert status == 200 and told == one.text, (status, told)
            assert get(s, one.session, f"?last_event_id={one.ids[-1]}") == (204, "")


@case
def what_binds_an_answer_outlives_the_orchestrator():
    """Its owner, its key and its body; its grace, which begins anew; and what is past it."""
    with journalled() as s:
        k = begun(s, endless(), key="kept")
        text = k.answer.text
        whole = s.post(COMPLETIONS, BODY, headers={"Idempotency-Key": "whole"})
        s.kill()
        wait_for(s.is_ready, 60)
        refused(422, lambda: begun(s, dict(endless(), seed=1), key="kept"))
        again = begun(s, endless(), key="kept")
        assert again.answer.session == k.answer.session and again.answer.text[:len(text)] == text[:len(again.answer.text)]
        assert s.post(COMPLETIONS, BODY, headers={"Idempotency-Key": "whole"})["choices"] == whole["choices"]
        assert get(s, k.answer.session, f"?from={10**9}")[0] == 400
        assert stop(s, k.answer.session)["stopped"] is True
        one = again.read()  # who is told of an end may rely on it
        s.kill()
        wait_for(s.is_ready, 60)
        assert k.read().text == one.text and k.answer.finish == "stop"
        assert one.finish == "stop" and one.text.startswith(text) and one.usage["completion_tokens"] == one.at - 1
        assert stop(s, k.answer.session)["stopped"] is False


@case
def nobody_comes_back_after_a_restart():
    with journalled("--resume-grace", "1") as s:
        k = begun(s, endless())
        s.kill()
        wait_for(lambda: "its client is gone" in s.log(), 60)
        wait_for(lambda: s.is_ready() and get(s, k.answer.session)[0] == 200, 60)
        assert k.read().finish == "closed"  # the journal has what there was


if __name__ == "__main__":
    raise SystemExit(main())
