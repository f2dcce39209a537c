# Two commands: `make bench` runs the embedded benchmark, `make test` runs lint, types and tests.
# Each sets up everything it needs in .venv by itself.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: bench test lint speed clean test-browser docs auto

bench: $(VENV)/ready
	$(BIN)/idness bench

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Set up once, and again whenever what it is made of changes.
$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# The pages in a real browser. `make test` runs these tests too where Chromium is installed.
test-browser: $(VENV)/ready
	command -v chromium || (apt-get update && apt-get install --yes chromium)
	$(BIN)/python -m pytest -m browser

docs: $(VENV)/ready
	$(BIN)/mkdocs build --strict

# Ratios within one run, written to results/speed; takes some minutes.
speed: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	for file in kernels rows_cost peer ish_cost bench_cost memory serving; do $(BIN)/python benchmarks/$$file.py; done

# `fuse`, `auto` and every method on every network at hand: results/auto.md and results/methods.md. Fetches pictures and ImageNet
# networks, trains four small networks (an hour of one core; a stopped run goes on) and runs all of them over their pictures
# once; DenseNet-101 and ImageNet photographs are taken from ../shared/data. What is missing is passed over.
auto: $(VENV)/ready
	$(BIN)/python tools/fetch.py all networks
	$(BIN)/python tools/auto_networks.py
	$(BIN)/python tools/auto_study.py
	$(BIN)/python tools/methods_table.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
