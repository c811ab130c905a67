#!/usr/bin/env python3
"""Several targets and drafters at one orchestrator, beside one pair: throughput, and who had which sessions.

usage: fleet.py [options]

Every worker is pinned to CPUs of its own; those of the first pair are the same in both runs. Clients are processes
that all start at once, each with one turn. What is told of a run is the tokens of all clients over the time from the
first start to the last end. The texts of both runs must be equal, else the command fails.

Needs a machine with (targets x CPUs of one) + (drafters x CPUs of one) CPUs, and some for the clients.
"""
import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
START_S = 60


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(ROOT, "build"))
    p.add_argument("--model", default=os.path.join(ROOT, "models/demo/target"))
    p.add_argument("--draft", default=os.path.join(ROOT, "models/demo/draft"))
    p.add_argument("--prompts", default=os.path.join(ROOT, "tests/golden/prompts.json"))
    p.add_argument("--targets", type=int, default=2)
    p.add_argument("--drafters", type=int, default=2)
    p.add_argument("--target-cpus", type=int, default=4, help="of one target")
    p.add_argument("--draft-cpus", type=int, default=2, help="of one drafter")
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--sessions", type=int, default=64, help="slots of one worker")
    p.add_argument("--max-tokens", type=int, default=512)
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("-o", metavar="FILE", help="the result as JSON")
    return p


class Fleet:
    """An orchestrator and its workers; the first CPU is the orchestrator's and the clients'."""

    def __init__(self, o, n_target, n_draft, stack):
        self.o = o
        self.dir = stack.enter_context(tempfile.TemporaryDirectory())
        self.next_cpu = o.first_cpu
        key = os.path.join(self.dir, "key")
        subprocess.run([self.program("graft"), "serve", "--make-key", key], check=True, stdout=subprocess.DEVNULL)
        self.env = dict(os.environ, GRAFT_KEY_FILE=key)
        ready = os.path.join(self.dir, "ready")
        self.start(stack, [self.program("graft"), "serve", "--control", "127.0.0.1:0", "--ready-file", ready], 0)
        self.wait_for(lambda: os.path.exists(ready))
        with open(ready, encoding="utf-8") as f:
            self.env["GRAFT_CONNECT"] = self.env["GRAFT_JOIN"] = f.read().strip()
        slots = ["--sessions", str(o.sessions)]
        # In pairs, so that the CPUs of the first pair are the same whatever else there is.
        for i in range(max(n_target, n_draft)):
            if i < n_target:
                self.start(stack, [self.program("graft-target"), "--model", o.model, *slots], o.target_cpus)
            if i < n_draft:
                self.start(stack, [self.program("graft-draft"), "--model", o.draft, *slots], o.draft_cpus)
        self.wait_for(lambda: len(self.workers()) == n_target + n_draft)

    def program(self, name):
        return os.path.join(self.o.build, name)

    def start(self, stack, command, n_cpu):
        if n_cpu > 0:
            cpus = f"{self.next_cpu}-{self.next_cpu + n_cpu - 1}"
            self.next_cpu += n_cpu
            command = ["taskset", "-c", cpus, *command, "--threads", str(n_cpu)]
        p = subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(p.wait)
        stack.callback(p.terminate)

    def wait_for(self, so):
        end = time.monotonic() + START_S
        while not so():
            if time.monotonic() > end:
                raise SystemExit("the workers did not start")
            time.sleep(0.05)

    def listing(self):
        done = subprocess.run([self.program("graft"), "session", "list", "--json"], env=self.env, check=True,
                              stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout)

    def workers(self):
        return self.listing()["workers"]

    def shares(self):
        """Sessions of each worker at this moment."""
        return {f"{w['role']} {w['worker']}": w["sessions"] for w in self.workers()}

    def turn(self, i, prompts):
        o = self.o
        command = [self.program("graft"), "run", "--json", "--model", o.model, "--prompt", prompts[i % len(prompts)],
                   "--max-tokens", str(o.max_tokens), "--ignore-eos", "--temperature", "0.7", "--seed", str(i)]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fullest(fleet, turns):
    """The shares at the moment with the most sessions. Looks until the first turn ends."""
    best = fleet.shares()
    while all(t.poll() is None for t in turns):
        now = fleet.shares()
        best = now if sum(now.values()) > sum(best.values()) else best
        time.sleep(0.02)
    return best


def measure(o, n_target, n_draft, prompts):
    """(tokens/s, texts, the most sessions that workers had, sum of what clients saw)."""
    with contextlib.ExitStack() as stack:
        fleet = Fleet(o, n_target, n_draft, stack)
        begin = time.monotonic()
        turns = [fleet.turn(i, prompts) for i in range(o.clients)]
        shares = fullest(fleet, turns)
        out = [t.communicate() for t in turns]
        seconds = time.monotonic() - begin
        for t, (text, err) in zip(turns, out):
            if t.returncode != 0:
                raise SystemExit(f"a client ended with status {t.returncode}: {err.strip() or text[:300]}")
        done = [json.loads(text) for text, _ in out]
        per_client = [d["metrics"]["decode_tokens_per_second"] for d in done]
        return (sum(len(d["token_ids"]) for d in done) / seconds, [d["token_ids"] for d in done], shares,
                sum(per_client))


def provenance(o):
    about = json.loads(subprocess.run([os.path.join(o.build, "graft-bench"), "transport", "--transport", "loop",
                                       "--sizes", "64", "--iters", "1", "-o", "json"], check=True,
                                      stdout=subprocess.PIPE, text=True).stdout)["provenance"]
    note = (f"{o.clients} clients with a turn of {o.max_tokens} tokens each, temperature 0.7; a target has "
            f"{o.target_cpus} CPUs and a drafter {o.draft_cpus}, pinned; median of {o.reps} runs in turn; texts equal")
    options = ["--targets", o.targets, "--drafters", o.drafters, "--target-cpus", o.target_cpus, "--draft-cpus",
               o.draft_cpus, "--clients", o.clients, "--max-tokens", o.max_tokens, "--reps", o.reps]
    return {**about, "command": "bench/fleet.py", "options": [str(word) for word in options], "note": note}


def main():
    o = parser().parse_args()
    o.first_cpu = 1
    n_cpu = 1 + o.targets * o.target_cpus + o.drafters * o.draft_cpus
    if n_cpu > len(os.sched_getaffinity(0)):
        raise SystemExit(f"{n_cpu} CPUs are needed, this machine has {len(os.sched_getaffinity(0))}")
    with open(o.prompts, encoding="utf-8") as f:
        prompts = json.load(f)
    seen = {}
    texts = None
    for _ in range(o.reps):
        for n_target, n_draft in ((1, 1), (o.targets, o.drafters)):
            speed, ids, shares, clients = measure(o, n_target, n_draft, prompts)
            seen.setdefault((n_target, n_draft), []).append((speed, clients, shares))
            print(f"{n_target} + {n_draft}: {speed:.0f} tokens/s, sum of the clients' own {clients:.0f}; {shares}",
                  flush=True)
            if texts is not None and ids != texts:
                raise SystemExit("the texts of two runs differ")
            texts = ids
    rows = []
    for (n_target, n_draft), runs in seen.items():
        runs.sort(key=lambda r: r[0])
        speed, clients, shares = runs[len(runs) // 2]
        rows.append({"targets": n_target, "drafters": n_draft, "tok/s": round(speed, 1),
                     "range": f"{runs[0][0]:.0f} .. {runs[-1][0]:.0f}", "tok/s of clients": round(clients, 1),
                     "sessions": ", ".join(f"{w}: {n}" for w, n in shares.items())})
    for row in rows:
        row["x one pair"] = round(row["tok/s"] / rows[0]["tok/s"], 2)
        print(row)
    if o.o:
        with open(o.o, "w", encoding="utf-8") as f:
            json.dump({"provenance": provenance(o), "rows": rows}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
