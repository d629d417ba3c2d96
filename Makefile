# `make demo` and `make test` set up all they need and can be run again and again.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint lock wheel-test h200 clean

demo: $(VENV)/.installed
	$(BIN)/python examples/quickstart/demo.py

# A real engine takes a core for itself: its tests run alone, after all others.
test: $(VENV)/.dev-installed
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=20 -m "not vllm"
	$(BIN)/python -m pytest -m vllm

lint: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p canaryctl.common -p canaryctl.controller -p canaryctl.gates -p canaryctl.runtimes -p canaryctl.migrations
	$(BIN)/mypy tests benchmarks examples tools
	$(BIN)/lint-imports
	$(BIN)/python tools/check_modules.py

wheel-test: $(VENV)/.dev-installed
	tools/test-wheel $(PYTHON)
	tools/test-probe-wheel $(PYTHON)

# Real vLLM on a GPU host: see docs/benchmarks/h200.md for the environment it needs.
h200: $(VENV)/.installed
	$(BIN)/python -m benchmarks.h200

# Resolve the dependencies anew, for every supported Python at once.
lock:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-header -o requirements.lock pyproject.toml
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-header --group dev -c requirements.lock -o requirements-dev.lock pyproject.toml

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps -e .
	touch $@

$(VENV)/.dev-installed: $(VENV)/.installed requirements-dev.lock
	$(BIN)/python -m pip install -q --require-hashes -r requirements-dev.lock
	touch $@

clean:
	rm -rf $(VENV) build dist .demo *.egg-info
