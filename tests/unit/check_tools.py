#!/usr/bin/env python3
"""The parts of tools/ that need no torch: what options of train_head mean and which mistakes they name, the config of a
head, and how ids of tiny checkpoints are judged. Prints TAP.

usage: check_tools.py SOURCE_ROOT
"""
import json
import os
import sys
import tempfile

import tap_loop

ROOT = sys.argv[1]
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "tools/train_head")]
import check_tiny  # noqa: E402  pylint: disable=wrong-import-position
import head_files  # noqa: E402  pylint: disable=wrong-import-position
import make_tiny  # noqa: E402  pylint: disable=wrong-import-position
import settings  # noqa: E402  pylint: disable=wrong-import-position

TARGET = os.path.join(ROOT, "models/demo/target")


def read(*more):
    with tempfile.TemporaryDirectory() as folder:
        return settings.read([TARGET, os.path.join(folder, "head"), *more])


def refused(*more):
    """The one line that these options lead to."""
    try:
        read(*more)
    except settings.Wrong as e:
        assert "\n" not in str(e)
        return str(e)
    raise AssertionError(f"taken: {more}")


def layers():
    """the layers that feed a head"""
    assert read()[0].layers == (2, 4, 5)
    assert settings.default_layers(30) == (2, 15, 27)
    assert read("--layers", "0,3,8")[0].layers == (0, 3, 8)
    for text in ("3,2,1", "1,9", "-1,2", "0,1,2,3,4", "2,2"):
        assert f"--layers {text}" in refused("--layers=" + text), text
    assert "not whole numbers" in refused("--layers", "a,b")
    try:
        settings.default_layers(6)
        raise AssertionError("6 layers have no default")
    except settings.Wrong as e:
        assert "--layers" in str(e)


def mistakes():
    """a mistake is one line that names it"""
    assert "--held-out 0.9" in refused("--held-out", "0.9")
    assert "--coverage 0" in refused("--coverage", "0")
    assert "--length 8" in refused("--length", "8")
    assert "--temperatures hot" in refused("--temperatures", "hot")
    assert "4096 tokens" in refused("--draft-vocabulary", "5000")
    assert "no such file" in refused("--text", "/no/such.jsonl")
    for folder, words in (("/no/such", "no folder"), (os.path.join(ROOT, "models/demo/eagle3"), "is not known here"),
                          (os.path.join(ROOT, "docs"), "no such file")):
        try:
            settings.read([folder, "/tmp/none"])
            raise AssertionError(folder)
        except settings.Wrong as e:
            assert words in str(e), e
    try:
        settings.read([TARGET, TARGET])
        raise AssertionError("the target's folder was taken for the head")
    except settings.Wrong as e:
        assert "target's folder" in str(e)


def resumed():
    """a result of other options is noticed, stage by stage"""
    a = read()[0]
    text, train = (json.loads(json.dumps(settings.depends(a, s))) for s in ("text", "train"))
    b = read("--rate", "0.5")[0]
    assert settings.changed(b, "text", text) is None
    assert settings.changed(b, "train", train) == "rate"
    assert settings.changed(read("--length", "64")[0], "train", train) == "length"
    assert settings.changed(read("--minutes", "99")[0], "train", train) is None


def config():
    """a head's config is what graft reads"""
    target = settings.read_target_config(TARGET)
    c = head_files.head_config(target, 1000, (2, 4, 8))
    with open(os.path.join(ROOT, "models/demo/eagle3/config.json"), encoding="utf-8") as f:
        known = json.load(f)
    for key in ("architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                "head_dim", "vocab_size", "rope_theta", "rms_norm_eps", "max_position_embeddings"):
        assert c[key] == known[key], key
    assert c["draft_vocab_size"] == 1000
    assert c["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [2, 4, 8], "use_aux_hidden_state": True,
                                 "aux_hidden_state_layer_ids_are": "inputs"}
    newer = {**target, "rope_parameters": {"rope_theta": 5e5}}
    del newer["rope_theta"], newer["head_dim"]
    assert head_files.head_config(newer, 8, (1,))["rope_theta"] == 5e5
    assert head_files.head_config(newer, 8, (1,))["head_dim"] == 64
    assert None not in head_files.head_config({**target, "eos_token_id": None}, 8, (1,)).values()


def names():
    """names of a head's tensors"""
    for ours, theirs in (("fc.weight", "fc.weight"), ("norm", "norm.weight"), ("lm_head.weight", "lm_head.weight"),
                         ("hidden_norm", "midlayer.hidden_norm.weight"),
                         ("q_proj.weight", "midlayer.self_attn.q_proj.weight"),
                         ("down_proj.weight", "midlayer.mlp.down_proj.weight")):
        assert head_files.tensor_name(ours) == theirs, ours


def tiny():
    """shapes of tiny checkpoints, and the judgement of their ids"""
    for shape in make_tiny.SHAPES:
        for family in make_tiny.FAMILIES:
            _, f = make_tiny.fields(family, shape)
            dim = f.get("head_dim") or f["hidden_size"] // f["num_attention_heads"]
            assert f["num_attention_heads"] % f["num_key_value_heads"] == 0 and dim % 8 == 0, family
            assert shape == "cpu" or dim in (64, 128), family
    case = {"greedy_ids": [5, 6, 7], "margins": [1.0, 1e-4, 1.0]}
    assert check_tiny.compare([5, 6, 7], case, 1e-3) == (3, "", True)
    assert check_tiny.compare([5, 9, 7], case, 1e-3)[0::2] == (1, True)
    assert check_tiny.compare([9, 6, 7], case, 1e-3)[0::2] == (0, False)
    assert check_tiny.compare([5, 6], case, 1e-3)[0::2] == (2, False)


sys.exit(tap_loop.run((layers, mistakes, resumed, config, names, tiny)))
