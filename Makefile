# The commands of the project; CI runs `make test` and nothing else. `make help` lists them.
#
# One rule holds for every cargo call here: the release profile, one target folder and one
# environment (scripts/step.sh), so that llama.cpp is compiled once. CONTRIBUTING.md says why.

FUZZ_SECONDS ?= 30
MODEL ?=
BACKEND ?=
DEFAULT_MODEL := .tools/models/SmolLM2-135M-Instruct.Q4_1.gguf
ARGS ?=

CARGO_TARGET_DIR ?= target
PONCHO := $(CARGO_TARGET_DIR)/release/poncho
STEP := @scripts/step.sh

# What bootstrap makes sure of besides the build's own tools. A model that is there needs no pip.
NEEDS :=
test: NEEDS := clients pip venv
agents open-webui: NEEDS := clients venv
bench model deployment fit-matrix drafts-peer cluster-figures: NEEDS := $(if $(wildcard $(DEFAULT_MODEL)),,pip)
shared-figures: NEEDS := pip
run: NEEDS := $(if $(MODEL)$(wildcard $(DEFAULT_MODEL)),,pip)
dist: NEEDS := venv

# One word for the shell: the names of models have spaces and parentheses. A tilde is still the home.
quoted = '$(subst ','\'',$(patsubst ~/%,$(HOME)/%,$(1)))'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run build cpu-builds cpu-figures dist test test-vulkan check bench doc fuzz model newcomer deployment boundary drafts-peer turmoil fit-matrix agents open-webui peer gpu-bundle bootstrap shared-figures cluster-figures

# What needs no compiled llama.cpp comes first: a stray space must not cost a build.
define CHECKS
$(STEP) 'format' cargo fmt --all --check
$(STEP) 'tidy' cargo xtask tidy
$(STEP) 'dependencies' cargo xtask deny
$(STEP) 'one build of llama.cpp' scripts/one_llama_build.py
$(STEP) 'clippy' cargo clippy --workspace --all-targets --release -- -D warnings
$(STEP) 'clippy of the fuzz targets' cargo clippy -p poncho-fuzz --features libfuzzer --release -- -D warnings
$(STEP) 'documentation' env RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --release
endef

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  make run    takes MODEL=path-of-a-GGUF and ARGS="more flags of poncho serve"'
	@echo '  make test   takes FUZZ_SECONDS=30, the time given to each fuzz target (make fuzz too)'

run: build $(if $(MODEL),,model) ## Build Poncho, fetch the default model and serve it
	@exec $(PONCHO) serve --model $(call quoted,$(or $(MODEL),$(DEFAULT_MODEL))) $(ARGS)

build: bootstrap ## Build the binaries poncho and poncho-bench (BACKEND=cuda, hip or vulkan: that device too)
	$(STEP) 'console' scripts/console.sh build
	$(STEP) 'build' cargo build -p poncho -p poncho-bench --release
	$(if $(BACKEND),$(STEP) 'backend $(BACKEND)' scripts/gpu/build_backend.py $(BACKEND) --poncho $(PONCHO) --jobs $$(nproc))

cpu-builds: build ## Build poncho for newer CPUs too (AVX-512, AVX-VNNI); the program takes the best one that works
	$(STEP) 'builds for newer CPUs' scripts/dist/builds.py $(ARGS)

cpu-figures: cpu-builds model ## Measure the builds for newer CPUs beside the one for all (CPU_ROUNDS)
	$(STEP) 'build for all CPUs' scripts/dist/builds.py base
	$(STEP) 'figures of builds' crates/bench/cpu/figures.py

dist: cpu-builds ## Pack the binaries into target/dist: an archive, a Debian package, a Python wheel; each is tried
	$(STEP) 'build for all CPUs' scripts/dist/builds.py base
	$(STEP) 'packages' scripts/dist/archive.py

test: bootstrap ## Everything that CI checks: format, lints, docs, all tests, a short fuzz run
	$(STEP) 'console: types, lints, build' scripts/console.sh check
	$(CHECKS)
	$(STEP) 'other machines: aarch64' scripts/cross_check.py
	$(STEP) 'default model' scripts/fetch/model.py
	$(STEP) 'templates of llama.cpp' scripts/fetch/llama_cpp.py
	$(STEP) 'object store of the tests' scripts/fetch/seaweedfs.py
	$(STEP) 'second object store of the tests' scripts/fetch/azurite.py
	$(STEP) 'NATS server' scripts/fetch/nats.py
	$(STEP) 'schema of Kubernetes' scripts/fetch/kubernetes.py
	$(STEP) 'tests' cargo nextest run --workspace --release
	$(STEP) 'clients: SDKs, contract, soak' tests/clients/run.py
	$(STEP) 'console in a browser' scripts/console.sh browser
	$(STEP) 'examples in the documentation' cargo test --doc --workspace --release
	$(STEP) 'schedules of the cache (shuttle)' cargo nextest run -p poncho-cache --features shuttle --release -E 'test(shuttle)'
	$(STEP) 'fuzz, $(FUZZ_SECONDS) s each at most' env FUZZ_RUNS=20000 fuzz/run.sh $(FUZZ_SECONDS)

# Beside the binary every other test would find the library.
VULKAN_BACKENDS := $(abspath $(CARGO_TARGET_DIR))/test-vulkan

test-vulkan: bootstrap ## Test states on a Vulkan device in software, on Debian (docs/devices.md; three minutes to compile shaders, once)
	$(STEP) 'Vulkan: headers, glslc, lavapipe' scripts/fetch/vulkan.py
	$(STEP) 'build' cargo build -p poncho --release
	$(STEP) 'backend vulkan' scripts/gpu/build_backend.py vulkan --poncho $(PONCHO) --out $(VULKAN_BACKENDS) --jobs $$(nproc)
	$(STEP) 'states on lavapipe' .tools/vulkan/run env PONCHO_TEST_DEVICE=Vulkan0 PONCHO_TEST_FLAGS='--flash-attn off' PONCHO_BACKENDS=$(VULKAN_BACKENDS) cargo nextest run --release -p poncho --retries 0 -E 'test(states_pass_through_a_device_that_is_not_the_host)'

check: bootstrap ## Static checks only: format, tidy, clippy, docs
	$(CHECKS)

# `cargo bench` alone would use its own profile, and that one compiles llama.cpp again.
bench: bootstrap model ## Run the benchmarks
	$(STEP) 'benchmarks' cargo bench --workspace --benches --profile release

doc: bootstrap ## Build the API documentation into target/doc
	$(STEP) 'documentation' env RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --release

fuzz: bootstrap ## Fuzz all parsers of outside input, FUZZ_SECONDS for each target (FUZZ_TARGETS names some)
	$(STEP) 'fuzz, $(FUZZ_SECONDS) s each' fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)

model: bootstrap ## Fetch the default model, SmolLM2-135M-Instruct, into .tools/models
	$(STEP) 'default model' scripts/fetch/model.py

peer: bootstrap ## Build llama-server with the same flags, to compare with (docs/benchmarks.md)
	$(STEP) 'llama-server' scripts/build_peer.sh

gpu-bundle: build ## Pack binaries, ggml's sources and scripts for a machine with a GPU (docs/benchmarks-gpu.md)
	$(STEP) 'benchmarks' cargo build -p poncho-engine --bench device --bench drafts --release
	$(STEP) 'bundle' scripts/gpu/bundle.py

newcomer: ## Do what the README says, in a fresh clone with an empty home (takes a first build)
	@scripts/newcomer.py $(ARGS)

deployment: build model ## Try packaging/ for real: nginx, caddy, systemd, a container (as root; says what to install)
	$(STEP) 'deployment' scripts/try_deployment.py $(ARGS)

boundary: build model ## Measure what the engine's own process costs, beside an engine in the server's process
	$(STEP) 'boundary' crates/bench/boundary.py

drafts-peer: build model peer ## Measure drafts on the CPU beside llama-server with n-gram drafts (docs/drafts.md)
	$(STEP) 'drafts' crates/bench/drafts_peer.py

turmoil: bootstrap ## End the engine 200 times at random moments under eight streams, and print how long they waited
	$(STEP) 'turmoil' env PONCHO_TURMOIL=50 cargo nextest run --release --workspace --no-capture -E 'package(poncho) & test(turmoil)'

shared-figures: build model ## Measure the shared cache with SeaweedFS: beside a plain GET, with stores that fail (ARGS="remote faults": some parts)
	$(STEP) 'object store' scripts/fetch/seaweedfs.py
	$(STEP) 'plain client of the store' cargo build -p poncho-shared --example raw_get --release
	$(STEP) 'shared cache' crates/bench/shared/figures.py $(ARGS)

fit-matrix: bootstrap model ## Start on hosts of 2 to 16 GiB and plan large models for GPUs, and print tables (docs/fit.md)
	$(STEP) 'fit matrix' env PONCHO_FIT_MATRIX=1 cargo nextest run --release --workspace --no-capture -E 'test(fit_matrix)'

cluster-figures: build model ## Measure and break a cluster of four nodes, and print figures (docs/cluster.md; TRACES names recorded conversations, MODEL a small model to replay them with)
	$(STEP) 'NATS server' scripts/fetch/nats.py
	$(STEP) 'pulls' cargo build -p poncho-shared --example pull_rate --release
	$(STEP) 'pulls through a line of 1 Gbit' scripts/with_line.sh 1gbit $(CARGO_TARGET_DIR)/release/examples/pull_rate 256
	$(STEP) 'cluster figures' env PONCHO_CLUSTER_FIGURES=1 $(if $(TRACES),PONCHO_CLUSTER_TRACES=$(abspath $(TRACES))) $(if $(MODEL),PONCHO_CLUSTER_MODEL=$(abspath $(MODEL))) cargo nextest run --release --workspace --no-capture -E 'package(poncho) & test(figures)'

agents: bootstrap ## Run real agents as docs/agents.md sets them up (nightly; installs 2 GB of clients)
	$(STEP) 'build' cargo build -p poncho --release
	$(STEP) 'stub server' cargo build -p poncho-server --examples --release
	$(STEP) 'agents' tests/clients/agents.py $(ARGS)

open-webui: build model ## Run Open WebUI in a browser as docs/agents.md sets it up (nightly; installs 1.8 GB)
	$(STEP) 'Open WebUI' tests/clients/open_webui.py $(ARGS)

bootstrap: ## Install what the build needs and is missing (the other targets do this first)
	@scripts/bootstrap.sh $(NEEDS)
