# make help lists the targets. Everything lives in .venv; nothing outside the repository is changed.

PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
VENV   ?= .venv
BIN    := $(VENV)/bin
CONFIG ?= deploy/configs/demo.yaml
ARGS   ?=

TORCH_VERSION := 2.13.0
SOURCES_CXX   := $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.h csrc/*/*.cpp csrc/CMakeLists.txt)

export RAY_USAGE_STATS_ENABLED := 0

.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(VENV)/.built ## virtual environment, pinned dependencies, compiled extension

# The CPU build of torch where pip finds one (a wheel folder or an index of CPU builds); else the default build with its
# libraries, which runs on a CPU as well.
$(VENV)/.installed: requirements/cpu.txt
	@test -n "$(PYTHON)" || { echo "error: need Python 3.11 or 3.12 with venv (Debian: apt install python3 python3-venv); or set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-deps "torch==$(TORCH_VERSION)+cpu" 2>/dev/null || $(BIN)/python -m pip install -q "torch==$(TORCH_VERSION)"
	$(BIN)/python -m pip install -q --no-deps -r requirements/cpu.txt
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(SOURCES_CXX) pyproject.toml
	@command -v c++ >/dev/null || { echo "error: need a C++ compiler (Debian: apt install g++)" >&2; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

serve: setup ## start the service (CONFIG=deploy/configs/....yaml)
	$(BIN)/python -m deploy.serve --config $(CONFIG) $(ARGS)

test: setup ## all tests that need no GPU
	$(BIN)/python -m pytest -q $(ARGS)

check: setup ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

format: setup ## rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

bench-cpu: setup ## time the CPU kernels -> benchmarks/results/cpu-linear.csv
	$(BIN)/python -m benchmarks.cpu_linear $(ARGS)

LOADTEST_ARGS ?= --duration 240 --load-fraction 0.75 --length-scale 0.1 --max-prompt-tokens 16 --max-output-tokens 24 --probe 30 --probe-concurrency 3

loadtest: setup ## replay a trace against fp16, fp8 and adaptive (ARGS="--trace FILE") -> runs/
	$(BIN)/python -m loadtest --config deploy/configs/loadtest.yaml $(LOADTEST_ARGS) $(ARGS)

clean: ## remove the build output (the virtual environment stays)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache

.PHONY: help setup serve test check format bench-cpu loadtest clean
