#!/usr/bin/env bash
# fuzz/run.sh [SECONDS] [TARGET...]: builds the fuzz targets with the stable compiler and runs each for so
# long (60).
#
# libFuzzer is built from source by its crate; the flags below are those of cargo-fuzz for coverage, which the
# stable compiler takes. Sanitizers need a nightly one. What was found stays in fuzz/artifacts; corpora grow
# in fuzz/corpus (both untracked).
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=scripts/env.sh
. ../scripts/env.sh

seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(manifest rank_file rank_file_v1)

host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export RUSTFLAGS="--cfg fuzzing -C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4 \
-C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table \
-C llvm-args=-sanitizer-coverage-trace-compares -C codegen-units=1"
nice -n 5 cargo build --release --target "$host"

for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" artifacts
    # Seeds: the checked-in checkpoint of version 1.
    case $target in
        manifest) cp ../tests/golden/checkpoint_v1/manifest.json "corpus/$target/golden" ;;
        *) cp ../tests/golden/checkpoint_v1/rank_0000_of_0002.h5 "corpus/$target/golden" ;;
    esac
    "$CARGO_TARGET_DIR/$host/release/$target" "corpus/$target" -artifact_prefix=artifacts/ \
        -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -timeout=10 -print_final_stats=1
done
