# `make demo` compares four methods on the embedded data, `make check` runs the fast tests and `make test` every one; all
# install what they need into .venv. `make native` compiles the kernels that have changed; all of these do so too, where there is a
# compiler.
PYTHON ?= python3
BIN := .venv/bin
# Most modules of the packages are never imported; those that are get compiled then.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

PYTEST := $(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal
KERNELS := $(wildcard src/fedkeel/local/native/kernels/* tests/native/sanitize/*)
PAGES := $(wildcard *.md docs/*.md docs/*/*.md)
# Compiled tests are kept: to compile them takes longer than to load them.
unexport PYTHONDONTWRITEBYTECODE
# Who asks for the kernels alone is told why there are none by an error.
FEDKEEL_NATIVE ?= $(if $(filter native,$(MAKECMDGOALS)),require,auto)
export FEDKEEL_NATIVE

.PHONY: install native demo check test test-extras sanitize lint docs figures reproduce-tiny clean

install: native .venv/core
native: | .venv/bin/python
	@$(BIN)/python scripts/native.py
demo: install
	$(BIN)/fedkeel compare experiments/demo.yaml --out runs/demo
check: native .venv/test
	$(PYTEST) -m "not slow and not extras"
test: native .venv/test
	$(PYTEST) -m "not extras"
# Every table and figure of the papers with two rounds: whether each can be made, not what comes out.
reproduce-tiny: install
	rm -rf runs/reproduce/tiny
	$(BIN)/fedkeel reproduce all --scale tiny --out runs/reproduce/tiny
# What takes tools beside Python and packages of extras: .ci/run does it after the tests. Real processes of Flower can miss
# a time limit on a busy machine, so what failed is tried once more.
test-extras: sanitize native .venv/extras .venv/browser/node_modules/playwright-core
	FEDKEEL_BROWSER=require $(PYTEST) -m extras || FEDKEEL_BROWSER=require $(PYTEST) -m extras --last-failed
# Memory errors, undefined behaviour and data races in the kernels; done again only if they have changed.
sanitize: .venv/sanitized
.venv/sanitized: $(KERNELS) scripts/sanitize.py scripts/native.py | .venv/bin/python
	$(BIN)/python scripts/sanitize.py
	@touch $@
lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/wrap_docs.py --check $(PAGES)

# Writes the page of all settings, and wraps the docs at 120 characters.
docs: .venv/core
	$(BIN)/python scripts/settings_page.py
	$(BIN)/python scripts/wrap_docs.py $(PAGES)

# The figures of the README; the first is a screenshot by Chromium.
figures: install
	rm -rf runs/readme
	$(BIN)/fedkeel compare experiments/demo.yaml --out runs/readme/demo
	chromium --headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --window-size=1100,1460 \
		--screenshot=docs/images/report.png file://$(CURDIR)/runs/readme/demo/report.html
	$(BIN)/fedkeel run --set algorithm=fedasmu local.epochs=5 rounds=10 fleet.speed_ratio=5 fleet.dropout=0.1 \
		fleet.uplink_mbps=2 fleet.downlink_mbps=10 --out runs/readme/lanes
	$(BIN)/fedkeel plot runs/readme/lanes --what timeline --out docs/images/timeline.png

.venv/bin/python:
	$(PYTHON) -m venv .venv
.venv/core: pyproject.toml hatch_build.py constraints.txt | .venv/bin/python
	$(PIP) --editable .
	@touch $@
.venv/test: .venv/core
	$(PIP) --editable '.[test]'
	@touch $@
.venv/extras: .venv/test
	$(PIP) --editable '.[extras]'
	@touch $@
.venv/browser/node_modules/playwright-core: | .venv/bin/python
	npm install --silent --no-audit --no-fund --prefix .venv/browser playwright-core@1.65.0
.venv/dev: .venv/core
	$(PIP) --editable '.[dev]'
	@touch .venv/test $@

clean:
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
