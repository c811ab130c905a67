#!/usr/bin/env python3
"""What an EAGLE-3 head is sent: fused or raw features, captured layers, how many are kept; and workers that differ.

usage: test_features.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import os
import subprocess
import sys

from harness import BUILD, ENDLESS, HEAD, TARGET, case, generate, main, refused, run, wait_for
from served import Serve, worker

TREE = ("--draft", HEAD, "--num-speculative-tokens", "15", "--draft-depth", "6", "--draft-top-k", "6", "--max-tokens",
        "160", "--ignore-eos")


@case
def raw_features_bring_the_same():
    plain = generate("--max-tokens", "160", "--ignore-eos")
    for transport in ("shm", "tcp", "loop"):
        fused = generate(*TREE, "--transport", transport, "--ship-features", "fused")
        raw = generate(*TREE, "--transport", transport, "--ship-features", "raw")
        for out in (fused, raw):
            assert out["token_ids"] == plain["token_ids"], transport
            assert out["metrics"]["desyncs"] + out["metrics"]["fallbacks"] == 0, out["metrics"]
        f, r = fused["metrics"], raw["metrics"]
        print(f"# {transport}: wire_bytes_per_token fused {f['wire_bytes_per_token']:.0f}, raw "
              f"{r['wire_bytes_per_token']:.0f}; mean_acceptance_length {f['mean_acceptance_length']:.2f}, "
              f"{r['mean_acceptance_length']:.2f}")
        # a row is 768 bytes fused and 2304 raw; frames and trees cost the same
        more = r["wire_bytes_per_token"] - f["wire_bytes_per_token"]
        assert 1400 < more < 1700, (transport, more)
        assert abs(r["mean_acceptance_length"] - f["mean_acceptance_length"]) < 0.3, (f, r)


@case
def captured_layers_are_what_the_head_was_made_for():
    """The inputs of 2, 4, 7 are what its config says (as outputs); others fit its shapes and are of no use."""
    same = generate(*TREE)
    given = generate(*TREE, "--capture-layers", "2,4,7")
    assert given["token_ids"] == same["token_ids"]
    assert abs(given["metrics"]["mean_acceptance_length"] - same["metrics"]["mean_acceptance_length"]) < .3, (given, same)
    wrong = generate(*TREE, "--capture-layers", "1,3,5")
    assert wrong["token_ids"] == same["token_ids"]
    right = same["metrics"]["mean_acceptance_length"]
    print(f"# mean_acceptance_length {right:.2f}, of wrong layers {wrong['metrics']['mean_acceptance_length']:.2f}")
    assert wrong["metrics"]["mean_acceptance_length"] < right - 1
    for layers, status, words in (("2,4", 1, ("1152", "768")), ("2,4,9", 2, ("layer 9", "8 layers"))):
        done = run("run", "--model", TARGET, "--prompt", "x", "--draft", HEAD, "--capture-layers", layers)
        assert done.returncode == status, done.stderr
        for word in words:
            assert word in done.stderr, (word, done.stderr)


@case
def workers_that_differ_are_refused():
    for options, words in ((("--ship-features", "raw"), ("raw", "fused", "--ship-features")),
                           (("--capture-layers", "1,3,5"), ("1,3,5", "2,4,7", "--capture-layers"))):
        with Serve(spawn=False) as s, worker("graft-target", s.folder, s.address, "--head", HEAD) as t:
            with worker("graft-draft", s.folder, s.address, "--target", TARGET, *options, model=HEAD) as d:
                s.wait("--draft", HEAD)
                turn = s.start(tokens=ENDLESS)  # not over before the two have met
                wait_for(lambda: "[fallback]" in s.log())  # whoever refuses the other says so first
                out = s.generate("--max-tokens", "20")
                assert len(out["token_ids"]) == 20 and out["metrics"]["num_drafts"] == 0, out["metrics"]
                assert all(x["num_drafts"] == 0 for x in s.sessions()), s.sessions()
                turn.kill()
                turn.communicate()
                d.kill()
                t.kill()
                lines = (d.stderr.read() + t.stderr.read()).splitlines()
                told = [x for x in lines if "HELLO:" in x and all(w in x for w in words)]
                assert told, lines


def memory_available():
    with open("/proc/meminfo", encoding="utf-8") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("MemAvailable:")) << 10


@case
def how_many_are_kept():
    out = generate(*TREE, "--feature-keep", "320")
    assert out["metrics"]["mean_acceptance_length"] > 3.5, out["metrics"]
    refused(["--model", TARGET, "--prompt", "x", "--feature-keep", "320", "--connect", "127.0.0.1:1"], 2,
            "--feature-keep", "--connect")
    for text, words in (("319", ("319", "320")), ("many", ("many",))):
        done = subprocess.run([os.path.join(BUILD, "graft-target"), "--feature-keep", text], capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == 2 and all(w in done.stderr for w in ("--feature-keep", *words)), done.stderr
    if memory_available() > 36 << 30:
        print("# memory for 18 GiB of features: not refused here")
        return
    # more than half of what there is: what it would take is told
    done = subprocess.run([os.path.join(BUILD, "graft-target"), "--model", TARGET, "--head", HEAD, "--join",
                           "127.0.0.1:1", "--sessions", "256", "--kv-blocks", "64", "--feature-keep", "32768",
                           "--ship-features", "raw", "--join-timeout", "0"], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, GRAFT_KEY="00" * 32))
    assert done.returncode == 1 and "--feature-keep 32768" in done.stderr and "MiB" in done.stderr, done.stderr


if __name__ == "__main__":
    sys.exit(main())
