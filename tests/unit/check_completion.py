#!/usr/bin/env python3
"""The completion scripts that graft prints, in a real bash and, where it is installed, in zsh. Prints TAP.

usage: check_completion.py GRAFT"""
import os
import shutil
import subprocess
import sys
import tempfile

GRAFT = sys.argv[1]
# What is typed, the cursor at its end; what must be offered, what must not, or all that is offered. bash hands `=' and
# `:' over as words of their own.
CASES = [
    (["graft", ""],
     {"run", "chat", "serve", "launch", "session", "worker", "top", "ping", "wait", "stop", "options", "completion", "--help",
      "--version"}, None),
    (["graft", "se"], {"serve", "session"}, None),
    (["graft", "session", ""], {"list", "show", "open", "send", "close", "refresh", "purge", "--help"}, None),
    (["graft", "worker", ""], {"list", "drain", "undrain", "--help"}, None),
    (["graft", "run", "--max-t"], {"--max-tokens"}, None),
    (["graft", "run", "--"], {"--model", "--prompt", "--config", "--help", "--version"}, {"--join", "--spawn", "--nodes"}),
    (["graft", "session", "send", "--"], {"--prompt", "--json"}, {"--seed", "--session"}),
    (["graft", "run", "--method", ""], {"none", "draft_model", "eagle3"}, None),
    (["graft", "run", "--method", "=", "e"], {"eagle3"}, None),
    (["graft", "run", "--method", "="], {"none", "draft_model", "eagle3"}, None),
    (["graft", "run", "--json", "="], {"true", "false"}, None),
    (["graft", "run", "--json", "--see"], {"--seed"}, None),
    (["graft", "run", "--target-device", "c"], {"cpu", "cuda:0"}, None),
    (["graft", "run", "--max-tokens", ""], set(), None),
    (["graft", "run", "--help", "samp"], {"sampling"}, None),
    (["graft", "completion", ""], {"bash", "zsh"}, None),
    (["graft", "run", "--model", "fol"], {"folder"}, None),
    (["graft", "run", "--config", "f"], {"folder", "file.yaml", "file two"}, None),
    (["graft-target", "--specpv", ""], {"off", "on"}, None),
    (["graft-target", "--"], {"--listen", "--join"}, {"--prompt", "--target"}),
    (["/opt/bin/graft-draft", "--targ"], {"--target"}, None),
    (["graft-bench", ""], {"e2e", "sweep", "clients", "serve", "server", "trees", "sessions", "simulate", "stages", "gates", "tune", "kernels", "transport", "--help",
                           "--version"}, None),
    (["graft-bench", "e2e", "--mod"], {"--model", "--modes"}, None),
    (["graft-bench", "e2e", "--modes", "co-located,"], {"co-located,co-located", "co-located,pair"}, None),
    (["graft-bench", "e2e", "--context", "4k", "--spec"], {"--specpv", "--specpv-budgets", "--specpv-partial-threshold"},
     None),
    (["graft-bench", "sessions", "-o", "j"], {"json", "jsonl"}, None),
    (["graft-bench", "tune", "g"], {"gemm"}, None),
    (["graft-bench", "nothing", "--"], set(), None),
]


def ask_bash(folder, words):
    script = '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _graft; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "--norc", "-c", script, "bash", os.path.join(folder, "graft.bash"), *words],
                          capture_output=True, text=True, check=True, cwd=os.path.join(folder, "in"))
    assert done.stderr == "", done.stderr
    return {line for line in done.stdout.splitlines() if line}


def in_bash(folder):
    for words, wanted, unwanted in CASES:
        got = ask_bash(folder, words)
        good = got == wanted if unwanted is None else wanted <= got and not unwanted & got
        assert good, f"{' '.join(words)}: {sorted(got)}"


def begins_in_bash(folder):
    script = '. "$1"; for p in graft graft-target graft-draft graft-bench; do complete -p $p; done'
    done = subprocess.run(["bash", "--norc", "-c", script, "bash", os.path.join(folder, "graft.bash")], capture_output=True,
                          text=True, check=True)
    assert done.stdout.count("complete -F _graft graft") == 4, done.stdout


def in_zsh(folder):
    if shutil.which("zsh") is None:
        return "zsh is not installed"
    subprocess.run(["zsh", "-n", os.path.join(folder, "graft.zsh")], check=True)
    script = ("compdef() { print -- compdef $@ }; . $1; _graft_value 'graft run' --method; print -- $kind $list; "
              "_graft_options 'graft-bench tune'; print -l -- $list")
    done = subprocess.run(["zsh", "-f", "-c", script, "zsh", os.path.join(folder, "graft.zsh")], capture_output=True,
                          text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["compdef _graft graft graft-target graft-draft graft-bench", "choice none draft_model eagle3"], lines
    assert "--device:cpu | cuda:N (tune: cuda:N)" in lines and done.stderr == "", done
    return None


def main():
    failed = False
    checks = [("bash offers what the tables say", in_bash), ("bash completes all programs", begins_in_bash),
              ("zsh reads its script", in_zsh)]
    print(f"1..{len(checks)}")
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "in/folder"))
        for name in ("in/file.yaml", "in/file two"):
            with open(os.path.join(folder, name), "w", encoding="utf-8"):
                pass
        for shell in ("bash", "zsh"):
            with open(os.path.join(folder, "graft." + shell), "w", encoding="utf-8") as f:
                subprocess.run([GRAFT, "completion", shell], stdout=f, check=True)
        for i, (name, check) in enumerate(checks, 1):
            try:
                skipped = check(folder)
                print(f"ok {i} - {name}" + (f" # SKIP {skipped}" if skipped else ""))
            except (AssertionError, subprocess.CalledProcessError) as e:
                failed = True
                print(f"# {e}\nnot ok {i} - {name}")
    return 1 if failed else 0


sys.exit(main())
