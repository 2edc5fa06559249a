#!/bin/bash
# Proves zero3 on a node with a GPU: kernels, training against the CPU, throughput, two ranks.
#   scripts/gpu_check.sh [OUT]        on the node, in a checkout that was built or in what `pack` made; OUT is gpu-check-out
#   scripts/gpu_check.sh pack FILE    on the build machine: program, its libraries and Open MPI in one archive
# Prints a line for each check, a table last; OUT/gpu_check.json has the figures. Ends with 1 where a check failed.
# Functions are called through `check`, which shellcheck does not see.
# shellcheck disable=SC2317
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# Dense bf16 TFLOP/s by name, from NVIDIA's data sheets. A device that is not here has no MFU.
peak_tflops() {
    case $1 in
        *H200*|*"H100 80GB HBM3"*|*"H100 SXM"*) echo 989.4 ;;
        *"H100 PCIe"*) echo 756 ;;
        *A100*) echo 312 ;;
        *B200*) echo 2250 ;;
        *L40S*) echo 362 ;;
        *) echo 0 ;;
    esac
}

pack() {
    local file=$1 dir mpi lib
    local program=${CARGO_TARGET_DIR:-target}/release/zero3
    [ -x "$program" ] || { echo "gpu_check.sh: $program is not there: make build" >&2; exit 1; }
    dir=$(mktemp -d)
    mkdir -p "$dir/gpu-check/bin" "$dir/gpu-check/lib" "$dir/gpu-check/scripts" "$dir/gpu-check/inputs"
    cp "$program" "$dir/gpu-check/bin/"
    cp scripts/gpu_check.sh "$dir/gpu-check/scripts/"
    cp -r inputs/. "$dir/gpu-check/inputs/"
    cp -r docs README.md "$dir/gpu-check/"
    # All but the C library, which belongs to the system, and what CUDA brings.
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
                libc.so.*|libm.so.*|libpthread.so.*|libdl.so.*|librt.so.*|ld-linux*|libresolv.so.*|libutil.so.*) ;;
                *) cp -L "$lib" "$dir/gpu-check/lib/" ;;
            esac
        done
    tar -C "$dir" -czf "$file" gpu-check
    rm -rf "$dir"
    echo "$file: $(du -h "$file" | cut -f1)"
}

if [ "${1:-}" = pack ]; then
    pack "${2:?usage: $0 pack FILE}"
    exit 0
fi

out=${1:-gpu-check-out}
mkdir -p "$out"
zero3=bin/zero3
launcher=mpirun
if [ -x bin/zero3 ]; then
    export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    if [ -d mpi ]; then
        export OPAL_PREFIX=$PWD/mpi OPAL_PKGLIBDIR=$PWD/mpi/lib/openmpi OPAL_PKGDATADIR=$PWD/mpi/share/openmpi
        launcher=$PWD/mpi/bin/mpirun
    fi
else
    zero3=${CARGO_TARGET_DIR:-target}/release/zero3
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# CUDA's libraries of a PyTorch, where there is one; its NCCL under the name that is looked for.
if command -v python3 >/dev/null; then
    for dir in $(python3 -c 'import site, glob, os
roots = site.getsitepackages() + [site.getusersitepackages()]
print(*[d for r in roots for d in sorted(glob.glob(os.path.join(r, "nvidia", "*", "lib")))])'); do
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$dir
        if [ -e "$dir/libnccl.so.2" ] && [ ! -e "$dir/libnccl.so" ]; then
            mkdir -p "$out/lib"
            ln -sf "$dir/libnccl.so.2" "$out/lib/libnccl.so"
            LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$(realpath "$out/lib")
        fi
    done
fi

rows=()
failed=0
# check NAME COMMAND...: runs it, into OUT/NAME.log
check() {
    local name=$1 began=$SECONDS verdict=PASSED
    shift
    if ! "$@" >"$out/$name.log" 2>&1; then
        verdict=FAILED
        failed=1
        tail -n 5 "$out/$name.log"
    fi
    rows+=("$(printf '%-28s %-7s %5d s' "$name" "$verdict" $((SECONDS - began)))")
    echo "${rows[-1]}"
    [ $verdict = PASSED ]
}

# A column of steps.csv by name.
column() {
    awk -F, -v want="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == want) at = i; next } at { print $at }' "$1/steps.csv"
}

# losses_agree A B TOLERANCE: step by step, relative.
losses_agree() {
    paste <(column "$1" loss) <(column "$2" loss) | awk -v tol="$3" '
        { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d; n++; if (NF != 2 || d != d) bad = 1 }
        END { printf "%d steps, largest relative difference %g, allowed %g\n", n, worst, tol; exit !(n > 0 && !bad && worst <= tol) }'
}

# train SECONDS RANKS DECK DIR KEY=VALUE...: afresh, under a limit.
train() {
    local limit=$1 n=$2 deck=$3 dir=$4 launch=()
    shift 4
    rm -rf "$dir"
    [ "$n" = 1 ] || launch=("$launcher" -n "$n" --oversubscribe --bind-to none)
    timeout -k 5 "$limit" "${launch[@]}" "$zero3" train "$deck" "run.dir=$dir" "$@"
}

text=('data.train=docs/*.md' data.val_fraction=0 train.eval_every=0 checkpoint.every=0)
tiny=(train.steps=20 "${text[@]}")
check kernels timeout 120 "$zero3" device check && cat "$out/kernels.log"
"$zero3" device check --json >"$out/kernels.json" 2>/dev/null
check tiny_cpu train 60 1 inputs/tiny.toml "$out/cpu" run.backend=cpu "${tiny[@]}"
check tiny_gpu train 60 1 inputs/tiny.toml "$out/gpu" run.backend=cuda "${tiny[@]}"
check tiny_losses losses_agree "$out/cpu" "$out/gpu" 1e-4 && cat "$out/tiny_losses.log"

device=$(head -n 1 "$out/kernels.log" 2>/dev/null | sed 's/ (sm_.*//')
peak=$(peak_tflops "$device")
# Bytes of text as tokens of GPT-2's vocabulary: the speed is the same.
gpt2=(train.micro_batch_size=16 train.global_batch_size=64 train.steps=12 "${text[@]}" data.val= data.format=text
    data.tokenizer=bytes model.vocab_size=50257 zero.param_dtype=bf16 zero.reduce_dtype=bf16
    "run.peak_gflops=$(awk -v t="$peak" 'BEGIN { print t * 1000 }')")
if check gpt2_124m train 180 1 inputs/gpt2-124m.toml "$out/gpt2" run.backend=cuda "${gpt2[@]}"; then
    # The first steps find algorithms and connect.
    tokens_per_s=$(column "$out/gpt2" tokens_per_s | tail -n 8 | sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }')
    mfu=$(column "$out/gpt2" mfu | tail -n 8 | sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }')
    echo "gpt2-124m bf16, 16 x 1024 tokens: $tokens_per_s tokens/s on $device (median of the last 8 steps)"
    if [ "$peak" != 0 ]; then
        echo "mfu $mfu = tokens/s * (6 per weight of a product + 12 L T C) / $peak TFLOP/s dense bf16; causal factor 1 (no discount)"
    fi
fi

n_gpus=$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU')
two=(run.backend=cuda zero.deterministic=true)
if [ "$n_gpus" -lt 2 ]; then
    # Two ranks on one device: NCCL's switches for tests; says nothing of speed.
    export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo
    two+=("run.devices=0,0")
fi
check two_ranks train 60 2 inputs/tiny.toml "$out/two" "${tiny[@]}" "${two[@]}"
check two_ranks_losses losses_agree "$out/gpu" "$out/two" 1e-4 && cat "$out/two_ranks_losses.log"

# Bus bandwidth where there are links to measure: the sections of the acceptance benchmark that need no training.
collectives() {
    rm -rf "$out/collectives"
    timeout -k 5 90 "$launcher" -n "$n_gpus" --oversubscribe --bind-to none "$zero3" accept inputs/acceptance.toml \
        "run.dir=$out/collectives" run.backend=cuda run.sections=inventory,device,collectives collectives.max_bytes=268435456 \
        collectives.iterations=20 device.seconds=1 device.gemm_n=8192 device.memory_bytes=1073741824
}
busbw=null
if [ "$n_gpus" -ge 2 ]; then
    if check collectives collectives; then
        busbw=$(awk '$2 ~ /^collectives\.(all_gather|reduce_scatter|library_reduce_scatter|all_reduce)\.busbw$/ {
                split($2, part, "."); printf "%s\"%s_gb_per_s\": %s", (n++ ? ", " : "{"), part[2], $3 }
            END { print n ? "}" : "null" }' "$out/collectives.log")
        grep -E 'busbw|latency' "$out/collectives.log"
    fi
else
    echo "bus bandwidth: not measured, there is one GPU"
fi

printf '\n%s\n' "$device"
printf '%s\n' "${rows[@]}"
{
    printf '{"date": "%s", "device": "%s", "peak_bf16_tflops": %s, "tokens_per_s": %s, "mfu": %s, "busbw": %s, "checks": [' \
        "$(date -u +%F)" "$device" "$peak" "${tokens_per_s:-null}" "${mfu:-null}" "$busbw"
    printf '%s\n' "${rows[@]}" | awk '{ printf "%s{\"name\": \"%s\", \"verdict\": \"%s\", \"seconds\": %s}", (NR > 1 ? ", " : ""), $1, $2, $3 }'
    printf ']}\n'
} >"$out/gpu_check.json"
echo "figures: $out/gpu_check.json, $out/kernels.json"
if [ "$failed" = 0 ]; then echo VALID; else echo INVALID; fi
exit "$failed"
