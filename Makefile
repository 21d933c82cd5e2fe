# Everything runs in .venv, made on first use. `make help` lists the targets.

PYTHON := $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
COMPILED := $(wildcard src/rollmux/*/*.c)
# Those that this process may use, where there is a program that tells; else all of the machine's.
CORES := $(shell nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
# Many tests wait for leases, processes and sockets rather than for a core.
WORKERS := $(shell echo $$(( $(CORES) + 1 )))
# Two are done sooner than one, and take more of the processors.
CHECKERS := $(CORES)
# Hundreds of processes are started here, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
BENCHMARKS := $(filter-out __init__ controllers harness populations,$(basename $(notdir $(wildcard benchmarks/*.py))))

GPU_TESTS := $(addprefix tests/runtime/residency/test_,cuda.py checksum.py visitor.py) tests/runtime/judge \
    $(addprefix tests/runtime/engine/test_,slots_exact.py engine_life.py histories.py rests.py twins.py) \
    tests/trainer/test_devices.py tests/trainer/test_evaluation.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick test-slow test-gpu lint format bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' Makefile

setup: $(INSTALLED) ## Install everything; all else does this first

demo: $(INSTALLED) ## Show RollMux at work on this machine
	@$(BIN)/rollmux demo

test: $(INSTALLED) ## Lint, and every quick test with coverage: each waits for what the other does not
	@$(MAKE) --no-print-directory -j 2 CHECKERS=1 lint quick

quick: $(INSTALLED) ## The quick tests alone
	$(BIN)/pytest --cov -n $(WORKERS) --dist worksteal

test-slow: $(INSTALLED) ## The tests that take minutes, and all properties with all their examples
	$(BIN)/pytest -m slow -o faulthandler_timeout=0
	$(BIN)/pytest --hypothesis-profile=thorough -n $(WORKERS) --dist worksteal

test-gpu: $(INSTALLED) ## What wants a GPU: tests with models on it, and moves to and from it
	@$(BIN)/python -c "import sys, torch; torch.cuda.is_available() or sys.exit('torch sees no GPU here')"
	ROLLMUX_TEST_DEVICE=cuda $(BIN)/pytest $(GPU_TESTS)
	$(BIN)/python -m benchmarks.switch --gpu-only

lint: $(INSTALLED) ## Formatting, lint, types, import rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	MYPY_NUM_WORKERS=$(CHECKERS) $(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED) ## Format and mend what can be mended
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(INSTALLED) ## Run the benchmarks, one after the other; results go to benchmarks/results
	@set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name; done

clean: ## Remove the environment and every cache
	rm -rf .venv .coverage .coverage.* htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	    .import_linter_cache build dist
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	find src -name '*.so' -delete

# The build backend is pinned too (pip reads the first variable, from 25.3 on the second), and need not say three times
# that its tables of extensions may change. A pip as old as Python 3.11 takes twice as long. What it would compile on one
# core is compiled on all, but for what is hardly ever imported; some of it is for other versions of Python, and is not.
HARDLY_IMPORTED := /(networkx|pandas|pip|pygments|setuptools|tests)/|/ray/(air|data|llm|rllib|serve|train|tune)/|/transformers/models/

$(INSTALLED): pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt --upgrade pip
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PYTHONWARNINGS=ignore \
	    $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m compileall -q -j 0 -x '$(HARDLY_IMPORTED)' .venv/lib > /dev/null 2>&1 || true
	@touch $@
