"""Puts defects into the code, one at a time, and says which test finds each of them.

    python tools/mutations.py [WORD ...]    with words: only defects whose names contain one of the words

A defect replaces one text of a file by another text. Its tests run in a temporary worktree of HEAD. Without the defect
they must pass, and with it one must fail. The script prints a table. The exit status is 1 if a defect survives, does
not compile, or no longer fits the code. `make test` does not run it. Needs only the standard library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from failures import failures
from worktree import worktree

MOST = 600  # seconds of one command; a test that hangs has found the defect
WIDTH = 110  # characters of a failure's text


@dataclass(frozen=True)
class Test:
    build: str  # shell commands; a failure here is not a failed test
    run: str


@dataclass(frozen=True)
class Defect:
    name: str
    file: str
    old: str
    new: str
    test: Test


def go(package: str, tests: str, tags: str = "none") -> Test:
    built = Path("build", f"{package.replace('/', '-')[2:]}.test")  # a test runs in the folder of its package
    run = f"cd {package} && $TREE/{built} -test.run '^({tests})$'"
    return Test(f"go test -c -o {built} -tags {tags} {package}", run)


def c(*names: str) -> Test:
    programs = " ".join(f"../build/c/test-{name}" for name in names)
    return Test(f"make -s -C cclient {programs}", "cd cclient && " + " && ".join(programs.split()))


def pictures(name: str) -> Test:
    program = f"../build/image/test-{name}"
    return Test(f"make -s -C cimage {program}", f"cd cimage && {program}")


def python(tests: str, what: str = "") -> Test:
    """tests: files in python/tests. what: the argument of pytest -k."""
    files = " ".join(f"python/tests/{name}" for name in tests.split())
    build = (
        "make -s -C cclient && make -s -C cimage && $PY -m compileall -q --invalidation-mode checked-hash python/src"
    )
    return Test(build, f"$PY -m pytest -q -x -p no:cacheprovider {files}" + (f" -k '{what}'" if what else ""))


DEFECTS = [
    # The cache in Go.
    Defect(
        "Go: a copy is not checked again",
        "cache/read.go",
        "return r.word.Load() == uint64(w) && r.meta.Load() == uint64(m)",
        "return true",
        go("./cache", "TestCopyWhileTheGenerationWraps", "faultpoints"),
    ),
    Defect(
        "Go: a copy does not look at meta again",
        "cache/read.go",
        "return r.word.Load() == uint64(w) && r.meta.Load() == uint64(m)",
        "return r.word.Load() == uint64(w)",
        go("./cache", "TestCopyWhileTheGenerationWraps", "faultpoints"),
    ),
    Defect(
        "Go: an overwrite keeps the generation",
        "cache/claim.go",
        "\t\tgeneration++\n",
        "\t\tgeneration += 0\n",
        go("./cache", "TestGenerationsWrapAround"),
    ),
    Defect(
        "Go: a sample is published before its bytes are written",
        "cache/set.go",
        "if r, err := c.write(f, parts); r != Stored || err != nil {\n\t\treturn r, err\n\t}\n\treturn Stored, c.publish(f)",
        "if err := c.publish(f); err != nil {\n\t\treturn Stored, err\n\t}\n\treturn c.write(f, parts)",
        go("./cache", "TestKilledAtEveryStep", "faultpoints"),
    ),
    Defect(
        "Go: claims of a live client are reclaimed",
        "cache/reclaim.go",
        "if err != nil || !ok {\n\t\treturn false, err\n\t}\n\tc.reclaimRecord",
        "if err != nil {\n\t\treturn ok, err\n\t}\n\tc.reclaimRecord",
        go("./cache", "TestStoppedWriter", "faultpoints"),
    ),
    Defect(
        "Go: a clear waits for all claims but the last of a client",
        "cache/clear.go",
        "\t\tfor e := range shm.ClaimsPerClient {\n\t\t\tentry, _",
        "\t\tfor e := range shm.ClaimsPerClient - 1 {\n\t\t\tentry, _",
        go("./cache", "TestClaimLimit"),
    ),
    Defect(
        "Go: a slot that is freed is not found again",
        "cache/space.go",
        "min(f.From(), uint32(slot))",
        "f.From()",
        go("./cache", "TestAbort"),
    ),
    Defect(
        "Go: a reclaim leaves the victims of the dead as they are",
        "cache/reclaim.go",
        "\t\t\tc.endEviction(record, e)\n",
        "",
        go("./cache", "TestKilledInAnEviction", "faultpoints"),
    ),
    Defect(
        "Go: a victim is READY again although its slot has gone to another sample",
        "cache/space_slots.go",
        "if c.seg.SlotSample(place-1).Load() == listed {",
        "if place != 0 {",
        go("./cache", "TestKilledInAnEviction", "faultpoints"),
    ),
    # Segments.
    Defect(
        "Go: a fill may take all memory that is left",
        "shm/memory/allowance.go",
        "if n > left/FillDivisor {",
        "if n > left {",
        go("./shm", "TestAllowanceCountsFillsUnderWay"),
    ),
    Defect(
        "Go: memory is promised to two caches",
        "shm/memory/promise.go",
        "s.Left -= min(s.Left, p.Bytes)",
        "s.Left -= min(s.Left, 0)",
        go("./shm", "TestMemoryIsPromisedOnce"),
    ),
    Defect(
        "Go: the payload is not aligned",
        "shm/geometry.go",
        "roundUp(end, PayloadAlign)",
        "roundUp(end, RegionAlign)",
        go("./shm", "TestGolden"),
    ),
    # Orders and the loader in Go.
    Defect(
        "Go: the last samples of an epoch come to two ranks",
        "order/shard.go",
        "real: (left + s.ranks() - 1 - s.Rank) / s.ranks()}",
        "real: (left + s.ranks() - s.Rank) / s.ranks()}",
        go("./order", "TestRanksShareAnEpoch"),
    ),
    Defect(
        "Go: what is left of a batch goes to the last nodes first",
        "order/dealer.go",
        "for _, k := range surplus[:lack] {",
        "for _, k := range surplus[uint64(len(surplus))-lack:] {",
        go("./order", "TestVectors"),
    ),
    Defect(
        "Go: a cache stores what its node does not keep",
        "cache/claim.go",
        "w.State() != shm.Ready && !(*kept)(q.sample)",
        "w.State() == shm.Retiring && !(*kept)(q.sample)",
        go("./loader", "TestNodesKeepWhatTheyOwn"),
    ),
    Defect(
        "Go: every epoch has the order of the first",
        "order/permutation.go",
        "chain(seed, epoch, use, part, n)",
        "chain(seed, 0, use, part, n)",
        go("./order", "TestOrdersDiffer"),
    ),
    Defect(
        "Go: a checkpoint is one batch behind",
        "loader/batches.go",
        "r.part.Position(r.taken))",
        "r.part.Position(r.taken-uint64(len(b.indices))))",
        go("./loader", "TestResumeAnywhere"),
    ),
    Defect(
        "Go: callers that wait for a load share its bytes",
        "client/load.go",
        "f.data = slices.Clone(f.data) //",
        "_ = slices.Clone(f.data) //",
        go("./client", "TestGetOrLoadOnce"),
    ),
    # The library in C.
    Defect(
        "C: a victim is evicted without being listed",
        "cclient/src/protocol/space_slots.c",
        "    store(list, victim + 1);\n",
        "",
        go("./internal/verify/model", "TestReplayC", "faultpoints"),
    ),
    Defect(
        "C: a copy is not checked again",
        "cclient/src/protocol/read.c",
        "if (unchanged(record, w, meta)) {\n            if (length",
        "if (copied || unchanged(record, w, meta)) {\n            if (length",
        c("threads", "memory"),
    ),
    Defect(
        "C: a gather takes samples that are too short",
        "cclient/src/protocol/read.c",
        "want != ANY_LENGTH && bytes != want",
        "want != ANY_LENGTH && bytes > want",
        c("api"),
    ),
    Defect(
        "C: the index word is stored before the meta word",
        "cclient/src/protocol/write.c",
        "    store(meta, meta_published(load(meta), c->variable ? (uint32_t)k->length : crc));\n"
        '    STOC_FAULT("publish.meta");\n'
        "    if (!cas(index_word(c, k->sample), k->word,"
        " pack(c, READY, 0, generation_of(c, k->word), place_of(c, k->word))))\n"
        "        return lost(k); /* the CAS releases payload and meta to readers that load the word */\n",
        '    STOC_FAULT("publish.meta");\n'
        "    if (!cas(index_word(c, k->sample), k->word,"
        " pack(c, READY, 0, generation_of(c, k->word), place_of(c, k->word))))\n"
        "        return lost(k);\n"
        "    store(meta, meta_published(load(meta), c->variable ? (uint32_t)k->length : crc));\n",
        go("./internal/verify/model", "TestReplayC", "faultpoints"),
    ),
    Defect(
        "C: an overwrite keeps the generation",
        "cclient/src/protocol/write.c",
        "generation_of(c, w) + (state_of(w) == READY);",
        "generation_of(c, w);",
        c("api", "faults"),
    ),
    Defect(
        "C: a slot that a killed client had just taken is lost",
        "cclient/src/protocol/space_slots.c",
        "if (intent && intent != place_of(c, w))",
        "if (intent && place_of(c, w))",
        c("faults"),
    ),
    Defect(
        "C: claims of a live client are reclaimed",
        "cclient/src/protocol/reclaim.c",
        "|| lock_record(c, record) != 1)",
        "|| lock_record(c, record) < 0)",
        c("faults"),
    ),
    Defect(
        "C: a clear waits for all claims but the last of a client",
        "cclient/src/protocol/clear.c",
        "k < STOC_CLAIMS_PER_CLIENT; k++) {\n            for (unsigned round",
        "k < STOC_CLAIMS_PER_CLIENT - 1; k++) {\n            for (unsigned round",
        c("api"),
    ),
    Defect(
        "C: workers that sleep are not woken",
        "cclient/src/tasks/task_queue.c",
        "if (atomic_load(&q->sleepers))\n        /* any",
        "if (atomic_load(&q->sleepers) > 1)\n        /* any",
        c("task_queue"),
    ),
    Defect(
        "C: a wakeup between look and sleep is lost",
        "cclient/src/tasks/task_queue.c",
        "atomic_store(&q->tail, first + n);\n    atomic_fetch_add(&q->wakeup, 1);",
        "atomic_store(&q->tail, first + n);",
        c("task_queue-fault"),
    ),
    Defect(
        "C: an answer does not wake the process that waits",
        "cclient/src/tasks/task_queue.c",
        "if (atomic_load(&q->waiting))",
        "if (atomic_load(&q->waiting) > 1)",
        c("task_queue"),
    ),
    Defect(
        "C: a padded rank begins again one sample late",
        "cclient/src/order/epoch.c",
        "position < e->positions ? position : position % e->positions, &memory)",
        "position < e->positions ? position : (position + 1) % e->positions, &memory)",
        c("order"),
    ),
    Defect(
        "C: equal shares of buckets are not filled up",
        "cclient/src/order/nodes.c",
        "k < left - given; k++",
        "k + 1 < left - given; k++",
        c("order"),
    ),
    Defect(
        "C: a cache stores what its node does not keep",
        "cclient/src/protocol/write.c",
        "if (state_of(w) != READY && is_left_out(c, i))",
        "if (state_of(w) == RETIRING && is_left_out(c, i))",
        c("api"),
    ),
    Defect(
        "Python: a pickled cache keeps all samples",
        "python/src/stocached/_cache/cache.py",
        "    if kept is not None:\n        cache._keep(kept)",
        '    if kept == b"":\n        cache._keep(kept)',
        python("loader/test_affinity.py"),
    ),
    # The server.
    Defect(
        "Server: only the first client hears of a sample that cannot be read",
        "server/fill/filler.go",
        "\t\tw.request.answer(w, f.loaded(from, w, result))\n",
        "\t\tw.request.answer(w, f.loaded(from, w, result))\n\t\tresult.code = 0\n",
        go("./server", "TestSamplesThatFail"),
    ),
    Defect(
        "Server: the memory of a prefetch is not given back",
        "server/session/connection.go",
        "\t\tc.out.unreserve(r.reserved)\n\t\treturn",
        "\t\treturn",
        go("./server", "TestPrefetchGivesItsMemoryBack"),
    ),
    Defect(
        "Go: a load that begins late loads again",
        "client/load.go",
        "err == nil && state == StateReady {",
        "err == nil && state == StateReady && false {",
        go("./client", "TestLoadThatBeginsLateFindsTheSample"),
    ),
    Defect(
        "Server: any user is the owner",
        "server/operator.go",
        "return p.UID == 0 || p.UID == os.Getuid()",
        "return p.UID == 0 || p.UID != os.Getpid()",
        go("./server", "TestAdminGroup"),
    ),
    Defect(
        "Server: a plan leaves out the samples of its last round",
        "server/prefetch/schedule.go",
        "p.total-p.next < ranks {",
        "p.total-p.next < 1 {",
        go("./server", "TestPlanOfRanks"),
    ),
    # Caches that evict, through the server.
    Defect(
        "server: no samples stay for all jobs while one hits less than its share",
        "server/jobs/share.go",
        "if debt || j.core.Load() > 0 && !credit {",
        "if false {",
        go("./server", "TestPlannedShares"),
    ),
    Defect(
        "server: a job whose workers read has no loads",
        "server/jobs/share.go",
        "of.asked.Add(1)",
        "of.asked.Add(0)",
        go("./server/jobs", "TestFetchedShares"),
    ),
    Defect(
        "Evicting: a sample loses its slot for a prefetch",
        "server/session/connection.go",
        "r.samples.Unstored, r.prefetch || r.slotsOnly\n",
        "r.samples.Unstored, r.slotsOnly\n",
        go("./server", "TestPrefetchEvictsNothing"),
    ),
    Defect(
        "Nodes: a server stores what the node of a client does not keep",
        "server/fill/filler.go",
        "if why.unstored {\n\t\treturn",
        "if why.unstored && why.freeOnly {\n\t\treturn",
        go("./server", "TestUnstored"),
    ),
    Defect(
        "Disk: bytes that are not the sample are served",
        "cache/read.go",
        "have != want && record.unchanged(w, m)",
        "have != want && !record.unchanged(w, m)",
        go("./tier/disk", "TestChangedBytes"),
    ),
    Defect(
        "Disk: two samples of one place are kept",
        "shm/diskfile/index.go",
        "if other := s.SlotSample(place - 1).Load(); other != 0 {",
        "if other := s.SlotSample(place - 1).Load(); other == 1<<60 {",
        go("./tier/disk", "TestOnePlaceForTwo"),
    ),
    Defect(
        "Go: two programs of a machine load one sample",
        "tier/programs.go",
        "p.mu.Unlock()\n\t\treturn one.by == by",
        "p.mu.Unlock()\n\t\treturn one.by == by || by != nil",
        go("./internal/cli", "TestProgramsLoadOnce"),
    ),
    Defect(
        "Go: a program that is gone keeps its loads",
        "server/session/connection.go",
        "\t\th.EndLoads(c)\n",
        "",
        go("./internal/cli", "TestProgramsThatFail"),
    ),
    Defect(
        "C: a part of an answer to ANNOUNCE is left for the next call",
        "cclient/src/connection/announce.c",
        "if (code < 0 && !refused)",
        "if (code < -999 && !refused)",
        c("fetch-address"),
    ),
    Defect(
        "C: a caller that has samples to load waits for others",
        "cclient/src/connection/fetch.c",
        "if (w->to_load)",
        "if (w->to_load && w->n == 0)",
        c("fetch"),
    ),
    Defect(
        "Go: a node's server does not read what its node owns and others read",
        "loader/loader.go",
        "if l.options.owners == nil || served == nil {",
        "if l.options.owners == nil || served != nil {",
        go("./loader", "TestFirstEpochBringsWhatANodeOwns"),
    ),
    Defect(
        "Programs: the end of a load wakes no client that waits for it",
        "tier/programs.go",
        "\twoken := p.wake(ended...)",
        "\twoken := p.wake()",
        go("./server", "TestAnswersWaitForLoads"),
    ),
    Defect(
        "Programs: the end of a load is told with the lock held",
        "tier/programs.go",
        "\tp.mu.Unlock()\n\tcall(woken)\n",
        "\tcall(woken)\n\tp.mu.Unlock()\n",
        go("./tier", "TestEndOfALoadIsToldWithoutTheLock"),
    ),
    Defect(
        "Programs: an answer waits although the client has a sample to load",
        "server/session/connection.go",
        "\t\tif f.Code != control.CodeLoading {\n\t\t\treturn false\n\t\t}\n",
        "\t\tif f.Code != control.CodeLoading {\n\t\t\tcontinue\n\t\t}\n",
        go("./server", "TestAnswersWaitForLoads"),
    ),
    Defect(
        "Lists: a long list stays in memory",
        "source/dir/files.go",
        "\tif len(b.names)+recordBytes*len(b.records) < b.limit {",
        "\tif len(b.names) >= 0 {",
        go("./source/dir", "TestMemoryOfALongList"),
    ),
    Defect(
        "Lists: files are sorted by the lengths of their names",
        "source/dir/files.go",
        "cmp.Or(bytes.Compare(f.name(&a), f.name(&b)), cmp.Compare(a.at, b.at))",
        "cmp.Compare(a.bytes, b.bytes)",
        go("./source/dir", "TestListsAlike"),
    ),
    Defect(
        "Requests: a server nearby gets few at a time",
        "source/remote/window.go",
        "\t\tqueued = 0\n",
        "",
        go("./source/remote", "TestWindowOfANearbyServer"),
    ),
    Defect(
        "Requests: the window stays wide with a long queue",
        "source/remote/window.go",
        "\t\tw.size = max(1, w.size-1)\n",
        "\t\tw.size = max(1, w.size)\n",
        go("./source/remote", "TestWindowShrinksWithALongQueue"),
    ),
    Defect(
        "Requests: the fastest answers are never measured again",
        "source/remote/window.go",
        "case time.Since(w.measured) > measureAgain:",
        "case w.measured.IsZero():",
        go("./source/remote", "TestWindowOfALinkThatBecomesSlower"),
    ),
    Defect(
        "Requests: a busy server gets second requests",
        "source/remote/hedge.go",
        "s.window.isBusy() || ",
        "",
        go("./source/remote", "TestNoSecondRequestToABusyServer"),
    ),
    Defect(
        "Requests: an error of the network has the whole address",
        "source/remote/network.go",
        "\t\terr = cut.Err\n",
        "\t\t_ = cut.Err\n",
        go("./internal/cli", "TestSecretsOfAWholeRun"),
    ),
    Defect(
        "Python: a node's server does not read what its node owns and others read",
        "python/src/stocached/_loader/gather.py",
        "first = context.begun.first_dealt",
        "first = False",
        python("loader/test_affinity_torch.py", "first_epoch"),
    ),
    Defect(
        "Tiers: requests that wait for a node go on when it is left out",
        "tier/cluster/node.go",
        "\tfinish(n.waiting)\n\tn.waiting = nil\n\tn.end()\n",
        "",
        go("./tier/cluster", "TestOpeningEndsRequests"),
    ),
    Defect(
        "Tiers: the nodes of an engine that is not known any more are used",
        "tier/cluster/engine.go",
        "nodes []*node) {\n\tif e == nil {\n\t\treturn nil\n\t}\n",
        "nodes []*node) {\n",
        go("./tier/cluster", "TestServerJoinsClusterWithoutReads"),
    ),
    Defect(
        "Tiers: each request opens the breaker again",
        "internal/breaker/breaker.go",
        "\tif b.open.Load() {\n\t\treturn false\n\t}\n\tnow",
        "\tnow",
        go("./internal/breaker", "TestBreaker"),
    ),
    Defect(
        "Tiers: a load that fails keeps its lease",
        "tier/around.go",
        "\t\tif claimed {",
        "\t\tif claimed && n < 0 {",
        go("./tier/cluster", "TestLeases"),
    ),
    Defect(
        "Disk caches: a sample that was put before a clear is written after it",
        "cache/set.go",
        "epoch != anyEpoch && shm.Phase",
        "epoch == anyEpoch-1 && shm.Phase",
        go("./client", "TestDiskSetLater"),
    ),
    Defect(
        "Disk caches: an opener fails if gc removes the control part",
        "shm/control.go",
        "\t\t\ts.first, err = lockFile(fd, control, true)\n",
        "\t\t\tif s.first, err = lockFile(fd, control, true); err != nil {\n\t\t\t\terr = ErrExists\n\t\t\t}\n",
        go("./client", "TestDiskControlRemovedAtOpening", "faultpoints"),
    ),
    Defect(
        "Tiers: machines that read at the same time load a sample each",
        "tier/around.go",
        "\tif shared := a.set.shared; shared != nil {",
        "\tif shared := a.set.shared; shared != nil && i < 0 {",
        go("./internal/cli", "TestTierReadsOnce"),
    ),
    Defect(
        "Tiers: a miss counts at its lease too",
        "tier/cluster/cluster.go",
        "\tcase errors.Is(err, redis.Nil):\n\t\treturn",
        "\tcase errors.Is(err, redis.Nil):\n\t\tt.counts.Misses.Add(1)\n\t\treturn",
        go("./tier/cluster", "TestShared"),
    ),
    Defect(
        "Health: a source that has changed is well",
        "source/wrap/failures.go",
        "first := one.since.IsZero()",
        "first := one.since.IsZero() && false",
        go("./internal/cli", "TestFetchAfterTheDataChanged"),
    ),
    Defect(
        "Tiers: the end of a server drops what waits to be written",
        "internal/writequeue/queue.go",
        "\t\tif q.ctx.Err() != nil {\n\t\t\tq.dropped.Add(1)",
        "\t\tif q.closed {\n\t\t\tq.dropped.Add(1)",
        go("./tier", "TestFlushBesideAHangingSource"),
    ),
    Defect(
        "Affinity: every rank of a node deals all batches",
        "python/src/stocached/_loader/dealt_batches.py",
        "self._next += deal.local_world_size",
        "self._next += 1",
        python("loader/test_affinity.py", "deal_ahead_and_share"),
    ),
    Defect(
        "Affinity: ranks with other settings are not refused",
        "python/src/stocached/_loader/affinity.py",
        'if setting != "rank" and theirs.get(setting) != what:',
        'if setting == "":',
        python("loader/test_affinity_torch.py", "ranks_that_differ"),
    ),
    Defect(
        "Native workers: a row of bytes that changed stays",
        "cclient/src/worker/worker.c",
        "        if (unchanged(record, word, meta)) {\n            if (c->references && code",
        "        if (true) {\n            if (c->references && code",
        c("worker"),
    ),
    Defect(
        "Evicting: a sample loses its slot for a plan",
        "server/prefetch/schedule.go",
        "r.FreeOnly = true",
        "r.FreeOnly = false",
        go("./server", "TestPlanWithoutRoom"),
    ),
    Defect(
        "Evicting: the bytes of a READY sample are not sent",
        "server/fill/filler.go",
        "case state == cache.StateReady && !r.Send && !r.Files:",
        "case state == cache.StateReady:",
        go("./server", "TestSend"),
    ),
    Defect(
        "Evicting: a client that comes during a read gets no bytes",
        "server/fill/filler.go",
        "again := result.stored && w.request.Send && !needs ||",
        "again :=",
        go("./server", "TestSend"),
    ),
    Defect(
        "Evicting: a FETCH that joins a PREFETCH gets no sample",
        "server/fill/filler.go",
        " || result.noRoom() && !w.request.FreeOnly",
        "",
        go("./server", "TestFetchBesidePrefetches"),
    ),
    Defect(
        "Evicting: samples that are READY wait for a client without limit",
        "server/fill/filler.go",
        "!(needs && !w.request.by.CanTake(len(result.data.Bytes)))",
        "!(needs && !result.stored && !w.request.by.CanTake(len(result.data.Bytes)))",
        go("./server", "TestSendToASlowReader"),
    ),
    Defect(
        "Evicting: the server measures no costs",
        "server/fill/filler.go",
        "MeasureIf(f.cache.MeasureNext(),",
        "MeasureIf(f.cache.MeasureNext() && false,",
        go("./server", "TestCostsOfLoads"),
    ),
    Defect(
        "Evicting: the wait for other reads is a cost",
        "source/wrap/concurrency.go",
        "loadtime.Queued(ctx, time.Since(arrived))",
        "loadtime.Queued(ctx, time.Since(arrived) * 0)",
        go("./source/wrap", "TestCostsOfLimits"),
    ),
    Defect(
        "Evicting: a sample of a block costs the whole block",
        "source/wrap/readahead.go",
        "cost.Part(float64(bytes) / float64(max(of, 1)))",
        "cost.Part(float64(min(of, 1)))",
        go("./source/wrap", "TestCostsOfLimits"),
    ),
    Defect(
        "Evicting: the work of other goroutines is a cost",
        "internal/loadtime/loadtime.go",
        "(float64(u.delay)+occupied)*part",
        "float64(u.delay)*part",
        go("./internal/loadtime", "TestCost|TestBusy"),
    ),
    Defect(
        "Evicting: the work of other processes is a cost",
        "internal/loadtime/loadtime.go",
        "(float64(u.delay)+occupied)*part",
        "occupied*part",
        go("./internal/loadtime", "TestCost|TestBusy"),
    ),
    Defect(
        "Evicting: GetOrLoad measures nothing",
        "client/load.go",
        "MeasureIf(c.Loads().MeasureNext(),",
        "MeasureIf(c.Loads().MeasureNext() && false,",
        go("./client", "TestCostOfALoad"),
    ),
    Defect(
        "Evicting: a Go loader measures nothing",
        "loader/samples.go",
        "MeasureIf(loads.MeasureNext(),",
        "MeasureIf(loads.MeasureNext() && false,",
        go("./loader", "TestLoaderTellsCosts"),
    ),
    Defect(
        "Evicting: Go asks again without SEND",
        "client/fetch.go",
        "case part[0].tries > 0 || s.c.Evicts()",
        "case part[0].tries > 9 || s.c.Evicts()",
        go("./client", "TestGoneBeforeTheCopy"),
    ),
    Defect(
        "Evicting: C asks again without SEND",
        "cclient/src/connection/fetch.c",
        "bool send = w->missing[0].tries > 0 || (w->cache->evicts",
        "bool send = w->missing[0].tries > 9 || (w->cache->evicts",
        c("fetch"),
    ),
    Defect(
        "Evicting: C asks for a large batch twice",
        "cclient/src/connection/fetch.c",
        "(w->cache->evicts && m >",
        "(false && m >",
        c("fetch"),
    ),
    Defect(
        "Evicting: a program gets a cache with another policy than it asks for",
        "client/options.go",
        "policy != seg.Policy {",
        "policy != seg.Policy && false {",
        go("./client", "TestPolicyThatIsAskedFor"),
    ),
    Defect(
        "Evicting: the server keeps a cache of another policy",
        "server/served/cache.go",
        "have.Policy != want.Policy:",
        "have.Policy != want.Policy && false:",
        go("./server", "TestAnotherPolicy"),
    ),
    Defect(
        "Server: an unknown key of the configuration is passed over",
        "server/config/keys.go",
        "case !there:\n\t\t\t\tcomplaints = append(complaints, fmt",
        "case !there:\n\t\t\t\t_ = append(complaints, fmt",
        go("./server/config", "TestBadFiles"),
    ),
    # Python.
    Defect(
        "Python: the last batch is lost",
        "python/src/stocached/_loader/sampling.py",
        "if len(batch) == batch_size or not drop_last:",
        "if len(batch) == batch_size:",
        python("loader/test_stateful.py", "samplers_go_on"),
    ),
    Defect(
        "Python: a checkpoint is one sample ahead",
        "python/src/stocached/_loader/checkpoint.py",
        "begun.shard.position(progress.samples)",
        "begun.shard.position(progress.samples + 1)",
        python("loader/test_loader.py", "resumed_at_every_batch"),
    ),
    Defect(
        "Python: memory of a batch is given to another batch as well",
        "python/src/stocached/_memory/batch_pool.py",
        "number = self._idle.pop()",
        "number = self._idle[-1]",
        python("loader/test_loader_kept.py", "batches_never_change and not tensors"),
    ),
    Defect(
        "Python: the second Gaussian number of NumPy is no draw",
        "python/src/stocached/_random/generators.py",
        "[self._memory[4 * (_WORDS - 1) :], self._gauss]",
        "[self._memory[4 * (_WORDS - 1) :]]",
        python("checks/test_randomness.py", "every_draw"),
    ),
    Defect(
        "Python: arrays of another dtype have the same fingerprint",
        "python/src/stocached/_checks/identity.py",
        'digest_of("array", items.dtype.str.encode(), repr',
        'digest_of("array", repr',
        python("checks/test_derived_fingerprint.py", "arrays_and_what"),
    ),
    Defect(
        "Python: of a lost worker's tasks only the first is done again",
        "python/src/stocached/_workers/pool.py",
        "for position in held:",
        "for position in held[:1]:",
        python("loader/test_loader_kills.py", "does_all"),
    ),
    Defect(
        "Python: memory of the overflow is not given back",
        "python/src/stocached/_workers/task_queue.py",
        "self.overflow.punch(place.offset, PLACE)",
        "pass",
        python("loader/test_loader.py", "that_workers_send"),
    ),
    Defect(
        "Python: the error about a lost worker names no sample",
        "python/src/stocached/_loader/job.py",
        "return f\"while it loaded sample {task['index']}\"",
        'return "while it loaded a sample"',
        python("loader/test_loader_kills.py", "lost_worker_is_an_error"),
    ),
    Defect(
        "Python: a thread that waits for a load that fails gets nothing",
        "python/src/stocached/_cache/singleflight.py",
        "            if load.ok:\n",
        "            if load:\n",
        python("cache/test_cache.py", "who_waits"),
    ),
    Defect(
        "Python: rows of a stream take files in the order of workers",
        "python/src/stocached/_streams/scheduler.py",
        "for row in sorted(waiting) if",
        "for row in waiting if",
        python("streams/test_streams.py", "those_of_the_specification"),
    ),
    Defect(
        "Python: a rank counts only the elements of its shard",
        "python/src/stocached/_workers/calls.py",
        "        rank=0,  # this rank needs all of them\n        world_size=1,\n",
        "",
        python("pipes/test_measure.py", "all_elements"),
    ),
    Defect(
        "Python: processes that continue a preparation begin at sample 0",
        "python/src/stocached/_pipes/filling.py",
        "range(first, info.samples), size)",
        "range(info.samples), size)",
        python("pipes/test_write.py", "workers_continue"),
    ),
    Defect(
        "Python: SharedCache shows a slot as set while it is written",
        "python/src/stocached/shared_cache.py",
        "np.array([_EMPTY, _EMPTY, _SET, _OOB]",
        "np.array([_EMPTY, _SET, _SET, _OOB]",
        python("cache/test_shared_cache.py", "while_a_sample_is_written"),
    ),
    Defect(
        "Python: Lightning makes loaders without the cache",
        "python/src/stocached/_loader/torch_loader.py",
        'if name.startswith("__pl_saved_")]',
        'if name.startswith("__pl_never_")]',
        python("loader/test_framework_ranks.py"),
    ),
    Defect(
        "Python: accelerate shards what is sharded",
        "python/src/stocached/_loader/accelerate.py",
        "if several and loader._setup().in_our_order:",
        "if several and not loader._setup().in_our_order:",
        python("loader/test_framework_ranks.py"),
    ),
    Defect(
        "Python: augment= draws the same numbers in every epoch",
        "python/src/stocached/_loader/checkpoint.py",
        "sample_seed(seed, epoch, 1) >> 2, sample_seed(seed, epoch, 0)",
        "sample_seed(seed, epoch, 1) >> 2, sample_seed(seed, 0, 0)",
        python("loader/test_loader.py", "global_random_numbers"),
    ),
    # Caches that evict.
    Defect(
        "Evict in Go: the victim's word is not compared with its slot",
        "cache/space_slots.go",
        "\tif w.State() != shm.Ready || s.layout.Place(w) != slot+1 {\n\t\treturn Full, nil\n\t}\n\tintent.Store",
        "\tif w.State() != shm.Ready {\n\t\treturn Full, nil\n\t}\n\tintent.Store",
        go("./cache", "TestManySamplesAndFewSlots"),
    ),
    Defect(
        "Evict in Go: a dead client's victim stays RETIRING",
        "cache/space_slots.go",
        '\tif word.CompareAndSwap(uint64(w), uint64(to)) {\n\t\tfault.At("reclaim.victim")\n',
        "\tif _ = to; false {\n",
        go("./cache", "TestKilledInAnEviction", "faultpoints"),
    ),
    Defect(
        "Evict in C: a dead client's victim stays RETIRING",
        "cclient/src/protocol/evict.c",
        '    if (cas(index_word(c, listed - 1), w, to))\n        STOC_FAULT("reclaim.victim");\n',
        "    (void)to;\n",
        python("loader/test_loader_kills.py", "in_an_eviction"),
    ),
    Defect(
        "Evict: a busy processor makes a load dearer",
        "python/src/stocached/_common/load_time.py",
        "thread_time_ns(), schedule.delay()",
        "thread_time_ns(), 0",
        python("cache/test_evicting.py", "busy_machine"),
    ),
    Defect(
        "Evict: workers do not load the hits that are lost after the probe",
        "python/src/stocached/_loader/gather_iterator.py",
        "        if self._post_lost(batch):\n",
        "        if False:\n",
        python("loader/test_loader_policies.py", "after_the_probe"),
    ),
    # Arenas that evict, full caches, plans and predictions.
    Defect(
        "Chains in C: a slot that is freed loses its pages bit",
        "cclient/src/protocol/space_chains.c",
        "link_pack(0, 0, l))",
        "link_pack(0, 0, 0))",
        c("memory"),
    ),
    Defect(
        "Chains in C: the intent of a freed slot forgets the rest",
        "cclient/src/protocol/space_chains.c",
        "chain_intent(head, link_next(l))",
        "chain_intent(head, 0)",
        c("faults"),
    ),
    Defect(
        "Chains in C: a reclaim does not tell searches of a freed slot",
        "cclient/src/protocol/space_chains.c",
        '            lower_group(c, candidate - 1, "reclaim.cursor");\n',
        "",
        c("faults"),
    ),
    Defect(
        "Chains in C: an overwrite keeps slots of another number",
        "cclient/src/protocol/space_chains.c",
        "if ((uint64_t)has == n)\n",
        "if ((uint64_t)has >= n && n > 0)\n",
        c("chains"),
    ),
    Defect(
        "Chains in Go: a slot that is taken loses its pages bit",
        "cache/space_chains.go",
        "shm.NewLink(f.sample+1, f.head, free.Pages())",
        "shm.NewLink(f.sample+1, f.head, false)",
        go("./cache", "TestChainsDrawOnce"),
    ),
    Defect(
        "Chains in Go: a slot that is freed loses its pages bit",
        "cache/space_chains.go",
        "shm.NewLink(0, 0, l.Pages())",
        "shm.NewLink(0, 0, false)",
        go("./cache", "TestChainsDrawOnce"),
    ),
    Defect(
        "Chains in Go: the intent of a freed slot forgets the rest",
        "cache/space_chains.go",
        "shm.NewChainIntent(head, l.Next())",
        "shm.NewChainIntent(head, 0)",
        go("./cache", "TestKilledInAChain", "faultpoints"),
    ),
    Defect(
        "Chains in Go: a hand looks at every slot of a sample",
        "cache/space_chains.go",
        "return l.Sample(), !s.swept || l.Next() == 0",
        "return l.Sample(), true",
        go("./cache", "TestChainsDecideAsSimulated"),
    ),
    Defect(
        "Chains: slots may lose a quarter of the arena",
        "shm/options.go",
        "g.Slots >= chainPart*samples",
        "g.Slots >= chainPart*samples/2",
        go("./shm", "TestSlotBytes"),
    ),
    Defect(
        "Chains: a dataset's slots suit its largest sample",
        "python/src/stocached/_datasets/making.py",
        "sample_bytes[len(sample_bytes) // 2]",
        "sample_bytes[-1]",
        python("loader/test_loader_policies.py", "typical"),
    ),
    Defect(
        "Full cache: the server reads what it cannot store",
        "server/fill/filler.go",
        "if why.freeOnly { //",
        "if why.freeOnly && f.cache.Evicts() { //",
        go("./server", "TestPrefetchIntoAFullCache"),
    ),
    Defect(
        "Planned: a sample of the next epoch comes in this one",
        "server/jobs/job.go",
        "n += e.begin + e.reads",
        "n += e.begin",
        go("./server/jobs", "TestNext"),
    ),
    Defect(
        "Planned: the last batch counts as read",
        "server/jobs/job.go",
        "read -= min(read, j.behind)",
        "read -= min(read, 0)",
        go("./server/jobs", "TestNext"),
    ),
    Defect(
        "Advise: a part of the bytes is that part of the samples",
        "internal/advise/epoch.go",
        "if d.Sizes != nil {",
        "if d.Sizes != nil && false {",
        go("./internal/advise", "TestEpochPredictedAndObserved"),
    ),
    Defect(
        "Advise: evictions since the creation count as those of the last epoch",
        "internal/advise/epoch.go",
        "float64(now.evicted-before.evicted)",
        "float64(now.evicted)",
        go("./internal/advise", "TestEpochPredictedAndObserved"),
    ),
    Defect(
        "Chains in C: a sample without slots has no length beside its cost",
        "cclient/src/protocol/evict.c",
        "meta = (meta & ~(uint64_t)UINT32_MAX) | length;",
        "(void)length;",
        c("chains"),
    ),
    Defect(
        "Python: threads are counted while the garbage collector may run",
        "python/src/stocached/_common/threads.py",
        "    gc.disable()\n    try:\n        return frozenset(sys",
        "    try:\n        return frozenset(sys",
        python("workers/test_threads.py", "garbage_collection"),
    ),
    Defect(
        "Python: each check waits for a load that hangs",
        "python/src/stocached/_checks/loading.py",
        "_SHORT_TIMEOUT if hung else left",
        "left",
        python("checks/test_randomness.py", "hangs_is_waited_for_once"),
    ),
    # Pictures.
    Defect(
        "pictures: the decoder reads rows and columns outside of the window",
        "cimage/src/jpeg.c",
        "bool cuts = !jpeg->progressive_mode && jpeg->scale_denom == 1;",
        "bool cuts = false;",
        pictures("image"),
    ),
    Defect(
        "pictures: an encoded picture is decoded as a whole",
        "cimage/src/pass.c",
        "pass->boxes && uses_a_box(",
        "false && uses_a_box(",
        pictures("pipeline"),
    ),
    Defect(
        "pictures: no vectors are used",
        "cimage/src/vectors.c",
        "return processor_has(HAS_AVX512) ? 2 : processor_has(HAS_AVX2) ? 1 : 0;",
        "return processor_has(HAS_AVX512) ? 0 : 0;",
        pictures("image"),
    ),
    Defect(
        "pictures: plain code leaves out the last pixel of a decoded row",
        "cimage/src/decode.c",
        "interleave(to, rows, r->across.count);",
        "interleave(to, rows, r->across.count - (r->across.count > 1 && !w->vectors));",
        pictures("image"),
    ),
    Defect(
        "pictures: a scaled picture has its number of pixels as its side",
        "cimage/src/decode.c",
        "make_weights(w, side, j->scale, out,",
        "make_weights(w, (side + j->scale - 1) / j->scale, 1, out,",
        python("image/test_decode.py", "fast"),
    ),
    Defect(
        "pictures: a decoder reads files in the cache",
        "python/src/stocached/_image/pipeline.py",
        "return bool(self._how.encoded)",
        "return False",
        python("image/test_hostile.py", "native_workers_copy"),
    ),
    Defect(
        "pictures: cached pixels are copied",
        "python/src/stocached/_image/pipeline.py",
        "return bool(self._how.encoded)",
        "return True",
        python("image/test_hostile.py", "native_workers_copy"),
    ),
    Defect(
        "pictures: a thin picture may become longer than a side may be",
        "cimage/src/target.c",
        "    if (width > MAX_SIDE || height > MAX_SIDE)\n        return fail(w, STOC_IMAGE_ETOOLARGE",
        "    if (0)\n        return fail(w, STOC_IMAGE_ETOOLARGE",
        pictures("pipeline"),
    ),
    Defect(
        "pictures: a shard that was written twice in a second is the same",
        "cimage/src/files.c",
        "about.st_mtim.tv_sec * INT64_C(1000000000) + about.st_mtim.tv_nsec != stamp->modified_ns",
        "about.st_mtim.tv_sec != stamp->modified_ns / INT64_C(1000000000)",
        pictures("pipeline"),
    ),
    Defect(
        "pictures: a row that is made again has other random numbers",
        "cclient/src/worker/worker.c",
        "code = w->finish(w->context, task->argument, c->payload",
        "code = w->finish(w->context, task->argument + *retried, c->payload",
        c("worker"),
    ),
    Defect(
        "pictures: sides of boxes are cut, not rounded",
        "cimage/src/steps.c",
        "static int64_t rounded(double x) { return llrint(fmin(x, 1e12)); }",
        "static int64_t rounded(double x) { return (int64_t)fmin(x, 1e12); }",
        python("image/test_steps_torch.py", "distribution"),
    ),
    Defect(
        "pictures: random boxes have half of their sides, so a network learns less",
        "cimage/src/steps.c",
        "double part = area * draw_between(r, scale[0], scale[1]);",
        "double part = area * draw_between(r, scale[0], scale[1]) / 4;",
        python("loader/test_native_torch.py", "learns"),
    ),
    Defect(
        "pictures: a random box without pixels is decoded",
        "cimage/src/steps.c",
        "if (b.width < 1 || b.height < 1)\n        return MISFIT",
        "if (0)\n        return MISFIT",
        pictures("pipeline"),
    ),
    Defect(
        "pictures: a padded picture has the fingerprint of a stretched one",
        "source/decode/decode.go",
        'pixels, how = pixels+" pad", how+", padded"',
        'how += ", padded"',
        go("./source/decode", "TestFingerprint"),
    ),
]


def shell(command: str, tree: Path) -> tuple[bool, list[str]]:
    """Whether the command succeeds in the worktree, and what it prints. Ends it after MOST seconds."""
    paths = {"PYTHONPATH": str(tree / "python/src"), "STOCACHED_LIB_PATH": str(tree / "build")}
    paths |= {"TREE": str(tree), "PY": sys.executable}
    with tempfile.TemporaryFile("w+") as out:
        started = subprocess.Popen(
            command, shell=True, cwd=tree, env=os.environ | paths, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
        ended = True
        try:
            started.wait(MOST)
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        out.seek(0)
        lines = out.read().splitlines()
    return started.returncode == 0, lines if ended else [*lines, f"FAIL no end within {MOST} s"]


def attempt(defect: Defect, tree: Path, passed: set[Test]) -> tuple[str, str]:
    """Returns found, SURVIVES or ERROR, and the test or the mistake. passed: tests known to pass without a defect."""
    file, test = tree / defect.file, defect.test
    text = file.read_text()
    if text.count(defect.old) != 1 or defect.old == defect.new:
        return "ERROR", f"its text is in {defect.file} {text.count(defect.old)} times instead of once"
    if test not in passed:
        for command in (test.build, test.run):
            fine, lines = shell(command, tree)
            if not fine:
                return "ERROR", f"fails without the defect: {first(lines)}"
        passed.add(test)
    try:
        file.write_text(text.replace(defect.old, defect.new))
        fine, lines = shell(test.build, tree)
        if not fine:
            return "ERROR", f"does not compile: {first(lines)}"
        fine, lines = shell(test.run, tree)
        return ("SURVIVES", test.run) if fine else ("found", first(lines))
    finally:
        file.write_text(text)


def first(lines: list[str]) -> str:
    told = failures(lines)
    return told[0][:WIDTH] if told else "no message"


def try_all(defects: list[Defect], tree: Path) -> int:
    """Prints a row for each defect. Returns how many no test finds."""
    passed: set[Test] = set()
    wide = max(len(defect.name) for defect in defects)
    missed = 0
    for defect in defects:
        start = time.monotonic()
        result, what = attempt(defect, tree, passed)
        missed += result != "found"
        print(f"{defect.name:<{wide}}  {result:<8}  {time.monotonic() - start:5.1f} s  {what}", flush=True)
    print(f"{len(defects) - missed} of {len(defects)} defects found")
    return missed


def main(words: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes the worktree as well
    chosen = [defect for defect in DEFECTS if not words or any(word in defect.name for word in words)]
    if not chosen:
        print(f"no defect has a name with {' or '.join(words)}")
        return 1
    with worktree("HEAD") as tree:
        return 1 if try_all(chosen, tree) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
