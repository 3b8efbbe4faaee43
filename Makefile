PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: demo test test-deploy setup lint check bench bench-peers clean

demo: $(STAMP)  ## ten silos, three budgets, three methods, under a minute
	$(BIN)/coterie demo

test: lint  ## everything: style, types, walls, tests
	$(BIN)/pytest -n 2

test-deploy: $(STAMP)  ## a federation of real processes: killed, attacked, restarted; takes minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev,flower]'
	$(BIN)/pytest -m deploy

setup: $(STAMP)  ## prepare .venv only

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Coterie needs Python 3.11 or newer: make PYTHON=python3.11 ...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## speed and memory, as ratios; writes benchmarks/results.md
	$(BIN)/python -m benchmarks

bench-peers: $(STAMP)  ## the same job with other libraries, each in an environment of its own; writes benchmarks/peers.md
	$(BIN)/python -m benchmarks.peers

clean:
	rm -rf $(VENV) .venv-peers build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
