# `make demo` trains on the embedded data, `make check` runs the fast tests and `make test` every one; all install what
# they need into .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

PYTEST := $(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal
PAGES := $(wildcard *.md docs/*.md docs/*/*.md)
# Compiled tests are kept: to compile them takes longer than to load them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo check test lint docs figures clean

install: .venv/core
demo: .venv/core
	$(BIN)/fedkeel run
check: .venv/test
	$(PYTEST) -m "not slow"
test: .venv/test
	$(PYTEST)
lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/wrap_docs.py --check $(PAGES)

# Wraps the docs at 120 characters.
docs: .venv/bin/python
	$(BIN)/python scripts/wrap_docs.py $(PAGES)

# The figures of the README.
figures: .venv/core
	rm -rf runs/readme
	$(BIN)/fedkeel run --set name=IID rounds=30 --out runs/readme/iid
	$(BIN)/fedkeel run --set "name=2 classes a client" partition.kind=classes rounds=30 --out runs/readme/classes
	$(BIN)/fedkeel plot runs/readme/iid runs/readme/classes --out docs/images/learning-curve.png
	$(BIN)/fedkeel run --set algorithm=fedasmu local.epochs=5 rounds=10 fleet.speed_ratio=5 fleet.dropout=0.1 \
		fleet.uplink_mbps=2 fleet.downlink_mbps=10 --out runs/readme/lanes
	$(BIN)/fedkeel plot runs/readme/lanes --what timeline --out docs/images/timeline.png

.venv/bin/python:
	$(PYTHON) -m venv .venv
.venv/core: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable .
	@touch $@
.venv/test: .venv/core
	$(PIP) --editable '.[test]'
	@touch $@
.venv/dev: .venv/core
	$(PIP) --editable '.[dev]'
	@touch .venv/test $@

clean:
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
