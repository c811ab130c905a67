#!/usr/bin/env python3
"""graft-bench serve, and with it the endpoint under load: 256 streams at once on the demo pair, for a minute or, with
GRAFT_TEST_LONG=1, for ten. (Under sanitizers it is 64 streams for seconds.)

usage: test_load.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import csv
import http.server
import io
import json
import os
import re
import subprocess
import sys
import threading

from endpoint import Endpoint
from harness import BUILD, SLOW, Skip, case, children, main, wait_for
from served import Folder, free_port

BENCH = os.path.join(BUILD, "graft-bench")
LONG = bool(os.environ.get("GRAFT_TEST_LONG"))
SECONDS = 600 if LONG else 60 if SLOW < 10 else 4
STREAMS = 256 if SLOW < 10 else 64  # a sanitizer's memory and times tell nothing
KEY = "a-key-of-the-test-0123456789"
# What vllm bench serve writes into its result file, but for audio (rtfx), pieces by the second (max_output_tokens_per_s)
# and the lists of --save-detailed.
VLLM_KEYS = {"date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
             "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
             "total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
             "total_token_throughput", "max_concurrent_requests", "spec_decode_acceptance_rate",
             "spec_decode_acceptance_length", "spec_decode_num_drafts", "spec_decode_draft_tokens",
             "spec_decode_accepted_tokens", "spec_decode_per_position_acceptance_rates"} | {f"{what}_{name}_ms" for what in ("mean", "median", "std", "p99")
                                               for name in ("ttft", "tpot", "itl", "e2el", "client_queue_time")}
OWN_KEYS = {"longest_gap_ms", "median_longest_gap_ms", "max_ttft_ms", "decode_tokens_per_second", "errors_connect",
            "errors_status", "errors_event", "errors_cut", "errors_timeout", "errors_form", "texts_differ"}
PROMPTS = ["import os", "def fibonacci(n):", "class Stack:", "for line in f:", "try:", "with open(path) as f:",
           "return [x for x in", "if __name__ =="]


def call(*args, status=0, timeout=60):
    done = subprocess.run([BENCH, "serve", *args], capture_output=True, text=True, timeout=timeout * SLOW, check=False)
    if "built without libcurl" in done.stderr:
        raise Skip("graft-bench was built without libcurl")
    assert done.returncode == status, (args, done.returncode, done.stdout, done.stderr)
    return done


def bench(port, *args, **kw):
    """The figures of a load on this port, and what it said beside them."""
    done = call("-o", "json", "--base-url", f"http://127.0.0.1:{port}", *args, **kw)
    assert done.stdout, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 1, rows
    return rows[0], done.stderr


def write(folder, name, text):
    path = folder.path(name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def prompts_file(folder):
    return write(folder, "prompts.txt", "\n".join(PROMPTS) + "\n")


def errors_of(row):
    return {k: v for k, v in row.items() if k.startswith("errors_") and v}


def whole(row, n):
    assert row["completed"] == n and row["failed"] == 0 and not errors_of(row), row


@case
def its_figures_are_those_of_the_server():
    with Endpoint() as s:
        before = s.metrics()
        saved = s.folder.path("figures.json")
        lines = write(s.folder, "prompts.jsonl", '{"prompt": "import os"}\n\n{"text": "class Stack:"}\n')
        row, _ = bench(s.port, "--prompts", lines, "--num-prompts", "12", "--output-len", "24", "--max-concurrency", "4",
                       "--ignore-eos", "--check-texts", "--result-filename", saved, "--extra-body",
                       '{"num_speculative_tokens": 4}')  # trees whatever they cost
        wait_for(s.is_quiet)  # what is counted is shown when the server's loop has come round
        after = s.metrics()
        whole(row, 12)
        assert set(row) == VLLM_KEYS | OWN_KEYS, set(row) ^ (VLLM_KEYS | OWN_KEYS)
        assert row["total_output_tokens"] == 12 * 24 and row["texts_differ"] == 0, row
        assert row["max_concurrent_requests"] <= 4 and row["request_rate"] == "inf", row
        for key, counter in (("total_input_tokens", "graft_prompt_tokens_total"),
                             ("total_output_tokens", "graft_generation_tokens_total"),
                             ("completed", 'graft_request_success_total{finished_reason="length"}')):
            assert row[key] == after[counter] - before[counter], (key, row[key], counter)
        assert abs(row["output_throughput"] - row["total_output_tokens"] / row["duration"]) < 0.01 * row["output_throughput"]
        assert 0 < row["median_ttft_ms"] < row["mean_e2el_ms"] and row["longest_gap_ms"] >= row["p99_itl_ms"] > 0, row
        assert row["longest_gap_ms"] >= row["median_longest_gap_ms"] >= row["median_itl_ms"] > 0, row
        assert row["max_ttft_ms"] >= row["p99_ttft_ms"] > 0, row
        shares = row["spec_decode_per_position_acceptance_rates"]
        assert shares == sorted(shares, reverse=True) and 0 < shares[0] <= 1, shares
        assert abs(sum(shares) - row["spec_decode_accepted_tokens"] / row["spec_decode_num_drafts"]) < 0.01, row
        with open(saved, encoding="utf-8") as f:
            assert set(json.load(f)) == set(row)


@case
def rows_of_csv_and_a_list_for_people():
    with Endpoint(draft=False) as s:
        args = ("--base-url", f"http://127.0.0.1:{s.port}/", "--num-prompts", "3", "--input-len", "5", "--output-len", "4")
        table = call("-o", "csv", *args).stdout
        row, = csv.DictReader(io.StringIO(table))
        assert row["spec_decode_per_position_acceptance_rates"] == "" and row["completed"] == "3" and row["total_input_tokens"] == "15" and row["label"] == "", row
        shown = call(*args).stdout
        assert re.search(r"^\| completed +\| +3 \|$", shown, re.M), shown


@case
def requests_come_at_the_rate_that_was_asked_for():
    with Endpoint(draft=False) as s:
        row, _ = bench(s.port, "--num-prompts", "20", "--input-len", "4", "--output-len", "2", "--request-rate", "20",
                       "--burstiness", "4", "--num-warmups", "2")
        whole(row, 20)
        assert row["duration"] >= 0.99, row  # the last one is sent after 20 / 20 s
        stopped, _ = bench(s.port, "--num-prompts", "1000", "--input-len", "4", "--output-len", "2", "--request-rate", "50",
                           "--duration", "1")
        assert 5 <= stopped["completed"] <= 100 and stopped["failed"] == 0, stopped  # about 50 of the 1000


@case
def a_key_and_a_chat():
    with contextlib.ExitStack() as stack:
        keys = write(folder := Folder(), "keys", f"# whose\n{KEY} somebody\n")
        os.chmod(keys, 0o600)
        s = stack.enter_context(Endpoint("--api-key-file", keys, "--chat-template", "llama3", draft=False, folder=folder))
        args = ("--prompts", prompts_file(folder), "--num-prompts", "4", "--output-len", "4")
        row, _ = bench(s.port, "--api-key-file", keys, "--backend", "openai-chat", *args)
        whole(row, 4)
        without = call("--base-url", f"http://127.0.0.1:{s.port}", *args, status=1)
        assert "401" in without.stderr, without.stderr
        other = write(folder, "other", "another-key-of-the-test-0123\n")
        os.chmod(other, 0o600)
        assert "401" in call("--base-url", f"http://127.0.0.1:{s.port}", "--api-key-file", other, *args, status=1).stderr


# ---- what goes wrong ----

class Answers(http.server.BaseHTTPRequestHandler):
    """An endpoint that answers the n-th request in a way of its own."""
    protocol_version = "HTTP/1.1"
    TEXT = b'data: {"choices":[{"text":"%d"}]}\n\n'
    END = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
    count = 0
    lock = threading.Lock()

    def log_message(self, *args):
        pass

    def say(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.say(*((200, "application/json", b'{"data":[{"id":"m"}]}') if self.path == "/v1/models"
                   else (404, "text/plain", b"no")))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            n = Answers.count
            Answers.count += 1
        answers = [(200, "text/event-stream", self.TEXT % 1 + self.END),                      # whole
                   (429, "application/json", b'{"error":{"message":"the queue is full"}}'),   # refused
                   (200, "text/event-stream", self.TEXT % 1),                                 # cut
                   (200, "text/event-stream", b'data: {"error":{"message":"a worker died"}}\n\n' + self.END),
                   (200, "text/event-stream", b"data: not JSON\n\n" + self.END),
                   (200, "text/event-stream", self.TEXT % 2 + self.END)]                      # another text
        self.say(*answers[n % len(answers)])


@case
def failures_are_counted_by_kind_and_texts_compared():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        folder = Folder()
        one = write(folder, "one.txt", "a prompt\n")
        row, said = bench(server.server_address[1], "--prompts", one, "--num-prompts", "12", "--max-concurrency", "1",
                          "--check-texts", status=1)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert errors_of(row) == {"errors_status": 2, "errors_cut": 2, "errors_event": 2, "errors_form": 2}, row
    assert row["completed"] == 4 and row["failed"] == 8 and row["texts_differ"] == 2, row
    assert row["total_output_tokens"] == 8 and row["spec_decode_num_drafts"] is None, row
    for words in ("status 429: the queue is full", "a worker died", "without [DONE]", "not JSON", "another text"):
        assert words in said, (words, said)


@case
def what_cannot_be_is_one_line():
    folder = Folder()
    gone = f"http://127.0.0.1:{free_port()}"
    assert "GET /v1/models" in call("--base-url", gone, status=1).stderr
    with Endpoint(draft=False) as s:
        here = ("--base-url", f"http://127.0.0.1:{s.port}")
        for args, words in (((*here, "--backend", "openai-chat"), "--prompts"),
                            ((*here, "--prompts", folder.path("none")), "none"),
                            ((*here, "--prompts", write(folder, "a.jsonl", '{"prompt": 3}\n')), "a.jsonl:1"),
                            ((*here, "--prompts", write(folder, "empty", "\n\n")), "no prompt"),
                            ((*here, "--extra-body", "[1]"), "--extra-body")):
            done = call(*args, status=2 if words.startswith("--") else 1)
            lines = [x for x in done.stderr.splitlines() if x.strip()]
            assert len(lines) == 1 and words in lines[0], (args, lines)
        refused = call(*here, "--num-prompts", "2", "--num-warmups", "1", "--extra-body", '{"temperature": -1}', status=1)
        assert "temperature" in refused.stderr and "warm-up" in refused.stderr, refused.stderr


# ---- the server under load ----

def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) / 1024


def memory(s):
    """MB of the orchestrator and its workers."""
    pids = {"graft serve": s.p.pid, **{os.path.basename(cmd): pid for pid, cmd in children(s.p.pid)}}
    return {name: resident(pid) for name, pid in pids.items()}


@contextlib.contextmanager
def sampled(s):
    """A list that gets memory(s) ten times during a load."""
    samples, over = [], threading.Event()

    def look():
        while not over.wait(SECONDS / 10):
            samples.append(memory(s))
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def check_memory(first, samples, last):
    """Streams take memory while they last, and malloc gives it back or keeps it; a pool of KV is touched block by block.
    So there is a bound for each process, and the second half takes little more than the first, or in ten minutes nothing."""
    for name in first:
        assert last[name] - first[name] < (64 if name == "graft serve" else 256), (name, first, last)
        early, late = (max(m[name] for m in part) for part in (samples[:5], samples[5:]))
        assert late - early < (4 if LONG else 32), (name, samples)


def own_time(before, after):
    """The share of tokens that took the orchestrator more than 1 ms, how many there were, and the mean in us."""
    name = "graft_orchestrator_token_seconds"
    n, quick, seconds = (after[name + k] - before[name + k] for k in ("_count", '_bucket{le="0.001"}', "_sum"))
    return 1 - quick / n, n, 1e6 * seconds / n


@case
def many_streams_at_once():
    """Memory is flat, the orchestrator's own time is below 1 ms for 99 of 100 tokens, and no stream starves."""
    with Endpoint("--sessions", str(STREAMS), "--kv-blocks", "2048") as s:
        args = ("--prompts", prompts_file(s.folder), "--max-concurrency", str(STREAMS), "--output-len", "64" if LONG else "16",
                "--ignore-eos", "--check-texts", "--num-prompts")
        bench(s.port, *args, *(("1000000", "--duration", "60") if LONG else (str(2 * STREAMS),)), timeout=180)
        wait_for(s.is_quiet)
        first, before = memory(s), s.metrics()
        with sampled(s) as samples:
            row, _ = bench(s.port, *args, "1000000" if LONG else "50000", "--duration", str(SECONDS), timeout=SECONDS + 120)
        wait_for(s.is_quiet)
        last, after = memory(s), s.metrics()
        over, n, mean_us = own_time(before, after)
        print(f"# {row['completed']} answers in {row['duration']:.1f} s, {row['output_throughput']:.0f} tokens/s; median ttft "
              f"{row['median_ttft_ms']:.0f} ms, p99 {row['p99_ttft_ms']:.0f}; longest gap {row['longest_gap_ms']:.0f} ms, of streams in "
              f"the median {row['median_longest_gap_ms']:.0f}, p99 of all gaps "
              f"{row['p99_itl_ms']:.0f}; of {n:.0f} tokens {100 * over:.3f} % took the "
              f"orchestrator more than 1 ms, the mean one {mean_us:.0f} us; MB "
              + ", ".join(f"{k} {' '.join(f'{m[k]:.1f}' for m in [first, *samples, last])}" for k in first))
        assert row["failed"] == 0 and row["texts_differ"] == 0 and row["max_concurrent_requests"] == STREAMS, row
        assert n == row["total_output_tokens"], (n, row)
        assert row["longest_gap_ms"] < 2e4 * SLOW and row["max_ttft_ms"] < 2e4 * SLOW, row
        if SLOW >= 10:
            return
        check_memory(first, samples, last)
        # A process that stands beside the test for seconds takes the CPU in the middle of a token now and then.
        assert over < (0.01 if LONG else 0.05) and mean_us < 300, (over, mean_us)


sys.exit(main())
