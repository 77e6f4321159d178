# make help lists the targets. Everything lives in .venv; nothing outside the repository is changed.

PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
VENV   ?= .venv
BIN    := $(VENV)/bin
# What the virtual environment is made for: gpu needs the NVIDIA driver, and nvcc to build the kernels.
ACCELERATOR ?= $(if $(wildcard /dev/nvidia0),gpu,cpu)
CONFIG ?= deploy/configs/demo.yaml
ARGS   ?=

# A Python of your own that has everything, this package built and installed: make test-gpu ENV_PYTHON=python3
ifdef ENV_PYTHON
RUN := $(ENV_PYTHON)
else
RUN := $(BIN)/python
endif

# Of a machine without a GPU: one of requirements/vllm-*.txt.
VLLM ?= 0.29
TORCH_VERSION := 2.13.0
UV            := uv==0.13.9
# All files at any depth; a machine without a GPU does not build what lies in csrc/cuda.
SOURCES_CXX   := $(shell find csrc -type f $(if $(filter gpu,$(ACCELERATOR)),,-not -path 'csrc/cuda/*'))

export RAY_USAGE_STATS_ENABLED := 0
# Where it is set, as in many container images, every process of a service compiles vLLM's modules anew: half a minute each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# Another vLLM in the same folder is installed over the one that is there.
INSTALLED := $(VENV)/.installed$(if $(and $(filter cpu,$(ACCELERATOR)),$(filter-out 0.29,$(VLLM))),-$(VLLM))

setup: $(if $(ENV_PYTHON),,$(VENV)/.built) ## virtual environment, pinned dependencies, compiled extension

ifeq ($(ACCELERATOR),gpu)
$(VENV)/.installed: requirements/gpu.txt
	@test -n "$(PYTHON)" || { echo "error: need Python 3.11 or 3.12 with venv (Debian: apt install python3 python3-venv); or set PYTHON=..." >&2; exit 1; }
	@command -v nvcc >/dev/null || { echo "error: need nvcc, CUDA 12.8 or newer, to build the kernels; or set ACCELERATOR=cpu" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -r requirements/gpu.txt
	@touch $@
else
# The CPU build of torch where pip finds one (a wheel folder or an index of CPU builds); else the default build with its
# libraries, which runs on a CPU as well. Python compiles what it imports; to compile all takes as long as to install all.
# uv installs in a sixth of pip's time, but reads none of pip's settings: where it finds no package, pip does.
install = $(BIN)/uv pip install -q --no-cache --no-deps --python $(1)/bin/python $(2) 2>/dev/null \
	|| $(BIN)/python -m pip --python $(1)/bin/python install -q --no-compile --no-deps $(3) $(2)

$(INSTALLED): requirements/cpu.txt requirements/vllm-$(VLLM).txt
	@test -n "$(PYTHON)" || { echo "error: need Python 3.11 or 3.12 with venv (Debian: apt install python3 python3-venv); or set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile --no-deps "torch==$(TORCH_VERSION)+cpu" 2>/dev/null || $(BIN)/python -m pip install -q --no-compile "torch==$(TORCH_VERSION)"
	$(BIN)/python -m pip install -q $(UV) || true
	$(call install,$(VENV),-r requirements/cpu.txt -r requirements/vllm-$(VLLM).txt)
	@rm -f $(VENV)/.installed*; touch $@
endif

requirements/vllm-$(VLLM).txt:
	@echo "error: VLLM=$(VLLM): expected one of $(patsubst requirements/vllm-%.txt,%,$(wildcard requirements/vllm-*.txt))" >&2; exit 2

$(VENV)/.built: $(INSTALLED) $(SOURCES_CXX) pyproject.toml
	@command -v c++ >/dev/null || { echo "error: need a C++ compiler (Debian: apt install g++)" >&2; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

serve: setup ## start the service (CONFIG=deploy/configs/....yaml)
	$(RUN) -m deploy.serve --config $(CONFIG) $(ARGS)

# Tests of the service in one process and all others in the rest, a file at a time (tests/service_apart.py); WORKERS=0: one by one.
WORKERS  ?= 2
PARALLEL := -n $(WORKERS) --no-loadscope-reorder

# numpy's threads share out matrices of a few columns, and on cores that others use they wait for each other: four times as long.
test test-fast test-faults: export OPENBLAS_NUM_THREADS := 1

test: setup ## all tests that need no GPU
	$(RUN) -m pytest -q $(PARALLEL) $(ARGS)

test-fast: setup ## tests that start no engine and take no minute
	$(RUN) -m pytest -q $(PARALLEL) -m "not engine and not serve and not slow and not faults and not fresh" $(ARGS)

# What depends on vLLM's insides, with the newest version that was tested: its packages lie over those of the ordinary environment.
NEWEST := 0.32
OVER   := $(VENV)-$(NEWEST)

$(OVER)/.installed: $(VENV)/.built requirements/vllm-$(NEWEST).txt
	$(BIN)/python -m venv --clear --without-pip $(OVER)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$(echo $(OVER)/lib/python3*/site-packages)/under.pth
	$(call install,$(OVER),-r requirements/vllm-$(NEWEST).txt,--ignore-installed)
	@touch $@

NEWEST_TESTS := versions engine_stats exact_blocks scheduler_oracle starving frontend request_checks engine vllm_serve families
NEWEST_SERVICE := -k "chat or stream or pinned or tool" $(addprefix tests/deploy/one_service/test_serve,.py _extra.py)

test-newest: setup $(OVER)/.installed ## plugin, engine and service on the newest tested vLLM, without a GPU
	OPENBLAS_NUM_THREADS=1 $(OVER)/bin/python -m pytest -q $(NEWEST_TESTS:%=tests/plugin/test_%.py) $(ARGS)
	$(OVER)/bin/python -m pytest -q $(NEWEST_SERVICE) $(ARGS)

test-fresh: setup ## the quickstart in a fresh environment
	$(RUN) -m pytest -q -m fresh $(ARGS)

test-faults: setup ## kill, stop and attack the running service: half an hour
	$(RUN) -m pytest -q -m faults $(ARGS)

test-gpu: setup ## tests of kernels and engine on an H100 or H200; more with two of them
	$(RUN) -m pytest -q -m gpu $(ARGS)
	$(RUN) -m pytest -q tests/plugin/test_engine.py $(ARGS)
	@if command -v compute-sanitizer >/dev/null; then compute-sanitizer --tool memcheck --error-exitcode 1 $(RUN) -m tests.gpu_sanitize; \
	else echo "no compute-sanitizer on the PATH: memory checks skipped"; fi

check: setup ## lint, complexity, formatting, types, dead code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vulture
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

docs-check: setup ## tables, links and commands of the documents (python -m docs.tables writes the tables)
	$(RUN) -m docs.tables --check
	$(RUN) -m pytest -q tests/test_docs.py

format: setup ## rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

SEED ?= 1

bench-gpu: setup ## time the GPU kernels against the libraries on random problems (SEED=) -> benchmarks/results/h100-gemm-random.csv
	$(RUN) -m benchmarks.kernels.gpu_gemm_random --seed $(SEED) $(ARGS)

bench-engine: setup ## whole engines on one GPU: throughput -> benchmarks/results/h100-engine.csv
	$(RUN) -m benchmarks.engine.engine_offline $(ARGS)

bench-http: setup ## the HTTP path against vllm serve -> benchmarks/results/http-path.csv (ARGS=--gpu: h100-http.csv)
	$(RUN) -m benchmarks.http.http_path $(ARGS)

LOADTEST_ARGS ?= --duration 60 --load-fraction 0.68 --length-scale 0.1 --max-prompt-tokens 4 --max-output-tokens 12 --slo-ttft-ms 2000 --slo-tpot-ms 150 --probe 12 --probe-users 3 --cooldown 2

loadtest: setup ## a burst against fp16, fp8 and adaptive, five minutes (ARGS="--duration 240 --trace FILE") -> runs/
	$(RUN) -m loadtest --config deploy/configs/loadtest.yaml $(LOADTEST_ARGS) $(ARGS)

clean: ## remove the build output (the virtual environment stays)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache

.PHONY: help setup serve test test-fast test-newest test-fresh test-faults test-gpu check docs-check format bench-gpu bench-engine bench-http loadtest clean
