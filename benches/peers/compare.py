"""Trains the same shapes with zero3 and its peers in turn and prints the ratios: see README.md."""

import argparse
import array
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# n_layer, width, n_head, seq_len, vocab, batch of a rank, warm-up steps, timed steps
CONFIGS = {
    "S": (4, 256, 8, 128, 512, 4, 5, 30),
    "M": (6, 384, 6, 256, 4096, 4, 3, 10),
    "G": (12, 768, 12, 256, 50257, 2, 2, 5),
}
NAMES = ("n-layer", "width", "n-head", "seq-len", "vocab", "batch", "warmup", "steps")
# Name: ranks, threads of a rank, words of the command line.
ZERO3 = {
    "zero3": (2, 1, []),
    "zero3 bf16": (2, 1, ["zero.param_dtype=bf16"]),
    "zero3 1 rank": (1, 1, []),
    "zero3 1 rank x 2 threads": (1, 2, []),
}
PEERS = ("fsdp2", "fsdp2 bf16", "deepspeed")


def flops_per_token(config):
    """Forward and backward, attention without the causal discount (arXiv:2204.02311, appendix B)."""
    n_layer, width, _, seq_len, vocab, *_ = CONFIGS[config]
    return 6 * (12 * n_layer * width**2 + vocab * width) + 12 * n_layer * seq_len * width


def run_zero3(name, config, directory, program):
    n_layer, width, n_head, seq_len, vocab, batch, warmup, steps = CONFIGS[config]
    n_ranks, threads, words = ZERO3[name]
    data = directory / f"{config}.bin"
    if not data.exists():
        rng = random.Random(1)
        data.write_bytes(array.array("H", (rng.randrange(vocab) for _ in range(400_000))).tobytes())
    deck = directory / f"{config}.toml"
    deck.write_text(
        f"[run]\ndir = '{directory / 'run'}'\n"
        f"[model]\nn_layer = {n_layer}\nn_head = {n_head}\nd_model = {width}\n"
        f"seq_len = {seq_len}\nvocab_size = {vocab}\n"
        f"[data]\ntrain = ['{data}']\n"
        f"[train]\nsteps = {warmup + steps}\nmicro_batch_size = {batch}\n"
        f"global_batch_size = {batch * n_ranks}\n"
        "[optim]\nlr = 6e-4\nwarmup_steps = 1\n[checkpoint]\nevery = 0\n"
    )
    subprocess.run(["rm", "-rf", directory / "run"], check=True)
    bind = ["--map-by", f"slot:PE={threads}", "--bind-to", "core"]
    command = [os.environ.get("MPIRUN", "mpirun"), "-n", str(n_ranks), *bind, program, "train", deck]
    command += [f"run.threads_per_rank={threads}", *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    with open(directory / "run/steps.csv") as file:
        rows = list(csv.DictReader(file))[warmup:]
    middle = lambda column: statistics.median(float(row[column]) for row in rows)
    peak_rss_bytes = max(float(row["peak_rss_bytes_max"]) for row in rows)
    faults = max(float(row["page_faults_max"]) for row in rows)
    return {
        "tokens_per_s": middle("tokens_per_s"),
        "peak_rss_bytes": peak_rss_bytes,
        "page_faults_of_a_step": faults,
    }


def run_peer(name, config, python):
    flags = [word for pair in zip(NAMES, CONFIGS[config]) for word in (f"--{pair[0]}", str(pair[1]))]
    launch = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = dict(
        os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu"
    )
    env["PATH"] = (
        f"{Path(python).parent}:{env['PATH']}"  # DeepSpeed builds its shared-memory operator with ninja
    )
    done = subprocess.run([*launch, HERE / "step.py", name, *flags], capture_output=True, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"{name} on {config} failed:\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--configs", default="S,M,G")
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--only", default=",".join([*ZERO3, *PEERS]), help="programs, with commas between")
    args.add_argument("--program", default=ROOT / "target/release/zero3")
    args.add_argument("--python", default=sys.executable, help="one that has torch and deepspeed")
    args.add_argument("--out", help="a line of JSON for each run")
    a = args.parse_args()
    names = [name for name in [*ZERO3, *PEERS] if name in a.only.split(",")]

    runs = {}
    with tempfile.TemporaryDirectory() as directory:
        for round_ in range(a.rounds):
            for config in a.configs.split(","):
                for name in names:
                    if name in ZERO3:
                        run = run_zero3(name, config, Path(directory), a.program)
                    else:
                        run = run_peer(name, config, a.python)
                    runs.setdefault((config, name), []).append(run)
                    line = {"round": round_, "config": config, "program": name, **run}
                    print(json.dumps(line), file=sys.stderr, flush=True)
                    if a.out:
                        with open(a.out, "a") as file:
                            print(json.dumps(line), file=file)

    print(
        "| shape | program | tokens/s | GFLOP/s per core | peak RSS per rank, MB | speedup | RSS ratio |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for config in a.configs.split(","):
        for name in names:
            # Like with like.
            ours = runs.get((config, "zero3 bf16" if name == "fsdp2 bf16" else "zero3"))
            theirs = runs[config, name]
            median = lambda key, of=theirs: statistics.median(run[key] for run in of)
            n_ranks, threads, _ = ZERO3.get(name, (2, 1, []))
            gflops = median("tokens_per_s") * flops_per_token(config) / 1e9 / (n_ranks * threads)
            cells = [
                config,
                name,
                f"{median('tokens_per_s'):.0f}",
                f"{gflops:.1f}",
                f"{median('peak_rss_bytes') / 1e6:.0f}",
            ]
            for key in ("tokens_per_s", "peak_rss_bytes"):
                ratio = ours and statistics.median(x[key] / y[key] for x, y in zip(ours, theirs))
                cells.append(f"{ratio:.2f} x" if ratio else "")
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
