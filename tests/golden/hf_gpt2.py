#!/usr/bin/env python3
"""Writes hf_gpt2/: a small GPT-2 as transformers saves it, and what transformers computes for it in float64.

python hf_gpt2.py    (CPU PyTorch, transformers; the same numbers every time)

logits.json: `prompt`, a sequence as long as the model takes, and `logits`, those that follow its last token.
"""
import json
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

out = Path(__file__).parent / "hf_gpt2"
torch.manual_seed(5)
config = GPT2Config(
    vocab_size=37, n_positions=12, n_embd=20, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)
with torch.no_grad():
    for parameter in model.parameters():  # no bias is 0, no two layers are alike
        parameter.add_(0.2 * torch.randn_like(parameter))
model.save_pretrained(out)
(out / "generation_config.json").unlink(missing_ok=True)
prompt = torch.randint(0, 37, (12,))
logits = model.double().eval()(prompt[None]).logits[0, -1]
(out / "logits.json").write_text(json.dumps({"prompt": prompt.tolist(), "logits": logits.tolist()}) + "\n")
