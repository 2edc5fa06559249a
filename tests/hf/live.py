"""Drives the program and transformers against each other: `make test-hf`. The first argument is the program.

For a GPT-2, a Llama with grouped heads, one with a tied head, and a Qwen3 with wide heads:

1. A model trained by zero3, exported in f32, in bf16 and in shards, loads in transformers without a warning,
   and its loss on the validation windows is the one that zero3 reported.
2. A model saved by transformers, imported and exported again, has bitwise identical tensors; zero3's first
   loss from it is that of transformers, and the logits of the re-export are bitwise those of the original.
"""

import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

ZERO3 = str(pathlib.Path(sys.argv[1]).resolve())
torch.set_num_threads(1)


def zero3(*words):
    done = subprocess.run([ZERO3, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def load(path, **options):
    model, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **options)
    bad = {key: value for key, value in report.items() if value}
    assert not bad, f"{path}: {bad}"
    return model.eval()


def mean_loss(model, windows):
    with torch.no_grad():
        logits = model.double()(windows[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()


def steps(run):
    with open(run / "steps.csv") as file:
        return list(csv.DictReader(file))


def same(name, a, b, tolerance):
    assert abs(a - b) <= tolerance * max(1.0, abs(b)), f"{name}: zero3 {a}, transformers {b}"
    print(f"{name}: zero3 {a:.7f}, transformers {b:.7f}")


T, B, L, H, C, KV, F, D = 24, 2, 3, 4, 48, 2, 80, 20


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, n_positions=T, n_embd=C, n_layer=L, n_head=H, bos_token_id=None, eos_token_id=None
        )
    )


def llama(tied):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            max_position_embeddings=T,
            hidden_size=C,
            intermediate_size=F,
            num_hidden_layers=L,
            num_attention_heads=H,
            num_key_value_heads=KV,
            rms_norm_eps=1e-5,
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def qwen3():
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=256,
            max_position_embeddings=T,
            hidden_size=C,
            intermediate_size=F,
            head_dim=D,
            num_hidden_layers=L,
            num_attention_heads=H,
            num_key_value_heads=KV,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        )
    )


GROUPED = ["model.family=llama", f"model.n_kv_head={KV}", f"model.d_ff={F}"]
FAMILIES = {
    "GPT-2": (gpt2, []),
    "Llama": (lambda: llama(False), GROUPED),
    "tied Llama": (lambda: llama(True), [*GROUPED, "model.tied=true"]),
    "Qwen3": (qwen3, [*GROUPED[1:], "model.family=qwen3", f"model.head_dim={D}", "model.tied=true"]),
}


def both_ways(dir, theirs, family_words):
    text = ("the quick brown fox jumps over the lazy dog; " * 400).encode()
    (dir / "text.txt").write_bytes(text)
    sizes = [
        f"model.seq_len={T}",
        f"model.n_layer={L}",
        f"model.n_head={H}",
        f"model.d_model={C}",
        "zero.stage=3",
        *family_words,
    ]
    sizes += [
        f"data.train={dir}/text.txt",
        "data.val_fraction=0.2",
        f"train.micro_batch_size={B}",
        "checkpoint.every=10",
    ]
    (dir / "deck.toml").write_text("")
    deck = [dir / "deck.toml", *sizes, "log.every=0"]

    # 1. zero3 -> transformers
    zero3(
        "train",
        *deck,
        f"run.dir={dir}/run",
        "train.steps=10",
        "train.eval_every=10",
        "train.eval_batches=4",
        "optim.lr=3e-3",
        "optim.warmup_steps=1",
    )
    n_val = int(len(text) * 0.2)
    tail = torch.tensor(list(text[len(text) - n_val:]))
    windows = torch.stack([tail[i * T:i * T + T + 1] for i in range(4 * B)])
    val_loss = float(steps(dir / "run")[-1]["val_loss"])
    for out, words in [("f32", []), ("shards", ["--max-shard-size", "50KB"]), ("bf16", ["--dtype", "bf16"])]:
        zero3("ckpt", "export", "--format", "safetensors", *words, dir / "run", dir / out)
        model = load(dir / out, dtype=torch.float32)
        # bf16 weights are off by up to 2^-9 of themselves.
        same(
            f"validation loss of the {out} export",
            val_loss,
            mean_loss(model, windows),
            5e-3 if out == "bf16" else 2e-6,
        )
    assert len(list((dir / "shards").glob("*.safetensors"))) > 3

    # 2. transformers -> zero3
    torch.manual_seed(1)
    model = theirs().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(dir / "theirs", max_shard_size="100KB")
    print(zero3("ckpt", "import", dir / "theirs", dir / "imported", "--ranks", 3).strip())
    zero3("ckpt", "verify", dir / "imported")
    zero3("ckpt", "export", dir / "imported", dir / "back")
    back = load(dir / "back")
    for (name, a), (_, b) in zip(model.state_dict().items(), back.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    with torch.no_grad():
        assert torch.equal(model(windows[:, :-1]).logits, back(windows[:, :-1]).logits)
    print(f"{len(model.state_dict())} tensors came back to the bit, and so did the logits")
    head = torch.tensor(list(text))
    first = torch.stack([head[i * T:i * T + T + 1] for i in range(8 * B)])
    want = mean_loss(model, first)
    for how in [["--resume", dir / "imported"], [f"model.init_from={dir}/imported"]]:
        run = dir / how[0].strip("-").split("=")[0]
        zero3("train", *deck, f"run.dir={run}", "train.steps=1", "data.shuffle=false", *how)
        same(f"first loss with {how[0].split('=')[0]}", float(steps(run)[0]["loss"]), want, 2e-6)
    for name in ["vocab_size", "tie_word_embeddings"]:
        assert getattr(back.config, name) == getattr(model.config, name), name


for family, (theirs, words) in FAMILIES.items():
    print(f"--- {family}")
    with tempfile.TemporaryDirectory() as name:
        both_ways(pathlib.Path(name), theirs, words)
print("PASSED")
