#!/bin/bash
# A chain of time-limited jobs, each resuming where the one before stopped, for clusters that do not let jobs
# requeue themselves:
#
#   slurm/chain.sh 5 my.toml train.steps=100000
#   SBATCH_TIMELIMIT=04:00:00 slurm/chain.sh 5 my.toml
#
# Submits slurm/zero3.sbatch so many times, each job starting when the one before has ended. A job whose run
# is finished ends at once with code 0, so too long a chain costs seconds. A job of the chain that ends with
# any other code than 0 or 75 ends the chain: the rest waits for ever unless cancelled, so they are submitted
# to be dropped (--kill-on-invalid-dep). Prints the job ids. Environment: that of zero3.sbatch, and sbatch's
# own SBATCH_* variables.
set -euo pipefail
if [ $# -lt 1 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: $0 JOBS [DECK [key=value ...]]" >&2
    exit 2
fi
n_jobs=$1
shift
here=$(dirname "$0")
# In a chain the next job goes on, not this one again; what stopped in time is a success for the one that
# waits for it.
export ZERO3_MAX_RESTARTS=0 ZERO3_STOPPED_IS_SUCCESS=1
before=
for ((i = 0; i < n_jobs; i++)); do
    options=(--parsable --kill-on-invalid-dep=yes)
    [ -z "$before" ] || options+=("--dependency=afterok:$before")
    before=$(sbatch "${options[@]}" "${ZERO3_SBATCH:-$here/zero3.sbatch}" "$@")
    before=${before%%;*}
    echo "$before"
done
