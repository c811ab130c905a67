"""A head's folder as graft reads it (model/eagle3.h, model/files/head_layout.h): config.json and names of tensors.
Needs no torch."""
NORMS = ("hidden_norm", "input_layernorm", "post_attention_layernorm")


def tensor_name(parameter):
    """The name in the file of a parameter of head.Head."""
    first = parameter.split(".", maxsplit=1)[0]
    if first == "norm":
        return "norm.weight"
    if first in ("fc", "lm_head"):
        return parameter
    if first in NORMS:
        return f"midlayer.{first}.weight"
    return f"midlayer.{'mlp' if first.split('_')[0] in ('gate', 'up', 'down') else 'self_attn'}.{parameter}"


def rope_theta(config):
    """Where transformers 4 and 5 write it."""
    return (config.get("rope_parameters") or {}).get("rope_theta") or config.get("rope_theta") or 10000.0


def first_id(value):
    return value[0] if isinstance(value, list) and value else value


def head_config(target, n_draft, layers):
    """target: its config.json. The head's layer is one of the target's in size, with plain RoPE and no biases."""
    heads = target["num_attention_heads"]
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
        "hidden_act": "silu", "hidden_size": target["hidden_size"], "intermediate_size": target["intermediate_size"],
        "num_hidden_layers": 1, "num_attention_heads": heads,
        "num_key_value_heads": target.get("num_key_value_heads") or heads,
        "head_dim": target.get("head_dim") or target["hidden_size"] // heads, "vocab_size": target["vocab_size"],
        "rope_theta": rope_theta(target), "rms_norm_eps": target["rms_norm_eps"],
        "max_position_embeddings": target["max_position_embeddings"], "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "bos_token_id": first_id(target.get("bos_token_id")),
        "eos_token_id": target.get("eos_token_id"), "draft_vocab_size": n_draft,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(layers), "use_aux_hidden_state": True,
                         "aux_hidden_state_layer_ids_are": "inputs"},
    }
    return {key: value for key, value in config.items() if value is not None}
