# SPDX-License-Identifier: Apache-2.0
# One short command for each chore. Needs python3, a C++17 compiler, make and git; all else comes from pip.
PYTHON ?= python3
VENV ?= .venv
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
DEMO ?= horovodrun -np 2 python examples/pytorch/digits.py --output demo-output --compare-with demo-output/one-process/digits.json
BENCH ?= python benchmarks/collectives.py
PYTEST_ARGS ?=

export VENV := $(abspath $(VENV))
export BUILD := $(abspath $(BUILD))
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PATH := $(VENV)/bin:$(PATH)

SOURCES := $(shell find engine src -type f -not -name '*.pyc' -not -path 'engine/tests/*')
BUILD_TOOLS := $(VENV)/.build-tools-installed
PACKAGE := $(VENV)/.package-installed
EXAMPLES := $(VENV)/.examples-installed
TESTS := $(VENV)/.tests-installed
TOOLS := $(VENV)/.tools-installed
LIBRARIES := $(VENV)/.libraries-installed
DOCS_TOOLS := $(VENV)/.docs-installed

# Whole programs that take minutes to show what the other tests show in pieces: not part of `make test`.
PROGRAMS := tests/integration/test_torch_examples.py tests/integration/test_torch_frameworks.py
DOCS := tests/integration/test_docs.py
SOAK := tests/faults/test_soak.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-all setup-build setup-download setup-package setup-tests setup-tools setup-newest test-unit test-jobs
.PHONY: test-ranks test-promises test-docs test-hosts test-soak test-engine test-numpy test-torch test-launcher test-faults test-jax
.PHONY: test-gpu test-tensorflow test-mxnet test-ray test-old test-old-torch test-old-jax test-old-tensorflow test-long docs lint format
.PHONY: sanitize sanitize-address sanitize-thread wheel bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed 's/:.*## /\t/' | expand -t16

demo: export OMP_NUM_THREADS = 1
demo: $(EXAMPLES) ## install the package and PyTorch into .venv, train with one process, then with two
	@echo "one process:"
	python examples/pytorch/digits.py --output demo-output/one-process
	@echo "the main job:"
	HOROVOD_TIMELINE=demo-output/timeline.json $(DEMO)
	@echo "timeline demo-output/timeline.json (open it at https://ui.perfetto.dev or in chrome://tracing)"

# What these two consist of is listed in testkit/suite/parts.py.
test: ## ten minutes, no root: engine, Python, NumPy and PyTorch with real ranks, the launcher, faults
	@$(PYTHON) scripts/suite test

test-all: ## everything that CI runs: `make test`, then lint, all frameworks and versions, hosts, Ray, soak, sanitizers
	@$(PYTHON) scripts/suite all

test-unit: $(TESTS) ## Python's unit tests
	HOROVOD_TEST_DOORS=torch python -m pytest $(PYTEST_ARGS) tests/unit

test-jobs: $(TOOLS) ## unit tests, the launcher, faults
	HOROVOD_TEST_DOORS=torch python -m pytest $(PYTEST_ARGS) $(patsubst %,--ignore=%,tests/parallel tests/hosts tests/ray $(DOCS) $(PROGRAMS) $(SOAK))

test-ranks: $(TOOLS) ## what ranks do together, and the programs of the documentation
	HOROVOD_TEST_DOORS=torch python -m pytest $(PYTEST_ARGS) tests/parallel $(DOCS)

test-promises: $(TOOLS) ## the times within which failures must be reported: run them on a quiet machine. Needs root
	HOROVOD_TEST_DOORS=torch python -m pytest $(PYTEST_ARGS) -m promise $(patsubst %,--ignore=%,$(PROGRAMS)) tests/faults tests/integration tests/hosts

test-docs: $(TOOLS) ## the programs of the README and of the documentation
	HOROVOD_TEST_DOORS=torch python -m pytest $(PYTEST_ARGS) $(DOCS)

test-hosts: $(TOOLS) ## jobs on several hosts: network namespaces with sshd. Needs root; scripts/system-packages installs the rest
	python -m pytest $(PYTEST_ARGS) tests/hosts

test-soak: $(TOOLS) ## an elastic job under random faults, for three minutes
	python -m pytest -s $(PYTEST_ARGS) $(SOAK)

# For who changed one part: minutes instead of all of the above.
test-engine: $(TOOLS) ## the engine's unit tests
	scripts/engine-tests

test-numpy: $(TOOLS) ## the collectives themselves, through the NumPy API
	python -m pytest $(PYTEST_ARGS) $(wildcard tests/parallel/test_*.py tests/unit/test_numpy*.py)

test-torch: $(TOOLS) ## the PyTorch API, and the torch.distributed backend
	HOROVOD_TEST_DOORS=torch python -m pytest $(PYTEST_ARGS) tests/parallel/torch tests/parallel/torch_dist \
	  $(wildcard tests/unit/test_torch*.py)

test-launcher: $(TOOLS) ## horovodrun, hvd, and how ranks meet
	python -m pytest $(PYTEST_ARGS) $(wildcard tests/unit/test_launch*.py tests/unit/test_rendezvous*.py \
	  tests/unit/test_tools*.py tests/integration/test_horovodrun*.py tests/integration/test_hvd*.py)

test-faults: $(TOOLS) ## ranks that die, freeze or are cut off
	HOROVOD_TEST_DOORS=torch python -m pytest $(PYTEST_ARGS) --ignore=$(SOAK) tests/faults

test-gpu: $(TOOLS) ## CUDA tensors: on a machine with a GPU; elsewhere against the tests' stand-in for the driver
	scripts/test-gpu $(PYTEST_ARGS)

test-jax: $(VENV)-newest/.installed ## the JAX API, on the newest JAX
	scripts/test-jax newest

test-tensorflow: $(VENV)-newest/.installed ## TensorFlow and Keras: newest TensorFlow, Keras 3 on all backends, tf-keras
	scripts/test-tensorflow newest

test-mxnet: $(TOOLS) ## the MXNet API, with the NumPy that MXNet needs
	scripts/test-mxnet

test-ray: $(VENV)-ray/.installed ## Ray: executors, elastic jobs and Ray Train, on a cluster of simulated nodes
	$(VENV)-ray/bin/python -m pytest $(PYTEST_ARGS) -m "not slow" tests/ray

test-old: test-old-torch test-old-jax test-old-tensorflow ## the same with the oldest versions that are supported

test-old-torch: $(VENV)-torch-oldest/.installed
	HOROVOD_TEST_DOORS=torch $(VENV)-torch-oldest/bin/python -m pytest $(PYTEST_ARGS) \
	  --selection=old tests/parallel/torch $(wildcard tests/unit/test_torch*.py)

test-old-jax: $(VENV)-jax-oldest/.installed
	scripts/test-jax jax-oldest

test-old-tensorflow: $(VENV)-tensorflow-oldest/.installed
	scripts/test-tensorflow tensorflow-oldest

test-long: $(LIBRARIES) $(VENV)-newest/.installed $(VENV)-ray/.installed ## what takes too long for each change: examples, frameworks over our backend
	HOROVOD_TEST_DOORS=torch python -m pytest $(PYTEST_ARGS) $(PROGRAMS)
	HOROVOD_TEST_DOORS=torch python -m pytest $(PYTEST_ARGS) -m slow --ignore=tests/ray tests
	HOROVOD_TEST_DOORS=jax $(VENV)-newest/bin/python -m pytest $(PYTEST_ARGS) -m slow tests/parallel/jax
	scripts/engine-tests address,undefined
	HOROVOD_TEST_KILLS=50 HOROVOD_TEST_FRAMEWORK=torch python -m pytest -s $(PYTEST_ARGS) tests/faults/test_elastic_kills.py
	HOROVOD_TEST_IDLE=50 python -m pytest -s $(PYTEST_ARGS) tests/parallel/test_idle_threads.py -k random
	HOROVOD_TEST_CUTS=50 python -m pytest -s $(PYTEST_ARGS) tests/hosts/test_cuts.py -k random
	HOROVOD_TEST_FROZEN=50 python -m pytest -s $(PYTEST_ARGS) tests/hosts/test_elastic_hosts.py -k only_the_agent
	HOROVOD_TEST_ENDS=50 python -m pytest -s $(PYTEST_ARGS) tests/faults/test_ending_threads.py
	HOROVOD_TEST_ENDS=50 $(VENV)-newest/bin/python -m pytest -s $(PYTEST_ARGS) tests/faults/test_ending_threads.py -k "tensorflow or jax"
	HOROVOD_TEST_ENDS=50 scripts/test-mxnet ends
	HOROVOD_TEST_LINES=all python -m pytest -s $(PYTEST_ARGS) tests/faults/test_elastic_progress.py -k any_line
	scripts/soak --faults 500 --jobs 1
	scripts/repeat --times 20 tests/faults/test_elastic*.py
	scripts/test-tensorflow programs
	$(VENV)-ray/bin/python -m pytest $(PYTEST_ARGS) -m slow tests/ray

docs: $(DOCS_TOOLS) ## the documentation as a site in build/site, without the network
	scripts/docs

lint: $(TOOLS) ## ruff, mypy, clang-format, line counts
	scripts/lint

format: $(TOOLS) ## rewrite the sources in the project's format
	scripts/lint --fix

sanitize: sanitize-address sanitize-thread ## engine unit tests under ASan + UBSan, and under TSan

sanitize-address: $(PACKAGE)
	scripts/engine-tests address,undefined --delays

sanitize-thread: $(BUILD_TOOLS)
	scripts/engine-tests thread

wheel: $(BUILD_TOOLS) ## a manylinux_2_28 wheel in dist/
	scripts/wheel

bench: $(TOOLS) ## collectives against PyTorch's Gloo
	$(BENCH)

clean: ## remove build output; the environment stays
	rm -rf $(BUILD) dist

# The stamps keep repeated runs quick: the package is built again only if its sources changed, and then incrementally.
$(BUILD_TOOLS): constraints-test.txt scripts/setup
	scripts/setup build
	@touch $@

$(PACKAGE): $(BUILD_TOOLS) pyproject.toml CMakeLists.txt constraints-test.txt $(SOURCES)
	scripts/setup package
	@touch $@

$(EXAMPLES): $(PACKAGE)
	scripts/setup examples
	@touch $@

$(TOOLS): $(PACKAGE)
	scripts/setup tools
	@touch $@

$(TESTS): $(PACKAGE)
	scripts/setup tests
	@touch $@

# Steps that scripts/suite takes, and times, one by one.
setup-build: $(BUILD_TOOLS)
setup-package: $(PACKAGE)
setup-tests: $(TESTS)
setup-tools: $(TOOLS)
setup-download: $(BUILD_TOOLS)
	@[ -e $(TESTS) ] || scripts/setup download
setup-newest: $(VENV)-newest/.installed

$(DOCS_TOOLS): $(BUILD_TOOLS)
	scripts/setup docs
	@touch $@

$(LIBRARIES): $(TOOLS)
	scripts/setup libraries
	@touch $@

$(VENV)-%/.installed: $(PACKAGE) $(wildcard constraints-*.txt)
	scripts/setup environment $*
	@touch $@
