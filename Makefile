# `make demo` shows stocached at work, and `make test` tests it. Both install what they need. `make help` lists all
# targets.

PYTHON ?= python3
GO     ?= go
# TORCH=0 leaves torch (several GB) out of the virtual environment. Its tests are then skipped, and counted as skipped.
TORCH  ?= 1

VENV   := .venv
PY     := $(VENV)/bin/python
TOOLS  := .tools
GOLANGCI_VERSION := v2.15.0
MERMAID_VERSION := 11.17.2
VERSITYGW_VERSION := v1.8.0

# What `make test` runs. A space separates groups, which run one after the other. In a group, a plus separates lanes,
# which run in parallel. A comma separates the stages of a lane, which run one after the other. A lane that begins with
# a tilde has low priority. Each stage is a target: `make test-c` runs one of them. Tests wait much of their time, so
# three lanes keep two processors busy. Only tests in Python need what `setup-rest` installs.
PYTHON_TESTS := setup-rest,test-python,test-torch,test-examples
GO_TESTS := test-go,test-go-race,test-go-faults,test-model,test-bench,setup-versitygw,test-remote
OTHER_TESTS := test-c,test-stress,test-languages,test-conform,test-demo
TESTS := $(PYTHON_TESTS)+$(GO_TESTS)+$(OTHER_TESTS)
LINTS := lint-go+lint-python,lint-prose lint-cross+test-docs lint-generate
# What `make ci` runs: tests and linters together.
CI := setup-lint-python,$(PYTHON_TESTS),lint-python,lint-prose+$(GO_TESTS),site+$(OTHER_TESTS),test-docs
CI := $(CI)+~setup-lint-go,lint-go,lint-cross,setup-packages,packages lint-generate

# Six processes in Go, C and Python fill, overwrite and read one cache. The driver kills them at random and then checks
# every sample.
STRESS_WORKERS = -c build/c/stress_worker -python '$(PY) python/tests/stress_worker.py'
STRESS = $(MAKE) --no-print-directory -s -C cclient ../build/c/stress_worker && CGO_ENABLED=0 $(GO) run ./internal/verify/stress/cmd/stress drive $(STRESS_WORKERS)
# 16 such processes fill caches in memory cgroups that are too small for the caches.
STRESS_MEMORY = CGO_ENABLED=0 $(GO) run ./internal/verify/stress/cmd/stress memory $(STRESS_WORKERS)

# -rsfE: pytest prints the reason of every skip, and every failure again at the end. Each target has a cache of its own,
# which says what failed last.
PYTEST = $(PY) -m pytest -rsfE -o cache_dir='$(CURDIR)/build/pytest/$@'
# Tests wait most of the time, so more tests than processors run in parallel.
SIDE_BY_SIDE = -n $(shell n=$$(nproc); echo $$((n < 6 ? n + 2 : 8))) --dist worksteal
# Each process of pytest imports torch and collects its tests, which takes 5 processor seconds.
SIDE_BY_SIDE_TORCH = -n $(shell n=$$(nproc); echo $$((n < 7 ? n + 1 : 8))) --dist worksteal

# The timeout ends a test that hangs and prints its goroutines. No package takes longer than 90 s on two cores, or four
# times as long under the race detector, if nothing else runs. Tests that run in parallel wait most of the time.
# The linters run vet for all packages, with and without fault points.
GO_TEST = $(GO) test -v -vet=off -timeout 15m -parallel 6

# Without the names of folders, what Go has compiled for one clone or for a release fits every clone. Without DWARF, which
# only debuggers read, an eighth less processor time is needed to compile. `go test` and releases leave it out anyway.
GO_FLAGS := -trimpath -gcflags=all=-dwarf=false
export GOFLAGS := $(filter-out $(GO_FLAGS),$(shell $(GO) env GOFLAGS 2>/dev/null)) $(GO_FLAGS)

export PYTHON GO TORCH
# Hundreds of interpreters import the tests and the package. Without .pyc files, each would compile them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## print this list
	@echo 'Targets of stocached:'
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "  make %-17s %s\n", $$1, $$2 }'

# ------------------------------------------------------------------------------------------------ build

.PHONY: build
build: build/libstocached.so build/libstocached_image.so bin/stocached ## build bin/stocached, bin/stocached-decode and the C libraries in build/

.PHONY: build/libstocached.so
build/libstocached.so: | setup-compiler
	@$(MAKE) --no-print-directory -C cclient

# bin/stocached-decode needs libjpeg-turbo. Without its headers, the library for pictures decodes no JPEG files. Of a build
# with the other answer, nothing is kept: its files may be newer than all sources.
.PHONY: build/libstocached_image.so
build/libstocached_image.so: | setup-compiler
	@if tools/setup.sh has-jpeg; then jpeg=1; else jpeg=0; \
		echo 'stocached: without stocached-decode, and Pillow decodes JPEG files in Python, as jpeglib.h is missing. On Debian and Ubuntu: sudo apt-get install -y libjpeg-dev'; fi; \
	mkdir -p build bin; [ "$$(cat build/.jpeg 2>/dev/null || echo 1)" = $$jpeg ] || rm -f build/libstocached_image.so* build/stocached-decode bin/stocached-decode; \
	echo $$jpeg > build/.jpeg; $(MAKE) --no-print-directory -C cimage JPEG=$$jpeg; \
	[ $$jpeg = 0 ] || ln -sf ../build/stocached-decode bin

.PHONY: bin/stocached
bin/stocached:
	CGO_ENABLED=0 $(GO) build -ldflags='-s -w' -o $@ ./cmd/stocached
	@test $$(stat -c %s $@) -le 40000000 || { echo '$@ has more than 40 MB'; exit 1; }

# docs/guides/packages.md says what is made. The tests install it where nothing else is. With SKIPS=0, a test that this
# machine cannot run fails.
.PHONY: dist
dist: setup-dist ## make wheels, archives, deb and rpm for two architectures in build/dist, and test them
	@PYTHONPATH=tools $(PY) -m release build/dist
	DIST=build/dist SKIPS=$(SKIPS) $(PYTEST) tools/release/checks_wheel.py tools/release/checks_contents.py tools/release/checks_packages.py

.PHONY: wheel
wheel: setup-wheel ## make the wheel for this architecture in build/wheel, with all that it needs inside, and test it
	@PYTHONPATH=tools $(PY) -m release --wheel build/wheel
	DIST=build/wheel $(PYTEST) tools/release/checks_wheel.py

# Beside the wheel, the archive, deb and rpm take few processor seconds. The tests install only the wheel.
.PHONY: packages
packages: setup-packages ## make all packages and the container image for this architecture in build/packages, and test them
	@PYTHONPATH=tools $(PY) -m release --here build/packages
	DIST=build/packages $(PYTEST) tools/release/checks_wheel.py tools/release/checks_contents.py
	cd deploy/check && CGO_ENABLED=0 $(GO_TEST) -run '^TestBuildah$$' .

.PHONY: site
site: setup-site bin/stocached ## make the site of the documents in build/site/html, and test it
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=tools $(PY) -m website
	$(PYTEST) tools/website/checks_site.py

.PHONY: man
man: bin/stocached ## write the manual pages of all commands to build/man
	rm -rf build/man
	bin/stocached man build/man

# Under sudo, this target compiles nothing: root often has no Go, and files of root would stay in build/. Nor does it
# with BUILD=FOLDER, the folder of the libraries, and PROGRAM=FILE. RUNS is the same program for this machine, which
# writes the pages.
PREFIX  ?= /usr/local
BUILD   ?= build
PROGRAM ?= bin/stocached
RUNS    ?= $(PROGRAM)
DEST   := $(DESTDIR)$(PREFIX)
SHARE  := $(DEST)/share
UNITS  := $(SHARE)/systemd/user

.PHONY: install
install: $(if $(SUDO_USER)$(filter-out file,$(origin BUILD)),,build) ## install what `make build` built, manual pages and units; PREFIX=/usr/local, DESTDIR=
	@[ -e '$(PROGRAM)' ] && [ -e '$(BUILD)/libstocached.so' ] || { echo 'stocached: nothing to install yet; run make build first' >&2; exit 1; }
	@$(MAKE) --no-print-directory -C cclient install PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)'
	@[ ! -e '$(BUILD)/libstocached_image.so.1' ] || $(MAKE) --no-print-directory -C cimage install JPEG=$$(cat build/.jpeg 2>/dev/null || echo 1) PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)'
	@echo "stocached: installing the command, manual pages, completions and units under $(DEST)"
	@set -e; umask 022; \
	install -d '$(DEST)/bin' '$(UNITS)' '$(SHARE)/bash-completion/completions' '$(SHARE)/zsh/site-functions' '$(SHARE)/fish/vendor_completions.d'; \
	install -m 755 '$(PROGRAM)' '$(DEST)/bin'; \
	'$(RUNS)' man '$(SHARE)/man/man1'; \
	'$(RUNS)' completion bash > '$(SHARE)/bash-completion/completions/stocached'; \
	'$(RUNS)' completion zsh > '$(SHARE)/zsh/site-functions/_stocached'; \
	'$(RUNS)' completion fish > '$(SHARE)/fish/vendor_completions.d/stocached.fish'; \
	for unit in stocached.service stocached.socket stocached-admin.socket; do \
		sed '/^# For system services:/,/^# End of the part/d; s|/usr/local/bin|$(PREFIX)/bin|' deploy/$$unit > '$(UNITS)'/$$unit; \
	done

# ------------------------------------------------------------------------------------------------ main job

.PHONY: demo
demo: setup-demo ## run the main job on image files; IMAGES=dir for your own, ARGS=--torch for DataLoader
	@$(PY) -m demo $(if $(IMAGES),--images '$(IMAGES)') $(ARGS)

.PHONY: demo-server
demo-server: setup-demo demo-readers ## run a server and its readers in Python, Go and C; IMAGES=dir, ARGS="--samples 1000"
	@$(PY) -m demo.server $(if $(IMAGES),--images '$(IMAGES)') $(ARGS)

.PHONY: demo-cluster
demo-cluster: setup-demo setup-torch setup-versitygw bin/stocached ## run one job on three hosts in namespaces (without root: on one host); ARGS="--gigabytes 1.6 --step 0.02"
	@$(PY) -m demo.cluster $(ARGS)

.PHONY: demo-readers
demo-readers: bin/stocached build/libstocached.so
	@$(MAKE) --no-print-directory -s -C cclient ../build/c/example-fetch
	CGO_ENABLED=0 $(GO) build -o build/demo/gofetch ./demo/gofetch

.PHONY: bench
bench: build setup-python ## measure speed and memory in Go, C and Python; ARGS=-quick for a trial of one minute
	$(GO) -C bench run ./cmd/bench $(ARGS)

.PHONY: bench-peers
bench-peers: build setup-torch ## compare with stocaching, NumPy, torch and C loops; writes to bench/results
	$(GO) -C bench run ./cmd/bench -peers $(ARGS)

.PHONY: bench-server
bench-server: setup-bench ## compare the server with redis, memcached and files; writes to bench/results
	$(GO) -C bench run ./cmd/bench -server -peers $(ARGS)

.PHONY: bench-order
bench-order: build/libstocached.so ## measure the order of an epoch; writes to bench/results
	$(GO) -C bench run ./cmd/bench -order $(ARGS)

.PHONY: bench-loader
bench-loader: build setup-system ## compare the loader in Go with bare goroutines; writes to bench/results
	$(GO) -C bench run ./cmd/bench -loader $(ARGS)

.PHONY: bench-dataloader
bench-dataloader: build setup-torch setup-demo ## compare the loader in Python with torch's; writes to bench/results
	$(GO) -C bench run ./cmd/bench -dataloader $(ARGS)

# The others are stocaching, litdata, mosaicml-streaming, webdataset, SPDL, Grain, torchdata, MONAI and Hugging Face's datasets.
.PHONY: bench-others
bench-others: build setup-torch setup-others ## compare the loader in Python with nine other projects; writes to bench/results
	BENCH_PYTHON=$(CURDIR)/.venv-peers/bin/python $(GO) -C bench run ./cmd/bench -others $(ARGS)

# DALI, FFCV and FFmpeg for SPDL are left out where they are not installed: docstring of picture_epochs.py.
.PHONY: bench-pictures
bench-pictures: build setup-pictures ## compare epochs of pictures with torch, SPDL, DALI and FFCV (15 minutes); ARGS="cold --rounds 3"
	PYTHONPATH=python/src STOCACHED_LIB_PATH=build .venv-peers/bin/python bench/python/picture_epochs.py $(ARGS)

.PHONY: bench-gpu
bench-gpu: build setup-torch ## train ResNets on a GPU from a folder of JPEG files (6 minutes); FOLDER=dir, ARGS="--net resnet50"
	PYTHONPATH=python/src STOCACHED_LIB_PATH=build $(PY) bench/python/gpu.py '$(or $(FOLDER),$(error say FOLDER=dir))' $(ARGS)

.PHONY: bench-against
bench-against: setup-torch ## compare with an older commit (15 minutes); BASE=COMMIT, ARGS="--runs 7"
	$(PY) bench/python/against.py $(or $(BASE),$(error say BASE=COMMIT)) $(ARGS)

.PHONY: bench-policies
bench-policies: setup-demo build ## compare the policies cost and first-come on pictures (an hour); ARGS="demo --rounds 3"
	PYTHONPATH=$(CURDIR) $(PY) bench/python/policies.py $(ARGS)

.PHONY: charts
charts: build setup-torch setup-demo setup-browser ## draw the charts of bench/results, and measure and draw the timelines and the page of caches (minutes), in docs/images; ARGS=--quick for seconds
	@$(PY) tools/draw_results.py
	@$(PY) tools/draw_experiments.py $(ARGS)
	@$(PY) tools/draw_watching.py $(ARGS)

# Variables and their defaults:
#   KILLS=50000 SECONDS=3600  kills of processes that share a cache, and the most time that they take
#   MEMORY_ROUNDS=50          rounds of 16 writers in each of five memory cgroups
#   SERVER_KILLS=500          kills of a server under load
#   JOB_KILLS=1000            kills of each of three jobs with announced orders, and half as often of their server
#   CLUSTER_KILLS=200         kills of servers, ranks, nodes of Redis and the storage of a job on three nodes
#   PREPARE_KILLS=2000        kills of preparations
#   LOADER_KILLS=2000         kills of workers of a loader
#   LOADER_SECONDS=600        random loaders beside a plain model
#   LOADER_BREAKS=2000        iterations of a loader that stop in the middle
#   FILES=300000              JPEG files that are damaged, and as many that change while they are decoded
#   AUGMENTATIONS=200         seeds of each augmentation, through each public interface
.PHONY: soak
soak: build/libstocached.so setup-torch setup-c-tests ## kill processes at random for hours; the Makefile lists the variables
	$(STRESS) -kills $(or $(KILLS),50000) -seconds $(or $(SECONDS),3600)
	$(STRESS_MEMORY) -limits 256,512,1024,2048,4096 -rounds $(or $(MEMORY_ROUNDS),50)
	STOCACHED_TEST_SECONDS=60 $(GO) test -count=1 -timeout 20m -run '^TestManySamplesAndFewSlots$$' ./cache
	STOCACHED_TEST_HOSTILE=all $(GO) test -count=1 -timeout 20m -run '^TestHostileWords' ./cache
	$(MAKE) --no-print-directory -s -C cclient ../build/c/test-fetch-address
	STOCACHED_TEST_HOSTILE=all build/c/test-fetch-address
	STOCACHED_TEST_EPOCHS=all $(GO) test -count=1 -run '^TestLoss$$' ./internal/verify/arena
	STOCACHED_TEST_KILLS=$(or $(SERVER_KILLS),500) CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 1h -run '^TestServerKilledUnderLoad$$' ./internal/cli
	STOCACHED_TEST_KILLS=$(or $(JOB_KILLS),1000) CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 1h -run '^TestPlannedJobsKilled$$' ./internal/cli
	STOCACHED_TEST_KILLS=$(or $(CLUSTER_KILLS),200) CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 1h -run '^TestClusterJobKilled$$' ./internal/cli
	STOCACHED_TEST_KILLS=$(or $(PREPARE_KILLS),2000) $(PYTEST) python/tests/prepare/test_prepare_kills.py
	STOCACHED_TEST_KILLS=$(or $(LOADER_KILLS),2000) STOCACHED_TEST_BREAKS=$(or $(LOADER_BREAKS),2000) $(PYTEST) python/tests/loader/test_loader_kills.py \
		python/tests/loader/test_loader_lifecycle.py -k 'kills_at_random_moments or left_in_the_middle'
	STOCACHED_TEST_SECONDS=$(or $(LOADER_SECONDS),600) STOCACHED_TEST_SEED=$$(date +%s) $(PYTEST) -o faulthandler_timeout=0 python/tests/loader/test_loader_differential.py
	STOCACHED_TEST_MEMORY=1 $(PYTEST) python/tests/memory/test_memory.py -k cgroup
	STOCACHED_TEST_FRAMEWORKS=all $(PYTEST) python/tests/loader/test_lightning_loaders.py
	$(MAKE) --no-print-directory -s -C cimage ../build/image/test-image-address
	cd cimage && STOCACHED_TEST_SEED=$$(date +%s) STOCACHED_TEST_FILES=$(or $(FILES),300000) ../build/image/test-image-address
	STOCACHED_TEST_AUGMENTATIONS=$(or $(AUGMENTATIONS),200) $(PYTEST) -s -k each_way_in python/tests/checks/test_augmentations.py

.PHONY: mutations
mutations: setup-torch setup-c-tests ## put defects into a copy of HEAD and say which test finds each; ARGS="Go: C:" for some
	@$(PY) tools/mutations.py $(ARGS)

# ------------------------------------------------------------------------------------------------ tests

# Go and golangci-lint cache their results, so a second run repeats only what a change concerns.
.PHONY: check
check: setup-c-tests setup-lint build ## run linters and quick tests, in about two minutes
	@$(PYTHON) tools/stages.py check-python+check-c,check-go+lint-go,lint-python

# These tests leave out the packages whose tests start programs. They run without fault points, race detector and cgo.
.PHONY: check-go
check-go:
	CGO_ENABLED=0 $(GO) test -short -timeout 5m $$(CGO_ENABLED=0 $(GO) list ./... | grep -v -e /internal/cli -e /internal/verify -e /internal/timeline)

CHECK_C := api attach chains order unit
.PHONY: check-c
check-c: setup-compiler
	@$(MAKE) --no-print-directory -s -C cclient $(CHECK_C:%=../build/c/test-%)
	@cd cclient && set -e; for test in $(CHECK_C:%=../build/c/test-%); do $$test; done

# These tests leave out torch, and the files whose tests start hundreds of processes.
SLOW_PYTHON := native or loader_policies or kills or lifecycle or streams or stateful or processes or views or wheel or memory or loader.py or odd or mistakes or advise or forks or threads or trace or generators or prepare
.PHONY: check-python
check-python: setup-python bin/stocached
	$(PYTEST) -n $$(nproc) --dist worksteal python/tests -m 'not torch' -k 'not ($(SLOW_PYTHON))'

.PHONY: test
test: setup-first ## run every test: Go, C, model, Python, torch; TORCH=0 skips torch
	@$(PYTHON) tools/stages.py $(TESTS)

.PHONY: ci
ci: setup-first ## what .ci/run runs: tests, linters and the examples of the documents
	@$(GO) clean -testcache # no result of another clone counts
	@$(PYTHON) tools/stages.py $(CI)

# test-languages runs these. They have no build tag, because then both stages would compile all tests of commands.
LANGUAGES_TESTS := ^(TestEverySampleIsReadOnce|TestBatchesLargerThanTheCache|TestPlannedJobsOfLanguagesKilled)$$
# `make packages` installs buildah, and runs its test.
.PHONY: test-go
test-go: ## test Go without cgo and without the model (`make test-model`)
	CGO_ENABLED=0 $(GO_TEST) -skip '$(LANGUAGES_TESTS)' $$(CGO_ENABLED=0 $(GO) list ./... | grep -v /internal/verify/model)
	cd deploy/check && CGO_ENABLED=0 $(GO_TEST) -skip '^TestBuildah$$' ./...

# test-go runs the same tests with gofakes3, which is in their process.
.PHONY: test-remote
test-remote: ## read from versitygw, a real server of the protocol S3 with credentials
	CGO_ENABLED=0 STOCACHED_VERSITYGW='$(CURDIR)/$(TOOLS)/versitygw' $(GO_TEST) -run '(Bucket|Credentials)/versitygw' ./source/kinds ./internal/cli

# Not a part of `make test`: compiling Helm and Kubernetes takes minutes of processor time. The workflow of each change
# runs it.
.PHONY: test-chart
test-chart: setup-lint-go ## render the Helm chart with Helm, and check it with the types of Kubernetes
	cd deploy/check && CGO_ENABLED=0 $(GO_TEST) -tags chart -run '^(TestChart|TestGuide)' .
	cd deploy/check && CGO_ENABLED=0 $(LINT_GO) --build-tags chart --enable-only govet,errcheck,ineffassign,misspell .

.PHONY: test-bench
test-bench: ## run the benchmarks in small sizes, for seconds
	cd bench && CGO_ENABLED=0 $(GO_TEST) ./...

# Other stages run the tests of several processes: the race detector sees only one process, and makes these tests ten
# times slower. Other stages also run the long tests of one goroutine, tests that count allocations, tests that count the
# reads of planned jobs (TestPlannedJobs and TestSideBuffer find their races), TestAuto/slow and TestCostsOfLoads, which
# take times, and control, policy and server/config, which have no goroutines. One command runs all packages, so that
# they compile and run in parallel. The slowest packages come first.
RACE_SKIP = TestCostsOfLoads|TestPlannedShares|TestPlannedUnequalSpeeds|TestPlannedLateStart|TestGarbage|TestMemoryOfALongList|TestChainsLoss|TestDisk|TestEveryByteFlipped|TestExpandBraces|TestNeed|TestPictureLargerThanTheMemory|TestNoAllocations|TestChains|TestRandomOperationsAgainstAModel|TestOrientationInEachFit|TestHelperAgainstGo|TestGoingOn|TestTenMillionSamples
.PHONY: test-go-race
test-go-race: ## test Go under the race detector
	processes=$$(sed -n 's/^func \(Test[A-Za-z]*\)(.*/\1/p' cache/multi_test.go cache/huge_test.go | paste -sd '|') && \
	$(GO_TEST) -race -short -skip "^($$processes|$(RACE_SKIP))\$$|^TestAuto\$$/^slow\$$" \
		./cache ./loader ./shm $$($(GO) list ./server/... | grep -v /config) ./client ./source/...

# Only the tests that need fault points: test-go runs the others.
.PHONY: test-go-faults
test-go-faults: ## test Go with kills and stops at every step of the protocol, a server and a pack
	files=$$(grep -rl --include='*_test.go' '^//go:build faultpoints' cache server source tier internal/cli) && \
	tests=$$(sed -n 's/^func \(Test[A-Za-z]*\)(.*/\1/p' $$files | paste -sd '|') && \
	CGO_ENABLED=0 $(GO_TEST) -tags faultpoints -run "^($$tests)\$$" $$(dirname $$files | sort -u | sed 's|^|./|')

.PHONY: test-model
test-model: build/libstocached.so ## check every interleaving of a small model of the protocol, and replay it on Go and C
	CGO_ENABLED=0 $(GO_TEST) -tags faultpoints ./internal/verify/model/...

.PHONY: test-c
test-c: setup-c-tests ## test C: plain, with fault points, and with sanitizers
	$(MAKE) --no-print-directory -j$$(nproc) -C cclient test
	$(MAKE) --no-print-directory -j$$(nproc) -C cimage test

.PHONY: test-conform
test-conform: build/libstocached.so setup-python ## run one table of operations in Go and in C; share a disk cache
	STOCACHED_TEST_PYTHON=$(abspath $(PY)) CGO_ENABLED=1 $(GO_TEST) ./cclient/...

.PHONY: test-languages
test-languages: build setup-python ## run processes in Go, C and Python on one server: each sample is read once; evicting caches; kills
	STOCACHED_TEST_PYTHON=$(PY) CGO_ENABLED=0 $(GO_TEST) -run '$(LANGUAGES_TESTS)' ./internal/cli

.PHONY: test-python
test-python: setup-demo bin/stocached ## test Python without torch
	$(PYTEST) $(SIDE_BY_SIDE) python/tests -m 'not torch'

.PHONY: test-torch
ifeq ($(TORCH),0)
test-torch: setup-python
	@$(PY) tools/count_skipped.py TORCH=0 python/tests -m torch
else
test-torch: setup-torch bin/stocached build/libstocached_image.so ## test Python with torch; installs torch (several GB) if it is missing
	$(PYTEST) $(SIDE_BY_SIDE_TORCH) python/tests -m torch
endif

.PHONY: test-torch-oldest
test-torch-oldest: setup-torch-oldest bin/stocached build/libstocached_image.so ## the same with the oldest supported torch and NumPy, in .venv-oldest
	.venv-oldest/bin/python -m pytest -rsfE $(SIDE_BY_SIDE_TORCH) python/tests -m torch

.PHONY: test-stress
test-stress: build/libstocached.so setup-python ## kill 1,000 processes at random; run 16 processes in small memory cgroups
	$(STRESS) -kills 1000 -seconds 900
	$(STRESS_MEMORY) -limits 256 -rounds 2

.PHONY: test-cuda
test-cuda: setup-torch ## test batches in pinned memory; needs a GPU
	$(PYTEST) python/tests/cuda_machine.py

.PHONY: test-learning
test-learning: setup-c-tests setup-torch setup-demo ## train a small network on real pictures, with ours and with torchvision (minutes)
	@pictures=$$($(PY) -c 'from pathlib import Path; from demo.images import debian_pictures; print(debian_pictures(Path("build/demo").resolve()) or "")'); \
	test -n "$$pictures" && STOCACHED_TEST_PICTURES="$$pictures" $(PYTEST) python/tests/loader/test_native_torch.py -k learns

# TORCH_TESTS=.../pytorch/test and TORCHDATA_TESTS=.../data/test name the folders of the tests.
.PHONY: test-suites
test-suites: setup-torch ## run the DataLoader tests of torch and torchdata with our class (an hour)
	@$(PY) -c 'import expecttest, parameterized, psutil, torchdata' || { echo 'first run: $(PY) -m pip install -r python/suites/requirements.txt'; exit 1; }
	$(PY) python/suites $(if $(TORCH_TESTS),--torch '$(TORCH_TESTS)') $(if $(TORCHDATA_TESTS),--torchdata '$(TORCHDATA_TESTS)') $(ARGS)

.PHONY: test-demo
test-demo: setup-demo setup-c-tests setup-versitygw demo-readers ## test the demo, the scripts in tools/ and `make install`
	$(PYTEST) demo tools

.PHONY: test-examples
test-examples: setup-examples setup-c-tests setup-versitygw demo-readers ## run the programs in examples/ on photographs, texts and sounds
	$(PYTEST) tools/checks_examples.py

# Not a part of `make test`: it needs Docker, and loads images from Docker Hub and PyPI.
.PHONY: test-compose
test-compose: setup-python ## run deploy/compose.yaml and examples/served/compose.yaml in containers (needs Docker with `docker compose`)
	$(PYTEST) tools/checks_compose.py

.PHONY: test-docs
test-docs: build setup-python setup-versitygw ## run the examples in README.md and docs/
	$(PY) tools/docs.py README.md python/README.md CONTRIBUTING.md docs examples

# ------------------------------------------------------------------------------------------------ lint

.PHONY: lint
lint: setup-lint ## run all linters, cross-builds, and checks of generated files and of sentences
	@$(PYTHON) tools/stages.py $(LINTS)

# golangci-lint also runs vet, with fault points, in a third of the time of `go vet`. Without cgo, it uses what Go has
# compiled for the tests. Only cclient/conform has cgo: the files that cgo makes name the clone's folder, and all clones share
# Go's cache, so a flag with the folder keeps them apart. In deploy/check, staticcheck would read all that it imports.
LINT_GO = $(CURDIR)/$(TOOLS)/golangci-lint run
.PHONY: lint-go
lint-go:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	CGO_ENABLED=0 $(LINT_GO) ./...
	CGO_CPPFLAGS=-I$(CURDIR) CGO_ENABLED=1 $(LINT_GO) ./cclient/conform
	cd bench && CGO_ENABLED=0 $(LINT_GO) ./...
	cd deploy/check && CGO_ENABLED=0 $(LINT_GO) --enable-only govet,errcheck,ineffassign,misspell ./...
	$(TOOLS)/actionlint

# Both runs have the same options, so the second finds numpy and torch in mypy's cache. As with Go's, all clones share it:
# mypy compares the contents of files. The examples have a run of their own: examples/served has the name of a test's file.
MYPY = $(PY) -m mypy --config-file python/pyproject.toml --cache-dir "$${XDG_CACHE_HOME:-$$HOME/.cache}/stocached-mypy"

# Sentences of at most 30 words, and lines of at most 100 columns.
.PHONY: lint-prose
lint-prose:
	$(PYTHON) tools/prose.py README.md python/README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs examples

.PHONY: lint-python
lint-python:
	$(PY) -m ruff check python bench demo tools examples
	$(PY) -m ruff format --check python bench demo tools examples
	$(MYPY) python/src/stocached demo tools
	$(MYPY) examples

# All Go code except the cgo folder builds without a C compiler. `go list -export` compiles and, unlike `go build`, links
# no program. vet checks the packages that depend on the order of memory accesses for arm64. `make dist` builds the whole
# command for it, which takes three processor minutes where nothing is compiled yet.
.PHONY: lint-cross
lint-cross:
	CGO_ENABLED=0 $(GO) list -export -f '' ./...
	CGO_ENABLED=0 GOARCH=arm64 $(GO) vet ./shm ./cache ./policy ./order

.PHONY: lint-generate
lint-generate: ## check that generated files are up to date
	$(GO) generate ./...
	$(PYTHON) tools/version.py
	git diff --exit-code -- '*.h' '*.go' '*.py' '*.yaml' '*Containerfile' go.mod go.sum

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

.PHONY: setup-pictures
setup-pictures: setup-torch setup-others
	@tools/setup.sh pictures

.PHONY: setup-torch-oldest
setup-torch-oldest: setup-system
	@tools/setup.sh torch-oldest

.PHONY: setup-bench
setup-bench:
	@tools/setup.sh bench

.PHONY: setup-c-tests
setup-c-tests: setup-system
	@tools/setup.sh c-tests

.PHONY: setup-versitygw
setup-versitygw: ## install the S3 server of test-remote into .tools
	@[ -x $(TOOLS)/versitygw ] || { echo 'stocached: building versitygw, an S3 server for tests (a minute)'; \
		CGO_ENABLED=0 GOBIN='$(CURDIR)/$(TOOLS)' $(GO) install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION); }

.PHONY: setup-wheel setup-packages setup-dist
setup-wheel: setup-c-tests setup-python
	@tools/setup.sh wheel
setup-packages: setup-wheel
	@tools/setup.sh packages
setup-dist: setup-packages $(if $(filter 0,$(TORCH)),,setup-torch)
	@tools/setup.sh dist

.PHONY: setup-site
setup-site: setup-python
	@MERMAID_VERSION=$(MERMAID_VERSION) tools/setup.sh site

.PHONY: setup-promtool setup-browser
setup-promtool:
	@tools/setup.sh promtool
setup-browser:
	@tools/setup.sh browser

.PHONY: setup-python setup-demo setup-torch setup-examples setup-lint setup-lint-python setup-lint-go setup-first setup-rest
setup-python: setup-system
	@tools/setup.sh python
setup-demo: setup-python
	@tools/setup.sh demo
setup-torch: setup-python
	@tools/setup.sh torch
setup-examples: setup-demo $(if $(filter 0,$(TORCH)),,setup-torch)
	@tools/setup.sh examples
setup-lint: setup-lint-python setup-lint-go
setup-lint-python: setup-python
	@tools/setup.sh lint-python
setup-lint-go: setup-system
	@GOLANGCI_VERSION=$(GOLANGCI_VERSION) tools/setup.sh lint-go
# setup-first installs what the first tests need, and setup-rest what later tests need.
setup-first: setup-c-tests setup-promtool setup-browser setup-python build
setup-rest: setup-examples

.PHONY: clean
clean: ## remove everything that make made, including virtual environments and tools
	rm -rf bin build $(VENV) .venv-examples .venv-peers .venv-oldest $(TOOLS)
	@for folder in cclient cimage; do [ ! -e $$folder/Makefile ] || $(MAKE) --no-print-directory -C $$folder clean; done
