"""The EAGLE-3 head (model/eagle3.h): one layer whose attention sees, at position t, the embedding of token t+1 beside a
hidden state: captured states of the target fused by fc, or at later draft steps the head's own output. Its logits are
for token t+2, over a draft vocabulary."""
import math

import torch
import torch.nn.functional as F
from torch import nn


def rms(x, weight, eps):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def rope_table(n, head_dim, theta):
    """cos and sin [n, head_dim]; both halves of a row are alike."""
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * inverse[None]
    angle = torch.cat([angle, angle], -1)
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    y = x.float()
    return (y * cos + torch.cat([-y[..., half:], y[..., :half]], -1) * sin).to(x.dtype)


class Head(nn.Module):  # pylint: disable=abstract-method
    """config: as head_files.head_config makes it. n_capture: how many states of the target fc gets."""

    def __init__(self, config, n_capture, n_position):
        super().__init__()
        d, ffn = config["hidden_size"], config["intermediate_size"]
        self.heads, self.kv, self.head_dim = (config[k] for k in (
            "num_attention_heads", "num_key_value_heads", "head_dim"))
        self.group, self.eps = self.heads // self.kv, config["rms_norm_eps"]
        self.fc = nn.Linear(n_capture * d, d, bias=False)
        self.hidden_norm, self.input_layernorm, self.post_attention_layernorm, self.norm = (
            nn.Parameter(torch.ones(d)) for _ in range(4))
        self.q_proj = nn.Linear(2 * d, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * d, self.kv * self.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * d, self.kv * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, d, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(d, ffn, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(ffn, d, bias=False)
        self.lm_head = nn.Linear(d, config["draft_vocab_size"], bias=False)
        cos, sin = rope_table(n_position, self.head_dim, config["rope_theta"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @torch.no_grad()
    def reset(self, target, keep):
        """Small random weights; the output layer begins as the target's, so that only the middle has to be found."""
        for p in self.parameters():
            if p.dim() == 2:
                p.normal_(std=0.02)
        self.lm_head.weight.copy_(target.output[keep])
        self.norm.copy_(target.norm)

    def qkv(self, embedded, h, cos, sin):
        """embedded, h [..., d]; cos, sin [..., 1, head_dim] -> q [..., heads, head_dim], k, v [..., kv, head_dim]."""
        x = torch.cat([rms(embedded, self.input_layernorm, self.eps), rms(h, self.hidden_norm, self.eps)], -1)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (y.view(*y.shape[:-1], -1, self.head_dim) for y in (q, k, v))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def rest(self, h, attended):
        """attended: what the attention heads bring, side by side [..., heads * head_dim]; -> the layer's output."""
        h = h + self.o_proj(attended)
        n = rms(h, self.post_attention_layernorm, self.eps)
        return h + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))

    def logits(self, h):
        return self.lm_head(rms(h, self.norm, self.eps))

    def step(self, embedded, h, first, chain):
        """One draft step at all positions of whole rows [B, S, d] at once; its number is that of the steps before.

        first: k, v of step 0 (None at step 0); chain: k, v of steps 1, 2, ... Position t attends to step 0's keys up to
        t, and then to its own keys of the later steps. -> the output, first, chain with this step's added.
        """
        s, offset = h.shape[1], 0 if first is None else len(chain) + 1
        cos, sin = (x[offset:offset + s, None] for x in (self.cos, self.sin))
        q, k, v = (x.transpose(1, 2) for x in self.qkv(embedded, h, cos, sin))
        if first is None:
            first = (k, v)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            chain = chain + [(k, v)]
            o = self.attend(q, first, chain)
        return self.rest(h, o.transpose(1, 2).flatten(2)), first, chain

    def attend(self, q, first, chain):
        s, scale = q.shape[2], 1 / math.sqrt(self.head_dim)
        k0, v0 = (x.repeat_interleave(self.group, 1) for x in first)
        later = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
        past = (q @ k0.transpose(-1, -2)).float().masked_fill(later, float("-inf"))
        own = torch.stack([(q * k.repeat_interleave(self.group, 1)).sum(-1).float() for k, _ in chain], -1)
        w = (torch.cat([past, own], -1) * scale).softmax(-1).to(v0.dtype)
        o = w[..., :s] @ v0
        for i, (_, v) in enumerate(chain):
            o = o + w[..., s + i:s + i + 1] * v.repeat_interleave(self.group, 1)
        return o
