#!/usr/bin/env python3
"""Makes tiny random checkpoints of each model family from a seed, with golden values of transformers beside them.

usage: tools/make_tiny.py OUT_FOLDER [--shape cpu|gpu] [--families llama,qwen3] [--seed N]

OUT_FOLDER/FAMILY is a Hugging Face folder in bf16 without a tokenizer. OUT_FOLDER/golden.json has for each family some
prompts, the greedy ids after each and the margin of every step (the best logit less the second), golden.safetensors
FAMILY.I.logits of the last positions of prompt I: f32 arithmetic on the stored weights, eager attention.
tools/check_tiny.py runs graft on them. Needs torch, transformers, safetensors (pip install). Shape `cpu` is as small as
the CPU's kernels take it, `gpu` has head sizes that the kernels for a GPU take.
"""
import argparse
import json
import os

VOCAB, POSITIONS, LAST = 384, 512, 4
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 500000.0}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
GEMMA = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
         "sliding_attention": PLAIN}
# family: model_type, what makes it one; sizes are in SHAPES. Windows are shorter than the prompts.
FAMILIES = {
    "llama": ("llama", {"rope_parameters": PLAIN}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR, "tie_word_embeddings": True}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"rope_parameters": PLAIN, "sliding_window": 24}),
    "qwen2": ("qwen2", {"rope_parameters": PLAIN, "tie_word_embeddings": True, "use_sliding_window": False}),
    "qwen3": ("qwen3", {"rope_parameters": YARN, "tie_word_embeddings": True, "use_sliding_window": False}),
    "smollm3": ("smollm3", {"rope_parameters": PLAIN, "tie_word_embeddings": True, "no_rope_layers": [1, 1, 1, 0],
                            "num_hidden_layers": 4, "use_sliding_window": False, "pad_token_id": None}),
    "gemma3": ("gemma3_text", {"rope_parameters": GEMMA, "tie_word_embeddings": True, "num_hidden_layers": 6,
                               "sliding_window": 16, "query_pre_attn_scalar": 48,
                               "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2}),
}


def sizes(hidden, ffn, heads, kv, head_dim):
    return {"hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv,
            "head_dim": head_dim}


SHAPES = {  # family or "": all others
    "cpu": {"": sizes(64, 128, 4, 2, 16), "qwen2": sizes(112, 64, 7, 1, 16), "qwen3": sizes(64, 96, 4, 2, 32),
            "llama-linear": sizes(96, 96, 3, 1, 32), "gemma3": sizes(64, 128, 4, 1, 32)},
    "gpu": {"": sizes(128, 192, 4, 2, 64), "qwen2": sizes(448, 64, 7, 1, 64), "qwen3": sizes(128, 192, 4, 2, 128),
            "llama-linear": sizes(192, 320, 3, 1, 64), "llama-llama3": sizes(128, 512, 16, 8, 64),
            "smollm3": sizes(128, 192, 2, 1, 64), "gemma3": sizes(64, 128, 4, 1, 64)},
}


def fields(family, shape):
    """What the family's config has."""
    model_type, own = FAMILIES[family]
    size = dict(SHAPES[shape].get(family, SHAPES[shape][""]))
    if model_type in ("qwen2", "smollm3"):  # their head_dim is hidden_size / heads
        del size["head_dim"]
    return model_type, {"vocab_size": VOCAB, "num_hidden_layers": 2, "max_position_embeddings": POSITIONS,
                        "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, **size,
                        **own}


def fill(model, torch, generator):
    """Random values at which logits differ well: products keep the size of what goes in, norms and biases vary, and a
    tied embedding is small beside what layers add, or each token would name itself."""
    root = model.config.hidden_size ** 0.5
    embedding = 2.0 / root if model.config.tie_word_embeddings else 1.0
    if model.config.model_type == "gemma3_text":
        embedding /= root  # which that family multiplies it by
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=generator)
        if p.dim() == 2:
            value = r * (embedding if "embed" in name else 1.5 / p.shape[1] ** 0.5)
        elif name.endswith("bias"):
            value = 0.2 * r
        else:
            value = p.data.float() + 0.1 * r
        p.data = value.to(torch.bfloat16).float()


def make_model(family, shape, seed, torch):
    from transformers import AutoConfig, AutoModelForCausalLM  # pylint: disable=import-outside-toplevel
    model_type, values = fields(family, shape)
    config = AutoConfig.for_model(model_type, **values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    fill(model, torch, torch.Generator().manual_seed(seed))
    return model


def save(model, folder, torch):
    """In bf16, which holds all values; the model itself stays in f32."""
    from safetensors.torch import save_file  # pylint: disable=import-outside-toplevel
    os.makedirs(folder, exist_ok=True)
    model.config.dtype = torch.bfloat16
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    tied = model.config.tie_word_embeddings
    tensors = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()
               if not (tied and k == "lm_head.weight")}
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def greedy(model, prompt, n, torch):
    """-> logits of the prompt's last positions, greedy ids, margins. Each step runs the whole text anew."""
    ids, out, margins, logits = list(prompt), [], [], None
    with torch.no_grad():
        for _ in range(n):
            rows = model(torch.tensor([ids]), use_cache=False).logits[0]
            logits = rows[len(prompt) - LAST:].clone() if logits is None else logits
            best = rows[-1].topk(2)
            out.append(best.indices[0].item())
            margins.append(round((best.values[0] - best.values[1]).item(), 6))
            ids.append(out[-1])
    return logits, out, margins


def golden(model, a, torch):
    generator = torch.Generator().manual_seed(a.seed + 1)
    prompts = [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in a.prompt_tokens]
    done = [greedy(model, p, a.new, torch) for p in prompts]
    cases = [{"prompt_ids": p, "greedy_ids": ids, "margins": margins} for p, (_, ids, margins) in zip(prompts, done)]
    return cases, [logits for logits, _, _ in done]


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--shape", choices=SHAPES, default="cpu")
    p.add_argument("--families", default=",".join(FAMILIES))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--new", type=int, default=32, help="greedy ids of each prompt")
    p.add_argument("--prompt-tokens", default="7,72", help="lengths of the prompts")
    a = p.parse_args()
    a.families = a.families.split(",")
    unknown = [f for f in a.families if f not in FAMILIES]
    if unknown:
        raise SystemExit(f"--families: {unknown[0]} is not known; known: {', '.join(FAMILIES)}")
    try:
        a.prompt_tokens = [int(x) for x in a.prompt_tokens.split(",")]
    except ValueError:
        raise SystemExit(f"--prompt-tokens {a.prompt_tokens}: not whole numbers separated by commas") from None
    if min(a.prompt_tokens) < LAST or max(a.prompt_tokens) + a.new > POSITIONS:
        raise SystemExit(f"--prompt-tokens: each must be at least {LAST}, and with --new at most {POSITIONS}")
    return a


def main():
    a = parse()
    try:
        import torch  # pylint: disable=import-outside-toplevel
        import transformers  # pylint: disable=import-outside-toplevel
        from safetensors.torch import save_file  # pylint: disable=import-outside-toplevel
    except ImportError as e:
        raise SystemExit(f"{e.name} is missing: pip install torch transformers safetensors") from None
    transformers.logging.set_verbosity_error()
    cases, logits = {}, {}
    for family in a.families:
        model = make_model(family, a.shape, a.seed, torch)
        save(model, os.path.join(a.out, family), torch)
        cases[family], rows = golden(model, a, torch)
        logits.update({f"{family}.{i}.logits": x.contiguous() for i, x in enumerate(rows)})
        least = min(m for c in cases[family] for m in c["margins"])
        distinct = sum(len(set(c["greedy_ids"])) for c in cases[family])
        print(f"{family}: {sum(p.numel() for p in model.parameters())} parameters, {distinct} distinct ids, least margin "
              f"{least}", flush=True)
    save_file(logits, os.path.join(a.out, "golden.safetensors"))
    with open(os.path.join(a.out, "golden.json"), "w", encoding="utf-8") as f:
        reference = f"transformers {transformers.__version__}, eager attention, f32 arithmetic on the stored bf16 weights"
        json.dump({"reference": reference, "seed": a.seed, "shape": a.shape, "cases": cases}, f)
        f.write("\n")


if __name__ == "__main__":
    main()
