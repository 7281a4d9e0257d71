# Two commands do all the set-up on a fresh machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 500
MINUTES ?= 1
TESTED ?= not own_spark and not image and not proof
PROTOS := gateway/proto/log.proto gateway/proto/admin.proto gateway/proto/groups.proto metadata/store/etcd/proto/etcd.proto
MESSAGE_PROTOS := metadata/store/etcd/proto/mvcc.proto  # without services, and so without stubs

# Tests and benchmarks start hundreds of processes: each would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-thorough proofs spark-crashes check bench simulate chaos chaos-proof cluster-proof kafka-gate kafka-proof proto \
	kafka-protocol reference console-scripts docs kernel clean help

demo: $(VENV)/ready kernel ## a broker, real rows, a kill -9 in the middle, and the proof that none was lost
	$(BIN)/tidelog demo

test: $(VENV)/ready kernel ## every quick and integration test, but for proofs and spark-crashes; TESTED="slow and not proof" for a part
	$(BIN)/pytest -n 4 --dist loadscope --durations 25 -m "$(TESTED)"

test-thorough: $(VENV)/ready kernel ## each property of a codec or a planner with eight times as many examples: for the night
	$(BIN)/pytest -n 2 --dist worksteal -m hypothesis --hypothesis-profile thorough

proofs: $(VENV)/ready kernel ## every rule broken on purpose is caught, each model is explored whole, and a kill at any await does no harm
	$(BIN)/pytest -n 3 --dist worksteal --durations 10 -m proof tests/simulation tests/crash

spark-crashes: $(VENV)/ready kernel ## drivers, executors and tasks of Spark that end in the middle; needs Java
	$(BIN)/pytest -n 2 --dist worksteal -m own_spark tests/spark tests/tidelog

check: $(VENV)/ready kernel ## what every commit passes: format, lint, types, import contracts, quick tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not slow"

simulate: $(VENV)/ready kernel ## the log under a virtual clock, on a bucket that lies; SEEDS=500
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

chaos: $(VENV)/ready kernel ## three broker processes, broken on purpose while clients watch; MINUTES=1, SEED=… for the same faults again
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

chaos-proof: $(VENV)/ready kernel ## brokers with a rule broken on purpose: chaos must find each
	$(BIN)/python -m tests.chaos --prove --minutes 0.3

cluster-proof: $(VENV)/ready kernel ## the image built, and the chart on a real Kubernetes of this machine; Debian, root and Go
	$(BIN)/python -m tests.real_cluster

kafka-gate: $(VENV)/ready kernel ## other projects' tests of Kafka clients, two to three minutes of them; needs Java, Maven, Go and a C compiler
	$(BIN)/python -m tests.kafka_suites --gate $(SUITES)

kafka-proof: $(VENV)/ready kernel ## all of them; SUITES="--reference" runs them against Apache Kafka
	$(BIN)/python -m tests.kafka_suites $(SUITES)

bench: $(VENV)/ready kernel ## the figures of README.md, in about four minutes
	$(BIN)/python -m bench

# The generated code is committed, so that users need no compiler of protocols. Do not edit it.
proto: $(VENV)/ready ## the generated code of the protocols
	$(BIN)/python -m grpc_tools.protoc -I. -I$$($(BIN)/python -c "import pathlib, google.rpc; print(pathlib.Path(google.rpc.__path__[0]).parents[1])") \
		--python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(MESSAGE_PROTOS)

kafka-protocol: $(VENV)/ready ## the messages of Kafka's protocol, from their tables
	$(BIN)/python -m gateway.kafka.protocol.generate

reference: $(VENV)/ready kernel ## the pages of docs/reference, from the code
	for page in settings metrics errors http grpc kafka command_line; do $(BIN)/python -m docs.$${page}_page || exit 1; done

# After a new version is named here, `sha256sum htmx-* uplot-* > CHECKSUMS` in that folder notes what was looked at and is to stay.
HTMX := 2.0.11
UPLOT := 1.6.32
CONSOLE_STATIC := gateway/console/static
console-scripts: ## the console's vendored scripts, fetched again with npm, and compared with their checksums
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT \
		&& (cd "$$folder" && npm pack --silent htmx.org@$(HTMX) uplot@$(UPLOT) > packed \
			&& mkdir htmx uplot && tar -xzf htmx.org-$(HTMX).tgz -C htmx && tar -xzf uplot-$(UPLOT).tgz -C uplot) \
		&& cp "$$folder/htmx/package/dist/htmx.min.js" $(CONSOLE_STATIC)/htmx-$(HTMX).min.js \
		&& cp "$$folder/htmx/package/LICENSE" $(CONSOLE_STATIC)/htmx-$(HTMX).LICENSE \
		&& cp "$$folder/uplot/package/dist/uPlot.iife.min.js" $(CONSOLE_STATIC)/uplot-$(UPLOT).min.js \
		&& cp "$$folder/uplot/package/dist/uPlot.min.css" $(CONSOLE_STATIC)/uplot-$(UPLOT).min.css \
		&& cp "$$folder/uplot/package/LICENSE" $(CONSOLE_STATIC)/uplot-$(UPLOT).LICENSE
	@cd $(CONSOLE_STATIC) && sha256sum --check --quiet CHECKSUMS && echo "the scripts are those of CHECKSUMS"

# The kernels are compiled again only when one has changed: the installation compiles them too. Without a C compiler they run as
# Python. The second make reads the times of the files after the installation.
KERNELS := $(wildcard segments/records/*_kernel.py) $(wildcard $(addprefix gateway/kafka/protocol/,*.pxd primitives.py hot_messages.py))
kernel: $(VENV)/ready
	@$(MAKE) --no-print-directory build/kernels

build/kernels: setup.py $(KERNELS)
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

# setuptools and Cython first, so that the kernel is built with the pinned ones. uv takes a quarter of pip's time, but reads none of
# pip's configuration: where it can't reach an index, pip does the work.
INSTALL := install --quiet -c constraints.txt
$(VENV)/ready: pyproject.toml constraints.txt setup.py
	@command -v $(PYTHON) > /dev/null || { echo "There is no $(PYTHON) here. Name a Python 3.11: make PYTHON=/path/to/python3.11 demo"; exit 1; }
	@echo "Installing into $(VENV): one to four minutes, the first time"
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip --disable-pip-version-check $(INSTALL) uv
	@$(MAKE) --no-print-directory requirements INSTALLER="env VIRTUAL_ENV=$(VENV) UV_SYSTEM_CERTS=1 $(BIN)/uv pip" \
		|| { echo "uv could not: pip tries"; $(MAKE) --no-print-directory requirements INSTALLER="$(BIN)/pip --disable-pip-version-check"; }
	touch $@
	@mkdir -p build && touch build/kernels  # the editable installation has compiled them

.PHONY: requirements
requirements:
	$(INSTALLER) $(INSTALL) setuptools cython
	$(INSTALLER) $(INSTALL) --no-build-isolation --config-settings editable_mode=compat --editable '.[dev,demo,docs]'

docs: $(VENV)/ready ## all Markdown pages as a site with a search, in build/site; a broken link ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean: ## the virtual environment and everything that was built, away
	rm -rf $(VENV) build *.egg-info segments/records/*.so gateway/kafka/protocol/*.so

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 21
