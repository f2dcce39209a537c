# Two commands: `make bench` runs the embedded benchmark, `make test` runs lint, types and tests.
# Each sets up everything it needs in .venv by itself.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: bench test lint speed clean test-browser docs

bench: $(VENV)/ready
	$(BIN)/idness bench

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Set up once, and again whenever what it is made of changes.
$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
