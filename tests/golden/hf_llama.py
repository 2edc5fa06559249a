#!/usr/bin/env python3
"""Writes hf_llama/: a small Llama as transformers saves it, and what transformers computes for it in float64.

python hf_llama.py    (CPU PyTorch, transformers; the same numbers every time)

Key/value heads are shared, the head is a matrix of its own. logits.json is as that of hf_gpt2.py.
"""
import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

out = Path(__file__).parent / "hf_llama"
torch.manual_seed(6)
config = LlamaConfig(
    vocab_size=37,
    max_position_embeddings=12,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    bos_token_id=0,
    eos_token_id=0,
    tie_word_embeddings=False,
)
model = LlamaForCausalLM(config)
with torch.no_grad():
    for parameter in model.parameters():  # no norm is 1, no two layers are alike
        parameter.add_(0.2 * torch.randn_like(parameter))
model.save_pretrained(out)
(out / "generation_config.json").unlink(missing_ok=True)
prompt = torch.randint(0, 37, (12,))
logits = model.double().eval()(prompt[None]).logits[0, -1]
(out / "logits.json").write_text(json.dumps({"prompt": prompt.tolist(), "logits": logits.tolist()}) + "\n")
