#!/bin/sh
# Kills processes at random for hours: `make soak`. Variables and their defaults:
kills=${KILLS:-50000}               # kills of processes that share a cache
seconds=${KILL_SECONDS:-3600}       # the most time that these take
memory=${MEMORY_ROUNDS:-50}         # rounds of 16 writers in each of five memory cgroups
server=${SERVER_KILLS:-500}         # kills of a server under load
job=${JOB_KILLS:-1000}              # kills of each of three jobs with announced orders, half as often of their server
cluster=${CLUSTER_KILLS:-200}       # kills of servers, ranks, nodes of Redis and the storage of a job on three nodes
prepare=${PREPARE_KILLS:-2000}      # kills of preparations
loader=${LOADER_KILLS:-2000}        # kills of workers of a loader
address=${ADDRESS_KILLS:-50}        # kills of a server on demand, and of it and its programs
random=${LOADER_SECONDS:-600}       # seconds of random loaders beside a plain model
breaks=${LOADER_BREAKS:-2000}       # iterations of a loader that stop in the middle
files=${FILES:-300000}              # pictures that are damaged, and as many that change while they are decoded
augmentations=${AUGMENTATIONS:-200} # seeds of each augmentation, through each public interface
set -eux
export CGO_ENABLED=0
pytest="$PY -m pytest -rsfE"
gotest() { "$GO" test -count=1 -v -timeout 1h "$@"; }
STOCACHED_TEST_SECONDS=60 gotest -run '^TestManySamplesAndFewSlots$' ./cache
STOCACHED_TEST_HOSTILE=all gotest -run '^TestHostileWords' ./cache
make --no-print-directory -s -C cclient ../build/c/test-fetch-address ../build/c/stress_worker
STOCACHED_TEST_HOSTILE=all build/c/test-fetch-address
workers() {
    mode=$1
    shift
    "$GO" run ./internal/verify/stress/cmd/stress "$mode" -c build/c/stress_worker \
        -python "$PY python/tests/stress_worker.py" "$@"
}
workers drive -kills "$kills" -seconds "$seconds"
workers memory -limits 256,512,1024,2048,4096 -rounds "$memory"
MODEL_DEEP=1 gotest ./internal/verify/model
STOCACHED_TEST_EPOCHS=all gotest -run '^TestLoss$' ./internal/verify/arena
STOCACHED_TEST_KILLS=$server gotest -run '^TestServerKilledUnderLoad$' ./internal/cli
STOCACHED_TEST_KILLS=$job gotest -run '^TestPlannedJobsKilled$' ./internal/cli
STOCACHED_TEST_KILLS=$cluster gotest -run '^TestClusterJobKilled$' ./internal/cli
STOCACHED_TEST_KILLS=$prepare $pytest python/tests/prepare/test_prepare_kills.py
STOCACHED_TEST_KILLS=$loader STOCACHED_TEST_BREAKS=$breaks $pytest python/tests/loader/test_loader_kills.py \
    python/tests/loader/test_loader_lifecycle.py -k 'kills_at_random_moments or left_in_the_middle'
STOCACHED_TEST_KILLS=$address $pytest python/tests/datasets/test_addresses.py -k kills
STOCACHED_TEST_SECONDS=$random STOCACHED_TEST_SEED=$(date +%s) STOCACHED_TEST_WALKS=10000 $pytest -o faulthandler_timeout=0 python/tests/loader/test_loader_differential.py python/tests/pipes/test_walks.py
STOCACHED_TEST_MEMORY=1 $pytest python/tests/memory/test_memory.py -k cgroup
STOCACHED_TEST_FRAMEWORKS=all $pytest python/tests/loader/test_lightning_loaders.py python/tests/loader/test_accelerate_loaders.py
make --no-print-directory -s -C cimage fuzz FILES="$files" SEED="$(date +%s)"
STOCACHED_TEST_AUGMENTATIONS=$augmentations $pytest -s -k each_way_in python/tests/checks/test_augmentations.py
