# make demo: the whole job on a drawn collection. make test: everything CI checks. Each does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow attack soak lint bench clean

demo: $(VENV)/.core
	$(BIN)/insclr demo --out demo

test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

# Kills, hostile files, crowds of clients, fuzzing: minutes with attack, about an hour with soak (docs/security.md).
attack: $(VENV)/.dev
	$(BIN)/pytest -m attack tests/attack

soak: $(VENV)/.dev
	INSCLR_SOAK=1 $(BIN)/pytest -m attack tests/attack

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

# torch and torchvision first and pinned, so that nothing that needs them can bring another build.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) torch torchvision
	$(PIP) -e '.[web,track]'
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf demo build dist .mypy_cache .pytest_cache .ruff_cache
