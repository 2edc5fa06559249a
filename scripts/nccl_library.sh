#!/bin/bash
# NVIDIA's NCCL for the tests of the bootstrap, which creates and passes on an id without a GPU or a driver.
#   scripts/nccl_library.sh           downloads a wheel (about 200 MB) into target/nccl, if missing
#   scripts/nccl_library.sh where     prints the directory of libnccl.so.2, or fails
# Exits with 1 and an explanation if the download fails.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=nvidia-nccl-cu13==2.28.9
root=${CARGO_TARGET_DIR:-target}/nccl

complete() {
    [ "$(cat "$root/release" 2>/dev/null)" = "$wheel" ] && [ -e "$root/nvidia/nccl/lib/libnccl.so.2" ]
}

cannot_fetch() {
    cat >&2 <<TEXT
scripts/nccl_library.sh: the test of the NCCL bootstrap requires $wheel, which could not be fetched from
PyPI: $1
The command was: pip install --no-deps --target $root $wheel
Without access to PyPI, run it on a machine that has it, write "$wheel" to $root/release, and copy $root here.
TEXT
    exit 1
}

fetch() {
    local python=python3 fresh=$root.fetching
    command -v python3 >/dev/null || cannot_fetch "there is no python3"
    rm -rf "$fresh"
    mkdir -p "$(dirname "$fresh")"
    # Debian's python3 comes without pip.
    if ! python3 -m pip --version >/dev/null 2>&1; then
        python3 -m venv "$root.venv" >/dev/null 2>&1 ||
            cannot_fetch "python3 has neither pip nor venv (Debian: apt-get install python3-venv)"
        python=$root.venv/bin/python3
    fi
    echo "+ fetching $wheel into $root"
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$fresh" "$wheel" ||
        cannot_fetch "pip failed, see above"
    # The name that programs linked against it look for.
    ln -sfn libnccl.so.2 "$fresh/nvidia/nccl/lib/libnccl.so"
    echo "$wheel" >"$fresh/release"
    rm -rf "$root" "$root.venv"
    mv "$fresh" "$root"
    complete || cannot_fetch "the wheel has no libnccl.so.2"
}

case ${1:-fetch} in
fetch) complete || fetch ;;
where) complete && (cd "$root/nvidia/nccl/lib" && pwd) ;;
*)
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
