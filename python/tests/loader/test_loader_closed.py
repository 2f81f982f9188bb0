"""What a loader says of itself, its end, and the end of the program around it."""

from __future__ import annotations

import ast
import collections
import copy
import gc
import multiprocessing
import pickle
import re
import shutil
import sys
import textwrap
import threading
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers import Of, python
from processes import in_threads, meanwhile

import stocached
from stocached import Cache, ClosedError, Loader, mix, source
from stocached._loader.executor import Executor

N = 12


class Numbers:
    def __len__(self):
        return N

    def __getitem__(self, index):
        return np.full(4, index, np.int64)


SIZE = {"size": "16MiB", "allow_random": True}


# ------------------------------------------------------------------------------------ close


@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 1, "persistent_workers": True, "seed": 1}], ids=["none", "kept"]
)
def test_close_frees_a_cache_without_a_name(workers):
    loader = Loader(Numbers(), 4, **SIZE, **workers)
    list(loader)
    batches = iter(loader)
    next(batches)
    handle = weakref.ref(loader.cache._handle)  # has the memory
    loader.close()
    loader.close()
    assert loader.cache.closed
    gc.collect()
    assert handle() is None
    with pytest.raises(ClosedError, match="the loader was closed"):
        next(batches)
    with pytest.raises(ClosedError, match="was closed, and its cache with it.*make another loader"):
        iter(loader)
    assert loader.stats().batches == N // 4 + 1
    assert loader.state_dict()


def counted(item):
    loads.append(item)
    return np.full(4, item, np.int64)


def list_of(item):
    return [counted(item)]


loads: list[int] = []
PIPES = {
    "samples": lambda: source(range(N)).map(counted).cache("16MiB"),
    "room for all": lambda: source(range(N)).map(counted).cache().map(abs),
    "lists": lambda: source(range(N)).flat_map(list_of).cache("16MiB"),
    "two caches": lambda: source(range(N)).map(counted).cache("16MiB").map(abs).cache("16MiB"),
    "sides": lambda: mix([source(range(N)).map(counted).cache("16MiB").shuffle(seed=seed) for seed in (1, 2)]),
}


@pytest.mark.parametrize("read", [False, True], ids=["", "read before"])
@pytest.mark.parametrize("kind", PIPES)
def test_loaders_of_a_pipe_share_its_caches_and_the_last_one_frees_them(kind, read):
    pipe = PIPES[kind]()
    if read:
        list(pipe)
    one, other = Loader(pipe.batch(4)), Loader(pipe.batch(3))
    list(one)
    loads.clear()
    assert list(other)
    assert loads == []
    caches = one._caches()
    assert caches == other._caches()
    assert repr(caches[0]) in repr(one)
    one.close()
    assert not any(cache.closed for cache in caches)
    list(one)
    counts = [(stage.items, stage.hits, stage.misses) for stage in one.stats().stages]
    one.close()
    other.close()
    assert all(cache.closed for cache in caches)
    assert [(stage.items, stage.hits, stage.misses) for stage in one.stats().stages] == counts
    with pytest.raises(ClosedError, match="was closed, and its cache with it"):
        iter(one)
    assert (
        len(list(copy.deepcopy(pipe)))
        == len(list(pipe))
        == len([item for batch in Loader(pipe.batch(4)) for item in batch])
    )
    assert loads != []


def values(loader):
    return [row.tolist() for batch in loader for row in batch]


@pytest.mark.parametrize("kind", PIPES)
def test_a_copy_has_the_caches_of_its_loader_or_makes_them_anew(kind):
    pipe = PIPES[kind]()
    loader = Loader(pipe.batch(4))
    expected = values(loader)
    sent = pickle.dumps(loader), pickle.dumps(pipe)
    loads.clear()
    shares = pickle.loads(sent[0])
    assert values(shares) == expected
    assert loads == []
    shares.close()
    loader.close()
    copies = [pickle.loads(sent[0]), pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)]
    for made in (*copies, Loader(pickle.loads(sent[1]).batch(4))):
        assert values(made) == expected
        made.close()
        assert all(cache.closed for cache in made._caches())


@pytest.mark.parametrize("closed", [False, True], ids=["", "closed"])
def test_another_process_has_the_caches_of_a_pipe_or_makes_them_anew(closed):
    pipe = source(range(N)).map(abs).cache("16MiB").map(abs).cache("16MiB").shuffle(seed=1)
    loader = Loader(mix([pipe, source(range(N)).cache("16MiB")]).batch(4))
    expected = [batch.tolist() for batch in loader]
    sent = pickle.dumps(loader).hex()
    if closed:
        loader.close()
    code = """
        import pickle, sys
        loader = pickle.loads(bytes.fromhex(sys.argv[1]))
        print([[batch.tolist() for batch in loader], loader.stats().misses])
        loader.close()
        assert all(cache.closed for cache in loader._caches())"""
    batches, misses = ast.literal_eval(python(code, sent).stdout)
    assert batches == expected
    assert (misses == 0) is not closed


@pytest.mark.parametrize("kind", PIPES)
def test_who_iterates_over_a_pipe_keeps_its_caches(kind, monkeypatch):
    monkeypatch.setitem(globals(), "loads", collections.deque(maxlen=0))  # a list that grows is a change
    pipe = PIPES[kind]()
    expected, reading = len(list(pipe)), iter(pipe)
    next(reading)
    loader = Loader(pipe.batch(4))
    caches = loader._caches()
    loader.close()
    assert not any(cache.closed for cache in caches)
    assert len(list(reading)) == expected - 1
    assert all(cache.closed for cache in caches)
    left = iter(pipe)
    next(left)
    loader = Loader(pipe.batch(4))
    loader.close()
    del left
    gc.collect()
    assert all(cache.closed for cache in loader._caches())


def test_a_cache_is_renewed_while_threads_iterate_over_its_pipe():
    values = [0]
    pipe = mix([source(range(4)).map(lambda item: np.full(4, item + values[0])).cache("16MiB", allow_random=True)] * 2)

    def iterate() -> None:
        assert all((item == item[0]).all() for item in pipe)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with meanwhile(iterate, iterate, iterate):
            for values[0] in range(0, 800, 100):
                loader = Loader(pipe.batch(8))
                assert {int(item[0]) for batch in loader for item in batch} <= set(range(values[0], values[0] + 4))
                loader.close()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("how", ["warning", "trace"])
def test_close_ends_all_though_it_raises(how, tmp_path):
    trace = tmp_path / "runs" / "run.json"
    trace.parent.mkdir()
    more = {} if how == "warning" else {"trace": str(trace)}
    growing = Of(lambda index: np.zeros(4 + (index == 7)), N)
    loader = Loader(growing, 4, size="16MiB", num_workers=1, persistent_workers=True, **more)
    batches = iter(loader)
    with pytest.raises(ValueError, match="shapes"):
        for _ in batches:
            pass
    workers = multiprocessing.active_children()
    assert workers
    shutil.rmtree(trace.parent)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if how == "warning" else "ignore")
        with pytest.raises(UserWarning if how == "warning" else OSError):
            loader.close()
    assert loader.cache.closed
    assert not any(worker.is_alive() for worker in workers)


def test_an_epoch_without_batches_ends_though_its_warning_is_an_error():
    batches = iter(Loader(source([0] * N).filter(bool).batch(4), num_workers=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="has no batch"):
            next(batches)
    assert not multiprocessing.active_children()
    assert list(batches) == []


def never(item):
    begun.set()
    threading.Event().wait()


begun = multiprocessing.get_context("fork").Event()
WAITS = {
    "samples": lambda: Loader(source(range(N)).map(never).batch(4), num_workers=1),
    "kept": lambda: Loader(source(range(N)).map(never).batch(4), num_workers=1, persistent_workers=True),
    "batches": lambda: Loader(range(N), 4, collate_fn=never, num_workers=1, in_order=False),
    "lists": lambda: Loader(source(range(N)).flat_map(never).batch(4), num_workers=1),
    "rows": lambda: Loader(source(range(N)).flat_map(never).batch(4, rows=True), num_workers=1),
}


@pytest.mark.parametrize("kind", WAITS)
def test_a_thread_that_waits_for_a_batch_learns_that_another_closes_the_loader(kind):
    begun.clear()
    loader, errors = WAITS[kind](), []

    def wait() -> None:
        try:
            next(iter(loader))
        except ClosedError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert begun.wait(60)
    loader.close()
    thread.join(60)
    assert not thread.is_alive()
    assert errors == ["the loader was closed"]


BEGINS = {
    "samples": source([1] * N).map(int).batch(4),
    "lists": source([[1]] * N).flat_map(list).batch(4),
    "rows": source([[1]] * N).flat_map(list).batch(4, rows=True),
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("kind", BEGINS)
def test_a_loader_that_another_thread_closes_while_an_iteration_begins(kind, kept, monkeypatch):
    loader = Loader(BEGINS[kind], num_workers=1, persistent_workers=kept)
    begin = Executor.begin

    def closes(self, context):
        begun = begin(self, context)
        loader.close()
        return begun

    monkeypatch.setattr(Executor, "begin", closes)
    with pytest.raises(ClosedError, match="the loader was closed"):
        next(iter(loader))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("kind", PIPES)
def test_threads_make_and_close_loaders_of_one_pipe(kind):
    pipe, counts = PIPES[kind](), set()

    def loaders(k: int) -> None:
        for _ in range(5):
            loader = Loader(pipe.batch(2 + k))
            counts.add(sum(map(len, loader)))
            loader.close()

    in_threads(4, loaders)
    assert len(counts) == 1
    last = Loader(pipe.batch(2))
    last.close()
    assert all(cache.closed for cache in last._caches())


def test_stats_have_what_a_disk_gave_after_close(tmp_path):
    for hits in 0, N:
        loader = Loader(Numbers(), 4, **SIZE, disk="16MiB", disk_dir=tmp_path, fingerprint="numbers")
        list(loader)
        loader.close()
        assert loader.stats().disk_hits == hits


def test_the_last_loader_of_a_cache_frees_it():
    data = Numbers()
    one, other = (Loader(data, 4, **SIZE) for _ in range(2))
    assert one.cache is other.cache
    one.close()
    assert len(list(one)) == len(list(other)) == N // 4
    other.close()
    assert len(list(one)) == N // 4, "it was read after its close"
    one.close()
    for loader in (one, other):
        with pytest.raises(ClosedError, match="and its cache with it"):
            iter(loader)


def test_a_loader_after_one_that_was_closed_makes_its_own_cache():
    data = Numbers()
    first = Loader(data, 4, **SIZE)
    list(first)
    first.close()
    second = Loader(data, 4, **SIZE)
    assert len(list(second)) == N // 4
    assert second.stats().misses == N
    second.close()


def test_close_leaves_caches_that_others_may_want(cache_name):
    with Cache.create(samples=N, shape=4, dtype=np.int64) as given:
        for loader in (Loader(Numbers(), 4, cache=given), Loader(Numbers(), 4, name=cache_name, fingerprint="numbers")):
            list(loader)
            loader.close()
            assert not loader.cache.closed
            assert len(list(loader)) == N // 4
            loader.close()
    loader = Loader(Numbers(), 4)
    list(loader)
    loader.close()
    assert len(list(loader)) == N // 4, "it has no cache"


def test_a_copy_outlives_the_loader_that_was_closed():
    loader = Loader(Numbers(), 4, **SIZE)
    list(loader)
    copy = pickle.loads(pickle.dumps(loader))
    loader.close()
    assert len(list(copy)) == N // 4
    copy.close()


# ------------------------------------------------------------------------------------ words


def test_the_repr_says_what_a_loader_reads():
    texts = {
        repr(Loader(Numbers(), 4)): "<stocached.Loader: Numbers of 12 samples, batch_size=4, no workers, no cache>",
        repr(Loader(Numbers(), batch_sampler=[[1]], num_workers=2)): "<stocached.Loader: Numbers of 12 samples, "
        "batches of a sampler, 2 workers (process), no cache>",
        repr(Loader(source([7] * N).filter(bool).batch(4))): "<stocached.Loader: pipe source(list, 12 elements) "
        ".filter(bool) .batch(4), batch_size=4, no workers, no cache>",
        repr(Loader(set(), None)): "<stocached.Loader: set, batch_size=None, no workers, no cache>",
    }
    assert list(texts) == list(texts.values())
    loader = Loader(Numbers(), 4, num_workers=3, worker="thread", **SIZE)
    assert repr(loader).startswith(
        "<stocached.Loader: Numbers of 12 samples, batch_size=4, 3 workers (thread), <stocached.C"
    )
    assert repr(loader.cache) in repr(loader)
    loader.close()
    assert "closed" in repr(loader)


@pytest.mark.torch
def test_the_repr_of_a_loader_of_tensors():
    from stocached.torch import DataLoader

    assert repr(DataLoader(Numbers(), 4)) == (
        "<stocached.torch.DataLoader: Numbers of 12 samples, batch_size=4, no workers, no cache>"
    )


def test_a_name_of_another_module_says_which():
    with pytest.raises(ImportError, match="from stocached.torch import DataLoader"):
        exec("from stocached import DataLoader")
    with pytest.raises(AttributeError, match="from stocached.image import Folder"):
        _ = stocached.Folder
    assert not hasattr(stocached, "DataLoader")
    with pytest.raises(ImportError, match="cannot import name 'Missing'"):
        exec("from stocached import Missing")


def test_every_name_of_another_module_is_known():
    for module in ("torch", "image", "streams", "order", "prepare", "lightning"):
        text = Path(stocached.__file__).with_name(f"{module}.py").read_text()  # some import torch or Lightning
        (listed,) = re.findall(r"^__all__ = (\[.*?\])", text, re.MULTILINE | re.DOTALL)
        names = {*ast.literal_eval(listed)} - {*stocached.__all__}
        assert names - {module} <= {*stocached._ELSEWHERE[f"stocached.{module}"].split()}


# ------------------------------------------------------------------------------------ the end of the program

ENDING = """
import atexit, sys, threading
after = threading.Event()  # the handlers of this package have run
atexit.register(lambda: (after.set(), thread.join(1)))
import numpy as np
{imports}
inside = threading.Event()
class Numbers:
    def __len__(self): return 64
    def __getitem__(self, index):
        if index == 63 and {blocks} and threading.current_thread() is not threading.main_thread():
            inside.set(), after.wait()
        return np.full(4, index, np.int64)
loader = {loader}
def read():
    while True:
        for batch in loader:
            if not {blocks}: inside.set()
thread = threading.Thread(target=read, daemon=True)
thread.start()
inside.wait()
"""


@pytest.mark.parametrize(
    ("loader", "blocks"),  # blocks: in the middle of a load, and not anywhere
    [
        ("Loader(Numbers(), 4)", True),
        ("Loader(data := Numbers(), 4, size='16MiB', allow_random=True, shuffle=True)", False),
        ("Loader(Numbers(), 4, num_workers=2, worker='thread', size='5MiB', allow_random=True, augment=np.copy)", True),
        ("Loader(Numbers(), 4, num_workers=2, worker='thread', persistent_workers=True, seed=1)", False),
        ("Loader(Numbers(), 4, num_workers=1, multiprocessing_context='fork', persistent_workers=True, seed=1)", False),
        pytest.param("DataLoader(Numbers(), 4)", True, marks=pytest.mark.torch),
    ],
)
def test_a_daemon_thread_that_reads_while_the_program_ends_prints_nothing(loader, blocks, request, tmp_path):
    of_torch = "DataLoader" in loader
    imports = f"from stocached{'.torch' if of_torch else ''} import {loader.partition('(')[0]}"
    program = textwrap.dedent(ENDING.format(imports=imports, loader=loader, blocks=blocks))
    if of_torch:
        from torch_helpers import run_alone

        done = run_alone(request.getfixturevalue("warm"), tmp_path, program)
    else:
        done = python(program, timeout=120, check=False, options=())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
