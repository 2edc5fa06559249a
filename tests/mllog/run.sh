#!/usr/bin/env bash
# Runs the quick acceptance on two ranks and has MLPerf's own parser read its mllog.txt: make test-mllog
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/env.sh

venv=target/mllog-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import mlperf_logging' 2>/dev/null || "$venv/bin/pip" install -q mlperf_logging

run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
mpirun -n 2 --oversubscribe target/release/zero3 accept inputs/acceptance_quick.toml \
    "run.dir=$run" elasticity.soak_minutes=0
"$venv/bin/python" tests/mllog/check_mllog.py "$run/mllog.txt" "$run/report.json"
