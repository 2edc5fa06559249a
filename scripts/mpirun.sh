#!/bin/bash
# mpirun with what this machine needs: scripts/mpirun.sh RANKS PROGRAM [ARGUMENT ...]
# Prints the whole command line first, so that it can be copied.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=scripts/env.sh
. "$here/env.sh"

if [ $# -lt 2 ]; then
    echo "usage: $0 RANKS PROGRAM [ARGUMENT ...]" >&2
    exit 2
fi
n_ranks=$1
shift
launch=("${MPIRUN:-mpirun}" -n "$n_ranks")
if "${launch[0]}" --version 2>/dev/null | grep -q 'Open MPI'; then
    # Not bound, because two ranks would get one core each; zero3 divides the cores that its ranks share. More
    # ranks than cores are slow and otherwise fine.
    launch+=(--bind-to none --oversubscribe)
fi
echo "+ ${launch[*]} $*" >&2
exec "${launch[@]}" "$@"
