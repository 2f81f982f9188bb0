# `make demo` shows stocached at work, and `make test` tests it. `make help` lists all targets.

PYTHON ?= python3
GO     ?= go
# TORCH=0 leaves torch (several GB) out of the virtual environment. Its tests are then skipped, and counted as skipped.
TORCH  ?= 1

VENV   := .venv
PY     := $(VENV)/bin/python
TOOLS  := .tools

# What `make test` runs. A space separates groups, which run one after the other. In a group, a plus separates lanes,
# which run in parallel. A comma separates the stages of a lane, which run one after the other. Each stage is a target:
# `make test-c` runs one of them. Tests wait much of their time, so three lanes keep two processors busy. Those in Python
# use all processors at the end, so what uses one comes in other lanes.
PYTHON_TESTS := setup-examples,test-python,test-torch
GO_TESTS := setup-versitygw,test-go,test-go-race,test-go-faults,test-model,test-bench,test-examples
OTHER_TESTS := test-c,test-stress,test-languages,test-demo
TESTS := $(PYTHON_TESTS)+$(GO_TESTS)+$(OTHER_TESTS)
LINTS := lint-go+lint-python+test-docs lint-generate
# `make ci` runs tests and linters together. `site` waits for a browser, and `packages` takes long: each begins a lane.
CI := $(TESTS),test-docs+setup-lint-python,site,lint-python+setup-packages,packages,setup-lint-go,lint-go lint-generate
# What both need first; the stages install the rest.
FIRST := setup-c-tests setup-promtool setup-browser setup-python build
# Six processes in Go, C and Python fill, overwrite and read one cache. The driver kills them at random and then checks
# every sample.
STRESS_WORKERS = -c build/c/stress_worker -python '$(PY) python/tests/stress_worker.py'
STRESS = $(MAKE) --no-print-directory -s -C cclient ../build/c/stress_worker && CGO_ENABLED=0 $(GO) run ./internal/verify/stress/cmd/stress drive $(STRESS_WORKERS)
# 16 such processes fill caches in memory cgroups that are too small for the caches.
STRESS_MEMORY = CGO_ENABLED=0 $(GO) run ./internal/verify/stress/cmd/stress memory $(STRESS_WORKERS)

# -rsfE: pytest prints the reason of every skip, and every failure again at the end. Each target has a cache of its own,
# which says what failed last. Plugins of packages that tests use take half a second of each process.
PYTEST = $(PY) -m pytest -rsfE -p no:zarr -p no:anyio -p no:platformdirs -o cache_dir='$(CURDIR)/build/pytest/$@'
# Tests wait most of the time, so more tests than processors run in parallel. With torch, each process that runs tests
# takes 15 processor seconds more: it imports torch, and so does its fork server.
SIDE_BY_SIDE = -n $(shell n=$$(nproc); echo $$((n < 6 ? n + 2 : 8))) --dist worksteal
SIDE_BY_SIDE_TORCH = -n $(shell n=$$(nproc); echo $$((n < 8 ? n : 8))) --dist worksteal

# The timeout ends a test that hangs: no package takes longer than 6 minutes. The linters run vet.
GO_TEST = $(GO) test -v -vet=off -timeout 15m -parallel 6
GO_LIST = $$(CGO_ENABLED=0 $(GO) list ./... | grep -v $(1))

# Without the names of folders, what Go has compiled for one clone or for a release fits every clone. Without DWARF, which
# only debuggers read, an eighth less processor time is needed to compile. `go test` and releases leave it out anyway.
GO_FLAGS := -trimpath -gcflags=all=-dwarf=false
export GOFLAGS := $(filter-out $(GO_FLAGS),$(shell $(GO) env GOFLAGS 2>/dev/null)) $(GO_FLAGS)

# What the compiler made of the same C source before, in any clone, as Go does by itself. Where ccache cannot write, it
# compiles nothing.
export PATH := $(shell exec 2>/dev/null; test -e /usr/lib/ccache/cc && d=$$(ccache -k cache_dir)/tmp && \
	mkdir -p "$$d" && test -w "$$d" && echo /usr/lib/ccache:)$(PATH)
export CCACHE_NOHASHDIR := 1
export CCACHE_BASEDIR := /
export PYTHON GO TORCH
# Hundreds of interpreters import the tests and the package. Without .pyc files, each would compile them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help build build/libstocached.so bin/stocached dist wheel packages site install demo demo-cluster bench \
	bench-micro bench-gpu bench-against soak mutations check test ci test-go test-chart test-bench \
	test-go-race test-go-faults test-model test-c test-languages test-python test-torch test-torch-oldest test-stress \
	test-learning test-suites test-demo test-examples test-compose test-docs lint lint-go lint-python lint-generate clean

help: ## print this list
	@echo 'Targets of stocached:'
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "  make %-17s %s\n", $$1, $$2 }'

# ------------------------------------------------------------------------------------------------ build
-include cimage/decoders.mk
# Without the headers of its decoders, the library for pictures decodes no files. Nothing is kept of a build with
# the other answer: its files may be newer than all sources.
build: build/libstocached.so bin/stocached ## build bin/stocached, bin/stocached-decode and the C libraries in build/
	@if tools/setup.sh has-codecs; then codecs=1; else codecs=0; \
		echo 'stocached: without stocached-decode, and Pillow decodes pictures in Python, as headers are missing. On Debian and Ubuntu: sudo apt-get install -y $(DECODER_PACKAGES)'; fi; \
	mkdir -p build bin; [ "$$(cat build/.codecs 2>/dev/null || echo 1)" = $$codecs ] || rm -f build/libstocached_image.so* build/stocached-decode bin/stocached-decode; \
	echo $$codecs > build/.codecs; $(MAKE) --no-print-directory -C cimage CODECS=$$codecs; \
	[ $$codecs = 0 ] || ln -sf ../build/stocached-decode bin

build/libstocached.so: | setup-compiler
	@$(MAKE) --no-print-directory -C cclient

bin/stocached:
	CGO_ENABLED=0 $(GO) build -ldflags='-s -w' -o $@ ./cmd/stocached
	@test $$(stat -c %s $@) -le 40000000 || { echo '$@ has more than 40 MB'; exit 1; }

# docs/guides/packages.md says what is made. With SKIPS=0, a test that this machine cannot run fails.
dist: setup-dist ## make wheels, archives, deb and rpm for two architectures in build/dist, and test them
	@PYTHONPATH=tools $(PY) -m release build/dist
	DIST=build/dist SKIPS=$(SKIPS) $(PYTEST) tools/release/checks_wheel.py tools/release/checks_contents.py tools/release/checks_packages.py

wheel: setup-wheel ## make the wheel for this architecture in build/wheel, with all that it needs inside, and test it
	@PYTHONPATH=tools $(PY) -m release --wheel build/wheel
	DIST=build/wheel $(PYTEST) tools/release/checks_wheel.py

packages: setup-packages ## make all packages and the container image for this architecture in build/packages, and test them
	@PYTHONPATH=tools $(PY) -m release --here build/packages
	DIST=build/packages $(PYTEST) tools/release/checks_wheel.py tools/release/checks_contents.py
	cd deploy/check && CGO_ENABLED=0 $(GO_TEST) -run '^TestBuildah$$' .

site: setup-site bin/stocached ## make the site of the documents in build/site/html, and test it
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=tools $(PY) -m website
	$(PYTEST) tools/website/checks_site.py

# Under sudo, this compiles nothing, as root often has no Go, and files of root would stay in build/. Nor does it with
# BUILD=FOLDER, the folder of the libraries, and PROGRAM=FILE. tools/install.sh has all variables.
PREFIX  ?= /usr/local
BUILD   ?= build
PROGRAM ?= bin/stocached
install: $(if $(SUDO_USER)$(filter-out file,$(origin BUILD)),,build) ## install what `make build` built, manual pages and units; PREFIX=/usr/local, DESTDIR=
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' BUILD='$(BUILD)' PROGRAM='$(PROGRAM)' RUNS='$(or $(RUNS),$(PROGRAM))' \
		tools/install.sh

demo: setup-demo ## run the main job on image files; IMAGES=dir for your own, ARGS=--torch for DataLoader
	@$(PY) -m demo $(if $(IMAGES),--images '$(IMAGES)') $(ARGS)

demo-cluster: setup-demo setup-torch setup-versitygw bin/stocached ## run one job on three hosts in namespaces (without root: on one host); ARGS="--gigabytes 1.6 --step 0.02"
	@$(PY) -m demo.cluster $(ARGS)

# Other projects' loaders, SPDL and DALI are left out unless `make setup-peers` has installed them (several GB).
bench: build setup-demo setup-torch ## measure Python beside other libraries; ARGS="loaders peers --quick", ARGS=--help
	$(PY) bench/python $(ARGS)

# With BASE=build/bench/old.txt, which an earlier run wrote, benchstat compares both.
bench-micro: build/libstocached.so ## measure Go, the server and C in build/bench/new.txt; COUNT=6, BENCH=Gather, BASE=old.txt
	@mkdir -p build/bench && $(CC) -O2 -std=gnu11 -Wall -Wextra -pthread -Icclient -Ibench/c -o build/bench/micro \
		bench/c/micro.c bench/c/loops.c -Lbuild -lstocached -Wl,-rpath,$(CURDIR)/build
	CGO_ENABLED=0 $(GO) test -run '^$$' -bench '$(or $(BENCH),.)' -count $(or $(COUNT),6) ./cache ./loader ./order ./shm \
		./source/... | tee build/bench/new.txt
	CGO_ENABLED=0 $(GO) -C bench test -run '^$$' -bench '$(or $(BENCH),.)' -count $(or $(COUNT),6) . | tee -a build/bench/new.txt
	for k in $$(seq $(or $(COUNT),6)); do build/bench/micro /dev/shm; done | tee -a build/bench/new.txt
	$(GO) -C bench tool benchstat $(if $(BASE),'$(abspath $(BASE))') '$(CURDIR)/build/bench/new.txt'

bench-gpu: build setup-torch ## train ResNets on a GPU from a folder of JPEG files (6 minutes); FOLDER=dir, ARGS="--net resnet50"
	PYTHONPATH=python/src STOCACHED_LIB_PATH=build $(PY) bench/python/gpu.py '$(or $(FOLDER),$(error say FOLDER=dir))' $(ARGS)

bench-against: setup-torch ## compare with an older commit (15 minutes); BASE=COMMIT, ARGS="--runs 7"
	$(PY) bench/python/against.py $(or $(BASE),$(error say BASE=COMMIT)) $(ARGS)

soak: build/libstocached.so setup-torch setup-wheel ## kill processes at random for hours; tools/soak.sh lists the variables
	@GO='$(GO)' PY='$(PY)' tools/soak.sh

mutations: setup-torch setup-c-tests ## put defects into a copy of HEAD and say which test finds each; ARGS="Go: C:" for some
	@$(PY) tools/mutations.py $(ARGS)

# ------------------------------------------------------------------------------------------------ tests
# QUICK=1 leaves out tests that start programs or hundreds of processes, fault points, race detector, torch and cgo.
# Go and golangci-lint cache their results, so a second run repeats only what a change concerns.
check: setup-c-tests setup-lint-python setup-lint-go build ## run linters and quick tests, in about two minutes
	@QUICK=1 $(PYTHON) tools/stages.py test-python+test-c,test-go+lint-go,lint-python

test: $(FIRST) ## run every test: Go, C, model, Python, torch; TORCH=0 skips torch
	@$(PYTHON) tools/stages.py $(TESTS)

ci: $(FIRST) ## what .ci/run runs: tests, linters and the examples of the documents
	@$(GO) clean -testcache # no result of another clone counts
	@$(PYTHON) tools/stages.py $(CI)

# test-languages runs these. They have no build tag, because then both stages would compile all tests of commands.
LANGUAGES_TESTS := ^(TestEverySampleIsReadOnce|TestBatchesLargerThanTheCache)$$
# `make packages` runs the test of buildah. Tests of buckets read from gofakes3, and from versitygw, if it is there.
test-go: ## test Go without cgo and without the model (`make test-model`)
ifdef QUICK
	CGO_ENABLED=0 $(GO) test -short -timeout 5m $(call GO_LIST,-e /internal/cli -e /internal/verify -e /internal/timeline)
else
	CGO_ENABLED=0 STOCACHED_VERSITYGW='$(abspath $(wildcard $(TOOLS)/versitygw))' $(GO_TEST) -skip '$(LANGUAGES_TESTS)' \
		$(call GO_LIST,/internal/verify/model)
	cd deploy/check && CGO_ENABLED=0 $(GO_TEST) -skip '^TestBuildah$$' ./...
endif

# Not a part of `make test`, as compiling Helm and Kubernetes takes minutes. The workflow of each change runs it.
test-chart: setup-lint-go ## render the Helm chart with Helm, and check it with the types of Kubernetes
	cd deploy/check && CGO_ENABLED=0 $(GO_TEST) -tags chart -run '^(TestChart|TestGuide)' .
	cd deploy/check && CGO_ENABLED=0 $(LINT_GO) --build-tags chart --enable-only govet,errcheck,ineffassign,misspell .

test-bench: build $(if $(filter 0,$(TORCH)),setup-demo,setup-torch) ## run the benchmarks in small sizes
	cd bench && CGO_ENABLED=0 $(GO_TEST) -short -run '^$$' -bench . -benchtime 1x .
	$(PYTEST) bench

# The race detector sees only one process, and makes tests ten times slower. So other stages run the tests of several
# processes, of one goroutine, of allocations, of the reads of planned jobs (TestPlannedJobs and TestSideBuffer find their
# races) and of times. One command runs all packages in parallel, the slowest first.
RACE_SKIP = TestBucketIsListedAsAFolder|TestLabelsOfABucket|TestBytesOfASampleInABucket|TestIndexBesideAShardInABucket|TestIndexOfLargeMembersSkipsTheirData|TestNeighboursOfAShard|TestNeighboursOfRows|TestOddNames|TestAnswersThatAreNoPages|TestCostsOfLoads|TestPlannedShares|TestGarbage|TestMemoryOfALongList|TestChainsLoss|TestDamagedIndex|TestEveryByteFlipped|TestExpandBraces|TestPictureLargerThanTheMemory|TestNoAllocations|TestChains|TestGoingOn|TestAMillionSamples|TestNext|TestListingInAnyOrder|TestManyWantsOfOneSampleAreGivenUp|TestHostileHeaders|TestHostileWords
test-go-race: ## test Go under the race detector
	processes=$$(sed -n 's/^func \(Test[A-Za-z]*\)(.*/\1/p' cache/multi_test.go cache/huge_test.go | paste -sd '|') && \
	$(GO_TEST) -race -short -skip "^($$processes|$(RACE_SKIP))\$$|^TestAuto\$$/^slow\$$" \
		./cache ./loader ./shm $$($(GO) list ./server/... | grep -v /config) ./client ./source/...

test-go-faults: ## test Go with kills and stops at every step of the protocol, a server and a pack
	files=$$(grep -rl --include='*_test.go' '^//go:build faultpoints' cache client server source tier internal/cli) && \
	tests=$$(sed -n 's/^func \(Test[A-Za-z]*\)(.*/\1/p' $$files | paste -sd '|') && \
	CGO_ENABLED=0 $(GO_TEST) -tags faultpoints -run "^($$tests)\$$" $$(dirname $$files | sort -u | sed 's|^|./|')

test-model: build/libstocached.so ## check every interleaving of a small model of the protocol, and replay it on Go and C
	CGO_ENABLED=0 $(GO_TEST) -tags faultpoints ./internal/verify/model/...

QUICK_C := $(patsubst %,../build/c/test-%,api attach chains order unit)
test-c: setup-c-tests ## test C: plain, with fault points, and with sanitizers
ifdef QUICK
	@$(MAKE) --no-print-directory -s -C cclient $(QUICK_C)
	@cd cclient && set -e; for test in $(QUICK_C); do $$test; done
else
	$(MAKE) --no-print-directory -j$$(nproc) -C cclient test
	$(MAKE) --no-print-directory -j$$(nproc) -C cimage test
endif

test-languages: build setup-python ## run processes in Go, C and Python on one cache or server: each sample is read once; kills
	STOCACHED_TEST_PYTHON=$(abspath $(PY)) CGO_ENABLED=1 $(GO_TEST) ./cclient/...
	STOCACHED_TEST_PYTHON=$(PY) CGO_ENABLED=0 $(GO_TEST) -run '$(LANGUAGES_TESTS)' ./internal/cli

SLOW_PYTHON := native or loader_policies or kills or lifecycle or streams or stateful or processes or views or wheel \
	or memory or loader.py or odd or mistakes or advise or forks or threads or trace or generators or prepare
test-python: $(if $(QUICK),,setup-demo) setup-python setup-versitygw bin/stocached ## test Python without torch
	$(PYTEST) $(SIDE_BY_SIDE) python/tests -m 'not torch' $(if $(QUICK),-k 'not ($(SLOW_PYTHON))')

test-torch: $(if $(filter 0,$(TORCH)),setup-python,setup-torch) build ## test Python with torch; installs torch (several GB)
ifeq ($(TORCH),0)
	@$(PY) tools/count_skipped.py TORCH=0 python/tests -m torch
else
	$(PYTEST) $(SIDE_BY_SIDE_TORCH) python/tests -m torch
endif

test-torch-oldest: setup-torch-oldest build ## the same with the oldest supported torch and NumPy, in .venv-oldest
	.venv-oldest/bin/python -m pytest -rsfE $(SIDE_BY_SIDE_TORCH) python/tests -m torch

test-stress: build/libstocached.so setup-python ## kill 250 processes at random; run 16 processes in small memory cgroups
	$(STRESS) -kills 250 -seconds 900
	$(STRESS_MEMORY) -limits 256 -rounds 1

test-learning: setup-c-tests setup-torch setup-demo ## train a small network on real pictures, with ours and with torchvision (minutes)
	@pictures=$$($(PY) -c 'from pathlib import Path; from demo.images import debian_pictures; print(debian_pictures(Path("build/demo").resolve()) or "")'); \
	test -n "$$pictures" && STOCACHED_TEST_PICTURES="$$pictures" $(PYTEST) python/tests/loader/test_native_torch.py -k learns

# TORCH_TESTS=.../pytorch/test and TORCHDATA_TESTS=.../data/test name the folders of the tests.
test-suites: setup-torch ## run the DataLoader tests of torch and torchdata with our class (an hour)
	@$(PY) -c 'import expecttest, parameterized, psutil, torchdata' || { echo 'first run: $(PY) -m pip install -r python/suites/requirements.txt'; exit 1; }
	$(PY) python/suites $(if $(TORCH_TESTS),--torch '$(TORCH_TESTS)') $(if $(TORCHDATA_TESTS),--torchdata '$(TORCHDATA_TESTS)') $(ARGS)

test-demo: setup-demo setup-c-tests setup-versitygw build ## test the demo, the scripts in tools/ and `make install`
	$(PYTEST) demo tools

test-examples: setup-examples setup-c-tests setup-versitygw build ## run the programs in examples/ on photographs, texts and sounds
	$(PYTEST) tools/checks_examples.py

test-compose: setup-python ## run deploy/compose.yaml and examples/served/compose.yaml in containers (needs Docker with `docker compose`)
	$(PYTEST) tools/checks_compose.py

test-docs: build setup-python setup-versitygw ## run the examples in README.md and docs/
	$(PY) tools/docs.py README.md python/README.md CONTRIBUTING.md docs examples

# ------------------------------------------------------------------------------------------------ lint
lint: setup-lint-python setup-lint-go ## run all linters, cross-builds, and checks of generated files and of sentences
	@$(PYTHON) tools/stages.py $(LINTS)

# golangci-lint also runs vet, with fault points, in a third of the time of `go vet`. Without cgo, it uses what Go has
# compiled for the tests. Only cclient/conform has cgo: the files that cgo makes name the clone's folder, and all clones share
# Go's cache, so a flag with the folder keeps them apart. In deploy/check, staticcheck would read all that it imports.
LINT_GO = $(CURDIR)/$(TOOLS)/golangci-lint run
# All Go code except the cgo folder builds without a C compiler: `go list -export` compiles and links no program. vet
# checks the packages that depend on the order of memory accesses for arm64.
lint-go:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	CGO_ENABLED=0 $(LINT_GO) ./...
	CGO_CPPFLAGS=-I$(CURDIR) CGO_ENABLED=1 $(LINT_GO) ./cclient/conform
	cd bench && CGO_ENABLED=0 $(LINT_GO) ./...
	cd deploy/check && CGO_ENABLED=0 $(LINT_GO) --enable-only govet,errcheck,ineffassign,misspell ./...
	$(TOOLS)/actionlint
	$(if $(QUICK),,CGO_ENABLED=0 $(GO) list -export -f '' ./...)
	$(if $(QUICK),,CGO_ENABLED=0 GOARCH=arm64 $(GO) vet ./shm ./cache ./policy ./order)

# Both runs have the same options, so the second finds numpy and torch in mypy's cache. As with Go's, all clones share it:
# mypy compares the contents of files. The examples have a run of their own: examples/served has the name of a test's file.
MYPY = $(PY) -m mypy --config-file python/pyproject.toml --cache-dir "$${XDG_CACHE_HOME:-$$HOME/.cache}/stocached-mypy"
lint-python:
	$(PY) -m ruff check python bench demo tools examples
	$(PY) -m ruff format --check python bench demo tools examples
	$(MYPY) python/src/stocached demo tools
	$(MYPY) examples

# tools/prose.py: sentences of at most 30 words, and lines of at most 100 columns.
lint-generate: ## check that generated files are up to date, and the sentences of documents
	$(PYTHON) tools/prose.py README.md python/README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs examples
	$(GO) generate ./...
	$(PYTHON) tools/version.py
	git diff --exit-code -- '*.h' '*.go' '*.py' '*.yaml' '*Containerfile' go.mod go.sum

# tools/setup.sh installs what a target needs. These lines say what comes before.
setup-c-tests setup-python setup-lint-go setup-torch-oldest: setup-system
setup-demo setup-torch setup-site setup-lint-python: setup-python
setup-peers: setup-torch
setup-examples: setup-demo $(if $(filter 0,$(TORCH)),,setup-torch)
setup-wheel: setup-c-tests setup-python
setup-packages: setup-wheel
setup-dist: setup-packages $(if $(filter 0,$(TORCH)),,setup-torch)

setup-%:
	@tools/setup.sh $*

clean: ## remove everything that make made, including virtual environments and tools
	rm -rf bin build $(VENV) .venv-examples .venv-peers .venv-oldest $(TOOLS)
	@for folder in cclient cimage; do [ ! -e $$folder/Makefile ] || $(MAKE) --no-print-directory -C $$folder clean; done
