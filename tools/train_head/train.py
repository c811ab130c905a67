#!/usr/bin/env python3
"""Trains an EAGLE-3 head for a Hugging Face folder: tools/train_head/train.py MODEL_FOLDER OUT_FOLDER [options]

Stages: text (rows to train on), train, export (the head's folder), evaluate (acceptance on held-out prompts). Each
keeps its result in OUT_FOLDER.work; a second call goes on where the first one ended. README.md tells more.
"""
import json
import os
import sys
import time

import settings
from settings import STAGES, Wrong

START = time.time()


def say(text):
    print(f"{time.time() - START:7.1f} s  {text}", flush=True)


def write_json(path, value):
    with open(path + ".part", "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")
    os.replace(path + ".part", path)


class Run:
    """One call: what was asked for, and the model, which is loaded when a stage first needs it."""

    def __init__(self, a, config):
        self.a, self.config, self.loaded = a, config, None
        self.paths = {"text": os.path.join(a.work, "text.npz"), "train": os.path.join(a.work, "head.pt"),
                      "export": os.path.join(a.out, "model.safetensors"),
                      "evaluate": os.path.join(a.work, "acceptance.json")}

    def target(self):
        from target import Target, open_tokenizer  # pylint: disable=import-outside-toplevel
        if self.loaded is None:
            say(f"loading {self.a.model} on {self.a.device}")
            self.loaded = Target(self.a.model, self.a.device, self.a.layers), open_tokenizer(self.a.model)
        return self.loaded

    def rows(self):
        import numpy as np  # pylint: disable=import-outside-toplevel
        with np.load(self.paths["text"]) as z:
            return z["tokens"], z["kinds"], int(z["n_held"])

    def state(self):
        import torch  # pylint: disable=import-outside-toplevel
        if not os.path.exists(self.paths["train"]):
            return None
        return torch.load(self.paths["train"], map_location=self.a.device, weights_only=True)

    def is_done(self, stage):
        """A result that was made with other options is an error: it may have taken hours."""
        if not os.path.exists(self.paths[stage]):
            return False
        if stage == "text":
            self.refuse_changed(stage, settings.read_json(os.path.join(self.a.work, "text.json")))
        if stage == "train":
            state = self.state()
            self.refuse_changed(stage, state["made_with"])
            return state["step"] >= self.a.steps if self.a.steps else state["spent"] >= 60 * self.a.minutes
        return True

    def refuse_changed(self, stage, made_with):
        name = settings.changed(self.a, stage, made_with)
        if name is not None:
            raise Wrong(f"{self.paths[stage]}: made with another --{name.replace('_', '-')} ({made_with.get(name)}); "
                        f"give --from {stage} to make it anew, or another --work")

    def forget(self, stages):
        for stage in stages:
            if os.path.exists(self.paths[stage]):
                os.remove(self.paths[stage])

    def text(self):
        import numpy as np  # pylint: disable=import-outside-toplevel
        import text  # pylint: disable=import-outside-toplevel
        tokens, kinds, n_held = text.make(self.a, *self.target(), say)
        write_json(os.path.join(self.a.work, "text.json"), settings.depends(self.a, "text"))
        part = self.paths["text"] + ".part.npz"
        np.savez_compressed(part, tokens=tokens, kinds=kinds, n_held=n_held)
        os.replace(part, self.paths["text"])

    def train(self):
        import trainer  # pylint: disable=import-outside-toplevel
        target, rows, state = self.target()[0], self.rows(), self.state()
        keep = trainer.choose_vocabulary(self.a, rows, self.config["vocab_size"], say)
        t = trainer.Trainer(self.a, target, keep, self.config)
        say(f"a head of {sum(p.numel() for p in t.head.parameters()) / 1e6:.2f} M parameters, fed with the inputs of "
            f"layers {', '.join(map(str, self.a.layers))}")
        if state is not None:
            t.load(state)
            say(f"going on after step {t.step}")
        t.train(rows, self.paths["train"], say)

    def export(self):
        import export  # pylint: disable=import-outside-toplevel
        state = self.state()
        os.makedirs(self.a.out, exist_ok=True)
        write_json(os.path.join(self.a.out, "config.json"), state["config"])
        export.write_tensors(state, self.paths["export"])
        say(f"{self.a.out}: the head")

    def evaluate(self):
        import acceptance  # pylint: disable=import-outside-toplevel
        import export  # pylint: disable=import-outside-toplevel
        target = self.target()[0]
        texts = acceptance.greedy_texts(target, self.rows(), self.a)
        head, keep = export.read(self.state(), self.a, target.device)
        found = acceptance.acceptance(target, head, keep, texts)
        cases = [{"prompt_ids": p, "greedy_ids": g} for p, g in texts]
        write_json(self.paths["evaluate"], {"mean_acceptance_length": found, "cases": cases})
        say(f"{len(texts)} held-out prompts, mean acceptance length: "
            + ", ".join(f"{name} {value}" for name, value in found.items()))

    def go(self):
        for stage in STAGES[:STAGES.index(self.a.until) + 1]:
            if self.is_done(stage):
                say(f"stage {stage}: done before")
            else:
                say(f"stage {stage}")
                self.forget(STAGES[STAGES.index(stage) + 1:])
                getattr(self, stage)()


def need_libraries():
    try:
        import safetensors  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
        import torch  # pylint: disable=import-outside-toplevel
        import transformers  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
    except ImportError as e:
        raise Wrong(f"{e.name} is missing: pip install torch transformers safetensors numpy") from None
    return torch


def main():
    a, config = settings.read(sys.argv[1:])
    torch = need_libraries()
    a.device = a.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if a.device.startswith("cuda") and not torch.cuda.is_available():
        raise Wrong(f"--device {a.device}: torch sees no GPU")
    torch.manual_seed(a.seed)
    os.makedirs(a.work, exist_ok=True)
    run = Run(a, config)
    if a.begin:
        run.forget(STAGES[STAGES.index(a.begin):])
    run.go()


if __name__ == "__main__":
    try:
        main()
    except (Wrong, OSError) as mistake:
        raise SystemExit(f"train.py: error: {mistake}") from None
    except KeyboardInterrupt:
        raise SystemExit("train.py: stopped; the same command goes on") from None
