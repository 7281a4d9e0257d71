# Two commands do all the set-up on a fresh machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 500
PROTOS := gateway/proto/log.proto gateway/proto/admin.proto

.PHONY: demo test check bench simulate proto kernel clean

demo: $(VENV)/ready
	$(BIN)/tidelog demo

test: $(VENV)/ready kernel
	$(BIN)/pytest -n 2 --dist worksteal

check: $(VENV)/ready kernel
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -q -n 2 -m "not slow"

simulate: $(VENV)/ready
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

bench: $(VENV)/ready kernel
	$(BIN)/python -m bench

# The generated code is committed, so that users need no compiler of protocols; nobody edits it.
proto: $(VENV)/ready
	$(BIN)/python -m grpc_tools.protoc -I. -I$$($(BIN)/python -c "import pathlib, google.rpc; print(pathlib.Path(google.rpc.__path__[0]).parents[1])") \
		--python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

# The column kernel, compiled again when it changed. Without a C compiler it runs as Python.
kernel: $(VENV)/ready
	@$(BIN)/python setup.py -q build_ext --inplace

# setuptools and Cython first, so that the kernel is built with the pinned ones.
$(VENV)/ready: pyproject.toml constraints.txt setup.py
	@echo "Installing into $(VENV): about three minutes, the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt setuptools cython
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation --editable '.[dev,demo]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info segments/*.so
