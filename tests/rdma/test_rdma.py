#!/usr/bin/env python3
"""What needs RDMA devices, in the throw-away machine of rdma-vm; first that the machine does as it says.

A case in the machine is one function of in_machine.py; all of them share one boot. Where the machine cannot be had
every case is skipped with the reason. Cases that judge times or take long (@alone) have a machine to
themselves, and the host too, in --long.

usage: test_rdma.py BUILD_DIR SOURCE_ROOT [alone]      prints TAP
"""
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../system"))
# pylint: disable=wrong-import-position
from harness import BUILD, CASES, ROOT, SLOW, case, main, run  # noqa: E402
import tiny_model  # noqa: E402
# pylint: enable=wrong-import-position

HERE = os.path.dirname(os.path.abspath(__file__))
RDMA_VM = os.path.join(HERE, "rdma-vm")
INSIDE = os.path.join(HERE, "in_machine.py")
MODELS = os.path.join(BUILD, "tests/rdma/models")
FOREVER = None  # for time_limit_ends_it
ALONE = sys.argv[3:]


def machine(*args, seconds=240):
    """rdma-vm with its own time limit and, in case that fails, one around it."""
    return subprocess.run([RDMA_VM, "--time", str(seconds * SLOW), *args], cwd=BUILD, capture_output=True, text=True,
                          timeout=(seconds + 60) * SLOW, check=False)


def one_line(done, status, *words):
    assert done.returncode == status, (done.returncode, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and all(w in lines[0] for w in words), done.stderr


@case
def output_and_status_pass_through():
    script = 'echo "out $A"; echo err >&2; test -e /dev/infiniband/rdma_cm && touch here && exit 37'
    marker = os.path.join(BUILD, "here")
    done = machine("--env", "A=b  c", "--", "sh", "-c", script)
    assert os.path.exists(marker), "the current folder was not writable"
    os.unlink(marker)
    assert (done.returncode, done.stdout, done.stderr) == (37, "out b  c\n", "err\n"), done
    # A lot of output, more than any buffer on the way holds, arrives whole.
    done = machine("--links", "none", "--", "seq", "200000")
    assert done.returncode == 0, done
    assert done.stdout == "".join(f"{i}\n" for i in range(1, 200001))


@case
def host_files_cannot_be_written():
    done = machine("--links", "none", "--", "sh", "-c", "! touch /etc/rdma-vm-test && touch /tmp/rdma-vm-test")
    assert done.returncode == 0 and "Read-only" in done.stderr, done
    assert not os.path.exists("/etc/rdma-vm-test") and not os.path.exists("/tmp/rdma-vm-test")


def forever():
    """A machine that does nothing until its time is over: beside others, since it hardly needs a processor."""
    return subprocess.Popen([RDMA_VM, "--time", str(15 * SLOW), "--links", "none", "--", "sh", "-c", "sleep 1000000"],
                            cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@case
def time_limit_ends_it():
    out, err = FOREVER.communicate(timeout=120 * SLOW)
    one_line(subprocess.CompletedProcess(FOREVER.args, FOREVER.returncode, out, err), 124, "not finished")


@case
def no_machine_is_one_line():
    one_line(machine("--kernel", "linux-image-of-nobody", "--", "true"), 125, "linux-image-of-nobody")


def make_models():
    """The tiny ones, and what plain runs of them write here."""
    tiny_model.make(MODELS, os.path.join(ROOT, "models/demo"))
    with open(os.path.join(ROOT, "tests/golden/demo-greedy.json"), encoding="utf-8") as f:
        prompts = [c["prompt_ids"] for c in json.load(f)["cases"][:4]]
    cases = []
    for ids in prompts:
        done = run("run", "--json", "--model", os.path.join(MODELS, "target"), "--method", "none", "--prompt-ids", "-",
                   "--max-tokens", "40", "--ignore-eos", stdin=json.dumps(ids))
        assert done.returncode == 0, done.stderr
        cases.append({"prompt_ids": ids, "greedy_ids": json.loads(done.stdout)["token_ids"]})
    with open(os.path.join(MODELS, "plain.json"), "w", encoding="utf-8") as f:
        json.dump({"cases": cases}, f)


def names_inside():
    with open(INSIDE, encoding="utf-8") as f:
        return re.findall(rf"^@{'alone' if ALONE else 'case'}\ndef (\w+)", f.read(), re.M)


def environment():
    yield f"GRAFT_TEST_SLOW={SLOW}"
    yield f"GRAFT_TEST_MODELS={MODELS}"
    if SLOW == 1:
        yield "GRAFT_CPU=c"  # some hosts emulate 256-bit instructions twenty times slower than all others
    if "GRAFT_TEST_ONLY" in os.environ:
        yield "GRAFT_TEST_ONLY"


def run_inside():
    """Boots once; what its cases print, and why there is no more of it."""
    make_models()
    env = [x for item in environment() for x in ("--env", item)]
    done = machine("--read", ROOT, "--write", BUILD, *env, "--", "python3", INSIDE, BUILD, ROOT, *ALONE, seconds=1000)
    lost = f"the machine ended with {done.returncode} before\n# " + done.stderr.strip().replace("\n", "\n# ")
    return done.stdout.splitlines()[1:], lost  # without its plan


def print_inside(first):
    """All lines as they came, numbered from first; a case of which no verdict came has failed."""
    lines, lost = run_inside()
    names, n_failed = names_inside(), 0
    number = {name: i for i, name in enumerate(names, first)}
    for line in lines:
        m = re.match(r"(ok|not ok) \d+ - (\w+)(.*)", line)
        if m:
            line = f"{m.group(1)} {number.pop(m.group(2))} - {m.group(2)}{m.group(3)}"
            n_failed += m.group(1) != "ok"
        print(line, flush=True)
    for name, i in number.items():
        print(f"not ok {i} - {name} ({lost})", flush=True)
    return n_failed + len(number)


def without_machine(reason, names):
    print(f"1..{len(names)}")
    for i, name in enumerate(names, 1):
        print(f"ok {i} - {name} # SKIP {reason}")
    return 0


def main_rdma():
    inside = names_inside()
    if ALONE:
        CASES.clear()
    ready = subprocess.run([RDMA_VM, "--prepare"], capture_output=True, text=True, check=False)
    if ready.returncode != 0:
        return without_machine(ready.stderr.strip().replace("\n", " "), [fn.__name__ for fn in CASES] + inside)
    global FOREVER  # pylint: disable=global-statement
    FOREVER = None if ALONE else forever()
    status = main(n_more=len(inside))
    return 1 if print_inside(len(CASES) + 1) or status else 0


if __name__ == "__main__":
    sys.exit(main_rdma())
