#!/usr/bin/env python3
"""/metrics: what Prometheus' own tools say of it, that every request ends in one count, and that every failure has a count
and a line.

usage: test_metrics.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import functools
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from harness import DRAFT, ENDLESS, ROOT, SLOW, TARGET, Skip, busy, case, main, wait_for
from endpoint import PROMPT, Endpoint
from served import worker

sys.path.insert(0, os.path.join(ROOT, "tools"))
import fetch  # pylint: disable=wrong-import-position

LONG = {"prompt": PROMPT, "max_tokens": 3000, "temperature": 0, "ignore_eos": True}
SECRET = "sk-never-in-metrics-0123456789"


def text_of(s):
    status, text, r = s.ask("GET", "/metrics")
    assert status == 200 and r.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8", r.getheaders()
    return text


def parser():
    """prometheus_client's, or None and why."""
    try:
        sys.path.insert(0, fetch.path_of("prometheus-client"))
        from prometheus_client.parser import text_string_to_metric_families  # pylint: disable=import-outside-toplevel
        return text_string_to_metric_families, ""
    except (fetch.CannotBeHad, ImportError) as e:
        return None, str(e)


def promtool(*args, text=None):
    if not shutil.which("promtool"):
        raise Skip("promtool is not installed (Debian's package prometheus)")
    return subprocess.run(["promtool", "check", *args], input=text, capture_output=True, text=True, timeout=60 * SLOW, check=False)


@functools.cache
def pages():
    """Texts of /metrics before the first request, without workers and with them, and after two; and how many each has had."""
    with Endpoint("--model", TARGET, spawn=False) as s:
        texts = [(text_of(s), 0)]
    with Endpoint() as s:
        texts.append((text_of(s), 0))
        s.complete()
        s.complete(user=SECRET)
        wait_for(lambda: s.metrics()["graft_e2e_request_latency_seconds_count"] == 2)
        return [*texts, (text_of(s), 2)]


def cpu_seconds(pid):
    return busy(pid) / os.sysconf("SC_CLK_TCK")


@case
def a_scrape_is_quick_and_tells_no_secret():
    with Endpoint() as s:
        s.complete(user=SECRET)
        times, before = [], cpu_seconds(s.p.pid)
        for _ in range(30):
            begin = time.monotonic()
            text = text_of(s)
            times.append(time.monotonic() - begin)
        cost = (cpu_seconds(s.p.pid) - before) / len(times)
        print(f"# a scrape: {statistics.median(times) * 1e3:.1f} ms, {cost * 1e3:.1f} ms of CPU time, "
              f"{len(text)} bytes")
        # The machine's other work keeps any of them waiting, but not all.
        assert min(times) < .05 * SLOW and cost < .02 * SLOW, (times, cost)
    for text, _ in [(text, 1), *pages()]:
        values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")]
        assert SECRET not in text and values and all(math.isfinite(v) for v in values), text


@case
def promtool_has_nothing_to_say_of_it():
    for text, _ in pages():
        done = promtool("metrics", text=text)
        assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr


@case
def prometheus_client_reads_it():
    parse, why = parser()
    if parse is None:
        raise Skip(f"prometheus_client: {why}")
    for text, n_turn in pages():
        families = {f.name: f for f in parse(text)}
        assert families["graft_request_success"].type == "counter", families.keys()
        turns = families["graft_e2e_request_latency_seconds"].samples
        count = [x.value for x in turns if x.name.endswith("_count")]
        assert count == [x.value for x in turns if x.labels.get("le") == "+Inf"] == [n_turn], turns
        for f in families.values():
            assert f.documentation and len({(x.name, *sorted(x.labels.items())) for x in f.samples}) == len(f.samples), f


@case
def a_request_is_known_by_its_names():
    """X-Request-Id comes back, and the trace of traceparent is in the lines about the request, as text and as JSON."""
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    for args in ((), ("--log-format", "json")):
        with Endpoint("--model", TARGET, "--queue-timeout", "100ms", *args, spawn=False) as s:
            def ask(**headers):
                headers = {k.replace("_", "-"): v for k, v in headers.items()}
                _, answer, r = s.ask("POST", "/v1/completions", LONG, headers=headers)
                return r.getheader("X-Request-Id"), answer
            assert ask(X_Request_Id="mine-1", traceparent=f"00-{trace}-{parent}-01")[0] == "mine-1"
            own = {ask(X_Request_Id=bad)[0] for bad in ("a b", "x" * 129, None)}
            assert len(own) == 3 and all(re.fullmatch("[0-9a-f]{16}", x) for x in own), own
            assert ask(traceparent=f"00-{trace[:-1]}X-{parent}-01")[0]
            assert s.ask("GET", "/health", headers={"X-Request-Id": "h"})[2].getheader("X-Request-Id") == "h"
            about = [x for x in s.log().splitlines() if "session" in x and (trace in x or "mine-1" in x)]
            assert len(about) == 2 and "answers request cmpl-mine-1" in about[0] and "is given up" in about[1], about
            if args:
                about = [json.loads(x) for x in about]
                assert {x["trace_id"] for x in about} == {trace} and len({x["session"] for x in about}) == 1, about
            else:
                assert all(x.endswith(f" (trace {trace})") for x in about), about


def ends(s):
    """Turns by how they ended, and requests for completions by status."""
    m = s.metrics()
    found = {k: v for k, v in m.items() if k.startswith(("graft_request_success_total", "graft_requests_refused_total"))}
    http = {k: v for k, v in m.items() if k.startswith('graft_http_requests_total{path="/v1/completions"')}
    return {re.search(r'="(\w+)"', k).group(1): v for k, v in found.items() if v}, \
        {re.search(r'code="(\w+)"', k).group(1): v for k, v in http.items()}


def settled(s, turns, http):
    wait_for(lambda: s.is_quiet() and ends(s) == (turns, http))
    m = s.metrics()
    begun = sum(v for k, v in turns.items() if k not in ("full", "limit", "invalid"))
    assert m["graft_requests_total"] == begun == m["graft_e2e_request_latency_seconds_count"], m


@case
def every_request_ends_in_one_count():
    with Endpoint("--sessions", "1", "--queue-max", "1", draft=False) as s:
        whole = s.complete(max_tokens=60)["choices"][0]["text"]
        s.complete(max_tokens=60, stop=whole[20:26])
        settled(s, {"length": 1, "stop": 1}, {"200": 2})
        s.post("/v1/completions", dict(LONG, n=0), status=400)
        s.post("/v1/completions", dict(LONG, model="another"), status=404)
        s.post("/v1/completions", dict(LONG, prompt="x" * 400000), status=400)
        s.ask("POST", "/v1/completions", raw=b"{}", headers={"Content-Type": "text/plain"})
        settled(s, {"length": 1, "stop": 1}, {"200": 2, "400": 2, "404": 1, "415": 1})
        running, r = s.open("POST", "/v1/completions", dict(LONG, stream=True, max_tokens=ENDLESS))
        with contextlib.closing(running):
            assert r.readline().startswith(b"data: ")
            s.post("/v1/completions", dict(LONG, timeout=.2), status=408)
            with contextlib.closing(s.connect()) as waiting:
                waiting.request("POST", "/v1/completions", json.dumps(LONG), {"Content-Type": "application/json"})
                wait_for(lambda: s.metrics()["graft_num_requests_waiting"] == 1)
                s.post("/v1/completions", LONG, status=429)
                assert s.metrics()["graft_num_requests_running"] == 1
        # two that went away: one in mid-stream, one that had no answer yet
        settled(s, {"length": 1, "stop": 1, "timeout": 1, "abort": 2, "full": 1},
                {"200": 3, "400": 2, "404": 1, "408": 1, "415": 1, "429": 1, "none": 1})
        assert len(s.complete(n=2, max_tokens=4)["choices"]) == 2  # a turn each
        settled(s, {"length": 3, "stop": 1, "timeout": 1, "abort": 2, "full": 1},
                {"200": 4, "400": 2, "404": 1, "408": 1, "415": 1, "429": 1, "none": 1})


@case
def refusals_are_counted_once():
    """Before a body is read, and when the server is to end."""
    with Endpoint("--model", TARGET, "--queue-timeout", "0", "--drain-timeout", "600", spawn=False) as s:
        for status, method, headers in ((405, "GET", {}), (403, "POST", {"Host": "evil.test"}),
                                        (413, "POST", {"Content-Length": "104857600", "Content-Type": "application/json"})):
            c, r = s.open(method, "/v1/completions", headers=headers)
            with contextlib.closing(c):
                assert r.status == status, (r.status, status)
        settled(s, {}, {"403": 1, "405": 1, "413": 1})
        with contextlib.closing(s.connect()) as waiting:
            waiting.request("POST", "/v1/completions", json.dumps(LONG), {"Content-Type": "application/json"})
            wait_for(lambda: s.metrics()["graft_num_requests_waiting"] == 1)
            s.p.send_signal(signal.SIGTERM)
            wait_for(lambda: s.ask("GET", "/health")[1]["status"] == "draining")
            s.post("/v1/completions", LONG, status=503)
            wait_for(lambda: ends(s)[1] == {"403": 1, "405": 1, "413": 1, "503": 1})
        assert s.p.wait(60 * SLOW) == 0


@case
def the_page_about_it_has_every_name():
    with Endpoint("--model", TARGET, spawn=False) as s, open(os.path.join(ROOT, "docs/metrics.md"), encoding="utf-8") as f:
        documented = re.findall(r"^\| `(graft_\w+)` \| (\w+) \|", f.read(), re.M)
        assert documented == re.findall(r"^# TYPE (\S+) (\S+)$", text_of(s), re.M)


def expressions(dashboard):
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel, target["expr"]


def names_and_labels(text):
    """Names that may stand in an expression, and labels that each family has had."""
    names, labels = set(), {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
        names |= {name + end for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    for name, found in re.findall(r"^(graft_\w+)\{(.*)\} ", text, re.M):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', found))
    return names, labels


@case
def the_dashboard_asks_for_what_there_is():
    """Each panel has a place of its own, and its expressions ask for names and labels of the page."""
    with open(os.path.join(ROOT, "examples/grafana/graft.json"), encoding="utf-8") as f:
        dashboard = json.load(f)
    with Endpoint() as s:
        s.complete()
        names, labels = names_and_labels(text_of(s))
    asked = set()
    for panel, expr in expressions(dashboard):
        found = set(re.findall(r"graft_\w+", expr))
        assert found and found <= names, (panel["title"], found - names)
        for by in re.findall(r"by \(([\w, ]+)\)", expr):
            known = set().union(*(labels.get(x, set()) for x in found))
            assert set(by.split(", ")) <= known, (panel["title"], by, known)
        asked |= found
    assert len(asked) > 25, asked
    cells = [(x, y) for p in dashboard["panels"] for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
             for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])


@case
def promtool_reads_what_the_dashboard_asks():
    with open(os.path.join(ROOT, "examples/grafana/graft.json"), encoding="utf-8") as f:
        plain = [e.replace("$__rate_interval", "1m").replace("$instance", ".*") for _, e in expressions(json.load(f))]
    rules = "".join(f"  - record: graft:rule{i}\n    expr: {json.dumps(e)}\n" for i, e in enumerate(plain))
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:
        f.write("groups:\n- name: dashboard\n  rules:\n" + rules)
        f.flush()
        done = promtool("rules", f.name)
    assert done.returncode == 0, done.stdout + done.stderr


@case
def an_error_is_one_too():
    with Endpoint("--model", TARGET, "--queue-timeout", "100ms", spawn=False) as s:
        s.post("/v1/completions", LONG, status=503)
        settled(s, {"unserved": 1}, {"503": 1})


def text_of_line(line):
    """Of a stream that goes on."""
    assert line in (b"\n", b": ping\n") or line.startswith(b"data: {"), line
    return json.loads(line[6:])["choices"][0]["text"] if line.startswith(b"data: ") else ""


@case
def every_failure_has_a_count_and_a_line():
    """A drafter, then a target is killed in mid-stream: docs/metrics.md has these lines."""
    with Endpoint("--model", TARGET, spawn=False) as s, contextlib.ExitStack() as stack:
        def start(program, **kw):
            return stack.enter_context(worker(program, s.folder, s.address, **kw))
        target = start("graft-target", model=TARGET)
        s.wait()
        draft = start("graft-draft", model=DRAFT)
        s.wait("--draft", DRAFT)
        got = s.metrics()
        assert got['graft_workers{role="target",state="serving"}'] == got['graft_workers{role="draft",state="serving"}'] == 1
        c, r = s.open("POST", "/v1/completions", dict(LONG, max_tokens=ENDLESS, stream=True, num_speculative_tokens=4))
        with contextlib.closing(c):
            text = text_of_line(r.readline())
            draft.send_signal(signal.SIGKILL)
            wait_for(lambda: s.metrics()['graft_workers_lost_total{role="draft"}'] == 1)
            target.send_signal(signal.SIGKILL)
            wait_for(lambda: s.metrics()['graft_workers_lost_total{role="target"}'] == 1)
            start("graft-target", model=TARGET)
            wait_for(lambda: any(x["state"] == "running" and x["epoch"] == 2 for x in s.sessions()))
            n = s.sessions()[0]["tokens"]  # those that it had when the target was lost are among them
            want = s.complete(**dict(LONG, max_tokens=n + 50))["choices"][0]["text"]
            while len(text) < len(want):
                text += text_of_line(r.readline())
        assert text.startswith(want), (len(text), len(want))
        m = s.metrics()
        assert m["graft_reopens_total"] == 1 and m['graft_fallbacks_total{by="orchestrator"}'] == 1, m
        assert m['graft_workers_joined_total{role="target"}'] == 2, m
        log = s.log()
        for line in (r"draft worker 2 is gone", r"target worker 1 is gone", r"its target is lost \(worker 1\); re-opening",
                     r"\[fallback\].*its draft worker is lost.*worker 2"):
            assert len(re.findall(line, log)) == 1, (line, log)


def lines_about(p, *words):
    """A worker's lines of JSON with any of these words, each with the keys of a session."""
    found = [x for x in (json.loads(line) for line in p.stderr) if any(w in x["message"] for w in words)]
    assert all(re.fullmatch("[0-9a-f]{16}", x["session"]) and x["epoch"] == 1 for x in found), found
    return found


@case
def what_workers_say_of_a_session_counts_once():
    """A drafter that loses its place in round 5, and whose context is short; a target without the SpecPV that is asked for:
    a line in the log of who saw it, with the keys of its session."""
    with Endpoint("--model", TARGET, spawn=False) as s, contextlib.ExitStack() as stack:
        def start(program, *args, **kw):
            return stack.enter_context(worker(program, s.folder, s.address, "--log-format", "json", *args, **kw))
        target = start("graft-target", model=TARGET)
        draft = start("graft-draft", "--test-flip-round", "5", "--max-model-len", "64", model=DRAFT)
        s.wait("--draft", DRAFT)
        s.post("/v1/completions", dict(LONG, max_tokens=150, num_speculative_tokens=4, specpv="exact"))
        wait_for(lambda: s.metrics()['graft_fallbacks_total{by="draft"}'] == 1)
        m = s.metrics()
        for p in (draft, target):
            p.terminate()
        absent, desync = lines_about(target, "[fallback]", "desync:")
        session = desync["session"]
        assert "started without SpecPV" in absent["message"] and m['graft_fallbacks_total{by="target"}'] == 1, (absent, m)
        assert absent["session"] == session, absent
        assert session in desync["message"] and desync["round"] == 5 and m['graft_desyncs_total{by="target"}'] == 1, (desync, m)
        assert m['graft_desyncs_total{by="draft"}'] == 0, m
        told = lines_about(draft, session)
        assert len(told) == 2 and "desync" in told[0]["message"] and "[fallback]" in told[1]["message"], told
        assert all(x["session"] == session for x in told) and told[0]["round"] == 5, told


main()
