#!/usr/bin/env python3
"""graft beside llama.cpp on the CPU of one machine: the same weights as one BF16 GGUF file, the same prompts, the same
number of threads, the engines in turn. Nothing else may run meanwhile: llama.cpp's threads spin while they wait.

usage: llama_cpp.py [options]

llama.cpp is that of the package llama-cpp-python in tools/fetch.py. Without --llama it is built from there into the
cache folder, which needs cmake, ninja and a C++ compiler and takes about half an hour on two cores.

What is compared (median over repetitions; llama.cpp's settings are the best of those that are tried, per line):
  plain      decoding at 1, 8 and 32 sessions: llama-batched-bench; graft-bench sessions --modes plain
  prefill    512 tokens: llama-bench; graft run, time to the first token
  speculation, one session: llama-server with each of its modes; graft-bench e2e, automatic trees
Speeds of decoding leave out the first token. A prompt of llama-batched-bench is as long as graft's mean prompt, of
random tokens; all other prompts are the same ones.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import fetch  # noqa: E402

TOOLS = ["llama-batched-bench", "llama-bench", "llama-quantize", "llama-server"]
NGRAMS = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]
START_S = 120


class Model:
    """A target, what graft drafts with, and what llama.cpp may draft with beside its own n-grams."""

    def __init__(self, name, target, prompts, drafter, draft=None, draft_model=None):
        self.name, self.target, self.prompts, self.drafter = name, target, prompts, drafter
        self.draft, self.draft_model = draft, draft_model


MODELS = {
    "smollm2": Model("SmolLM2-135M-Instruct", "smollm2", "bench/prompts/smollm2.json", "its EAGLE-3 head",
                     draft="models/smollm2-eagle3"),
    "qwen2.5-coder": Model("Qwen2.5-Coder-1.5B-Instruct, drafted by the 0.5B", "qwen2.5-coder-1.5b",
                           "bench/prompts/coding.json", "the draft model", draft_model="qwen2.5-coder-0.5b"),
}


def say(text):
    print(text, file=sys.stderr, flush=True)


def output(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **more)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


# ---- llama.cpp, and weights that both engines read ----

def build_llama(into):
    if all(os.path.exists(os.path.join(into, "bin", t)) for t in TOOLS):
        return os.path.join(into, "bin")
    with tempfile.TemporaryDirectory() as source:
        with tarfile.open(fetch.path_of("vocabularies")) as tar:
            tar.extractall(source, filter="data")
        top = os.path.join(source, os.listdir(source)[0], "vendor", "llama.cpp")
        say(f"building llama.cpp into {into}")
        output("cmake", "-S", top, "-B", into, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
               "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DBUILD_SHARED_LIBS=OFF")
        output("ninja", "-C", into, *TOOLS)
    return os.path.join(into, "bin")


def requantised(llama, name, kind):
    """The model's file with every matrix as kind: BF16 or F32."""
    source = fetch.path_of(name)
    out = os.path.join(fetch.CACHE, f"{name}-{kind.lower()}.gguf")
    if not os.path.exists(out):
        say(f"writing {out}")
        output(os.path.join(llama, "llama-quantize"), "--allow-requantize", source, out + ".part", kind)
        os.replace(out + ".part", out)
    return out


# ---- llama.cpp's measurements ----

def llama_plain(o, model, sessions, length):
    """Tokens/s of all sessions together; the best of flash attention on and off."""
    best = 0
    for attention in "on", "off":
        rows = output(os.path.join(o.llama, "llama-batched-bench"), "-m", model, "-t", str(o.threads), "-c",
                      str(sessions * (length + o.max_tokens) + 64), "-npp", str(length), "-ntg", str(o.max_tokens),
                      "-npl", str(sessions), "-fa", attention, "--output-format", "jsonl")
        row = json.loads([line for line in rows.splitlines() if line.startswith("{")][-1])
        best = max(best, row["speed_tg"])
    return best


def llama_prefill(o, model, length):
    best = 0
    for attention in "0", "1":
        rows = json.loads(output(os.path.join(o.llama, "llama-bench"), "-m", model, "-t", str(o.threads), "-p",
                                 str(length), "-n", "0", "-r", "3", "-fa", attention, "-o", "json"))
        best = max(best, rows[0]["avg_ts"])
    return best


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """llama-server with one mode of speculation, and more of its options."""

    def __init__(self, o, model, mode, draft, more=()):
        self.port = free_port()
        command = [os.path.join(o.llama, "llama-server"), "-m", model, "-t", str(o.threads), "-c", "4096", "-np", "1",
                   "--no-warmup", "--port", str(self.port), "--spec-type", mode, "--no-webui", *more]
        command += ["-md", draft, "-td", str(o.threads)] if draft else []
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def __enter__(self):
        end = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.log.seek(0)
                    raise SystemExit("llama-server did not start:\n" + self.log.read()[-2000:]) from None
                time.sleep(0.1)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()

    def ask(self, what, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{what}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as f:
            return json.load(f)

    def complete(self, prompt, n, **more):
        return self.ask("completion", {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True,
                                       "cache_prompt": False, **more})


def llama_lengths(o, model, prompts):
    """Of the prompts, in tokens."""
    with Server(o, model, "none", None) as server:
        return [len(server.ask("tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"])
                for text in prompts]


def llama_speculation(o, model, mode, draft, prompts):
    """Tokens/s over all prompts, and which share of the drafted tokens was accepted."""
    tokens = seconds = drafted = accepted = 0
    with Server(o, model, mode, draft) as server:
        server.complete(prompts[0], 8)
        for text in prompts:
            t = server.complete(text, o.max_tokens)["timings"]
            tokens += t["predicted_n"] - 1
            seconds += t["predicted_ms"] / 1000
            drafted += t.get("draft_n", 0)
            accepted += t.get("draft_n_accepted", 0)
    return tokens / seconds, accepted / drafted if drafted else None


# ---- graft's ----

def graft_bench(o, m, model, name, *more):
    return json.loads(output(os.path.join(o.build, "graft-bench"), name, "-o", "json", "--reps", "1", "--max-tokens",
                             str(o.max_tokens), "--model", model, "--draft", m.draft, "--prompts",
                             os.path.join(ROOT, m.prompts), *more))["rows"]


def graft_plain(o, m, model, sessions):
    rows = graft_bench(o, m, model, "sessions", "--modes", "plain", "--sessions", str(sessions), "--prompts-first")
    return rows[-1]["decode tok/s"]


def graft_speculation(o, m, model):
    """Plain decoding, and automatic trees of a co-located pair; texts are compared by the benchmark."""
    plain, trees = graft_bench(o, m, model, "e2e", "--modes", "co-located")
    return plain["tok/s"], trees["tok/s"], trees["mean acceptance length"]


def graft_prefill(o, model, length):
    """Of ids that mean nothing, as llama-bench's: the median of three starts."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump([1000 + 7 * i for i in range(length)], f)
        f.flush()
        command = [os.path.join(o.build, "graft"), "run", "--json", "--method", "none", "--model", model, "--threads",
                   str(o.threads), "--prompt-ids", f.name, "--max-tokens", "1", "--max-model-len", "2048"]
        ms = statistics.median(json.loads(output(*command))["metrics"]["ttft_ms"] for _ in range(3))
    return length / ms * 1000


# ---- the table ----

class Table:
    def __init__(self):
        self.seen = {}

    def add(self, line, engine, value, note=""):
        self.seen.setdefault(line, {}).setdefault(engine, []).append(value)
        say(f"{line} | {engine} | {value:.1f}{note}")

    def rows(self):
        for line, engines in self.seen.items():
            row = {"what": line}
            for engine, values in engines.items():
                row[engine] = round(statistics.median(values), 1)
                row[f"{engine} range"] = f"{min(values):.0f} .. {max(values):.0f}"
            if len(engines) == 2:
                row["graft / llama.cpp"] = round(row["graft"] / row["llama.cpp"], 2)
            yield row

    def speculation(self):
        """The best of graft against the best of llama.cpp without our head, one session."""
        ours = theirs = 0
        for line, engines in self.seen.items():
            if line.startswith("one session"):
                ours = max(ours, statistics.median(engines.get("graft", [0])))
                if not line.endswith("draft-eagle3"):
                    theirs = max(theirs, statistics.median(engines.get("llama.cpp", [0])))
        return {"what": "one session, best against best", "graft": round(ours, 1), "llama.cpp": round(theirs, 1),
                "graft / llama.cpp": round(ours / theirs, 2)}


def provenance(o, m):
    """As graft-bench's, so tools/performance can show the result."""
    about = json.loads(output(os.path.join(o.build, "graft-bench"), "transport", "--transport", "loop", "--sizes",
                              "64", "--iters", "1", "-o", "json"))["provenance"]
    options = ["--model", o.model, "--max-tokens", str(o.max_tokens), "--reps", str(o.reps)]
    note = (f"{m.name}, the same BF16 GGUF file in both engines, {o.threads} threads, tokens/s, median and range of "
            f"{o.reps} runs in turn; llama.cpp of llama-cpp-python 0.3.36, KV in f16, the best of flash attention on "
            f"and off")
    return {**about, "command": "bench/llama_cpp.py", "options": options, "note": note}


def measure(o, m, table, model, modes, prompts, length):
    for n in o.sessions:
        line = f"plain, {n} session{'s' if n > 1 else ''}"
        table.add(line, "llama.cpp", llama_plain(o, model, n, length))
        table.add(line, "graft", graft_plain(o, m, model, n))
    table.add("prefill, 512 tokens", "llama.cpp", llama_prefill(o, model, 512))
    table.add("prefill, 512 tokens", "graft", graft_prefill(o, model, 512))
    for mode, draft in modes.items():
        speed, share = llama_speculation(o, model, mode, draft, prompts)
        note = "" if share is None else f", {100 * share:.0f} % of the drafted tokens accepted"
        table.add(f"one session, {mode}", "llama.cpp", speed, note)
    plain, trees, acceptance = graft_speculation(o, m, model)
    table.add("one session, none", "graft", plain)
    table.add(f"one session, trees by {m.drafter}", "graft", trees, f", mean acceptance length {acceptance:.2f}")


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=MODELS, default="smollm2")
    p.add_argument("--llama", help="folder of llama.cpp's programs (default: built into the cache folder)")
    p.add_argument("--eagle3", metavar="F.gguf", help="the head as llama.cpp converts it, for its mode draft-eagle3")
    p.add_argument("--build", default=os.path.join(ROOT, "build"), help="graft's build folder")
    p.add_argument("--sessions", type=lambda s: [int(n) for n in s.split(",")], default=[1, 8, 32])
    p.add_argument("--max-tokens", type=int, default=128)
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("-o", metavar="FILE", help="the result as JSON")
    return p


def main():
    o = parser().parse_args()
    m = MODELS[o.model]
    o.threads = len(os.sched_getaffinity(0))
    o.llama = o.llama or build_llama(os.path.join(fetch.CACHE, "llama.cpp"))
    model = requantised(o.llama, m.target, "BF16")
    draft = requantised(o.llama, m.draft_model, "BF16") if m.draft_model else model
    m.draft = os.path.join(ROOT, m.draft) if m.draft else draft
    with open(os.path.join(ROOT, m.prompts), encoding="utf-8") as f:
        prompts = json.load(f)
    modes = {"none": None, **{n: None for n in NGRAMS}, "draft-simple": draft}
    if o.eagle3:
        modes["draft-eagle3"] = o.eagle3
    lengths = llama_lengths(o, model, prompts)
    table = Table()
    for _ in range(o.reps):
        measure(o, m, table, model, modes, prompts, sum(lengths) // len(lengths))
    rows = [*table.rows(), table.speculation()]
    if o.o:
        with open(o.o, "w", encoding="utf-8") as f:
            json.dump({"provenance": provenance(o, m), "rows": rows}, f, indent=1)
            f.write("\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
