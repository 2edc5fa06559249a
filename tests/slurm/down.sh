#!/bin/bash
# Ends the cluster that tests/slurm/up.sh DIRECTORY brought up, jobs included, and removes the directory.
# Harmless when the cluster is half up, or gone.
#   tests/slurm/down.sh DIRECTORY
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin
root=$1
export SLURM_CONF="$root/slurm.conf"
[ -d "$root" ] || exit 0

no_jobs() { [ -z "$(timeout 5 squeue -h 2>/dev/null)" ]; }
daemons() {
    local file pid
    for file in "$root"/slurmd.*.pid "$root/slurmctld.pid" "$root/munge/pid"; do
        pid=$(cat "$file" 2>/dev/null) && kill -0 "$pid" 2>/dev/null && echo "$pid"
    done
}
# Steps outlive their slurmd; their command line names no directory, but slurmd's spool is their working
# directory.
steps() {
    local link
    for link in /proc/[0-9]*/cwd; do
        case $(readlink "$link") in
        "$root"/*) link=${link%/cwd} && echo "${link#/proc/}" ;;
        esac
    done
}
# end_all SIGNAL LIST: signals every process that LIST prints, and waits up to five seconds for all to end.
end_all() {
    local pids
    for _ in {1..50}; do
        mapfile -t pids < <("$2")
        [ ${#pids[@]} = 0 ] && return
        kill "-$1" "${pids[@]}" 2>/dev/null
        sleep 0.1
    done
}

if ! no_jobs; then
    timeout 5 scancel --full --state=PENDING,RUNNING,SUSPENDED --user=root 2>/dev/null
    timeout 5 scancel --full --signal=KILL --user=root 2>/dev/null
    for _ in {1..50}; do
        no_jobs && break
        sleep 0.1
    done
fi
end_all TERM daemons
end_all KILL daemons
end_all KILL steps
if [ -e "$root/cgroup" ]; then
    for _ in {1..50}; do
        rmdir "$(cat "$root/cgroup")" 2>/dev/null && break
        sleep 0.1
    done
fi
rm -rf "$root"
