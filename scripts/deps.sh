#!/bin/bash
# The system dependencies of zero3.
#   scripts/deps.sh show             a line per dependency: a tick and its version, or a cross and its package
#   scripts/deps.sh install          installs those missing for `make build` and `make run` (Debian, Ubuntu)
#   scripts/deps.sh install test     also those missing for `make lint` and `make test`
# Installs nothing if nothing is missing. Exits with 1 and instructions if it cannot install.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/env.sh
. scripts/env.sh
PATH=$PATH:/usr/sbin:/sbin # where Debian installs slurmctld, not in a user's PATH

# name | needed for | Debian packages
table="\
cargo|build|
cc|build|gcc libc6-dev
mpicc|build|libopenmpi-dev
mpirun|build|openmpi-bin
libclang|build|libclang-dev clang
pkg-config|build|pkg-config
hdf5|build|libhdf5-dev
clippy|test|
shellcheck|test|shellcheck
h5dump|test|hdf5-tools
slurm|test|slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmi2-0
g++|test|g++
pip|test|python3 python3-venv
chromium|test|chromium
nvcc|wheel|scripts/cuda_compiler.sh
nccl|wheel|scripts/nccl_library.sh
python3|option|python3"

least_rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

first_number() { grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1; }
every_command() { for c in "$@"; do command -v "$c" >/dev/null || return 1; done; }

# Prints the version of a dependency, or fails.
version_of() {
    local v
    case $1 in
    cargo)
        v=$(cargo --version | first_number)
        printf '%s\n' "$least_rust" "$v" | sort -VC || return 1
        echo "$v"
        ;;
    cc) cc -dumpfullversion ;;
    mpicc) "${MPICC:-mpicc}" -show >/dev/null && command -v "${MPICC:-mpicc}" ;;
    mpirun) "${MPIRUN:-mpirun}" --version | grep -E 'Open MPI|Version|MPI' | first_number ;;
    libclang)
        # bindgen looks in LIBCLANG_PATH, in llvm's own directories and where the loader looks.
        v=$({ ls "${LIBCLANG_PATH:-/nowhere}" /usr/lib/llvm-*/lib; ldconfig -p; } 2>/dev/null |
            grep -oE 'libclang(-[0-9.]+)?\.so[.0-9]*' | sort -V | tail -n 1)
        [ -n "$v" ] && echo "$v"
        ;;
    pkg-config) pkg-config --version ;;
    hdf5)
        if [ -n "${HDF5_DIR:-}" ]; then
            v=$(grep -hE 'define H5_VERS_INFO' "$HDF5_DIR/include/H5public.h" | first_number) &&
                echo "$v in $HDF5_DIR"
        else
            pkg-config --modversion hdf5
        fi
        ;;
    clippy) cargo fmt --version >/dev/null && cargo clippy --version | first_number ;;
    shellcheck) shellcheck --version | first_number ;;
    h5dump) h5dump --version | first_number ;;
    slurm) every_command slurmd sbatch srun munged unshare && slurmctld -V | first_number ;;
    g++) g++ -dumpfullversion ;;
    pip)
        python3 -c 'import pip; print(pip.__version__)' ||
            python3 -c 'import ensurepip; print(ensurepip.version())'
        ;;
    chromium) "${CHROMIUM:-chromium}" --version | first_number ;;
    nvcc)
        v=$(scripts/cuda_compiler.sh where) && "$v/bin/nvcc" --version | first_number
        ;;
    nccl) scripts/nccl_library.sh where >/dev/null && cat "${CARGO_TARGET_DIR:-target}/nccl/release" ;;
    python3) python3 --version | first_number ;;
    esac
} 2>/dev/null

show() {
    local name need packages version note
    while IFS='|' read -r name need packages; do
        note=""
        [ "$need" = test ] && note=" (make lint, make test)"
        [ "$need" = wheel ] && note=" (make test)"
        [ "$need" = option ] && note=" (optional)"
        if version=$(version_of "$name"); then
            printf '  ✓ %-11s %s%s\n' "$name" "$version" "$note"
        elif [ -z "$packages" ]; then
            printf '  ✗ %-11s from rustup, Rust %s or newer%s\n' "$name" "$least_rust" "$note"
        else
            printf '  ✗ %-11s from %s%s\n' "$name" "$packages" "$note"
        fi
    done <<<"$table"
}

# Prints the names of the missing dependencies.
missing() {
    local name need packages
    while IFS='|' read -r name need packages; do
        if [ "$need" = build ] || [ "$need" = "${1:-build}" ]; then
            version_of "$name" >/dev/null || echo "$name"
        fi
    done <<<"$table"
}

packages_of() {
    local name
    for name in "$@"; do
        grep "^$name|" <<<"$table" | cut -d '|' -f 3
    done | xargs
}

cannot_install() {
    cat >&2 <<TEXT
zero3 needs: $1
$2
On a cluster, load the modules of an MPI library and of a serial HDF5 instead, and say where they are:
  export MPICC=/path/to/mpicc HDF5_DIR=/path/to/hdf5 LIBCLANG_PATH=/path/to/llvm/lib
TEXT
    exit 1
}

install() {
    local names packages apt as_root
    mapfile -t names < <(missing "${1:-build}")
    [ ${#names[@]} = 0 ] && return
    if [[ " ${names[*]} " == *" cargo "* ]]; then
        cannot_install "${names[*]}" \
            "Install Rust $least_rust or newer with rustup (or: rustup update), then try again."
    fi
    if [[ " ${names[*]} " == *" clippy "* ]]; then
        rustup component add rustfmt clippy ||
            cannot_install clippy "Install it with: rustup component add rustfmt clippy"
    fi
    packages=$(packages_of "${names[@]}")
    [ -z "$packages" ] && return
    apt="apt-get install -y --no-install-recommends $packages"
    if ! command -v apt-get >/dev/null; then
        cannot_install "${names[*]}" "This script installs on Debian and Ubuntu only, where the line would be:
  sudo $apt"
    fi
    as_root=()
    if [ "$(id -u)" != 0 ]; then
        as_root=(sudo -n)
        if ! sudo -n true 2>/dev/null; then
            if ! [ -t 0 ] || ! command -v sudo >/dev/null; then
                cannot_install "${names[*]}" "Someone who may install has to run:
  sudo $apt"
            fi
            as_root=(sudo)
        fi
    fi
    echo "+ $apt"
    as_root+=(env DEBIAN_FRONTEND=noninteractive)
    # A fresh container has no package lists, an old machine has stale ones.
    # shellcheck disable=SC2086 # a list of words
    "${as_root[@]}" $apt || { "${as_root[@]}" apt-get update && "${as_root[@]}" $apt; } ||
        cannot_install "${names[*]}" "apt-get failed, see above. The line was:
  $apt"
    # shellcheck source=scripts/env.sh
    . scripts/env.sh
    mapfile -t names < <(missing "${1:-build}")
    [ ${#names[@]} = 0 ] || cannot_install "${names[*]}" "They are still not found after: $apt"
}

case ${1:-show} in
show) show ;;
install) install "${2:-build}" ;;
*)
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
