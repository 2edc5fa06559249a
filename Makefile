# zero3: build, run, test. `make` lists the targets and what was found on this machine. Variables: NP ranks,
# DECK and ARGS (key=value overrides, flags) of `make run`; PROFILE=dev for a quick build; MPICC, MPIRUN,
# HDF5_DIR of the machine.
SHELL := /bin/bash
.DEFAULT_GOAL := help
NP ?= 2
DECK ?= inputs/tiny.toml
ARGS ?=
PROFILE ?= release
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
RELEASE = $${CARGO_TARGET_DIR:-target}/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/zero3
# Read by the shell of each recipe, not by make: `setup` may have changed what there is to find.
CARGO = . scripts/env.sh && cargo
# Private items are documented too, so links to them lead somewhere.
DOC_LINT = -D warnings -A rustdoc::private-intra-doc-links

.PHONY: help setup setup-test build run test test-slow test-perfetto test-mllog test-hf test-python test-slurm test-cuda-orders fuzz slurm-lint gpu-pack gpu-check bench-peers figures lint doc clean

help: ## what can be made, and what this machine has
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo; scripts/deps.sh show

setup: ## install what building and running need (Debian, Ubuntu); nothing if all is there
	@scripts/deps.sh install

setup-test: ## the same, and what the tests need: Slurm, shellcheck, h5dump, chromium, and from PyPI nvcc and NCCL (no GPU)
	@scripts/deps.sh install test
	@scripts/cuda_compiler.sh
	@scripts/nccl_library.sh

build: setup ## target/release/zero3
	$(CARGO) build --profile $(PROFILE)

run: build ## train inputs/tiny.toml: make run NP=3 ARGS="train.steps=500 optim.lr=2e-3"
	@scripts/mpirun.sh $(NP) "$(RELEASE)" train $(DECK) $(ARGS)

test: setup-test ## all tests but those of the targets below: units, documents, many ranks under mpirun, a two-node Slurm
	$(CARGO) test --no-fail-fast

test-slow: setup-test ## what takes minutes: fifty kills, each file operation failing in turn, the decks of the day, predictions; and an error of a real device (root)
	$(CARGO) test --test checkpoint_faults -- --ignored
	$(CARGO) test --test kill_rounds -- --ignored --nocapture
	$(CARGO) test --test same_bits -- --ignored --nocapture
	$(CARGO) test --test plan -- --ignored

test-perfetto: build ## Perfetto's own trace processor reads a trace; fetches it from PyPI and the network (PERFETTO_BINARY: none of the latter)
	tests/perfetto/run.sh

test-mllog: build ## MLPerf's own parser reads the acceptance benchmark's mllog.txt; fetches it from PyPI
	tests/mllog/run.sh

test-hf: build ## the transformers package loads exports, and imports what it wrote; fetches it from PyPI (HF_PYTHON: one that has it)
	tests/hf/run.sh "$(RELEASE)"

test-python: setup-test ## h5py reads every parameter of a checkpoint's model.h5; fetches it from PyPI
	[ -x target/h5py-venv/bin/python3 ] || python3 -m venv target/h5py-venv
	target/h5py-venv/bin/python3 -c 'import h5py' 2>/dev/null || target/h5py-venv/bin/pip install -q h5py
	. scripts/env.sh && PATH="$$PWD/target/h5py-venv/bin:$$PATH" cargo test --test checkpoint_tools -- --ignored

test-slurm: setup-test ## the tests on Slurm alone, with the one that waits a minute for its time limits
	$(CARGO) test --test slurm -- --include-ignored

test-cuda-orders: setup-test ## the CUDA path on doubles: 1 to 5 ranks in 22 orders of streams, some minutes
	$(CARGO) test --test cuda_doubles -- --ignored

fuzz: setup ## libFuzzer on each reader of foreign files: make fuzz FUZZ_SECONDS=60 FUZZ_TARGETS="deck tokens"
	fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)

figures: build ## docs/figures/, the pictures of docs/zero3.md, from a run on 3 ranks made for them
	scripts/figures.sh "$(RELEASE)"

slurm-lint: setup-test ## sbatch --test-only of every script, on the test cluster; with SLURM_CONF or on a cluster: on that one
	tests/slurm/lint.sh

gpu-pack: build ## target/gpu-check.tar.gz for a node with a GPU: program, MPI, HDF5, decks, the check
	. scripts/env.sh && scripts/gpu_check.sh pack $${CARGO_TARGET_DIR:-target}/gpu-check.tar.gz

gpu-check: build ## prove the CUDA path on this machine's GPU: docs/gpu.md
	. scripts/env.sh && scripts/gpu_check.sh

bench-peers: build ## zero3 beside PyTorch FSDP2 and DeepSpeed, in turn, on this machine: benches/peers/README.md
	benches/peers/run.sh --program "$(RELEASE)" $(ARGS)

lint: setup-test ## rustfmt, clippy, rustdoc and shellcheck, warnings refused
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	. scripts/env.sh && RUSTDOCFLAGS="$(DOC_LINT)" cargo doc --no-deps --document-private-items
	shellcheck -x scripts/*.sh fuzz/run.sh tests/slurm/*.sh tests/perfetto/*.sh tests/mllog/*.sh tests/hf/*.sh benches/peers/*.sh slurm/*.sbatch slurm/*.sh .ci/run

doc: setup ## the documents of the sources: target/doc/zero3/index.html
	$(CARGO) doc --no-deps --document-private-items

clean: ## remove what was built; runs/ stays
	cargo clean
