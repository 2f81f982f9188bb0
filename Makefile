# stocached: `make demo` shows it at work, `make test` checks it; both set up what they need. `make help` lists the rest.

PYTHON ?= python3
GO     ?= go
# TORCH=0 leaves torch (several GB) out of the virtual environment and skips its tests, which are then counted as skipped.
TORCH  ?= 1

VENV   := .venv
PY     := $(VENV)/bin/python
TOOLS  := .tools
GOLANGCI_VERSION := v2.15.0

# What `make test` runs, in this order. Each name is a target of its own: `make test-c` runs one of them.
TESTS := test-go test-go-race test-go-faults test-model test-c test-conform test-python test-torch test-demo
LINTS := lint-go lint-python lint-cross lint-generate test-docs

export PYTHON GO TORCH

.PHONY: help
help: ## this list
	@echo 'Targets of stocached:'
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

# ------------------------------------------------------------------------------------------------ build

.PHONY: build
build: build/libstocached.so bin/stocached ## bin/stocached and build/libstocached.so

.PHONY: build/libstocached.so
build/libstocached.so: | setup-system
	@$(MAKE) --no-print-directory -C cclient

.PHONY: bin/stocached
bin/stocached:
	CGO_ENABLED=0 $(GO) build -trimpath -o $@ ./cmd/stocached

# ------------------------------------------------------------------------------------------------ main job

.PHONY: demo
demo: setup-demo ## the main job on real image files: table and chart; IMAGES=dir for your own, ARGS="--torch" for the DataLoader
	@$(PY) -m demo $(if $(IMAGES),--images '$(IMAGES)') $(ARGS)

.PHONY: bench
bench: setup-python ## speed and memory of Go, C and Python, written to bench/results
	@tools/bench.sh

.PHONY: bench-peers
bench-peers: setup-torch ## the same beside stocaching, NumPy, torch and plain C loops
	@tools/bench.sh --peers

.PHONY: soak
soak: build setup-python ## random SIGKILLs for SECONDS=600, long beside the 2,000 kills of `make test`
	@tools/soak.sh $(or $(SECONDS),600)

# ------------------------------------------------------------------------------------------------ tests

.PHONY: test
test: setup-test ## every test: Go, C, model, Python, torch; TORCH=0 skips torch
	@$(PYTHON) tools/stages.py $(TESTS)

.PHONY: ci
ci: setup-test setup-lint ## what .ci/run runs: test, lint and the examples of the documents
	@$(PYTHON) tools/stages.py $(TESTS) $(LINTS)

.PHONY: test-go
test-go: ## Go without cgo
	CGO_ENABLED=0 $(GO) test -v -timeout 10m ./...

.PHONY: test-go-race
test-go-race: ## Go under the race detector, on heap-backed segments
	$(GO) test -race -short -v -timeout 10m ./shm ./cache ./policy ./client

.PHONY: test-go-faults
test-go-faults: ## Go with fault points: kills and stops at every step of the protocol
	$(GO) test -tags faultpoints -v -timeout 10m ./cache/... ./shm/... ./client/...

.PHONY: test-model
test-model: ## every interleaving of the protocol, replayed on Go and C
	$(GO) test -tags faultpoints -v -timeout 10m ./internal/model/...

.PHONY: test-c
test-c: ## C: plain, address, undefined-behaviour and thread sanitizers, fault points
	$(MAKE) --no-print-directory -C cclient test

.PHONY: test-conform
test-conform: build/libstocached.so ## one table of operations through Go and through C
	CGO_ENABLED=1 $(GO) test -v -timeout 10m ./cclient/...

.PHONY: test-python
test-python: setup-python ## Python without torch
	$(PY) -m pytest python/tests -m 'not torch'

.PHONY: test-torch
ifeq ($(TORCH),0)
test-torch:
	$(PY) -m pytest python/tests -m torch --collect-only -q | tools/count_skipped.sh 'TORCH=0'
else
test-torch: setup-torch ## Python with torch; installs it (several GB, about a minute) where it is missing
	$(PY) -m pytest python/tests -m torch
endif

.PHONY: test-demo
test-demo: setup-demo ## the demo and the scripts in tools/
	$(PY) -m pytest demo tools

.PHONY: test-docs
test-docs: build setup-python ## runs the examples in README.md and docs/
	$(PY) tools/docs.py README.md docs

# ------------------------------------------------------------------------------------------------ lint

.PHONY: lint
lint: setup-lint ## gofmt, go vet, golangci-lint, ruff, mypy, cross-builds, generated files
	@$(PYTHON) tools/stages.py $(LINTS)

.PHONY: lint-go
lint-go:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) vet ./...
	$(GO) vet -tags faultpoints ./...
	$(TOOLS)/golangci-lint run ./...

.PHONY: lint-python
lint-python:
	$(PY) -m ruff check python demo tools
	$(PY) -m ruff format --check python demo tools
	$(PY) -m mypy --strict python/src demo tools

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

.PHONY: setup-system
setup-system:
	@tools/setup.sh system

.PHONY: setup-python setup-demo setup-torch setup-test setup-lint
setup-python: setup-system
	@tools/setup.sh python
setup-demo: setup-python
	@tools/setup.sh demo
setup-torch: setup-python
	@tools/setup.sh torch
setup-lint: setup-python
	@GOLANGCI_VERSION=$(GOLANGCI_VERSION) tools/setup.sh lint
setup-test: setup-demo
ifneq ($(TORCH),0)
setup-test: setup-torch
endif

.PHONY: clean
clean: ## removes everything that make made, the virtual environment and the tools too
	rm -rf bin build $(VENV) $(TOOLS)
	@if [ -e cclient/Makefile ]; then $(MAKE) --no-print-directory -C cclient clean; fi
