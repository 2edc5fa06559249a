#!/usr/bin/env bash
# The transformers package loads exports and imports what it wrote: make test-hf. HF_PYTHON names a Python
# that has torch and transformers.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/env.sh

if [ -z "${HF_PYTHON:-}" ]; then
    venv=target/hf-venv
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/python" -c 'import torch, transformers' 2>/dev/null ||
        "$venv/bin/pip" install -q torch transformers
    HF_PYTHON=$venv/bin/python
fi
"$HF_PYTHON" tests/hf/live.py "$1"
