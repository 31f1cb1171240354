# make run    install everything, and train twenty clients with different models on different data
# make test   install everything, and run the tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install run test test-long lint types layers bench docs clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

run: install
	$(BIN)/protonorm compare protonorm duet local dataset=fashion dataset.samples=1200 models=light feature_dim=32 \
		clients=20 partition=dirichlet partition.alpha=0.1 partition.least=10 rounds=12 batch_size=8 lr=0.005 seeds=5 --engine processes

test: install
	$(BIN)/python -m pytest

test-long: install
	$(BIN)/python -m pytest -m long

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

layers: install
	$(BIN)/lint-imports

bench: install
	$(BIN)/protonorm bench all

docs: install
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache
