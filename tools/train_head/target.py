"""The target as training sees it: any causal model of transformers, frozen."""
import dataclasses
import functools

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()


def open_tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@dataclasses.dataclass
class Manner:
    """How the target writes: temperature 0 is greedy; min_p drops tokens below that share of the likeliest; ends:
    whether its own end tokens end a text."""

    temperature: float = 0.0
    min_p: float = 0.0
    ends: bool = True

    def sampling(self):
        if self.temperature == 0:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0,
                "min_p": self.min_p or None}


class Target:
    """In bf16 on a GPU, in f32 elsewhere. Captured states and logits come out as f32."""

    def __init__(self, folder, device, layers):
        """layers: whose inputs are captured; the number of layers stands for what the final norm gets."""
        self.gpu = str(device).startswith("cuda")
        kind = torch.bfloat16 if self.gpu else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, local_files_only=True).to(device).eval()
        self.model.requires_grad_(False)
        self.device, self.layers, self.kept = device, layers, {}
        self.embedding = self.model.get_input_embeddings().weight.float()
        self.output = self.model.get_output_embeddings().weight
        self.norm = self.model.model.norm.weight.float()
        self.watch()

    @property
    def config(self):
        return self.model.config

    def watch(self):
        inner = self.model.model
        for i in self.layers:
            module = inner.layers[i] if i < len(inner.layers) else inner.norm
            module.register_forward_pre_hook(functools.partial(self.keep, i), with_kwargs=True)

    def keep(self, layer, _module, arguments, named):
        self.kept[layer] = arguments[0] if arguments else named["hidden_states"]

    @torch.no_grad()
    def states(self, ids):
        """ids [B, S], padded on the right or not -> (what the output layer gets, the captures side by side)."""
        last = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        return last, torch.cat([self.kept[i].float() for i in self.layers], -1)

    @torch.no_grad()
    def likeliest(self, last, rows=8):
        """[B, S, H] -> ids [B, S]; a few rows at a time, as a whole vocabulary is large."""
        return torch.cat([F.linear(x, self.output).argmax(-1) for x in last.split(rows)])

    @torch.no_grad()
    def probabilities(self, last, keep):
        """Over the tokens of keep alone."""
        return F.linear(last, self.output[keep]).float().softmax(-1)

    @torch.no_grad()
    def write(self, prompts, new, manner):
        """Continues each prompt (lists of ids) by at most `new` tokens, up to and with one that ends. -> new ids."""
        pad, ends = self.pad, self.stops() if manner.ends else []
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        never = [self.config.vocab_size]
        out = self.model.generate(ids, attention_mask=mask, max_new_tokens=new, pad_token_id=pad,
                                  eos_token_id=ends or never, **manner.sampling())
        return [cut(row, set(ends)) for row in out[:, width:].tolist()]

    @property
    def pad(self):
        """Any id: nothing looks at it."""
        return next(iter(self.stops()), 0)

    def stops(self):
        ids = self.model.generation_config.eos_token_id
        return [] if ids is None else ids if isinstance(ids, list) else [ids]


def cut(ids, stops):
    """Up to and with the first of stops; what follows is padding."""
    return next((ids[:i + 1] for i, x in enumerate(ids) if x in stops), ids)
