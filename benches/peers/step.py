"""A GPT-2 training run by PyTorch FSDP2 or DeepSpeed on CPUs, under torchrun; rank 0 prints a JSON line."""

import argparse
import json
import os
import resource
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        heads = self.qkv(x).reshape(b, t, 3, self.n_head, c // self.n_head).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, n_head):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, n_head)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Pre-norm GPT-2 with learned positions and the head tied to the token embedding: the mean loss."""

    def __init__(self, n_layer, width, n_head, seq_len, vocab):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(Block(width, n_head) for _ in range(n_layer))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def fsdp2(model, learning, in_bf16=False):
    """A step function: each block and the rest sharded, resharded after forward; f32 master weights.

    With in_bf16, computes in bf16 and reduces gradients in f32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    types = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if in_bf16 else {}
    policy = MixedPrecisionPolicy(**types)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(groups(model), fused=True, **learning)

    def step(ids, targets):
        model(ids, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def deepspeed(model, learning, batch):
    """A step function of stage 3 with no parameter kept whole."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed as ds

    ds.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.AdamW(groups(model), fused=True, **learning)
    engine, *_ = ds.initialize(model=model, optimizer=optimizer, config=config)

    def step(ids, targets):
        engine.backward(engine(ids, targets))
        engine.step()

    return step


def groups(model):
    """Matrices decay, vectors do not."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program", choices=["fsdp2", "fsdp2 bf16", "deepspeed"])
    for name in ("n-layer", "width", "n-head", "seq-len", "vocab", "batch", "warmup", "steps"):
        args.add_argument(f"--{name}", type=int, required=True)
    args.add_argument("--local_rank", type=int, help="DeepSpeed passes it; not used")
    a = args.parse_args()

    rank = int(os.environ["RANK"])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt2(a.n_layer, a.width, a.n_head, a.seq_len, a.vocab)
    learning = {"lr": 6e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    if a.program == "deepspeed":
        step = deepspeed(model, learning, a.batch)
    else:
        step = fsdp2(model, learning, in_bf16=a.program == "fsdp2 bf16")

    generator = torch.Generator().manual_seed(1 + rank)
    text = torch.randint(0, a.vocab, (a.batch, a.seq_len + 1), generator=generator)
    ids, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    seconds = []
    for _ in range(a.warmup + a.steps):
        started = time.perf_counter()
        step(ids, targets)
        seconds.append(time.perf_counter() - started)

    peak = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0])
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if rank == 0:
        tokens = a.batch * a.seq_len * dist.get_world_size()
        step_s = statistics.median(seconds[a.warmup :])
        print(
            json.dumps(
                {"tokens_per_s": tokens / step_s, "peak_rss_bytes": int(peak), "torch": torch.__version__}
            )
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
