# Needs Python 3.11 or newer and a C compiler; everything else is fetched into .venv.
PYTHON ?= python3
VENV   ?= .venv
DATA   ?= ./data
LISTEN ?= 127.0.0.1:9092
PYTEST_ARGS ?=

PY := $(VENV)/bin/python

.PHONY: serve build debug check test soak bench man package clean

serve: build  ## Start the broker on $(LISTEN) with $(DATA).
	$(PY) -m kbroker serve --listen $(LISTEN) --data-dir $(DATA)

build: $(VENV)/installed  ## Compile what changed, in place.
	$(PY) setup.py --quiet build_ext --inplace

test: $(VENV)/installed-for-tests build  ## The default test run.
	$(PY) -m pytest $(PYTEST_ARGS)

check: $(VENV)/installed-for-tests build  ## Style and types.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

debug: $(VENV)/installed-for-tests  ## Bounds checks and asserts in the compiled code, under the tests of the formats.
	KBROKER_DEBUG=1 $(PY) setup.py --quiet build --build-lib build/debug/lib --build-temp build/debug/temp
	PYTHONPATH=build/debug/lib $(PY) -P -m pytest tests/wire tests/protocol tests/record tests/log tests/topics $(PYTEST_ARGS)

soak: $(VENV)/installed-for-tests build  ## The long runs.
	$(PY) -m pytest -m soak --timeout 0 $(PYTEST_ARGS)

bench: $(VENV)/installed-for-tests build  ## Ratios to the references, in the same run; then broker and client as processes.
	$(PY) -m pytest bench -o python_files='bench_*.py' $(PYTEST_ARGS)
	$(PY) bench/broker.py

man: build  ## Write the man pages anew.
	PYTHONPATH=. $(PY) man/make.py

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"{sys.executable} is Python {sys.version.split()[0]}; 3.11 or newer is needed: make PYTHON=...")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(call install, ["build-system"]["requires"] ["project"]["dependencies"])
	@touch $@

$(VENV)/installed-for-tests: $(VENV)/installed
	$(call install, ["project"]["optional-dependencies"]["test"])
	@touch $@

# What pyproject.toml lists in these places. The project itself is used where it lies: installing it would compile it twice.
define install
	@echo 'Fetching packages into $(VENV)'
	@$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print($(foreach place,$(1),*p$(place),) sep="\n")' \
	    | $(PY) -m pip install --quiet --disable-pip-version-check --requirement /dev/stdin
endef

package: $(VENV)/installed-for-tests  ## An sdist and its wheel in dist/, proven to work outside the tree.
	rm -rf dist build/package
	$(PY) -m build --no-isolation
	$(PYTHON) -m venv build/package
	build/package/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd build/package && bin/kbroker --version && bin/python -c 'import kbroker.broker'

clean:  ## Remove what was built; .venv and data stay.
	rm -rf build dist *.egg-info
	find kbroker -name '*.so' -delete
