#!/usr/bin/env bash
# zero3, FSDP2 and DeepSpeed in turn on this machine: make bench-peers
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/env.sh
. scripts/env.sh

python=${PEERS_PYTHON:-target/peers-venv/bin/python}
if [ -z "${PEERS_PYTHON:-}" ] && ! "$python" -c 'import torch, deepspeed' 2>/dev/null; then
    python3 -m venv target/peers-venv
    "$python" -m pip install -q setuptools wheel ninja numpy torch
    DS_BUILD_OPS=0 "$python" -m pip install -q deepspeed
fi
exec "$python" benches/peers/compare.py "$@"
