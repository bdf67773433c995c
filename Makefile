# make demo: the whole job on a drawn collection. make test: everything CI checks; make test PACKAGE=mining: the
# tests of one package. Each does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo docs test test-slow test-min test-milvus coverage attack soak bench dist try-dist clean

demo: $(VENV)/.core
	$(BIN)/insclr demo --out demo

# The documentation as a site in build/site, to be read without a network.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

PACKAGE ?= $(ROOM)
ifneq ($(PACKAGE),)
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/$(PACKAGE)
else
test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile
endif

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

# Which lines the fast tests run, package by package: build/coverage/index.html.
coverage: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered --cov-report=html:build/coverage

# The fast tests with the lowest versions that pyproject.toml allows; constraints-min.txt says how it is made.
test-min: build/min/.done
	OMP_NUM_THREADS=1 build/min/bin/pytest -n 2 --dist loadfile

build/min/.done: pyproject.toml constraints-min.txt
	rm -rf build/min && $(PYTHON) -m venv build/min
	build/min/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-min.txt torch torchvision
	build/min/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-min.txt -e '.[dev]'
	touch $@

# All tests of the cluster store against a real Milvus server: about 6 minutes. make test runs one of them.
test-milvus: $(VENV)/.dev
	$(BIN)/pytest -m slow -k "real or milvus_server" tests

# Kills, hostile files, crowds of clients, fuzzing: minutes with attack, about four hours with soak (docs/security.md).
attack: $(VENV)/.dev
	$(BIN)/pytest -m attack tests/attack

soak: $(VENV)/.dev
	INSCLR_SOAK=1 $(BIN)/pytest -m attack tests/attack

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

# Wheel and sdist, built twice and compared.
dist: $(VENV)/.dev
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python .ci/dist.py

# The wheel alone in an empty environment, by the ranges of pyproject.toml: the demo, and a search in what it indexed.
try-dist: dist
	rm -rf build/try && $(PYTHON) -m venv build/try
	build/try/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls $(CURDIR)/dist/*.whl)[train]"
	cd build/try && bin/insclr demo --out demo
	cd build/try && bin/insclr search demo/store "$$(find demo -name '*.jpg' | sort | head -1)" --top 5

# torch and torchvision first and pinned, so that nothing that needs them can bring another build. OpenVINO describes
# photos fastest; where there is none for this system, ONNX Runtime does it.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) torch torchvision
	$(PIP) -e '.[train,track]'
	-$(PIP) openvino
	touch $@

# The Milvus server is for its tests alone, which are skipped where there is none for this system or registry.
$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e '.[dev]'
	-$(PIP) milvus
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) -e '.[docs]'
	touch $@

clean:
	rm -rf demo build dist .mypy_cache .pytest_cache .ruff_cache
