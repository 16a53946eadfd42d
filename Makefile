# Needs Python 3.11 or newer and a C compiler; everything else is fetched into .venv.
PYTHON ?= python3
VENV   ?= .venv
DATA   ?= ./data
LISTEN ?= 127.0.0.1:9092
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
DESTDIR ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
SOAK_SHARE ?= 1
SOAK_SEED ?= 1
SOAK_TOTALS ?= docs/proof.md
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
FUZZ_MUTATIONS ?= 30000
# Two cores suffice for three processes: each waits a third of its time for a broker or a client in Java.
WORKERS ?= 3
# The versions of Python for `make test-pythons`, which runs pythonX.Y of PATH.
PYTHONS ?= 3.11 3.12 3.13 3.14 3.15
# The tests that meet each dependency: codecs, hashes, tables on the terminal, tokens, clients, Spark and Arrow.
LOWEST_TESTS ?= tests/record tests/wire tests/protocol tests/security tests/tools/test_render.py \
    tests/tools/test_tools_topics.py tests/clients/test_aiokafka.py tests/clients/test_kafka_python.py \
    tests/client/test_client_face.py tests/spark/test_spark_files.py tests/spark/test_spark_session.py \
    tests/spark/test_spark_sink.py tests/spark/test_spark_ingest.py tests/spark/test_spark_object_store.py \
    tests/lake/test_lake_job.py tests/lake/test_lake_delta.py tests/lake/test_lake_iceberg.py tests/registry
# The targets of `make wheels`: x86_64-linux-gnu and the like, or all of them.
TARGETS ?=
# Where `make package` installs the wheel.
PACKAGE ?= build/package
DIST ?= dist

# Keep bytecode even if the shell forbids it, because the tests start hundreds of brokers and commands.
unexport PYTHONDONTWRITEBYTECODE

PY := $(VENV)/bin/python

.PHONY: help serve build debug check quick test test-lowest test-pythons soak fuzz gates bench bench-peers man docs install-service package sbom reproducible image workflows wheels smoke-arm64 containers macos smoke upgrade suites clean

help:  ## Print the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

serve: build  ## Start the broker. LISTEN=host:port and DATA=directory set where.
	$(PY) -m kbroker serve --listen $(LISTEN) --data-dir $(DATA)

build: $(VENV)/installed  ## Compile what changed, in place.
	$(PY) setup.py --quiet build_ext --inplace

quick: $(VENV)/installed-for-tests build  ## The tests for use while editing: no JVM, Node.js, Spark, browser, crash loop or bench.
	$(PY) -m pytest -n $(WORKERS) --quick $(PYTEST_ARGS)

test: $(VENV)/installed-for-tests build  ## All tests but the long runs. WORKERS=3 processes; PYTEST_ARGS='tests/log -x' runs a part.
	$(PY) -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# Use the lowest versions that pyproject.toml names, in a separate environment, to find a bound that is too low.
test-lowest: build build/lowest/installed  ## Build, and run tests, with the lowest versions of all dependencies.
	KBROKER_C_DIRECTORY=build/lowest/cython build/lowest/venv/bin/python setup.py --quiet build \
	    --build-lib build/lowest/lib --build-temp build/lowest/temp
	PYTHONPATH=build/lowest/lib build/lowest/venv/bin/python -P -m pytest -n $(WORKERS) $(LOWEST_TESTS) $(PYTEST_ARGS)

# Each version has a separate directory for its environment, its package and its object files. The extensions in the
# tree have the version in their names.
test-pythons:  ## Build, test (quick) and package with each of PYTHONS='3.13 3.14', in build/pythons.
	for version in $(PYTHONS); do \
	    $(MAKE) quick package PYTHON=python$$version VENV=build/pythons/$$version/venv \
	        DIST=build/pythons/$$version/dist PACKAGE=build/pythons/$$version/package || exit 1; \
	done

# What a Linux machine can show about macOS: the modules compile, and tests pass without what only Linux has.
MACOS_TESTS ?= tests/client tests/tools/test_tools_dump_log.py tests/tools/test_tools_directory_live.py \
    tests/tools/test_tools_transactions.py tests/tools/test_tools_groups.py
macos: $(VENV)/installed-for-tests build build/packaging/installed  ## Compile for macOS, and test the client and the tools without what only Linux has.
	$(PY) packaging/macos.py build/packaging/venv/bin/python
	PYTHONPATH=tests/support/without_linux $(PY) -m pytest -n $(WORKERS) --quick --ignore tests/client/test_consumer_member_live.py \
	    $(MACOS_TESTS) $(PYTEST_ARGS)

check: $(VENV)/installed-for-tests build  ## Check style and types.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# Each reader of foreign bytes gets the same mutations in every run, so a run fails after one that passed only if the
# code has changed. `make fuzz` searches for new mutations.
debug: $(VENV)/installed-for-tests  ## Run the tests of the formats, and two minutes of mutations, on a build with bounds checks and asserts.
	KBROKER_DEBUG=1 $(PY) setup.py --quiet build --build-lib build/debug/lib --build-temp build/debug/temp
	PYTHONPATH=build/debug/lib $(PY) -P -m pytest -n $(WORKERS) tests/wire tests/protocol tests/record tests/log tests/topics \
	    tests/spark/test_spark_splits.py tests/fuzz/test_targets.py --fuzz-mutations $(FUZZ_MUTATIONS) $(PYTEST_ARGS)

soak: $(VENV)/installed-for-tests build  ## Run the long tests, which takes hours. SOAK_SHARE=0.1 does a tenth of each, SOAK_SEED=2 other ones.
	$(PY) -m pytest -m soak -n $(WORKERS) -v --timeout 0 --soak-share=$(SOAK_SHARE) --soak-seed=$(SOAK_SEED) \
	    --soak-totals=$(SOAK_TOTALS) $(PYTEST_ARGS)

# Fuzz with the bounds checks of the debug build, because a sanitizer does not see a read that ends in another object.
# An integer that overflows is no fault: Python's own options have -fwrapv, and times wrap around in Java, too.
SANITIZERS := -fsanitize=address,undefined -fno-sanitize=signed-integer-overflow -fno-sanitize-recover=undefined \
    -fsanitize-coverage=trace-pc

fuzz: build/fuzz/installed  ## Fuzz each reader of foreign bytes for FUZZ_SECONDS=60 of processor time, on a build with sanitizers. GCC and Linux only.
	CFLAGS='$(SANITIZERS)' KBROKER_DEBUG=1 $(PY) setup.py --quiet build --build-lib build/fuzz/lib --build-temp build/fuzz/temp
	$(CC) -O2 -shared -fPIC -o build/fuzz/coverage_map.so tests/fuzz/coverage_map.c
	$(PY) tests/fuzz/run.py $(FUZZ_SECONDS) $(FUZZ_TARGETS)

# The gates of a wheel judge its modules: PYTHONSAFEPATH keeps the modules of the tree away from all processes.
gates: $(VENV)/installed-for-tests $(if $(WHEEL),,build)  ## Measure what has a bound, and print each figure with its bound and verdict. `make test` judges them, too. WHEEL=dist/NAME.whl measures a wheel.
	$(if $(WHEEL),rm -rf build/gates && $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target build/gates $(WHEEL))
	$(if $(WHEEL),PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/gates )$(PY) -m pytest tests/gates --benchmark-columns=median,iqr,rounds --benchmark-sort=name $(PYTEST_ARGS)

bench: $(VENV)/installed-for-tests build  ## Measure the compiled paths against their references, then a broker and its clients.
	$(PY) -m pytest bench -o python_files='bench_*.py' $(PYTEST_ARGS)
	$(PY) bench/broker.py
	$(PY) bench/clients.py
	$(PY) bench/secured.py
	$(PY) bench/spark.py
	$(PY) bench/lake.py

bench-peers: $(VENV)/installed-for-tests build  ## Measure beside Apache Kafka and kfake, 40 minutes. BENCH_ARGS='--set all' takes 70. A second run continues the first.
	$(PY) bench/peers.py $(BENCH_ARGS)
	$(PY) bench/transaction_cost.py
	$(PY) bench/groups.py
	$(PY) bench/shares.py
	$(PY) bench/fresh_brokers.py

docs: $(VENV)/installed-for-tests  ## Build the pages as a site, in build/site.
	$(PY) docs/build.py build/site

man: build  ## Rewrite the man pages.
	PYTHONPATH=. $(PY) man/make.py

# Install what `pip install` omits. This needs nothing compiled, and overwrites no settings. BINDIR contains kbroker.
install-service:  ## Install the systemd service, man pages and shell completion. PREFIX=/usr/local, BINDIR=PREFIX/bin.
	install -d $(addprefix $(DESTDIR),/etc/kbroker $(PREFIX)/lib/systemd/system $(PREFIX)/lib/sysusers.d \
	    $(PREFIX)/lib/tmpfiles.d $(addprefix $(PREFIX)/share/,man/man1 man/man5 man/man8 \
	    bash-completion/completions zsh/site-functions fish/vendor_completions.d))
	test -e $(DESTDIR)/etc/kbroker/server.properties || \
	    install -m 644 packaging/server.properties $(DESTDIR)/etc/kbroker
	sed 's|@BINDIR@|$(BINDIR)|' packaging/kbroker.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/kbroker.service
	install -m 644 packaging/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/kbroker.conf
	install -m 644 packaging/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/kbroker.conf
	$(foreach page,$(wildcard man/*.[158]),install -m 644 $(page) $(DESTDIR)$(PREFIX)/share/man/man$(subst .,,$(suffix $(page))) &&) true
	for command in $$(sed -n '/^\[project.scripts\]/,/^$$/s/ = .*//p' pyproject.toml); do \
	    function=$$(echo $$command | tr - _); \
	    variable=$$(echo $$function | tr a-z A-Z); \
	    complete() { sed "s/@COMMAND@/$$command/; s/@FUNCTION@/$$function/; s/@VARIABLE@/$$variable/" \
	        packaging/completion/$$1.in > $(DESTDIR)$(PREFIX)/share/$$2; }; \
	    complete bash bash-completion/completions/$$command; \
	    complete zsh zsh/site-functions/_$$command; \
	    complete fish fish/vendor_completions.d/$$command.fish; \
	done

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"{sys.executable} is Python {sys.version.split()[0]}; 3.11 or newer is needed: make PYTHON=...")'
	@$(PYTHON) packaging/compiler.py
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(call install, ["dependency-groups"]["build"] ["project"]["dependencies"])
	@touch $@

# Install Spark, too, because its tests run by default. It takes some 750 MB on the disk and a minute, mostly for PySpark
# and Arrow.
$(VENV)/installed-for-tests: $(VENV)/installed
	$(call install, ["project"]["optional-dependencies"]["test"] ["project"]["optional-dependencies"]["spark"])
	@touch $@

build/lowest/installed: pyproject.toml packaging/lowest.py $(VENV)/installed
	$(PYTHON) -m venv --clear build/lowest/venv
	@echo 'Fetching the lowest versions into build/lowest/venv'
	$(PY) packaging/lowest.py | build/lowest/venv/bin/pip install --quiet --disable-pip-version-check --requirement /dev/stdin
	@touch $@

# The packages for fuzzing are installed separately, because only `make fuzz` uses them.
build/fuzz/installed: pyproject.toml $(VENV)/installed-for-tests
	$(call install, ["project"]["optional-dependencies"]["fuzz"],--upgrade --target build/fuzz/packages)
	@touch $@

# The programs that make and judge packages are installed separately, because Zig is large and no test imports them.
build/packaging/installed: pyproject.toml
	test -x build/packaging/venv/bin/python || $(PYTHON) -m venv build/packaging/venv
	$(call install, ["dependency-groups"]["packaging"],,build/packaging/venv)
	@touch $@

# Install the packages that pyproject.toml lists at the places of the first argument, with the options for pip of the
# second argument, into the environment of the third one. The project itself is not installed, because that would compile
# it twice.
define install
	@echo 'Fetching packages into $(or $(3),$(if $(2),$(lastword $(2)),$(VENV)))'
	@$(or $(3),$(VENV))/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print($(foreach place,$(1),*p$(place),) sep="\n")' \
	    | $(or $(3),$(VENV))/bin/python -m pip install --quiet --disable-pip-version-check $(2) --requirement /dev/stdin
endef

# Packages have the time of the last commit, so that each build of a commit writes the same bytes. A tree without git has
# the first time that a zip archive can contain.
package sbom reproducible: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 315532800)

package: $(VENV)/installed-for-tests build/packaging/installed  ## Build an sdist and its wheel in dist/, judge both, and run a broker of the wheel outside the tree.
	rm -rf $(DIST) $(PACKAGE)
	$(PY) -m build --no-isolation --outdir $(DIST)
	$(call install_wheel,$(DIST)/*.whl)
	build/packaging/venv/bin/python packaging/judge.py $(DIST) $(PACKAGE)
	cd $(PACKAGE) && bin/kbroker --version && bin/kbroker docs --print && bin/python smoke.py

smoke: PACKAGE := build/smoke
smoke: build/packaging/installed  ## Install the wheel of dist/, or WHEEL=NAME.whl, and run a broker of it: 4 seconds.
	@ls $(or $(WHEEL),$(DIST)/*.whl) >/dev/null 2>&1 || { echo 'found no wheel $(or $(WHEEL),in $(DIST)/). `make package` builds one' >&2; exit 1; }
	$(call install_wheel,$(or $(WHEEL),$(DIST)/*.whl))
	cd $(PACKAGE) && bin/python smoke.py

# Install a wheel into PACKAGE, a new environment without pip, beside the program that tries it.
define install_wheel
	build/packaging/venv/bin/uv venv --quiet --clear --python $(PYTHON) $(PACKAGE)
	build/packaging/venv/bin/uv pip install --quiet --python $(PACKAGE) $(1)
	cp packaging/smoke.py $(PACKAGE)
endef

sbom: build/packaging/installed  ## Write the software bill of materials of the wheel in dist/ to build/sbom, as CycloneDX.
	build/packaging/venv/bin/python packaging/sbom.py $(DIST) build/sbom

reproducible: $(VENV)/installed-for-tests  ## Build the last commit twice, in unlike surroundings, and compare the hashes of sdist and wheel.
	$(PY) packaging/reproducible.py build/reproducible

# The tags are kbroker:VERSION and kbroker:VERSION-tools. The limits of the sizes are in build_image.py.
image: build/packaging/installed  ## Build the container image of the wheel in dist/, and run it. Needs buildah, mmdebstrap and podman.
	$(PYTHON) packaging/image/build_image.py $(DIST)
	$(PYTHON) packaging/image/check_image.py $(DIST)

containers: build/packaging/installed  ## Type the examples of docs/containers.md on the image: Testcontainers, Compose, Kubernetes. Needs podman, Java, Node.js, Go.
	$(PYTHON) packaging/image/check_page.py $(DIST)

build/workflows/installed: pyproject.toml
	test -x build/workflows/venv/bin/python || $(PYTHON) -m venv build/workflows/venv
	$(call install, ["dependency-groups"]["workflows"],,build/workflows/venv)
	@touch $@

workflows: build/workflows/installed  ## Judge .github with actionlint (needs Go) and zizmor, and print the wheels that hosted CI builds.
	go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
	build/workflows/venv/bin/zizmor --offline --quiet .github
	for platform in linux:x86_64 linux:aarch64 macos:x86_64 macos:arm64; do \
	    build/workflows/venv/bin/cibuildwheel --platform $${platform%:*} --archs $${platform#*:} \
	        --print-build-identifiers || exit 1; \
	done

# Zig has the headers and libraries of every target. The C files are translated once, for all targets and this tree.
wheels: $(VENV)/installed build/packaging/installed  ## Build and check wheels with Zig, in dist/. TARGETS='x86_64-linux-gnu aarch64-linux-musl' chooses.
	build/packaging/venv/bin/python packaging/wheels.py --python $(PY) --dist $(DIST) $(TARGETS)

smoke-arm64: $(VENV)/installed build/packaging/installed  ## Run packaging/smoke.py with the wheel for aarch64 in dist/, under qemu.
	build/packaging/venv/bin/python packaging/smoke_arm64.py --python $(PY) --dist $(DIST)

upgrade:  ## Upgrade a broker from OLD=v1.0.0 and roll it back, under load. OLD and NEW are wheels or commits; NEW is the working tree.
	@test -n '$(OLD)' || { echo 'expected OLD: a wheel or a commit of an earlier release, such as OLD=v1.0.0' >&2; exit 2; }
	$(PYTHON) packaging/upgrade.py $(OLD) $(NEW)

# The clone of aiokafka; a path works, too.
AIOKAFKA ?= https://github.com/aio-libs/aiokafka
SUITES ?=
suites: $(VENV)/installed build  ## Run the test suites of taskiq-aio-kafka and aiokafka on the test kit. SUITES='aiokafka' chooses.
	$(PY) tests/applications/suites/run.py --aiokafka $(AIOKAFKA) $(SUITES)

clean:  ## Remove what was built. .venv and data stay.
	rm -rf build dist *.egg-info
	find kbroker kbroker_tools -name '*.so' -delete
