"""Stage export: the trained head as safetensors, and back."""
import os

import torch
from safetensors.torch import save_file

from head import Head
from head_files import tensor_name


def tensors(state):
    """All that the head's folder holds. d2t: draft id -> how much to add for the target's id."""
    out = {tensor_name(name): p.to(torch.bfloat16).cpu().contiguous() for name, p in state["head"].items()}
    keep = state["keep"].cpu()
    out["d2t"] = keep - torch.arange(keep.numel())
    out["t2d"] = torch.zeros(state["config"]["vocab_size"], dtype=torch.bool)
    out["t2d"][keep] = True
    return out


def write_tensors(state, path):
    save_file(tensors(state), path + ".part", metadata={"format": "pt"})
    os.replace(path + ".part", path)


def read(state, a, device):
    """-> the head with the values that the folder has, in f32; its draft vocabulary."""
    head = Head(state["config"], len(a.layers), a.length + a.new_tokens + 16)
    head.load_state_dict({name: p.to(torch.bfloat16).float() for name, p in state["head"].items()})
    return head.to(device).eval().requires_grad_(False), state["keep"].to(device)
