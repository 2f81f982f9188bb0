# stocached: `make demo` shows it at work, `make test` checks it; both set up what they need. `make help` lists the rest.

PYTHON ?= python3
GO     ?= go
# TORCH=0 leaves torch (several GB) out of the virtual environment and skips its tests, which are then counted as skipped.
TORCH  ?= 1

VENV   := .venv
PY     := $(VENV)/bin/python
TOOLS  := .tools
GOLANGCI_VERSION := v2.15.0

# What `make test` runs, in this order: those joined by a plus side by side, and those joined by a comma one after the
# other beside them; those after a tilde have what processor time the others leave. Each name is a target of its own:
# `make test-c` runs one of them. Go and C need neither torch nor the demo: they are installed meanwhile.
COMPILED := setup-rest,test-bench,test-go-faults,test-c+test-go,test-go-race,test-model,test-conform,test-languages
TESTS := $(COMPILED) test-python test-torch test-stress+test-demo
LINTS := lint-go+lint-python,lint-prose lint-cross+test-docs lint-generate
# As both: linters and examples where others wait.
CI := setup-lint,$(COMPILED),lint-cross test-python,test-torch+~lint-go,lint-python,lint-prose,test-docs
CI += test-stress+test-demo lint-generate

# Six processes in Go, C and Python fill, overwrite and read one cache while they are killed at random; then every sample is checked.
STRESS_WORKERS = -c build/c/stress_worker -python '$(PY) python/tests/stress_worker.py'
STRESS = $(MAKE) --no-print-directory -s -C cclient ../build/c/stress_worker && $(GO) run ./internal/verify/stress/cmd/stress drive $(STRESS_WORKERS)
# 16 of them fill caches in memory cgroups that are too small for these.
STRESS_MEMORY = $(GO) run ./internal/verify/stress/cmd/stress memory $(STRESS_WORKERS)

# -r: every skip is told, with its reason, and every failure once more at the end.
PYTEST = $(PY) -m pytest -rsfE
# Tests wait much of their time: so many of them run beside each other.
SIDE_BY_SIDE = -n $(shell n=$$(nproc); echo $$((n < 6 ? n + 2 : 8))) --dist worksteal

# What hangs ends by then, and tells where: no package takes a minute and a half on two cores. Tests that run beside others wait most of the time.
GO_TEST = $(GO) test -v -timeout 5m -parallel 6

export PYTHON GO TORCH
# Hundreds of interpreters import the tests and the package: each would compile them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@echo 'Targets of stocached:'
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

# ------------------------------------------------------------------------------------------------ build

.PHONY: build
build: build/libstocached.so bin/stocached ## bin/stocached and build/libstocached.so

.PHONY: build/libstocached.so
build/libstocached.so: | setup-compiler
	@$(MAKE) --no-print-directory -C cclient

.PHONY: bin/stocached
bin/stocached:
	CGO_ENABLED=0 $(GO) build -trimpath -o $@ ./cmd/stocached

.PHONY: man
man: bin/stocached ## manual pages of all commands, in build/man
	rm -rf build/man
	bin/stocached man build/man

# Under sudo nothing is compiled: there Go is often missing, and files of root would be left in build/.
PREFIX ?= /usr/local
DEST   := $(DESTDIR)$(PREFIX)
SHARE  := $(DEST)/share
UNITS  := $(SHARE)/systemd/user

.PHONY: install
install: $(if $(SUDO_USER),,build) ## command, C library, manual pages, completions and units: PREFIX=/usr/local, DESTDIR= for packages
	@[ -e bin/stocached ] && [ -e build/libstocached.so ] || { echo 'stocached: nothing to install yet; run make build first' >&2; exit 1; }
	@$(MAKE) --no-print-directory -C cclient install PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)'
	@echo "stocached: installing the command, manual pages, completions and units under $(DEST)"
	@set -e; umask 022; \
	install -d '$(DEST)/bin' '$(UNITS)' '$(SHARE)/bash-completion/completions' '$(SHARE)/zsh/site-functions' '$(SHARE)/fish/vendor_completions.d'; \
	install -m 755 bin/stocached '$(DEST)/bin'; \
	bin/stocached man '$(SHARE)/man/man1'; \
	bin/stocached completion bash > '$(SHARE)/bash-completion/completions/stocached'; \
	bin/stocached completion zsh > '$(SHARE)/zsh/site-functions/_stocached'; \
	bin/stocached completion fish > '$(SHARE)/fish/vendor_completions.d/stocached.fish'; \
	for unit in stocached.service stocached.socket stocached-admin.socket; do \
		sed 's|/usr/local/bin|$(PREFIX)/bin|' deploy/$$unit > '$(UNITS)'/$$unit; \
	done

# ------------------------------------------------------------------------------------------------ main job

.PHONY: demo
demo: setup-demo ## the main job on real image files: table and chart; IMAGES=dir for your own, ARGS="--torch" for the DataLoader
	@$(PY) -m demo $(if $(IMAGES),--images '$(IMAGES)') $(ARGS)

.PHONY: demo-server
demo-server: setup-demo demo-readers ## a server fills a cache from the same pictures for readers in Python, Go and C; IMAGES=dir, ARGS="--samples 1000"
	@$(PY) -m demo.server $(if $(IMAGES),--images '$(IMAGES)') $(ARGS)

.PHONY: demo-readers
demo-readers: bin/stocached build/libstocached.so
	@$(MAKE) --no-print-directory -s -C cclient ../build/c/example-fetch
	CGO_ENABLED=0 $(GO) build -trimpath -o build/demo/gofetch ./demo/gofetch

.PHONY: bench
bench: build setup-python ## speed and memory in Go, C and Python; ARGS=-quick shows in a minute that it works
	$(GO) -C bench run ./cmd/bench $(ARGS)

.PHONY: bench-peers
bench-peers: build setup-torch ## the same beside stocaching, NumPy, torch and plain C loops, written to bench/results
	$(GO) -C bench run ./cmd/bench -peers $(ARGS)

.PHONY: bench-server
bench-server: setup-bench ## speed of the server beside bare reads, redis-server, memcached and plain files, written to bench/results: 10 minutes
	$(GO) -C bench run ./cmd/bench -server -peers $(ARGS)

.PHONY: bench-order
bench-order: build/libstocached.so ## speed and memory of the order of an epoch, written to bench/results
	$(GO) -C bench run ./cmd/bench -order $(ARGS)

.PHONY: bench-loader
bench-loader: build setup-system ## speed of the loader in Go beside gathering alone and bare goroutines, written to bench/results
	$(GO) -C bench run ./cmd/bench -loader $(ARGS)

.PHONY: bench-dataloader
bench-dataloader: build setup-torch setup-demo ## speed of the loader in Python beside torch's over stocaching, and its memory, written to bench/results
	$(GO) -C bench run ./cmd/bench -dataloader $(ARGS)

.PHONY: bench-others
bench-others: build setup-torch setup-others ## the same beside litdata, mosaicml-streaming, webdataset, SPDL, Grain, torchdata, MONAI and HF datasets
	BENCH_PYTHON=$(CURDIR)/.venv-peers/bin/python $(GO) -C bench run ./cmd/bench -others $(ARGS)

.PHONY: bench-against
bench-against: setup-torch ## the main rows beside those of an older commit, in alternating runs: BASE=COMMIT; ARGS="--runs 7"; a quarter of an hour
	$(PY) bench/python/against.py $(or $(BASE),$(error say BASE=COMMIT)) $(ARGS)

.PHONY: charts
charts: setup-torch setup-demo ## the time-lines of the loader and of streams beside torch's, in docs/images: measures for minutes; ARGS=--quick for seconds
	@$(PY) tools/draw_experiments.py $(ARGS)

.PHONY: soak
soak: build/libstocached.so setup-torch ## random SIGKILLs for long: KILLS=50000, SECONDS=3600 at most; then MEMORY_ROUNDS=50 of 16 writers in each of five memory cgroups; then SERVER_KILLS=500 of a server under load, PREPARE_KILLS=2000 of preparations, LOADER_KILLS=2000 of workers; AUGMENTATIONS=200 seeds of each through each way in
	$(STRESS) -kills $(or $(KILLS),50000) -seconds $(or $(SECONDS),3600)
	$(STRESS_MEMORY) -limits 256,512,1024,2048,4096 -rounds $(or $(MEMORY_ROUNDS),50)
	STOCACHED_TEST_KILLS=$(or $(SERVER_KILLS),500) CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 1h -run '^TestServerKilledUnderLoad$$' ./internal/cli
	STOCACHED_TEST_KILLS=$(or $(PREPARE_KILLS),2000) $(PYTEST) python/tests/prepare/test_prepare_kills.py
	STOCACHED_TEST_KILLS=$(or $(LOADER_KILLS),2000) STOCACHED_TEST_BREAKS=$(or $(LOADER_BREAKS),2000) $(PYTEST) python/tests/loader/test_loader_kills.py \
		python/tests/loader/test_loader_lifecycle.py -k 'two_hundred or left_in_the_middle'
	STOCACHED_TEST_MEMORY=1 $(PYTEST) python/tests/memory/test_memory.py -k cgroup
	STOCACHED_TEST_FRAMEWORKS=all $(PYTEST) python/tests/loader/test_lightning_loaders.py
	STOCACHED_TEST_AUGMENTATIONS=$(or $(AUGMENTATIONS),200) $(PYTEST) -s -k each_way_in python/tests/checks/test_augmentations.py

.PHONY: mutations
mutations: setup-torch setup-c-tests ## puts one defect after the other into a copy of HEAD, and says which test finds it: ARGS="Go: C:" for some; no part of `make test`
	@$(PY) tools/mutations.py $(ARGS)

# ------------------------------------------------------------------------------------------------ tests

.PHONY: check
check: setup-c-tests setup-lint build ## after each change, in about two minutes: linters and the quick tests of Go, C and Python; Go and golangci-lint repeat only what a change concerns
	@$(PYTHON) tools/stages.py check-python+check-c,check-go+lint-go,lint-python

# Without the packages whose tests start programs, and without fault points, sanitizers, the race detector and cgo.
.PHONY: check-go
check-go:
	CGO_ENABLED=0 $(GO) test -short -timeout 5m $$(CGO_ENABLED=0 $(GO) list ./... | grep -v -e /internal/cli -e /internal/verify -e /internal/timeline)

CHECK_C := api attach order unit
.PHONY: check-c
check-c: setup-compiler
	@$(MAKE) --no-print-directory -s -C cclient $(CHECK_C:%=../build/c/test-%)
	@cd cclient && set -e; for test in $(CHECK_C:%=../build/c/test-%); do $$test; done

# Without torch, and without the files whose tests start hundreds of processes.
SLOW_PYTHON := kills or lifecycle or streams or stateful or processes or views or wheel or memory or loader.py or odd or mistakes or autotune or forks or threads or trace or generators or prepare
.PHONY: check-python
check-python: setup-python bin/stocached
	$(PYTEST) -n $$(nproc) --dist worksteal python/tests -m 'not torch' -k 'not ($(SLOW_PYTHON))'

.PHONY: test
test: setup-first ## every test: Go, C, model, Python, torch; TORCH=0 skips torch
	@$(PYTHON) tools/stages.py $(TESTS)

.PHONY: ci
ci: setup-first ## what .ci/run runs: test, lint and the examples of the documents
	@$(PYTHON) tools/stages.py $(CI)

.PHONY: test-go
test-go: ## Go without cgo; the model has a target of its own
	CGO_ENABLED=0 $(GO_TEST) $$(CGO_ENABLED=0 $(GO) list ./... | grep -v /internal/verify/model)
	cd deploy/check && CGO_ENABLED=0 $(GO_TEST) ./...

.PHONY: test-bench
test-bench: ## the benchmarks, in sizes that take seconds
	cd bench && CGO_ENABLED=0 $(GO_TEST) ./...

# Tests of several processes are left to the other stages: the detector sees into one process only, and makes them ten
# times slower. So are long ones of one goroutine, and one that counts allocations. One command, so that packages run
# and compile beside each other; those that take longest come first.
RACE_SKIP = TestEveryByteFlipped|TestExpandBraces|TestNeed|TestPictureLargerThanTheMemory|TestNoAllocations
.PHONY: test-go-race
test-go-race: ## Go under the race detector
	processes=$$(sed -n 's/^func \(Test[A-Za-z]*\)(.*/\1/p' cache/multi_test.go cache/huge_test.go | paste -sd '|') && \
	$(GO_TEST) -race -short -skip "^($$processes|$(RACE_SKIP))\$$" \
		./cache ./loader ./shm ./server/... ./client ./source/... ./policy ./control

.PHONY: test-go-faults
test-go-faults: ## Go with fault points: kills and stops at every step of the protocol, of a server and of a pack
	$(GO_TEST) -tags faultpoints ./shm ./cache ./client ./source/tar ./source/dir
	$(GO_TEST) -tags faultpoints -run TestPoint ./server
	$(GO_TEST) -tags faultpoints -run 'Pack|TestServerKilledAt|TestServerKilledWhile|TestClientKilled|TestEveryServerPoint' ./internal/cli

.PHONY: test-model
test-model: build/libstocached.so ## every interleaving of the protocol in small worlds, replayed on Go and C
	$(GO_TEST) -tags faultpoints ./internal/verify/model/...

.PHONY: test-c
test-c: setup-c-tests ## C: plain, with fault points, under the address, undefined-behaviour and thread sanitizers
	$(MAKE) --no-print-directory -j$$(nproc) -C cclient test

.PHONY: test-conform
test-conform: build/libstocached.so ## one table of operations through Go and through C
	CGO_ENABLED=1 $(GO_TEST) ./cclient/...

.PHONY: test-languages
test-languages: build setup-python ## 8 processes in Go, C and Python on one server: each sample is read once
	STOCACHED_TEST_PYTHON=$(PY) $(GO_TEST) -tags languages -run TestEverySample ./internal/cli

.PHONY: test-python
test-python: setup-python bin/stocached ## Python without torch
	$(PYTEST) $(SIDE_BY_SIDE) python/tests -m 'not torch'

.PHONY: test-torch
ifeq ($(TORCH),0)
test-torch: setup-python
	@$(PY) tools/count_skipped.py TORCH=0 python/tests -m torch
else
test-torch: setup-torch bin/stocached ## Python with torch; installs it (several GB, about a minute) where it is missing
	$(PYTEST) $(SIDE_BY_SIDE) python/tests -m torch
endif

.PHONY: test-torch-oldest
test-torch-oldest: setup-torch-oldest bin/stocached ## the same with the oldest torch and NumPy that are supported, in .venv-oldest; no part of `make test`
	.venv-oldest/bin/python -m pytest -rsfE $(SIDE_BY_SIDE) python/tests -m torch

.PHONY: test-stress
test-stress: build/libstocached.so setup-python ## 2,000 random SIGKILLs among processes in Go, C and Python; 16 of them in small memory cgroups
	$(STRESS) -kills 2000 -seconds 240
	$(STRESS_MEMORY) -limits 256 -rounds 2

.PHONY: test-cuda
test-cuda: setup-torch ## batches in memory that CUDA reads from; needs a GPU, and is no part of `make test`
	$(PYTEST) python/tests/cuda_machine.py

.PHONY: test-suites
test-suites: setup-torch ## the DataLoader suites of torch and torchdata, with their class and with ours: TORCH_TESTS=.../pytorch/test TORCHDATA_TESTS=.../data/test; an hour
	@$(PY) -c 'import expecttest, parameterized, psutil, torchdata' || { echo 'first: $(PY) -m pip install -r python/suites/requirements.txt'; exit 1; }
	$(PY) python/suites $(if $(TORCH_TESTS),--torch '$(TORCH_TESTS)') $(if $(TORCHDATA_TESTS),--torchdata '$(TORCHDATA_TESTS)') $(ARGS)

.PHONY: test-demo
test-demo: setup-demo setup-c-tests demo-readers ## the demo, the scripts in tools/, and what make install installs
	$(PYTEST) demo tools

.PHONY: test-docs
test-docs: build setup-python ## runs the examples in README.md and docs/
	$(PY) tools/docs.py README.md python/README.md docs

# ------------------------------------------------------------------------------------------------ lint

.PHONY: lint
lint: setup-lint ## gofmt, go vet, golangci-lint, ruff, mypy, cross-builds, generated files, length of sentences
	@$(PYTHON) tools/stages.py $(LINTS)

# golangci-lint runs vet as well, with fault points; lint-cross runs it without.
.PHONY: lint-go
lint-go:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) -C bench vet ./...
	$(GO) -C deploy/check vet ./...
	$(TOOLS)/golangci-lint run ./...

# One set of options and one folder: the second run finds numpy and torch in the cache of the first.
MYPY = $(PY) -m mypy --config-file python/pyproject.toml

# Sentences of at most 30 words, and lines of at most 100 columns.
.PHONY: lint-prose
lint-prose:
	$(PYTHON) tools/prose.py README.md python/README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs

.PHONY: lint-python
lint-python:
	$(PY) -m ruff check python bench demo tools
	$(PY) -m ruff format --check python bench demo tools
	$(MYPY)
	$(MYPY) demo tools

# Everything but the cgo folders builds without a C compiler, and for arm64.
.PHONY: lint-cross
lint-cross:
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build ./...
	CGO_ENABLED=0 GOARCH=arm64 $(GO) vet ./...

.PHONY: lint-generate generate-check
lint-generate generate-check: ## generated files are up to date
	$(GO) generate ./...
	git diff --exit-code -- '*.h' '*.go' '*.py' go.mod go.sum

# ------------------------------------------------------------------------------------------------ set-up

.PHONY: setup-compiler
setup-compiler:
	@tools/setup.sh compiler

.PHONY: setup-system
setup-system:
	@tools/setup.sh system

.PHONY: setup-others
setup-others: setup-torch
	@tools/setup.sh others

.PHONY: setup-torch-oldest
setup-torch-oldest: setup-system
	@tools/setup.sh torch-oldest

.PHONY: setup-bench
setup-bench:
	@tools/setup.sh bench

.PHONY: setup-c-tests
setup-c-tests: setup-system
	@tools/setup.sh c-tests

.PHONY: setup-promtool
setup-promtool:
	@tools/setup.sh promtool

.PHONY: setup-python setup-demo setup-torch setup-lint setup-first setup-rest
setup-python: setup-system
	@tools/setup.sh python
setup-demo: setup-python
	@tools/setup.sh demo
setup-torch: setup-python
	@tools/setup.sh torch
setup-lint: setup-python
	@GOLANGCI_VERSION=$(GOLANGCI_VERSION) tools/setup.sh lint
# What the first tests need, and what can wait.
setup-first: setup-c-tests setup-promtool setup-python build
setup-rest: setup-demo
ifneq ($(TORCH),0)
setup-rest: setup-torch
endif

.PHONY: clean
clean: ## removes everything that make made, the virtual environment and the tools too
	rm -rf bin build $(VENV) .venv-peers .venv-oldest $(TOOLS)
	@if [ -e cclient/Makefile ]; then $(MAKE) --no-print-directory -C cclient clean; fi
