# Two commands do everything on a fresh machine: `make demo` and `make test`.
# To bring your own torch (a CUDA build, another version): make setup CONSTRAINTS=

VENV ?= .venv
CONSTRAINTS ?= -c constraints.txt
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
	&& echo $$p && break; done)
# Workers that spin while they wait make tests crawl on a busy machine.
export OMP_WAIT_POLICY := PASSIVE
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test check slow clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed (make PYTHON=/path/to/python3.12)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[demo,test]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/shadow-reader demo

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

slow: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow --timeout=900

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
