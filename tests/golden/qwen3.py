#!/usr/bin/env python3
"""Writes qwen3.h5 and hf_qwen3/: what PyTorch computes in float64 for a small Qwen3.

python qwen3.py    (CPU PyTorch, transformers, h5py; the same numbers every time)

qwen3.h5 has the layout and the conventions of golden.h5 (golden.py), in a group `qwen3` with the names of
transformers: five AdamW steps of a model whose heads are wider than d_model / n_head and whose head is tied
to the token embedding. The model is implemented below and first compared with transformers' Qwen3ForCausalLM.

hf_qwen3/ is another Qwen3, with an untied head, as transformers saves it; logits.json is like that of
hf_gpt2.py.
"""

import json
import math
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
HERE = Path(__file__).parent
L, C, H, HKV, D, FF, T, B, V, STEPS, EPS, THETA = 2, 32, 4, 2, 12, 64, 16, 2, 64, 5, 1e-6, 10000.0


def initial(generator):
    def normal(*shape, std=0.1):
        return torch.randn(*shape, generator=generator) * std

    weights = {"embed_tokens.weight": normal(V, C)}
    for layer in range(L):
        weights |= {
            f"layers.{layer}.{name}.weight": value
            for name, value in {
                "input_layernorm": 1 + normal(C),
                "self_attn.q_proj": normal(H * D, C),
                "self_attn.k_proj": normal(HKV * D, C),
                "self_attn.v_proj": normal(HKV * D, C),
                "self_attn.q_norm": 1 + normal(D, std=0.3),
                "self_attn.k_norm": 1 + normal(D, std=0.3),
                "self_attn.o_proj": normal(C, H * D),
                "post_attention_layernorm": 1 + normal(C),
                "mlp.gate_proj": normal(FF, C),
                "mlp.up_proj": normal(FF, C),
                "mlp.down_proj": normal(C, FF),
            }.items()
        }
    return weights | {"norm.weight": 1 + normal(C)}


def rms(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rope(x):
    """Channels i and i + D / 2 turn together; angles in float64."""
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * THETA ** (
        -torch.arange(0, D, 2, dtype=torch.float64) / D
    )
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., : D // 2], x[..., D // 2:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def logits(weights, tokens):
    b, t = tokens.shape
    hidden = weights["embed_tokens.weight"][tokens]
    for layer in range(L):
        def of(name):
            return weights[f"layers.{layer}.{name}.weight"]

        def heads(name, n):
            return F.linear(normed, of(f"self_attn.{name}_proj")).view(b, t, n, D)

        normed = rms(hidden, of("input_layernorm"))
        q = rope(rms(heads("q", H), of("self_attn.q_norm")).transpose(1, 2))
        k = rope(rms(heads("k", HKV), of("self_attn.k_norm")).transpose(1, 2)).repeat_interleave(H // HKV, 1)
        v = heads("v", HKV).transpose(1, 2).repeat_interleave(H // HKV, 1)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(D)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        hidden = hidden + F.linear((scores @ v).transpose(1, 2).reshape(b, t, H * D), of("self_attn.o_proj"))
        normed = rms(hidden, of("post_attention_layernorm"))
        gated = F.silu(F.linear(normed, of("mlp.gate_proj"))) * F.linear(normed, of("mlp.up_proj"))
        hidden = hidden + F.linear(gated, of("mlp.down_proj"))
    return F.linear(rms(hidden, weights["norm.weight"]), weights["embed_tokens.weight"])


def config(**sizes):
    return Qwen3Config(
        vocab_size=V,
        hidden_size=C,
        intermediate_size=FF,
        num_hidden_layers=L,
        num_attention_heads=H,
        num_key_value_heads=HKV,
        head_dim=D,
        max_position_embeddings=T,
        rms_norm_eps=EPS,
        bos_token_id=0,
        eos_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        **sizes,
    )


def train(initial_weights, inputs, targets, dtype):
    weights = {name: nn.Parameter(value.to(dtype).clone()) for name, value in initial_weights.items()}
    decay = [p for p in weights.values() if p.dim() >= 2]
    rest = [p for p in weights.values() if p.dim() < 2]
    adamw = torch.optim.AdamW(
        [dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)],
        lr=1e-3,
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
        fused=False,
    )
    losses, norms, first = [], [], None
    for step in range(STEPS):
        adamw.zero_grad()
        loss = F.cross_entropy(logits(weights, inputs[step]).flatten(0, 1), targets[step].flatten())
        loss.backward()
        first = first or {name: p.grad.clone() for name, p in weights.items()}
        norms.append(float(nn.utils.clip_grad_norm_(list(weights.values()), 1.0)))
        adamw.step()
        losses.append(loss.item())
    return losses, norms, first, {name: p.detach() for name, p in weights.items()}


generator = torch.Generator().manual_seed(77)
start = initial(generator)
tokens = torch.randint(0, V, (STEPS, B, T + 1), generator=generator)
inputs, targets = tokens[..., :-1], tokens[..., 1:]

# Their model with our weights: their angles are float32, so the two agree to some 1e-6.
theirs = Qwen3ForCausalLM(config(tie_word_embeddings=True)).double().eval()
missing = theirs.model.load_state_dict({name: value.double() for name, value in start.items()}, strict=True)
with torch.no_grad():
    apart = (
        (
            theirs(inputs[0]).logits
            - logits({name: value.double() for name, value in start.items()}, inputs[0])
        )
        .abs()
        .max()
    )
assert apart < 1e-5, f"transformers computes other logits: {apart} apart"
print(f"transformers' logits are {float(apart):.1e} away")

runs = {
    tag: train(start, inputs, targets, dtype)
    for tag, dtype in (("f64", torch.float64), ("f32", torch.float32))
}
with h5py.File(HERE / "qwen3.h5", "w", track_order=True) as file:
    group = file.create_group("qwen3")
    file.attrs["torch"] = str(torch.__version__)
    group["tokens"], group["targets"] = inputs.numpy().astype("i4"), targets.numpy().astype("i4")
    for name, value in start.items():
        group[f"init/{name}"] = value.numpy()
    for tag, (losses, norms, _, _) in runs.items():
        group[f"{tag}/loss"], group[f"{tag}/grad_norm"] = np.array(losses, "f8"), np.array(norms, "f8")
        print(tag, [f"{loss:.6f}" for loss in losses], [f"{norm:.4f}" for norm in norms])
    for section, at, kind in (("grad1", 2, "f8"), ("after5", 3, "f4")):
        for name in start:
            exact, single = runs["f64"][at][name], runs["f32"][at][name].double()
            dataset = group.create_dataset(f"f64/{section}/{name}", data=exact.numpy().astype(kind))
            dataset.attrs["f32_run_max_abs_diff"] = float((exact - single).abs().max())

torch.manual_seed(7)
out = HERE / "hf_qwen3"
V, C, H, HKV, D, FF, T = 37, 24, 6, 2, 10, 40, 12
model = Qwen3ForCausalLM(config(tie_word_embeddings=False))
with torch.no_grad():
    for parameter in model.parameters():  # no norm is 1, no two layers are alike
        parameter.add_(0.2 * torch.randn_like(parameter))
model.save_pretrained(out)
(out / "generation_config.json").unlink(missing_ok=True)
prompt = torch.randint(0, 37, (12,))
last = model.double().eval()(prompt[None]).logits[0, -1]
(out / "logits.json").write_text(json.dumps({"prompt": prompt.tolist(), "logits": last.tolist()}) + "\n")
