# `make help` says what each command does; each sets up everything it needs in .venv by itself.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help bench test lint long faults promises mutants test-browser docs tutorials pictures speed scale auto clean

help: ## print these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

bench: $(VENV)/ready ## run the embedded benchmark
	$(BIN)/idness bench

test: lint ## run lint, types and all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

lint: $(VENV)/ready ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

long: $(VENV)/ready ## run the tests that take too long for make test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m long

# A run that was stopped goes on with: .venv/bin/python tools/faults.py --run --resume
faults: $(VENV)/ready ## run the test of every fault of docs/faults.md, long ones too, into results/faults.md; an hour
	$(BIN)/python tools/faults.py --run

promises: $(VENV)/ready ## simulate every statistical promise into results/promises.md; some minutes
	OMP_NUM_THREADS=1 $(BIN)/python tools/promises.py

mutants: $(VENV)/ready ## break one line at a time, and see that the tests notice; about half an hour
	$(BIN)/python tools/mutants.py --jobs 2

# Set up once, and again whenever what it is made of changes.
$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# `make test` runs these tests too where Chromium is installed.
test-browser: $(VENV)/ready ## test the pages in a real browser
	command -v chromium || (apt-get update && apt-get install --yes chromium)
	$(BIN)/python -m pytest -m browser

docs: $(VENV)/ready ## build the documentation
	$(BIN)/mkdocs build --strict

tutorials: $(VENV)/ready ## run the notebooks of docs/tutorials again and keep what they show
	$(BIN)/python tools/notebooks.py

pictures: $(VENV)/ready ## take the pictures of README from a run of the embedded benchmark; needs Chromium
	$(BIN)/idness bench --out build/pictures
	$(BIN)/python tools/pictures.py build/pictures

speed: $(VENV)/ready ## measure ratios within one run into results/speed; some minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	for file in kernels rows_cost peer ish_cost bench_cost memory loading serving engines embedded starting whole cached goals; do $(BIN)/python benchmarks/$$file.py; done

scale: $(VENV)/ready ## measure Ray beside one process into results/scale.md; half an hour of two cores
	$(BIN)/python benchmarks/scale.py

# `fuse`, `auto` and every method on every network at hand: results/auto.md and results/methods.md. Fetches pictures and ImageNet
# networks, trains four small networks (an hour of one core; a stopped run goes on) and runs all of them over their pictures
# once; DenseNet-101 and ImageNet photographs are taken from ../shared/data. What is missing is passed over.
auto: $(VENV)/ready ## measure fuse, auto and every method on every network at hand; an hour and more
	$(BIN)/python tools/fetch.py all networks
	$(BIN)/python tools/auto_networks.py
	$(BIN)/python tools/auto_study.py --settings
	$(BIN)/python tools/methods_table.py

clean: ## remove what the other commands have made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
