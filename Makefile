# `make run` shows what Redraft does; `make test` runs every test. Both set up what they need in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint setup dev clean

run: setup
	$(BIN)/python examples/first_minute.py

test: dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: dev
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/pyright

setup: .venv/.ready
dev: .venv/.ready-dev

# A torch that pip finds installed stays. Otherwise pip takes the pinned one, on Linux with CUDA unless told otherwise
# (PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu).
.venv/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Redraft needs Python 3.11 or newer; name it: make run PYTHON=python3.12" \
		if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -e .
	touch $@

.venv/.ready-dev: .venv/.ready
	$(BIN)/pip install --quiet -e ".[dev]"
	touch $@

clean:
	rm -rf .venv
