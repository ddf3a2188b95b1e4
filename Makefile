PYTHON ?= python

.PHONY: check lint types test bench

check: lint types test

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest -q

# DATA: files to measure on
bench:
	$(PYTHON) benchmarks/bench_steps.py
	$(PYTHON) benchmarks/bench_hostile.py
	$(PYTHON) benchmarks/bench_exactness.py $(DATA)
	$(PYTHON) benchmarks/bench_files.py $(DATA)
