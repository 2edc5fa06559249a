#!/bin/bash
# Asks a Slurm controller whether it would take each of the scripts as it is: sbatch --test-only. Where no
# controller answers, a cluster of two nodes is brought up for it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if ! timeout 10 scontrol ping >/dev/null 2>&1; then
    dir=$(mktemp -d /tmp/zero3-lint-XXXXXX)
    trap '"$here/down.sh" "$dir"' EXIT
    "$here/up.sh" "$dir" 2
    export SLURM_CONF=$dir/slurm.conf
fi
for script in "$here"/../../slurm/*.sbatch; do
    printf '%s: ' "$(basename "$script")"
    timeout 30 sbatch --test-only "$script" 2>&1
done
