#!/usr/bin/env python3
"""The EAGLE-3 head's inner values, as graft-bench dumps and compares them.

usage: test_stages.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

from harness import BUILD, DRAFT, ROOT, SLOW, TARGET, case, generate, main, run

BENCH = os.path.join(BUILD, "graft-bench")
HEAD = os.path.join(ROOT, "models/demo/eagle3")
GOLDEN = os.path.join(ROOT, "tests/golden")
STAGES = ["captured", "fc_out", "attn_input", "attn_out", "ffn_out", "hidden", "pre_head_hidden", "logits"]


def stages(*args):
    return subprocess.run([BENCH, "stages", *args], capture_output=True, text=True, timeout=120 * SLOW, check=False)


def read_tensors(path):
    """name: (shape, values) of the f32 and i32 tensors of a file."""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack_from("<Q", data)[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            code = {"F32": "f", "I32": "i"}[t["dtype"]]
            out[name] = (t["shape"], struct.unpack_from(f"<{(end - begin) // 4}{code}", data, 8 + n + begin))
    return out


def prompt(i):
    with open(os.path.join(GOLDEN, "demo-greedy.json"), encoding="utf-8") as f:
        c = json.load(f)["cases"][i]
    return c["prompt_ids"], c["greedy_ids"][0]


def dump(folder, i, *args):
    path = os.path.join(folder, f"{i}{''.join(args)}.safetensors")
    done = stages("--head", HEAD, "--model", TARGET, "--threads", "2", "--ids", ",".join(map(str, prompt(i)[0])),
                  "--dump", path, *args)
    assert done.returncode == 0, done.stderr
    return path


def compare(a, b):
    """stage: row of the table."""
    done = stages("--compare", a, "--with", b, "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    return {r["stage"]: r for r in rows}


def relative(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b))


@case
def rows_of_several_trees():
    done = stages("--head", HEAD, "--reps", "3", "--rows", "64,65,200", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = [r for r in json.loads(done.stdout)["rows"] if "prefill" not in r["stage"]]
    assert [(r["stage"], r["rows"]) for r in rows] == [(s, n) for s in ("verify", "fc", "head") for n in (64, 65, 200)]
    for stage in ("verify", "head"):
        few, _, many = (r["min ms"] for r in rows if r["stage"] == stage)
        assert many > few, rows  # three times the rows, where operations are what takes the time
    done = stages("--rows", "513")
    assert done.returncode == 2 and "from 1 to 512" in done.stderr, done.stderr


@case
def dump_holds_what_the_stages_are():
    """Shapes; golden values at both ends; and hidden is the sum of its parts."""
    with tempfile.TemporaryDirectory() as folder:
        t = read_tensors(dump(folder, 1))
    ids, following = prompt(1)
    n = len(ids)
    golden = read_tensors(os.path.join(GOLDEN, "demo-logits.safetensors"))
    assert list(t["ids"][1]) == ids + [following], t["ids"]
    widths = {"captured": 1152, "attn_input": 768, "logits": 3072}
    for name in STAGES:
        assert t[name][0] == [n, widths.get(name, 384)], (name, t[name][0])
    assert relative(t["captured"][1], golden["target.captured.1"][1]) < 1e-4
    assert relative(t["fc_out"][1], golden["eagle3.fused.1"][1]) < 1e-4
    assert relative(t["logits"][1][-3072:], golden["eagle3.first_logits.1"][1]) < 1e-4
    parts = [sum(x) for x in zip(t["fc_out"][1], t["attn_out"][1], t["ffn_out"][1])]
    assert relative(t["hidden"][1], parts) < 1e-5


@case
def equal_dumps_compare_equal():
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(dump(folder, 0), dump(folder, 0, "--cpu-kernels", "c"))
    assert sorted(rows) == sorted(STAGES), rows
    for r in rows.values():
        assert float(r["relative error"]) == 0 and float(r["largest difference"]) == 0, r
        assert abs(float(r["cosine"]) - 1) < 1e-9 and abs(float(r["lowest cosine of a row"]) - 1) < 1e-9, r


@case
def compare_finds_the_stage_that_differs():
    """One row of ffn_out turned around: the whole tensor still looks alike, its row does not."""
    with tempfile.TemporaryDirectory() as folder:
        good = dump(folder, 1)
        with open(good, "rb") as f:
            data = bytearray(f.read())
        n = struct.unpack_from("<Q", data)[0]
        at = 8 + n + json.loads(data[8:8 + n])["ffn_out"]["data_offsets"][0]
        for i in range(384):
            struct.pack_into("<f", data, at + 4 * i, -struct.unpack_from("<f", data, at + 4 * i)[0])
        bad = os.path.join(folder, "bad.safetensors")
        with open(bad, "wb") as f:
            f.write(data)
        rows = compare(bad, good)
    for name, r in rows.items():
        assert (float(r["relative error"]) > 1e-3) == (name == "ffn_out"), r
    assert float(rows["ffn_out"]["lowest cosine of a row"]) < -0.999, rows["ffn_out"]


@case
def geometry_keeps_the_values_and_is_named():
    """The large model's streams begin with the small one's; the text is the small target's."""
    with tempfile.TemporaryDirectory() as folder:
        small = read_tensors(dump(folder, 1))
        large = read_tensors(dump(folder, 1, "--geometry", "test-64"))
    n = small["hidden"][0][0]
    assert large["hidden"][0] == [n, 512] and large["logits"][0] == small["logits"][0], large["hidden"][0]
    cut = [x for r in range(n) for x in large["hidden"][1][512 * r:512 * r + 384]]
    assert relative(cut, small["hidden"][1]) < 1e-5
    assert relative(large["logits"][1], small["logits"][1]) < 1e-5
    plain = generate("--max-tokens", "24")
    expanded = generate("--max-tokens", "24", "--max-model-len", "512", "--geometry", "test-128")
    assert plain["token_ids"] == expanded["token_ids"], (plain, expanded)
    done = stages("--head", HEAD, "--model", TARGET, "--geometry", "test-128", "--reps", "1")
    assert done.returncode == 0 and "expanded to test-128" in done.stdout, done


@case
def positions_of_a_geometry_are_for_stages_alone():
    """The folder has 32768, test-64 has 40000, test-128 fewer than the folder; 512 are for the rows that are timed."""
    for args, word in ((["--context", "32768"], "target has 32768 positions"),
                       (["--context", "39489", "--geometry", "test-64"], "test-64 has 40000 positions"),
                       (["--context", "32768", "--geometry", "test-128"], "test-128 has 32768 positions")):
        done = stages("--head", HEAD, "--model", TARGET, *args)
        lines = [x for x in done.stderr.splitlines() if "expanded to" not in x]
        assert done.returncode == 1 and len(lines) == 1 and word in lines[0], (args, done)


@case
def unknown_geometry_and_a_stand_alone_draft_are_refused():
    done = stages("--model", TARGET, "--geometry", "llama-9")
    assert done.returncode == 2 and "llama-3.2-1b" in done.stderr, done
    for args, word in ((["--geometry", "llama-9"], "llama-3.2-1b"),
                       (["--geometry", "test-64", "--draft", DRAFT], "stand-alone")):
        done = run("run", "--model", TARGET, "--prompt", "x", *args)
        assert done.returncode == 2 and word in done.stderr, done


@case
def what_cannot_be_done_is_said():
    with tempfile.TemporaryDirectory() as folder:
        other = ["--compare", dump(folder, 0), "--with", dump(folder, 1)]
        missing = ["--compare", os.path.join(folder, "none"), "--with", os.path.join(folder, "none")]
        out = os.path.join(folder, "x")
        for args, status, word in (
                (["--require-tuned"], 2, "--tuned FILE"), (["--tuned", out], 2, "no model on a GPU"),
                (["--tuned", out, "--device", "cuda:0"], 1, out),
                (other, 1, "different prompts"), (missing, 1, "none"), (["--compare", out], 2, "--with"),
                (["--dump", out, "--head", HEAD, "--model", TARGET], 2, "--ids"),
                (["--dump", out, "--head", HEAD, "--model", TARGET, "--ids", "1,2,x"], 2, "`x'"),
                (["--dump", out, "--head", HEAD, "--model", TARGET, "--ids", "4096"], 2, "4095"),
                (["--dump", out, "--model", TARGET, "--ids", "1"], 2, "--head"),
                (["--dump", os.path.join(out, "y"), "--head", HEAD, "--model", TARGET, "--ids", "1"], 1,
                 "cannot write")):
            done = stages(*args)
            lines = done.stderr.splitlines()
            assert done.returncode == status and len(lines) == 1 and word in lines[0], (args, done)


sys.exit(main())
