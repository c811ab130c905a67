"""Models so small that an emulated processor computes a pass in hundredths of a second.

Random weights, the demo's tokenizer and vocabulary. The draft model is the target's first layers; the head is
unrelated, so that nearly all it drafts is rejected.
"""
import json
import os
import random
import shutil
import struct

VOCAB, HIDDEN, MIDDLE, N_HEAD, N_KV_HEAD, HEAD_DIM = 4096, 64, 128, 2, 1, 32
N_LAYER, N_DRAFT_LAYER = 4, 3
LAYER_IDS = [0, 2, 3]  # whose inputs the head takes
SPREAD = 0.18  # of a weight: the texts wander, and the draft model is often right


def bf16(values):
    return b"".join(struct.pack("<f", x)[2:] for x in values)


class Weights:
    """Tensors by name as they are in a file: (dtype, shape, bytes)."""

    def __init__(self, seed):
        self.random, self.tensors = random.Random(seed), {}

    def matrix(self, name, n_out, n_in, spread=SPREAD):
        values = (self.random.gauss(0, spread) for _ in range(n_out * n_in))
        self.tensors[name] = ("BF16", [n_out, n_in], bf16(values))

    def norm(self, name):
        self.tensors[name] = ("BF16", [HIDDEN], bf16([1.0] * HIDDEN))

    def layer(self, prefix, n_in=HIDDEN):
        for name, n_out in (("q", N_HEAD), ("k", N_KV_HEAD), ("v", N_KV_HEAD)):
            self.matrix(f"{prefix}.self_attn.{name}_proj.weight", n_out * HEAD_DIM, n_in)
        self.matrix(f"{prefix}.self_attn.o_proj.weight", HIDDEN, N_HEAD * HEAD_DIM)
        for name in ("gate", "up"):
            self.matrix(f"{prefix}.mlp.{name}_proj.weight", MIDDLE, HIDDEN)
        self.matrix(f"{prefix}.mlp.down_proj.weight", HIDDEN, MIDDLE)
        for name in ("input", "post_attention"):
            self.norm(f"{prefix}.{name}_layernorm.weight")


def target_weights():
    w = Weights(1)
    w.matrix("model.embed_tokens.weight", VOCAB, HIDDEN, 0.5)
    for i in range(N_LAYER):
        w.layer(f"model.layers.{i}")
    w.norm("model.norm.weight")
    return w.tensors


def draft_weights(target):
    dropped = tuple(f"model.layers.{i}." for i in range(N_DRAFT_LAYER, N_LAYER))
    return {name: t for name, t in target.items() if not name.startswith(dropped)}


def head_weights():
    w = Weights(2)
    w.layer("midlayer", 2 * HIDDEN)
    w.norm("midlayer.hidden_norm.weight")
    w.norm("norm.weight")
    w.matrix("fc.weight", HIDDEN, len(LAYER_IDS) * HIDDEN)
    w.matrix("lm_head.weight", VOCAB, HIDDEN)
    w.tensors["d2t"] = ("I64", [VOCAB], bytes(8 * VOCAB))
    w.tensors["t2d"] = ("BOOL", [VOCAB], b"\1" * VOCAB)
    return w.tensors


def save(folder, demo, tensors, **config):
    """A model's folder: the configuration of the demo's model with these sizes."""
    os.makedirs(folder)
    with open(os.path.join(demo, "config.json"), encoding="utf-8") as f:
        config = dict(json.load(f), hidden_size=HIDDEN, intermediate_size=MIDDLE, num_attention_heads=N_HEAD,
                      num_key_value_heads=N_KV_HEAD, head_dim=HEAD_DIM, **config)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(data for _, _, data in tensors.values())


def make(folder, demo):
    """folder/target, folder/draft and folder/eagle3, made anew after the models in demo."""
    shutil.rmtree(folder, ignore_errors=True)
    target = target_weights()
    for name, tensors, config in (
            ("target", target, {"num_hidden_layers": N_LAYER}),
            ("draft", draft_weights(target), {"num_hidden_layers": N_DRAFT_LAYER}),
            ("eagle3", head_weights(), {"draft_vocab_size": VOCAB, "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": LAYER_IDS, "use_aux_hidden_state": True}})):
        save(os.path.join(folder, name), os.path.join(demo, name), tensors, **config)
        for extra in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            source = os.path.join(demo, name, extra)
            if os.path.exists(source):
                shutil.copyfile(source, os.path.join(folder, name, extra))
