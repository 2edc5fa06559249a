#!/bin/bash
# Validates zero3 on a node with a GPU: kernels, training against the CPU, throughput, two ranks.
#   scripts/gpu_check.sh [OUT]        on the node, in a built checkout or an unpacked archive; OUT is
#                                     gpu-check-out by default
#   scripts/gpu_check.sh pack FILE    on the build machine: program, its libraries and Open MPI in one archive
# Prints a line per check and a table at the end; OUT/gpu_check.json has the figures. Exit code: 0 all checks
# passed (VALID), 1 a check failed (INVALID), 2 none failed but some were skipped (INCOMPLETE). Variables:
# GPU_CHECK_SECONDS, the time budget of all checks together (450); GPU_CHECK_GPUS, the number of GPUs, if
# nvidia-smi does not report it; GPU_CHECK_PEAK_TFLOPS, dense bf16, for a device that is not in the table;
# GPU_CHECK_SMALL=1, small shapes that test this script, not a device. Functions are called through `check`,
# which shellcheck does not see.
# shellcheck disable=SC2317
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# Dense bf16 TFLOP/s by name, from NVIDIA's data sheets. An unlisted device has no MFU.
peak_tflops() {
    case $1 in
        *GB200*) echo 2500 ;;
        *B200*) echo 2250 ;;
        *H200*|*"H100 80GB HBM3"*|*"H100 SXM"*) echo 989.4 ;;
        *"H100 PCIe"*) echo 756 ;;
        *A100*) echo 312 ;;
        *L40S*) echo 362 ;;
        *) echo 0 ;;
    esac
}

# The newest GLIBC_x.y that any of these files requires.
glibc_floor() {
    readelf --version-info "$@" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 |
        sed 's/GLIBC_//'
}

pack() {
    local file=$1 dir mpi lib
    local program=${CARGO_TARGET_DIR:-target}/release/zero3
    [ -x "$program" ] || { echo "gpu_check.sh: $program does not exist: run make build" >&2; exit 1; }
    dir=$(mktemp -d)
    mkdir -p "$dir/gpu-check/bin" "$dir/gpu-check/lib" "$dir/gpu-check/scripts" "$dir/gpu-check/inputs"
    cp "$program" "$dir/gpu-check/bin/"
    cp scripts/gpu_check.sh "$dir/gpu-check/scripts/"
    cp -r inputs/. "$dir/gpu-check/inputs/"
    cp -r docs README.md "$dir/gpu-check/"
    # All libraries except the C library, which belongs to the system, and CUDA's.
    local launcher objects
    launcher=$(readlink -f "$(command -v mpirun)")
    mpi=$(ompi_info --path pkglibdir --parsable 2>/dev/null | sed 's/.*://')
    objects=("$program" "$launcher" "$(command -v orted)")
    if [ -d "$mpi" ]; then
        mkdir -p "$dir/gpu-check/mpi/bin" "$dir/gpu-check/mpi/lib" "$dir/gpu-check/mpi/share"
        cp -rL "$mpi" "$dir/gpu-check/mpi/lib/openmpi"
        cp -L "$launcher" "$dir/gpu-check/mpi/bin/mpirun"
        cp -L "$(command -v orted)" "$dir/gpu-check/mpi/bin/orted"
        cp -rL "$(ompi_info --path pkgdatadir --parsable | sed 's/.*://')" "$dir/gpu-check/mpi/share/openmpi"
        objects+=("$mpi"/*.so)
    fi
    ldd "${objects[@]}" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        while read -r lib; do
            case $(basename "$lib") in
                libc.so.*|libm.so.*|libpthread.so.*|libdl.so.*|librt.so.*) ;;
                ld-linux*|libresolv.so.*|libutil.so.*) ;;
                *) cp -L "$lib" "$dir/gpu-check/lib/" ;;
            esac
        done
    glibc_floor "$program" "$dir"/gpu-check/lib/* "$dir"/gpu-check/mpi/bin/* \
        "$dir"/gpu-check/mpi/lib/openmpi/*.so >"$dir/gpu-check/glibc"
    tar -C "$dir" -czf "$file" gpu-check
    echo "$file: $(du -h "$file" | cut -f1), for x86_64 with glibc $(cat "$dir/gpu-check/glibc") or newer"
    rm -rf "$dir"
}

if [ "${1:-}" = pack ]; then
    pack "${2:?usage: $0 pack FILE}"
    exit 0
fi

out=${1:-gpu-check-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
zero3=bin/zero3
launcher=mpirun
if [ -x bin/zero3 ]; then
    floor=$(cat glibc)
    here=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/glibc //')
    if [ -n "$here" ] && [ "$(printf '%s\n%s\n' "$floor" "$here" | sort -V | head -n 1)" != "$floor" ]; then
        echo "gpu_check.sh: this archive requires glibc $floor or newer, this node has $here:" \
            "run make gpu-pack on an older system" >&2
        exit 1
    fi
    export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    if [ -d mpi ]; then
        export OPAL_PREFIX=$PWD/mpi OPAL_PKGLIBDIR=$PWD/mpi/lib/openmpi OPAL_PKGDATADIR=$PWD/mpi/share/openmpi
        launcher=$PWD/mpi/bin/mpirun
    fi
else
    zero3=${CARGO_TARGET_DIR:-target}/release/zero3
fi
# All ranks are on this node. mpirun needs neither ssh nor Slurm then, but refuses to start without either
# unless this is set.
export OMPI_MCA_plm=isolated OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Kernels are compiled once, and nothing is written outside OUT.
export XDG_CACHE_HOME=$out/cache
rm -rf "$out/cache"

# The CUDA libraries of an installed PyTorch, if any; its NCCL under the name the program loads.
if command -v python3 >/dev/null; then
    for dir in $(python3 -c 'import site, glob, os
roots = site.getsitepackages() + [site.getusersitepackages()]
print(*[d for r in roots for d in sorted(glob.glob(os.path.join(r, "nvidia", "*", "lib")))])'); do
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$dir
        if [ -e "$dir/libnccl.so.2" ] && [ ! -e "$dir/libnccl.so" ]; then
            mkdir -p "$out/lib"
            ln -sf "$dir/libnccl.so.2" "$out/lib/libnccl.so"
            LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$out/lib
        fi
    done
fi

budget=${GPU_CHECK_SECONDS:-450}
small=${GPU_CHECK_SMALL:-}
rows=()
declare -A verdicts
n_failed=0 n_skipped=0
# Time limit of the current check's command, in seconds.
limit=0

# record NAME VERDICT SECONDS [WHY]
record() {
    verdicts[$1]=$2
    rows+=("$(printf '%-24s %-8s %5d s  %s' "$1" "$2" "$3" "${4:-}")")
    echo "${rows[-1]}"
}

# check NAME LIMIT NEEDED COMMAND...: runs the command with its output in OUT/NAME.log, if the checks NEEDED
# (separated by commas, or -) have passed and the budget is not exhausted. The command must observe $limit:
# LIMIT seconds, or the rest of the budget.
check() {
    local name=$1 own=$2 needed=$3 began=$SECONDS left=$((budget - SECONDS)) code
    shift 3
    for one in ${needed//,/ }; do
        if [ "$one" != - ] && [ "${verdicts[$one]:-}" != PASSED ]; then
            n_skipped=$((n_skipped + 1))
            record "$name" SKIPPED 0 "($one has not passed)"
            return 1
        fi
    done
    if [ "$left" -le 0 ]; then
        n_skipped=$((n_skipped + 1))
        record "$name" SKIPPED 0 "(time)"
        return 1
    fi
    limit=$((own < left ? own : left))
    "$@" >"$out/$name.log" 2>&1
    code=$?
    if [ "$code" = 0 ]; then
        record "$name" PASSED $((SECONDS - began))
        return 0
    fi
    if [ "$limit" -lt "$own" ] && { [ "$code" = 124 ] || [ "$code" = 137 ]; }; then
        n_skipped=$((n_skipped + 1))
        record "$name" SKIPPED $((SECONDS - began)) "(time)"
        return 1
    fi
    n_failed=$((n_failed + 1))
    tail -n 5 "$out/$name.log"
    local why="exit code $code"
    [ "$code" != 124 ] || why="timed out after $limit s"
    record "$name" FAILED $((SECONDS - began)) "($why, see $name.log)"
    return 1
}

# A column of steps.csv by name.
column() {
    awk -F, -v want="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == want) at = i; next }
        at { print $at }' "$1/steps.csv"
}

# The median of a column's last 8 values; the first steps select algorithms and connect.
median() {
    column "$1" "$2" | tail -n 8 | grep . | sort -g |
        awk '{ x[NR] = $1 } END { if (NR > 0) print x[int((NR + 1) / 2)] }'
}

# losses_agree A B TOLERANCE: relative difference, step by step.
losses_agree() {
    column "$1" loss >"$1/losses" && column "$2" loss >"$2/losses" &&
        paste "$1/losses" "$2/losses" | awk -v tol="$3" '
            { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d; n++ }
            NF != 2 || d != d { bad = 1 }
            END {
                printf "%d steps, largest relative difference %g, tolerance %g\n", n, worst, tol
                exit !(n > 0 && !bad && worst <= tol)
            }'
}

# train RANKS DECK DIR KEY=VALUE...: trains from scratch, within $limit.
train() {
    local n=$1 deck=$2 dir=$3 launch=()
    shift 3
    rm -rf "$dir"
    [ "$n" = 1 ] || launch=("$launcher" -n "$n" --oversubscribe --bind-to none)
    timeout -k 5 "$limit" "${launch[@]}" "${wrapper[@]}" "$zero3" train "$deck" "run.dir=$dir" "$@"
}
# Command prefix of every rank.
wrapper=()

kernels() {
    timeout -k 5 "$limit" "$zero3" device check --save "$out/kernels.json" ${small:+--small}
}

text=('data.train=docs/*.md' data.val_fraction=0 train.eval_every=0 checkpoint.every=0)
steps=20
[ -z "$small" ] || steps=3
tiny=("train.steps=$steps" "${text[@]}")
check kernels 120 - kernels && cat "$out/kernels.log"
check tiny_cpu 60 - train 1 inputs/tiny.toml "$out/cpu" run.backend=cpu "${tiny[@]}"
check tiny_gpu 60 - train 1 inputs/tiny.toml "$out/gpu" run.backend=cuda "${tiny[@]}"
check tiny_losses 10 tiny_cpu,tiny_gpu losses_agree "$out/cpu" "$out/gpu" 1e-4 && cat "$out/tiny_losses.log"

n_gpus=${GPU_CHECK_GPUS:-$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU')}
two=(run.backend=cuda)
if [ "$n_gpus" -lt 2 ]; then
    # Two ranks on one device, a test of correctness, not of speed. Before 2.30, NCCL refuses this unless each
    # rank appears to be a separate host; from 2.30 on a variable allows it.
    export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
    export NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo
    # shellcheck disable=SC2016 # for each rank's shell
    wrapper=(bash -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$0" "$@"')
    two+=("run.devices=0,0")
fi
# Sends and receives with an ordered sum, then NCCL's own reduce-scatter.
check two_ranks 60 - train 2 inputs/tiny.toml "$out/two" "${tiny[@]}" "${two[@]}" zero.deterministic=true
check two_ranks_losses 10 tiny_gpu,two_ranks losses_agree "$out/gpu" "$out/two" 1e-4 &&
    cat "$out/two_ranks_losses.log"
check nccl_sum 60 - train 2 inputs/tiny.toml "$out/sum" "${tiny[@]}" "${two[@]}" zero.deterministic=false
check nccl_sum_losses 10 tiny_gpu,nccl_sum losses_agree "$out/gpu" "$out/sum" 1e-4 &&
    cat "$out/nccl_sum_losses.log"
wrapper=()

device=$(head -n 1 "$out/kernels.log" 2>/dev/null | sed -n 's/ (sm_.*//p')
peak=${GPU_CHECK_PEAK_TFLOPS:-$(peak_tflops "$device")}
# Bytes of text as tokens of GPT-2's vocabulary: the speed is the same.
gpt2=(train.micro_batch_size=16 train.global_batch_size=64 train.steps=12 "${text[@]}" data.val=
    data.format=text data.tokenizer=bytes model.vocab_size=50257 zero.param_dtype=bf16 zero.reduce_dtype=bf16
    "run.peak_gflops=$(awk -v t="$peak" 'BEGIN { print t * 1000 }')")
shape="gpt2-124m bf16, 16 x 1024 tokens"
if [ -n "$small" ]; then
    gpt2+=(model.n_layer=1 model.d_model=64 model.n_head=2 model.seq_len=32 model.vocab_size=300
        train.micro_batch_size=2 train.global_batch_size=2 train.steps=3)
    shape="a small model, not representative"
fi
tokens_per_s='' mfu=''
if check gpt2_124m 180 - train 1 inputs/gpt2-124m.toml "$out/gpt2" run.backend=cuda "${gpt2[@]}"; then
    tokens_per_s=$(median "$out/gpt2" tokens_per_s)
    echo "$shape: $tokens_per_s tokens/s on $device (median of the last 8 steps)"
    if [ "$peak" != 0 ]; then
        mfu=$(median "$out/gpt2" mfu)
        echo "mfu $mfu = tokens/s * (6 per matmul weight + 12 L T C) / $peak TFLOP/s dense bf16;" \
            "causal factor 1 (no discount)"
    fi
fi

# Bus bandwidth, if there are links to measure: the sections of the acceptance benchmark without training.
collectives() {
    local sizes=(collectives.max_bytes=268435456 collectives.iterations=20
        device.seconds=1 device.gemm_n=8192 device.memory_bytes=1073741824)
    [ -z "$small" ] || sizes=(collectives.max_bytes=4096 collectives.iterations=3 collectives.slow_link=0.9999
        device.seconds=0.02 device.gemm_n=64 device.memory_bytes=65536 device.slow_rank=0.9999)
    rm -rf "$out/collectives"
    timeout -k 5 "$limit" "$launcher" -n "$n_gpus" --oversubscribe --bind-to none \
        "$zero3" accept inputs/acceptance.toml "run.dir=$out/collectives" run.backend=cuda \
        run.sections=inventory,device,collectives "${sizes[@]}"
}
busbw=null
if [ "$n_gpus" -ge 2 ]; then
    if check collectives 90 - collectives; then
        busbw=$(awk '
            $2 ~ /^collectives\.(all_gather|reduce_scatter|library_reduce_scatter|all_reduce)\.busbw$/ {
                split($2, part, "."); printf "%s\"%s_gb_per_s\": %s", (n++ ? ", " : "{"), part[2], $3 }
            END { print n ? "}" : "null" }' "$out/collectives.log")
        grep -E 'busbw|latency' "$out/collectives.log"
    fi
else
    echo "bus bandwidth: not measured, only one GPU"
fi

verdict=VALID code=0
if [ "$n_failed" != 0 ]; then
    verdict=INVALID code=1
elif [ "$n_skipped" != 0 ]; then
    verdict=INCOMPLETE code=2
fi
printf '\n%s\n' "${device:-no device}"
printf '%s\n' "${rows[@]}"
{
    printf '{"date": "%s", "device": "%s", "verdict": "%s", ' "$(date -u +%F)" "$device" "$verdict"
    printf '"seconds": %s, "budget_seconds": %s, "small": %s, "peak_bf16_tflops": %s, ' \
        "$SECONDS" "$budget" "$([ -n "$small" ] && echo true || echo false)" "$peak"
    printf '"tokens_per_s": %s, "mfu": %s, "busbw": %s, ' "${tokens_per_s:-null}" "${mfu:-null}" "$busbw"
    printf '"checks": ['
    printf '%s\n' "${rows[@]}" | awk '{
        why = ""; for (i = 5; i <= NF; i++) why = why (i > 5 ? " " : "") $i
        printf "%s{\"name\": \"%s\", \"verdict\": \"%s\", ", (NR > 1 ? ", " : ""), $1, $2
        printf "\"seconds\": %s, \"why\": \"%s\"}", $3, why
    }'
    printf ']}\n'
} >"$out/gpu_check.json"
echo "figures: $out/gpu_check.json, $out/kernels.json"
echo "$verdict after $SECONDS s"
exit "$code"
