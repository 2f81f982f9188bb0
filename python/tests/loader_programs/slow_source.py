"""A training program whose files come slowly: slow_source.py FOLDER fuse|pipes WAYS native|process|thread.

WAYS: of read, timeout, interrupt (by Ctrl-C, after it has printed "ready") and restart, with commas. At its end it prints "done", or
"not permitted" with the reason. FOLDER has the files; the slow ones are made in FOLDER.slow."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from native_samples import read, taken, usual
from processes import children, limit, raises
from slow_source import NotPermittedError, Source

from stocached import Loader, image

multiprocessing.set_start_method("fork")  # the default before Python 3.14
warnings.filterwarnings("ignore", category=DeprecationWarning)  # Python 3.12 and later warns of forks while threads run


def main(root: Path, kind: str, ways: str, worker: Any) -> None:
    plain = image.Folder(root, size=48)
    try:
        source = Source(root.with_suffix(".slow"), [Path(path) for path, _ in plain.samples], kind == "fuse")
    except NotPermittedError as error:
        print("not permitted:", error)
        return
    dataset = image.Folder(root, size=48)
    dataset.samples[:] = [(str(source._folder / Path(path).name), label) for path, label in plain.samples]
    settings: dict[str, Any] = {"batch_size": 4, "seed": 2, "shuffle": True, "augment": usual()}
    want = read(Loader(plain, **settings), 2)

    def slow_loader(**more: Any) -> Loader:
        loader = Loader(dataset, num_workers=2, worker=worker, **settings, **more)
        assert loader.worker == worker
        return loader

    for way in ways.split(","):
        try:
            WAYS[way](source, slow_loader, want)
        finally:
            source.slow = 0.0
    source.stop()
    print("done")


def pieces(source: Source, slow_loader: Any, want: Any) -> None:
    """Pieces that come slowly are whole files. The cache is filled from them as well."""
    source.slow = 0.002
    for store in ({}, {"size": "16MiB"}, {"size": "16MiB", "store": "encoded"}):
        loader = slow_loader(**store)
        assert read(loader, 2) == want, store
        loader.close()


def timeout(source: Source, slow_loader: Any, want: Any) -> None:
    """A file that takes longer than timeout= is an error. The next epoch is right when files are fast again."""
    loader = slow_loader(timeout=0.5)
    batches, got = iter(loader), []
    while not got:  # on a busy machine, a first batch of fast files may be late too
        try:
            got.append(taken(next(batches)))
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise
    source.slow = 1.0
    start = time.monotonic()
    with raises(RuntimeError, match="timed out after 0.5 seconds"):
        while True:
            got.append(taken(next(batches)))
    assert got == want[: len(got)]
    loader.close()
    assert time.monotonic() - start < limit(6)
    source.slow = 0.0
    del batches
    assert read(slow_loader(timeout=30), 2) == want


def interrupt(source: Source, slow_loader: Any, want: Any) -> None:
    loader = slow_loader()
    batches = iter(loader)
    got = [taken(next(batches))]
    source.slow = 0.3
    try:
        print("ready", flush=True)
        while True:
            got.append(taken(next(batches)))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert got == want[: len(got)]
    loader.close()


def restart(source: Source, slow_loader: Any, want: Any) -> None:
    """Of the source in the middle of files, and of a worker process. Other workers take the option as well."""
    half = len(want) // 2
    loader = slow_loader(restart_workers=True)
    if loader.worker == "process":
        source.slow = 0.05
        batches = iter(loader)
        got = [taken(next(batches))]
        os.kill(next(pid for pid in children(os.getpid()) if pid != source.server), signal.SIGKILL)
        got += [taken(batch) for batch in batches]
        source.slow = 0.0
        assert got + read(loader) == want
    else:
        assert read(loader, 2) == want
    loader.close()
    if not source._fuse:
        return
    loader = slow_loader()
    batches = iter(loader)
    next(batches)
    source.slow = 0.05
    source.stop()
    with raises(OSError, match=r"\.jpg"):
        for _ in range(half):
            next(batches)
    loader.close()
    source.slow = 0.0
    source.start()
    assert read(slow_loader(), 2) == want


WAYS = {"read": pieces, "timeout": timeout, "interrupt": interrupt, "restart": restart}
main(Path(sys.argv[1]), *sys.argv[2:])
