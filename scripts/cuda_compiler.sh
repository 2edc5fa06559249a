#!/bin/bash
# The CUDA compiler for the tests of the kernels: nvcc, ptxas, headers and libnvrtc, from wheels. Needs no GPU
# and no driver; building and running zero3 require none of it.
#   scripts/cuda_compiler.sh           downloads about 160 MB into target/cuda-toolkit, if missing
#   scripts/cuda_compiler.sh where     prints that directory, or fails
# Exits with 1 and an explanation if the download fails.
set -euo pipefail
cd "$(dirname "$0")/.."

# A 580 driver, CUDA 13.0's, refuses the PTX of newer compilers: all parts are pinned to it.
release=13.0
packages=(nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-nvrtc)
toolkit=${CARGO_TARGET_DIR:-target}/cuda-toolkit
root=$toolkit/nvidia/cu13

complete() {
    [ "$(cat "$toolkit/release" 2>/dev/null)" = "$release ${packages[*]}" ] &&
        "$root/bin/nvcc" --version >/dev/null 2>&1
}

cannot_fetch() {
    cat >&2 <<TEXT
scripts/cuda_compiler.sh: the tests of the CUDA kernels require nvcc $release, which could not be fetched
from PyPI: $1
Without access to PyPI, run this script on a machine that has it and copy its target/cuda-toolkit to $toolkit.
TEXT
    exit 1
}

# Prints a pip command: the system's, or that of a virtual environment (Debian's python3 has none).
pip_command() {
    if python3 -m pip --version >/dev/null 2>&1; then
        echo python3 -m pip
        return
    fi
    python3 -m venv "$toolkit.venv" >/dev/null 2>&1 && echo "$toolkit.venv/bin/python3 -m pip"
}

fetch() {
    local pip fresh=$toolkit.fetching
    command -v python3 >/dev/null || cannot_fetch "there is no python3"
    rm -rf "$fresh"
    mkdir -p "$(dirname "$fresh")"
    pip=$(pip_command) ||
        cannot_fetch "python3 has neither pip nor venv (Debian: apt-get install python3-venv)"
    echo "+ fetching nvcc $release into $toolkit"
    # shellcheck disable=SC2086 # a list of words
    PIP_ROOT_USER_ACTION=ignore $pip install --quiet --disable-pip-version-check --no-deps \
        --target "$fresh" "${packages[@]/%/==$release.*}" ||
        cannot_fetch "pip failed, see above"
    # Wheels have the libraries in lib, nvcc looks in lib64; file modes of wheels are unreliable.
    chmod +x "$fresh"/nvidia/cu13/bin/* "$fresh"/nvidia/cu13/nvvm/bin/*
    ln -sfn lib "$fresh/nvidia/cu13/lib64"
    echo "$release ${packages[*]}" >"$fresh/release"
    # In one step, so that an interrupted download never looks complete.
    rm -rf "$toolkit" "$toolkit.venv"
    mv "$fresh" "$toolkit"
    complete || cannot_fetch "$root/bin/nvcc does not run on this machine"
}

case ${1:-fetch} in
fetch) complete || fetch ;;
where) complete && (cd "$root" && pwd) ;;
*)
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
