# make demo and make test need only Python >= 3.11; they set up their own .venv.
PYTHON ?= python3
BIN := .venv/bin
# One BLAS thread per test process: the tests run in parallel.
THREADS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1
CONSTRAINTS := constraints/test.txt

.PHONY: help demo test lowest lint bench docs figures clean

help:
	@echo "make demo   set up .venv and run the main job on bundled data"
	@echo "make test   set up .venv with what the tests need and run them"
	@echo "make lowest  the tests of files and models with the lowest versions allowed"
	@echo "make lint   ruff, mypy strict, import contract"
	@echo "make bench  speed and memory, as ratios"
	@echo "make docs   build the site, warnings are errors"
	@echo "make figures  write the stored results into README and guides"

$(BIN)/python:
	@echo "== creating .venv"
	@$(PYTHON) -m venv .venv

.venv/.core: pyproject.toml $(BIN)/python
	@echo "== installing bagwise into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e .
	@touch $@

.venv/.dev: pyproject.toml $(CONSTRAINTS) $(BIN)/python
	@echo "== installing bagwise and what its tests need into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) "torch"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[torch,dask,vision,label,docs,dev]"
	@touch $@ .venv/.core

demo: .venv/.core
	@echo "== running the demo: digit bags, from files to a report"
	@$(BIN)/bagwise demo

test: .venv/.dev
	@echo "== running the tests on two processes"
	@$(THREADS) $(BIN)/python -m pytest -q -n 2 --dist worksteal

lowest:
	@echo "== files, persistence and hardening with the lowest versions pyproject.toml allows"
	@$(PYTHON) -m venv .venv-lowest
	@.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	@.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --torch-backend cpu \
		--resolution lowest-direct -e ".[torch,dask,vision,label,dev]"
	@$(THREADS) .venv-lowest/bin/python -m pytest -q -n 2 --dist worksteal \
		tests/test_files.py tests/test_inputs.py tests/test_persist.py tests/test_hardening.py

lint: .venv/.dev
	@echo "== ruff, mypy, import contract"
	@$(BIN)/ruff check .
	@$(BIN)/ruff check --quiet --preview --select PLW1514 src experiments # an encoding for every text file
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: .venv/.dev
	@$(BIN)/python -m benchmarks

docs: .venv/.dev
	@$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

figures: .venv/.dev
	@$(BIN)/python -m experiments.figures # README and guides from experiments/results

clean:
	rm -rf .venv .venv-lowest build dist docs/_build .pytest_cache .mypy_cache .ruff_cache
