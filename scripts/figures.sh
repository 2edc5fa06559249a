#!/bin/bash
# Regenerates docs/figures/ from a run of inputs/tiny.toml on 3 ranks:
#   scripts/figures.sh PATH/TO/zero3
# storage, compute, ownership and stages are the same on every machine; timeline, memory and loss_curve show
# this one.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
scripts/mpirun.sh 3 "$program" train inputs/tiny.toml "run.dir=$run/tiny" train.steps=60 \
    train.global_batch_size=12 train.eval_every=20 checkpoint.every=0 log.trace=40 log.every=20
"$program" report "$run/tiny" --figures docs/figures | grep '^wrote'
