# Each target works as the first command typed on a machine that has Python >= 3.11, make and a C compiler.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check lint soak bench golden format clean

demo: $(VENV)/.base ## a real parallel job that survives a killed worker
	@$(BIN)/gristmill demo

test: lint ## all checks and all tests, except the soak
	$(BIN)/pytest -m "not soak"

check: lint ## the same with fast tests only: before each commit
	$(BIN)/pytest

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(VENV)/.dev ## minutes of killed workers
	$(BIN)/pytest -m soak --timeout=1800

bench: $(VENV)/.dev ## the engine beside its peers, as ratios
	$(BIN)/python benchmarks/engine.py

golden: $(VENV)/.dev ## rewrite tests/golden; review the diff
	@if [ -d tests/golden ]; then $(BIN)/pytest tests/golden --rewrite-golden; else echo "tests/golden does not exist yet: nothing to rewrite"; fi

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what make made
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no python3 found; install Python 3.11 or newer, or set PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than Python 3.11; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e ".[dev]"
	@touch $@ $(VENV)/.base
