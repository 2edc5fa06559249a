# shellcheck shell=sh
# The variables that building, testing and launching zero3 need on this machine. Sourced
# by the Makefile and the other scripts; source it yourself before a bare cargo or mpirun: . scripts/env.sh
# Whatever is already set wins, so a cluster's modules have the last word.

# rustup's default place, for shells that have not read its profile lines yet.
if ! command -v cargo >/dev/null 2>&1 && [ -x "$HOME/.cargo/bin/cargo" ]; then
    export PATH="$HOME/.cargo/bin:$PATH"
fi

# Debian and Ubuntu keep serial and parallel HDF5 side by side; zero3 writes one file per rank and needs the
# serial one.
if [ -z "${HDF5_DIR:-}" ]; then
    unset HDF5_DIR
    for dir in /usr/lib/*-linux-gnu/hdf5/serial; do
        if [ -e "$dir/libhdf5.so" ]; then
            export HDF5_DIR="$dir"
        fi
    done
fi

# Open MPI refuses root, which is who one is in a container.
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
