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

bench:
	set -e; for script in $(sort $(wildcard benchmarks/bench_*.py)); do $(PYTHON) $$script; done
