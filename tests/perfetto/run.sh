#!/usr/bin/env bash
# Trains a few traced steps on three ranks and has Perfetto's trace processor answer for the trace: make test-perfetto
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/env.sh

venv=target/perfetto-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import perfetto' 2>/dev/null || "$venv/bin/pip" install -q perfetto

run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
mpirun -n 3 --oversubscribe target/release/zero3 train inputs/tiny.toml "run.dir=$run" train.steps=3 'log.trace=2..=3' \
    train.eval_every=0 checkpoint.every=0
"$venv/bin/python" tests/perfetto/check_trace.py "$run/trace.json" 3 2
