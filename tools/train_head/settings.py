"""What the user asks for: options, and what they mean for a given model folder. Needs no torch."""
import argparse
import json
import os

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "SmolLM3ForCausalLM")
STAGES = ("text", "train", "export", "evaluate")
CAPTURES_MAX = 4  # model/files/capture.h
# What a stage's result depends on: where one of these changes, the stage must be done anew.
DEPENDS = {
    "text": ("model", "text", "answers", "tokens", "length", "held_out", "temperatures", "seed"),
    "train": ("layers", "draft_vocabulary", "coverage", "fed_steps", "rate", "step_decay", "given_weight"),
}


class Wrong(Exception):
    """A mistake of the user's or of a file: one line that says what to do."""


def parser():
    p = argparse.ArgumentParser(prog="train.py", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
                                description="Trains an EAGLE-3 head for a Hugging Face folder, for graft.")
    p.add_argument("model", help="the target: a Hugging Face folder")
    p.add_argument("out", help="the head's folder, made new")
    p.add_argument("--work", help="where stages keep their results (default: OUT.work)")
    p.add_argument("--from", dest="begin", choices=STAGES, help="do this stage and those after it anew")
    p.add_argument("--until", choices=STAGES, default=STAGES[-1], help="the last stage to do")
    p.add_argument("--device", help="cpu, cuda, cuda:1 (default: cuda if there is one)")
    p.add_argument("--seed", type=int, default=1)
    text = p.add_argument_group("text")
    text.add_argument("--text", metavar="FILE.jsonl", help="train on these conversations or texts "
                                                           "(default: the target writes all by itself)")
    text.add_argument("--answers", choices=("own", "given"), default="own",
                      help="in conversations of --text: the target answers anew, or the file's answers are kept")
    text.add_argument("--tokens", type=int, default=2_000_000, help="tokens that the target writes, at most")
    text.add_argument("--length", type=int, default=512, help="tokens of a row")
    text.add_argument("--rows", type=int, default=0, help="rows written side by side (default: 256, on a CPU 32)")
    text.add_argument("--held-out", type=float, default=0.03, help="share of rows kept for evaluation")
    text.add_argument("--temperatures", default="0,0.6,1", help="of the target's answers, in turn")
    head = p.add_argument_group("head")
    head.add_argument("--layers", help="layers whose inputs feed the head, as 2,15,27 (default: 2, L/2, L-3)")
    head.add_argument("--draft-vocabulary", type=int, default=0,
                      help="tokens that it can propose (default: the least of some sizes with --coverage)")
    head.add_argument("--coverage", type=float, default=0.97, help="share of held-out tokens that these must cover")
    train = p.add_argument_group("training")
    train.add_argument("--minutes", type=float, default=20.0)
    train.add_argument("--steps", type=int, default=0, help="train so many steps, however long it takes")
    train.add_argument("--batch-tokens", type=int, default=0, help="default: 16384, on a CPU 2048")
    train.add_argument("--fed-steps", type=int, default=6, help="draft steps of a batch; all but the first self-fed")
    train.add_argument("--step-decay", type=float, default=0.85, help="weight of a draft step against the one before")
    train.add_argument("--given-weight", type=float, default=0.1, help="weight of tokens that are not answers")
    train.add_argument("--rate", type=float, default=1e-3)
    train.add_argument("--save-every", type=float, default=120.0, help="seconds; training goes on from there")
    train.add_argument("--compile", action="store_true", help="torch.compile: faster on a GPU, slow to begin")
    judge = p.add_argument_group("evaluation")
    judge.add_argument("--texts", type=int, default=16, help="held-out prompts that the target answers greedily")
    judge.add_argument("--new-tokens", type=int, default=128, help="tokens of an answer")
    return p


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        raise Wrong(f"{path}: no such file") from None
    except ValueError as e:
        raise Wrong(f"{path}: not JSON: {e}") from None


def read_target_config(folder):
    """The target's config.json, of an architecture that can be trained for."""
    if not os.path.isdir(folder):
        raise Wrong(f"{folder}: no folder; a Hugging Face folder with config.json and safetensors is needed")
    config = read_json(os.path.join(folder, "config.json"))
    names = config.get("architectures") or ["none"]
    if names[0] not in ARCHITECTURES:
        raise Wrong(f"{folder}/config.json: architecture {names[0]} is not known here; known: "
                    + ", ".join(ARCHITECTURES))
    return config


def default_layers(n_layer):
    """EAGLE-3's choice; small targets have none that rises."""
    layers = (2, n_layer // 2, n_layer - 3)
    if not layers[0] < layers[1] < layers[2]:
        raise Wrong(f"a target of {n_layer} layers has no default for --layers (2, L/2, L-3 would be "
                    f"{', '.join(map(str, layers))}); give them, as --layers 0,1,{n_layer}")
    return layers


def parse_layers(text, n_layer):
    """Inputs of layers, 0 to n_layer; n_layer stands for what the final norm gets."""
    if text is None:
        return default_layers(n_layer)
    try:
        layers = tuple(int(x) for x in text.split(","))
    except ValueError:
        raise Wrong(f"--layers {text}: not whole numbers separated by commas") from None
    rise = all(a < b for a, b in zip(layers, layers[1:]))
    if len(layers) > CAPTURES_MAX or not rise or layers[0] < 0 or layers[-1] > n_layer:
        raise Wrong(f"--layers {text}: must be 1 to {CAPTURES_MAX} numbers from 0 to {n_layer} that rise")
    return layers


def parse_temperatures(text):
    try:
        values = tuple(float(x) for x in text.split(","))
    except ValueError:
        raise Wrong(f"--temperatures {text}: not numbers separated by commas") from None
    if min(values) < 0:
        raise Wrong(f"--temperatures {text}: none may be below 0")
    return values


def check_numbers(a):
    least = {"tokens": 1, "length": 32, "rows": 0, "draft_vocabulary": 0, "steps": 0, "batch_tokens": 0, "fed_steps": 1,
             "texts": 1, "new_tokens": 16, "minutes": 0.01}
    for name, low in least.items():
        if getattr(a, name) < low:
            raise Wrong(f"--{name.replace('_', '-')} {getattr(a, name)}: must be at least {low}")
    if not 0 < a.held_out < 0.5:
        raise Wrong(f"--held-out {a.held_out}: must be a share between 0 and 0.5")
    if not 0 < a.coverage <= 1:
        raise Wrong(f"--coverage {a.coverage}: must be above 0 and at most 1")
    if a.fed_steps + 16 > a.length:
        raise Wrong(f"--length {a.length}: too short for --fed-steps {a.fed_steps}; at least {a.fed_steps + 16}")


def check_folders(a):
    if a.text is not None and not os.path.isfile(a.text):
        raise Wrong(f"--text {a.text}: no such file")
    if os.path.exists(a.out) and not os.path.isdir(a.out):
        raise Wrong(f"{a.out}: is no folder")
    if os.path.realpath(a.out) == os.path.realpath(a.model):
        raise Wrong(f"{a.out}: is the target's folder; the head needs one of its own")


def read(arguments):
    """-> options, with layers and temperatures as numbers, and the target's config."""
    a = parser().parse_args(arguments)
    config = read_target_config(a.model)
    check_numbers(a)
    check_folders(a)
    a.model, a.work = os.path.realpath(a.model), a.work or a.out.rstrip("/") + ".work"
    a.layers = parse_layers(a.layers, config["num_hidden_layers"])
    a.temperatures = parse_temperatures(a.temperatures)
    if a.draft_vocabulary > config["vocab_size"]:
        raise Wrong(f"--draft-vocabulary {a.draft_vocabulary}: the target has {config['vocab_size']} tokens")
    return a, config


def depends(a, stage):
    """The settings that a stage's result was made with, as JSON keeps them."""
    names = DEPENDS["text"] + (DEPENDS["train"] if stage != "text" else ())
    return json.loads(json.dumps({name: getattr(a, name) for name in names}))


def changed(a, stage, made_with):
    """The first option that differs from what a result was made with, or None."""
    now = depends(a, stage)
    return next((name for name in now if made_with.get(name) != now[name]), None)
