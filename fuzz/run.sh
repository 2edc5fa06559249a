#!/usr/bin/env bash
# fuzz/run.sh [SECONDS] [TARGET...]: builds the fuzz targets with the stable compiler and runs each for that
# long (60 s). Targets: manifest, rank_file, rank_file_v1, and every reader in the table of src/readers.rs.
#
# libFuzzer is built from source by its crate; the flags below are those of cargo-fuzz for coverage, which the
# stable compiler accepts. Sanitizers need a nightly one. Findings stay in fuzz/artifacts; corpora grow in
# fuzz/corpus (both untracked). A panic, an abort, more than 1 GB and more than 10 s are findings.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=scripts/env.sh
. ../scripts/env.sh

seconds=${1:-60}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t readers < <(sed -n 's/^    ("\([a-z_]*\)",.*/\1/p' src/readers.rs)
    targets=(manifest rank_file rank_file_v1 "${readers[@]}")
fi

host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
RUSTFLAGS="--cfg fuzzing -C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4 \
-C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table \
-C llvm-args=-sanitizer-coverage-trace-compares -C codegen-units=1" \
    nice -n 10 cargo build --release --target "$host"

for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" artifacts
    program=readers
    # Seeds: the checked-in checkpoint of version 1, tests' golden files, and fuzz/seeds.
    case $target in
        manifest)
            program=$target
            cp ../tests/golden/checkpoint_v1/manifest.json "corpus/$target/golden"
            ;;
        rank_file | rank_file_v1)
            program=$target
            cp ../tests/golden/checkpoint_v1/rank_0000_of_0002.h5 "corpus/$target/golden"
            ;;
        config_json)
            for family in gpt2 llama qwen3; do
                cp "../tests/golden/hf_$family/config.json" "corpus/$target/$family"
            done
            ;;
        tokenizer_json) cp ../tests/golden/tokenizer.json "corpus/$target/golden" ;;
        *) cp "seeds/$target"/* "corpus/$target/" ;;
    esac
    echo "== $target"
    ZERO3_FUZZ_READER=$target nice -n 10 "$CARGO_TARGET_DIR/$host/release/$program" "corpus/$target" \
        "-artifact_prefix=artifacts/$target-" "-max_total_time=$seconds" -max_len=65536 -rss_limit_mb=1024 \
        -timeout=10 -print_final_stats=1
done
