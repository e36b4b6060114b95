# Each target works as the first command typed on a machine that has Python >= 3.11, make and a C compiler.
# PYTHON=/path/to/python chooses the interpreter; else the first of these that is new enough.
PYTHON ?= python3.11 python3 python3.12 python3.13 python3.14
VENV ?= .venv
BIN := $(VENV)/bin
# Test files run side by side. Many wait for servers, timeouts and killed workers: a process more than cores keeps these
# busy. Files begin in the order of tests/conftest.py, the longest first.
PROCESSES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := $(BIN)/pytest --numprocesses $(PROCESSES) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Tests start thousands of interpreters; without bytecode files each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# Python compiles the modules that are imported; to compile all 25,000 that are installed takes a minute.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test test-all short-tests unit-tests check lint soak bench bench-scaling bench-instructions golden coverage readme-table reference format clean

demo: $(VENV)/.base ## Python's own library to packed rows of tokens, in gristmill-demo; a worker is killed
	@$(BIN)/gristmill demo

# Types are checked on one core while the others begin with the tests.
test: $(VENV)/.dev ## all checks, and each promise proven once
	+@$(MAKE) --no-print-directory --jobs 2 lint short-tests

short-tests: $(VENV)/.dev
	$(PYTEST) -m "not full and not slow and not soak"

test-all: $(VENV)/.dev ## what make test leaves: further cases, long faults, peers' libraries
	$(PYTEST) -m "full and not slow and not soak"

# Rooms whose tests need neither a recipe that runs nor a cluster.
UNITS := $(addprefix tests/,core recipe order images runtime shards storage steps text exports report stream) \
	--ignore tests/stream/trainers
check: $(VENV)/.dev ## all checks, and the tests of single modules: before each commit
	+@$(MAKE) --no-print-directory --jobs 2 lint unit-tests

unit-tests: $(VENV)/.dev
	$(PYTEST) -m "not full and not slow and not soak" $(UNITS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(VENV)/.dev ## minutes of killed workers, a hundred thousand files, gigabytes
	$(BIN)/pytest -m "soak or slow" --timeout=1800

# SIZE=smoke|small|full, ONLY=group or contest, ROUNDS=n, RESUME=1, CORPUS=file.jsonl, CHATS=folder, TOKENIZER=folder, PEERS=0
BENCH = $(foreach name,SIZE ONLY ROUNDS CORPUS CHATS TOKENIZER,$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) $($(name)))) \
	$(if $(RESUME),--resume) $(if $(filter 0,$(PEERS)),--no-peers)
bench: $(VENV)/.dev ## every claim about speed beside its peers, which are installed first; hours at full size
	$(BIN)/python -m benchmarks $(BENCH)

bench-scaling: $(VENV)/.dev ## cost by size, files and workers; MAX_MB=, MAX_FILES=, MAX_WORKERS= for less
	$(BIN)/python -m benchmarks.scaling $(foreach name,MAX_MB MAX_FILES MAX_WORKERS,$(if $($(name)),--$(shell echo $(name) | tr A-Z_ a-z-) $($(name)))) \
	    $(if $(ONLY),--only $(ONLY)) $(if $(RESUME),--resume)

bench-instructions: $(VENV)/.dev ## instructions of the kernels beside the recorded ones; RECORD=1 records them
	$(BIN)/python -m benchmarks.instructions $(if $(RECORD),--record)

golden: $(VENV)/.dev ## rewrite tests/golden; review the diff
	$(BIN)/pytest tests/golden --rewrite-golden

# TESTS=tests/steps measures a part of the suite. A tracer slows workers down, so times of the fault tests do not hold.
TESTS ?= tests --ignore tests/faults --ignore tests/soak --deselect tests/public/test_import_time.py
coverage: $(VENV)/.dev ## branch coverage of src, worker processes included; fails below fail_under of pyproject.toml
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m $(patsubst $(BIN)/%,%,$(PYTEST)) $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

readme-table: $(VENV)/.dev ## rewrite the tables and pictures of measured numbers from benchmarks/results
	$(BIN)/python -m benchmarks.reports.publish

reference: $(VENV)/.dev ## rewrite docs/reference/recipes.md from the structs of recipes and steps
	$(BIN)/python docs/reference/recipes.py

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what make made
	rm -rf $(VENV) bench-data .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@for python in $(PYTHON); do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "$$python -m venv $(VENV)"; exec "$$python" -m venv $(VENV); \
	    fi; \
	done; \
	echo "error: none of these is Python 3.11 or newer with its venv module: $(PYTHON)" >&2; \
	echo "  help: install it, or name it: make PYTHON=/path/to/python" >&2; \
	exit 1

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e ".[dev]"
	@touch $@ $(VENV)/.base
