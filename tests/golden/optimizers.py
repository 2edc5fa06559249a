#!/usr/bin/env python3
"""Golden numbers of the optimizers other than AdamW: python optimizers.py --out optimizers.h5
(CPU PyTorch, h5py)
Layout  /{lion,sgd,nesterov}/loss [5], /grad_norm [5] (before clipping), /after5/<name> weights after 5 steps
        (float64 run, stored float32-rounded); each has the attribute f32_run_max_abs_diff: the largest
        difference of torch's own f32 run from it.
        /lion/margin/<name>: smallest nonzero |direction| of each element over the steps, and the same
        attribute, for directions.
The model, its initial weights and its batches are those of golden.h5, group gpt2: golden.py is executed up to
its training function to make them.
sgd       torch.optim.SGD, momentum 0.9, the same with nesterov=True; lr 0.1
lion      the paper's algorithm 2 (arXiv:2302.06675), betas .9/.99; lr 1e-3
Weight decay 0.1 is decoupled for all of them (arXiv:1711.05101): p *= 1 - lr * wd before the step, on 2-D
weights only.
clip_grad_norm 1.0 as in golden.py.
"""

import argparse, pathlib, sys
import h5py, torch, torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--out", default="optimizers.h5")
out = ap.parse_args().out
sys.argv = sys.argv[:1]  # golden.py parses arguments too
source = pathlib.Path(__file__).with_name("golden.py").read_text()
exec(source[: source.index("def train(")])


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas):
        super().__init__(params, dict(lr=lr, betas=betas))
        self.directions = []

    @torch.no_grad()
    def step(self):
        self.directions.append([])
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = b1 * m + (1 - b1) * p.grad
                p -= lr * c.sign()
                self.directions[-1].append(c)
                m.copy_(b2 * m + (1 - b2) * p.grad)


KINDS = {
    "lion": (1e-3, lambda ps: Lion(ps, 1e-3, (0.9, 0.99))),
    "sgd": (0.1, lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=False)),
    "nesterov": (0.1, lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, foreach=False)),
}


def train(init, X, Y, kind, dt):
    w = {k: nn.Parameter(v.to(dt).clone()) for k, v in init.items()}
    lr, make = KINDS[kind]
    opt = make(list(w.values()))
    losses, norms = [], []
    for i in range(STEPS):
        opt.zero_grad()
        loss = gpt2_loss(w, X[i], Y[i])
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(list(w.values()), 1.0)))
        losses.append(loss.item())
        with torch.no_grad():
            for p in w.values():
                if p.dim() >= 2:
                    p *= 1 - lr * 0.1
        opt.step()
    return losses, norms, {k: p.detach() for k, p in w.items()}, getattr(opt, "directions", None)


with h5py.File(out, "w", track_order=True) as f:
    f.attrs["torch"] = str(torch.__version__)
    g = torch.Generator().manual_seed(1234)
    w0 = gpt2_init(g)
    seq = torch.randint(0, V, (STEPS, B, T + 1), generator=g)
    X, Y = seq[..., :-1], seq[..., 1:]
    for kind, (lr, _) in KINDS.items():
        G = f.create_group(kind)
        G.attrs["lr"] = lr
        (l64, n64, w64, c64), (l32, n32, w32, c32) = (
            train(w0, X, Y, kind, dt) for dt in (torch.float64, torch.float32)
        )
        for name, r, q in (("loss", l64, l32), ("grad_norm", n64, n32)):
            d = G.create_dataset(name, data=np.array(r, "f8"))
            d.attrs["f32_run_max_abs_diff"] = float(np.abs(np.array(r) - np.array(q)).max())
        for k in w0:
            d = G.create_dataset(f"after5/{k}", data=w64[k].numpy().astype("f4"))
            d.attrs["f32_run_max_abs_diff"] = float((w64[k] - w32[k].double()).abs().max())
        for i, k in enumerate(w0 if c64 else []):
            of, of32 = (torch.stack([step[i].double() for step in c]) for c in (c64, c32))
            d = G.create_dataset(
                f"margin/{k}", data=of.abs().masked_fill(of == 0, float("inf")).amin(0).numpy().astype("f4")
            )
            d.attrs["f32_run_max_abs_diff"] = float((of - of32).abs().max())
        print(
            kind,
            "loss",
            [f"{x:.6f}" for x in l64],
            "norm",
            [f"{x:.4f}" for x in n64],
            "worst f32",
            max(float((w64[k] - w32[k].double()).abs().max()) for k in w0),
        )
