"""A training program with native workers that ends, or forks, in the middle of an epoch: native_ends.py FOLDER WAY.

WAY: wait (for Ctrl-C, in next()), busy (for Ctrl-C, in the loop's body), end, exit, error, os._exit (with threads in
the middle of a file that hangs), fork, spawn. First it prints "ready". The folder has a file hang.jpg without a writer,
which all but fork and spawn come to.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from native_samples import dataset_of, read, taken, usual
from processes import children, until

from stocached import ClosedError, Loader

warnings.filterwarnings("ignore", category=DeprecationWarning)  # Python 3.12 and later warns of forks while threads run


HANGS = "-hang.jpg"


def loader_of(root: str, workers: int = 2, *, hangs: bool = False, **settings) -> Loader:
    only = {"is_valid_file": lambda path: hangs or not path.endswith(HANGS)}
    dataset = dataset_of(root, size=48, **({} if any(Path(root).glob("*.tar")) else only))
    return Loader(dataset, 4, num_workers=workers, augment=usual(), seed=2, **settings)


def whole(root: str, settings: dict) -> None:
    """In a child: an epoch of its own loader."""
    assert read(loader_of(root, **settings)) == read(loader_of(root, 0))


def fork(root: str) -> None:
    """Between batches, with threads in the middle of samples. The child reads with the inherited loader."""
    want = read(loader_of(root, 0), 2)
    for settings in ({}, {"size": "16MiB"}, {"persistent_workers": True, "size": "16MiB", "variable": True}):
        loader, got = loader_of(root, **settings), []
        for epoch in range(2):
            batches = iter(loader)
            for number, batch in enumerate(batches):
                got.append(taken(batch))
                if number not in (0, 3):
                    continue
                pid = os.fork()
                if pid == 0:
                    try:
                        try:
                            next(batches)
                            os._exit(98)
                        except ClosedError:
                            pass
                        assert loader.worker == "native"
                        loader.set_epoch(epoch)
                        assert read(loader) == want[epoch * len(want) // 2 :][: len(want) // 2]
                        if number:
                            loader.close()
                            sys.exit(0)  # with all that runs at the end of an interpreter
                        os._exit(0)
                    except SystemExit:
                        raise
                    except BaseException:
                        sys.excepthook(*sys.exc_info())
                        os._exit(99)
                _, status = os.waitpid(pid, 0)
                assert status == 0, (settings, number, status)
        assert got == want
        loader.close()


def spawn(root: str) -> None:
    loader = loader_of(root, size="16MiB")
    context = multiprocessing.get_context("spawn")
    for number, _ in enumerate(loader):
        if number == 2:
            child = context.Process(target=whole, args=(root, {"size": "16MiB"}))
            child.start()
            child.join(60)
            assert child.exitcode == 0
    loader.close()


def main() -> None:
    root, way = sys.argv[1:]
    if way in ("fork", "spawn"):
        print("ready", flush=True)
        {"fork": fork, "spawn": spawn}[way](root)
        return
    global batches  # alive until the interpreter ends
    loader = loader_of(root, hangs=True)
    assert loader.worker == "native"
    hanging = next(k for k, (path, _) in enumerate(loader.dataset.samples) if path.endswith(HANGS))
    batches = iter(loader)
    for _ in range(hanging // 4):
        next(batches)
    queue = batches._runtime.task_queue
    until(lambda: any(queue.held(k) for k in range(2)), "a thread is in the middle of the file")
    if way in ("wait", "busy"):
        try:
            print("ready", flush=True)
            time.sleep(60) if way == "busy" else next(batches)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert children(os.getpid()) == []
        return
    print("ready", flush=True)
    if way == "exit":
        sys.exit(7)
    elif way == "os._exit":
        os._exit(8)
    elif way == "error":
        raise ValueError("something is wrong")


if __name__ == "__main__":
    main()
