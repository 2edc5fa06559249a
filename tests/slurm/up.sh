#!/bin/bash
# Brings up a Slurm cluster of several nodes on this machine, for tests:
#   tests/slurm/up.sh DIRECTORY N_NODES [GPUS_PER_NODE]
# Everything it writes lies in DIRECTORY (absolute, short: sockets live in it); tests/slurm/down.sh DIRECTORY
# ends it and removes the directory. Clients find the cluster by SLURM_CONF=DIRECTORY/slurm.conf. Several
# clusters can be up at once: ports are picked, and munge has its own daemon, key and socket. Needs root.
#
# A node is a slurmd in a namespace with a hostname, an /etc/hosts, a /dev/shm and a TmpFS of its own: ranks
# of two "nodes" must not find each other's shared memory segments, nor one node the other's PMIx files. GPUs
# are device files that Slurm counts and hands out, with nothing behind them: no driver finds a GPU.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
root=$1
n_nodes=$2
n_gpus=${3:-0}
# Seconds that a requeued job waits for its old credentials to expire, and that a node has to start a task:
# 120 by default.
cred_expire=10

fail() {
    echo "$0: $*" >&2
    exit 1
}

for program in slurmctld slurmd sbatch srun munged unshare; do
    command -v "$program" >/dev/null || fail "no $program here: make setup-test installs Slurm"
done
[ "$(id -u)" = 0 ] || fail "slurmd and its nodes' namespaces need root: sudo -E make test-slurm"

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Prints the first of $1 free ports in a row, below the range from which the kernel hands out ports on its
# own.
free_ports() {
    local first port
    while :; do
        first=$((20000 + RANDOM % 12000))
        for ((port = first; port < first + $1; port++)); do
            listens "$port" && continue 2
        done
        echo "$first"
        return
    done
}

wait_for() {
    local what=$1
    shift
    for _ in {1..200}; do
        if "$@" >/dev/null 2>&1; then
            return
        fi
        sleep 0.1
    done
    tail -n 20 "$root"/log/* >&2 || true
    fail "gave up waiting for $what"
}

# The kernel shares processors fairly among sessions (sched autogroup), and each step of a node is a session
# of its own. Ranks of one node that yield while they wait for those of another then keep both from running:
# for tens of seconds, seen with Linux 6.18. In one control group of processors, where this machine lets us
# make one, there are no such sessions.
join_one_group() {
    local base group
    for base in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
        group=$base/zero3-$(basename "$root")
        if [ -e "$base/cgroup.procs" ] && mkdir "$group" 2>/dev/null; then
            echo "$group" >"$root/cgroup"
            # Version 2 has processors in a group only where its parent hands them down.
            [ -e "$group/cpu.shares" ] || echo +cpu 2>/dev/null >"$base/cgroup.subtree_control" || true
            echo $$ 2>/dev/null >"$group/cgroup.procs" || true
            return
        fi
    done
}

mkdir -p "$root"/{log,state,munge}
join_one_group
chmod 711 "$root" # jobs of any user reach the munge socket
chmod 755 "$root/munge"

# The keys come from dd, so that nothing outside the directory is read or written.
dd if=/dev/urandom of="$root/munge.key" bs=1024 count=1 status=none
chmod 600 "$root/munge.key"
munged --force --socket="$root/munge/socket" --key-file="$root/munge.key" --pid-file="$root/munge/pid" \
    --log-file="$root/log/munged" --seed-file="$root/munge.seed" 2>/dev/null
wait_for munged munge -n --socket="$root/munge/socket"

first_port=$(free_ports $((n_nodes + 1)))
export SLURM_CONF="$root/slurm.conf"
cat >"$SLURM_CONF" <<CONF
ClusterName=zero3test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$first_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$root/munge/socket,cred_expire=$cred_expire
StateSaveLocation=$root/state
SlurmctldPidFile=$root/slurmctld.pid
SlurmctldLogFile=$root/log/slurmctld
SlurmdPidFile=$root/slurmd.%n.pid
SlurmdLogFile=$root/log/slurmd.%n
SlurmdSpoolDir=$root/%n/spool
TmpFS=$root/%n/tmp
TaskProlog=$root/task_prolog
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MaxTasksPerNode=64
CONF
# Slurm adds what it prints to a task's environment: Open MPI's session directories then go with the cluster.
cat >"$root/task_prolog" <<PROLOG
#!/bin/sh
echo "export TMPDIR=$root/\$(hostname)/tmp"
PROLOG
chmod 755 "$root/task_prolog"
gres=
if [ "$n_gpus" -gt 0 ]; then
    # Slurm takes no GPU without a device file of its own: these are the device of /dev/null.
    for ((gpu = 0; gpu < n_gpus; gpu++)); do
        mknod "$root/gpu$gpu" c 1 3
    done
    echo "GresTypes=gpu" >>"$SLURM_CONF"
    echo "NodeName=n[1-$n_nodes] Name=gpu File=$root/gpu[0-$((n_gpus - 1))]" >"$root/gres.conf"
    gres="Gres=gpu:$n_gpus"
fi
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$root/hosts"
for ((i = 1; i <= n_nodes; i++)); do
    echo "127.0.0.1 n$i" >>"$root/hosts"
    mkdir -p "$root/n$i"/{spool,tmp}
    # More cores than the machine may have: only tests run here.
    echo "NodeName=n$i NodeAddr=127.0.0.1 Port=$((first_port + i)) CPUs=8 RealMemory=1000" \
        "$gres State=UNKNOWN" >>"$SLURM_CONF"
done
echo "PartitionName=main Nodes=n[1-$n_nodes] Default=YES MaxTime=60 State=UP" >>"$SLURM_CONF"

slurmctld -i -c
for ((i = 1; i <= n_nodes; i++)); do
    # shellcheck disable=SC2016 # expanded by the shell inside the namespaces
    unshare --mount --uts sh -c '
        hostname "$1"
        mount --bind "$2/hosts" /etc/hosts
        mount -t tmpfs tmpfs /dev/shm
        exec slurmd -N "$1" -c' sh "n$i" "$root"
done
all_idle() { [ "$(sinfo -h --responding -t idle -o %D)" = "$n_nodes" ]; }
wait_for "$n_nodes idle nodes" all_idle
