# `make help` describes the commands; each sets up what it needs in .venv.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help bench test lint long faults promises mutants test-browser docs tutorials pictures speed scale auto clean

help: ## print these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

bench: $(VENV)/bench-ready ## run the embedded benchmark photos
	$(BIN)/idness bench

test: lint ## run lint, types and all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

lint: $(VENV)/ready ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

long: $(VENV)/ready ## run the tests that take too long for make test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m long

faults: $(VENV)/ready ## run the tests of all faults, including the long ones; an hour
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m fault

promises: $(VENV)/ready ## simulate every statistical promise into results/promises.md; some minutes
	OMP_NUM_THREADS=1 $(BIN)/python tools/promises.py

mutants: $(VENV)/ready ## change one line at a time and check that a test fails; about half an hour
	$(BIN)/python tools/mutants.py --jobs 2

# Set up once, and again whenever what it is made of changes: the core alone for `bench`, everything for the other commands.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

$(VENV)/bench-ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) .
	touch $@

$(VENV)/ready: $(VENV)/bench-ready
	$(PIP) '.[dev]'
	touch $@

# `make test` runs these tests too if Chromium is installed.
test-browser: $(VENV)/ready ## test the pages in a real browser
	command -v chromium || (apt-get update && apt-get install --yes chromium)
	$(BIN)/python -m pytest -m browser

docs: $(VENV)/ready ## build the documentation
	$(BIN)/mkdocs build --strict

tutorials: $(VENV)/ready ## run the notebooks of docs/tutorials and store their output
	$(BIN)/python tools/notebooks.py

pictures: $(VENV)/ready ## take the screenshots of README from a run of the embedded benchmark; needs Chromium
	$(BIN)/idness bench --out build/pictures
	$(BIN)/python tools/pictures.py build/pictures

speed: $(VENV)/ready ## measure ratios within one run into results/speed; some minutes
	$(PIP) '.[bench]'
	for file in peer memory serving embedded starting whole goals; do $(BIN)/python benchmarks/$$file.py; done

scale: $(VENV)/ready ## measure Ray beside one process into results/scale.md; half an hour of two cores
	$(BIN)/python benchmarks/scale.py

# Writes results/auto.md and results/methods.md. Fetches images and ImageNet networks, trains four small networks (an hour of one core)
# and runs all networks over their images once; DenseNet-101 and ImageNet images are taken from ../shared/data. Missing ones are skipped.
auto: $(VENV)/ready ## measure fuse, auto and every method on all available networks; an hour and more
	$(BIN)/python tools/fetch.py all networks
	$(BIN)/python tools/auto_networks.py
	$(BIN)/python tools/auto_study.py

clean: ## remove what the other commands made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
