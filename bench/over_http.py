#!/usr/bin/env python3
"""What the endpoint costs against the control link: the same prompts on the same fleet, by `graft run --connect' and by
`graft-bench serve', in turn. Both measure one stream at a time from their own process: from sending the request to its
first token, and tokens a second after that. The prefix cache is off, so that each computes the whole prompt.

usage: over_http.py [options]      prints a row for each prompt and their medians as JSON

Which of the two goes first changes from pair to pair; the ratio of each pair counts, and the median of all. Nothing else
may run meanwhile.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROMPTS = ["import os\nimport sys\n\n\ndef main():\n", "class Stack:\n    def __init__(self):\n",
           "def fibonacci(n):\n", "with open(path) as f:\n    for line in f:\n"]
START_S = 120


class Fleet:
    """A server with its endpoint and a pair of workers."""

    def __init__(self, o, folder):
        self.bin = lambda name: os.path.join(o.build, name)
        key, ready = (os.path.join(folder, name) for name in ("key", "ready"))
        subprocess.run([self.bin("graft"), "serve", "--make-key", key], check=True, stdout=subprocess.DEVNULL)
        self.env = dict(os.environ, GRAFT_KEY_FILE=key)
        self.log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")  # pylint: disable=consider-using-with
        self.model, self.nodes = o.model, o.num_speculative_tokens
        draft = ("--draft", o.draft) if o.draft != "none" else ()
        self.url = f"http://127.0.0.1:{o.port}"
        self.p = subprocess.Popen(  # pylint: disable=consider-using-with
            [self.bin("graft"), "serve", "--control", "127.0.0.1:0", "--ready-file", ready, "--http", f"127.0.0.1:{o.port}",
             "--model", o.model, *draft, "--spawn", "--prefix-cache", "off"],
            env=self.env, stdout=subprocess.DEVNULL, stderr=self.log)
        try:
            self.told(self.bin("graft"), "wait", "--connect", "@" + ready, *draft, "--timeout", str(START_S))
        except SystemExit as e:
            self.log.seek(0)
            why = f"{e}the server said: {self.log.read()}"
            self.end()
            raise SystemExit(why) from None
        with open(ready, encoding="utf-8") as f:
            self.address = f.read().strip()

    def end(self):
        self.p.terminate()
        self.p.wait()
        self.log.close()

    def told(self, *command):
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
        return done.stdout

    def output(self, *command):
        return json.loads(self.told(*command))

    def by_run(self, prompt, n):
        """ms to the first token, and tokens/s after it, of the second of two."""
        nodes = () if self.nodes is None else ("--num-speculative-tokens", str(self.nodes))
        for _ in range(2):
            out = self.output(self.bin("graft"), "run", "--connect", self.address, "--model", self.model,
                              "--json", "--ignore-eos", "--max-tokens", str(n), "--prompt", prompt, *nodes)
        m = out["metrics"]
        return m["ttft_ms"], m["decode_tokens_per_second"]

    def by_http(self, prompt, n):
        """The same, on the connection that the first of two has made."""
        nodes = () if self.nodes is None else ("--extra-body", json.dumps({"num_speculative_tokens": self.nodes}))
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as f:
            f.write(json.dumps({"prompt": prompt}) + "\n")
            f.flush()
            out = self.output(self.bin("graft-bench"), "serve", "-o", "json", "--base-url", self.url, "--prompts", f.name,
                              "--num-prompts", "1", "--num-warmups", "1", "--output-len", str(n), "--ignore-eos", *nodes)
        row, = out["rows"]
        return row["mean_ttft_ms"], row["decode_tokens_per_second"]


def measure(fleet, o):
    pairs = []
    for i in range(-2, o.pairs):  # the first two are warm-up
        prompt = PROMPTS[i % len(PROMPTS)]
        prompt = (prompt * (1 + o.prompt_chars // len(prompt)))[:o.prompt_chars] if o.prompt_chars else prompt
        got = {}
        for way in ("run", "http") if i % 2 else ("http", "run"):
            got[way] = (fleet.by_run if way == "run" else fleet.by_http)(prompt, o.max_tokens)
        if i >= 0:
            pairs.append(got)
    return pairs


def quartiles(values):
    low, mid, high = statistics.quantiles(values, n=4)
    return {"median": round(mid, 4), "low": round(low, 4), "high": round(high, 4)}


def summary(pairs):
    each = lambda way, i: [p[way][i] for p in pairs]
    ratio = lambda i: [p["http"][i] / p["run"][i] for p in pairs]
    return {"pairs": len(pairs),
            "ttft ms": {way: round(statistics.median(each(way, 0)), 3) for way in ("run", "http")},
            "tokens/s": {way: round(statistics.median(each(way, 1)), 1) for way in ("run", "http")},
            "ttft, http / run": quartiles(ratio(0)), "tokens/s, http / run": quartiles(ratio(1))}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--build", default=os.path.join(ROOT, "build"), help="folder of the programs")
    a.add_argument("--model", default=os.path.join(ROOT, "models/demo/target"))
    a.add_argument("--draft", default=os.path.join(ROOT, "models/demo/draft"),
                   help="none: plain decoding, the same work in both")
    a.add_argument("--num-speculative-tokens", type=int, metavar="N",
                   help="nodes of every tree, in both; without it their sizes adapt from one answer to the next")
    a.add_argument("--port", type=int, default=18000)
    a.add_argument("--pairs", type=int, default=24)
    a.add_argument("--max-tokens", type=int, default=256)
    a.add_argument("--prompt-chars", type=int, default=0, help="length of the prompts (0: as they are)")
    o = a.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(o, folder)
        try:
            print(json.dumps(summary(measure(fleet, o)), indent=1))
        finally:
            fleet.end()
    return 0


sys.exit(main())
