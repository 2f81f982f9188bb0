"""Fixtures of all tests. Tests marked `torch` need torch and run apart from the others: `pytest -m
torch`, `pytest -m 'not torch'`."""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from warm import cheapen_forks, prepare

_PYTHON = Path(__file__).resolve().parents[1]

try:
    import stocached  # noqa: F401
except ImportError:
    # not installed: use the sources, with the library of `make build`; children get both through
    # the environment
    os.environ.setdefault("STOCACHED_LIB_PATH", str(_PYTHON.parent / "build"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PYTHON / "src"), os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, str(_PYTHON / "src"))


# Many tests define a local dataset class, which only forked workers can receive. Python 3.14 and
# later does not fork by default.
multiprocessing.set_start_method("fork", force=True)

# A shell that starts us in the background makes us and our children ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test may find a server of the user. All tests share one directory, because the forkserver
# process keeps the environment of its first use.
_SOCKETS = tempfile.TemporaryDirectory(prefix="stocached-test-", dir="/tmp")
atexit.register(_SOCKETS.cleanup)
os.environ["STOCACHED_SOCKETS_DIR"] = f"{_SOCKETS.name}/run"


# Each process that runs tests collects all files. It skips files of which it runs no test, because
# importing torch takes seconds and makes each fork slow.
_ALL_NEED_TORCH = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.torch\b", re.MULTILINE)
_LEFT_OUT: dict[str, Callable[[str], object]] = {
    "not torch": _ALL_NEED_TORCH.search,
    "torch": lambda text: "pytest.mark.torch" not in text,
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    left_out = _LEFT_OUT.get(config.option.markexpr)
    return True if left_out and collection_path.suffix == ".py" and left_out(collection_path.read_text()) else None


# An error of its own for the file: with several processes, pytest does not show a UsageError.
@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    before = "torch" in sys.modules
    report = (yield).get_result()  # type: ignore[misc]
    if collector.config.option.markexpr == "not torch" and "torch" in sys.modules and not before:
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid} imports torch although it has tests without the mark `torch`: import it in the tests "
            "that need it"
        )


# The processes collect one after the other: the first one writes the .pyc files of all tests, which the others read.
@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    with open(__file__) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


# A process of pytest-xdist takes tests that follow each other. So one process starts what these tests share: fixtures
# whose start takes seconds of an import, of Lightning first.
_SHARED = ("warm_lightning", "in_lightning", "in_accelerate", "warm_ranks", "warm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return next((k for k, name in enumerate(_SHARED) if name in names), len(_SHARED))

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    # Workers of a fork server have these already: an import takes half a second, and of torch five.
    torch = ["torch"] if session.config.option.markexpr == "torch" else []
    multiprocessing.set_forkserver_preload([*torch, "pytest", "stocached"])
    from stocached._datasets import notices

    notices._said_private = True  # said once a process: the first test with ranks would fail by the warning
    _cheapen_forks(0)


_own_pages = 0


def _cheapen_forks(grown: int) -> None:
    """If this process has so many pages of its own more than at the last call: tests import pandas, and free large lists."""
    global _own_pages
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    if resident - shared >= _own_pages + grown:
        cheapen_forks()
        resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        _own_pages = resident - shared


# What takes too long is run again, twice at most: a machine may be slow for a moment, and a bug is there each time.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[None]:
    report = (yield).get_result()  # type: ignore[misc]
    error = call.excinfo
    late = error is not None and error.typename == "AssertionError"
    report.too_long = late and "limit(" in str(error.traceback[-1].statement)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    before = "torch" in sys.modules
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in (2, 1, 0):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not left or not any(report.too_long for report in reports):
            break
    if item.config.option.markexpr == "not torch" and "torch" in sys.modules and not before:
        reports[-1].outcome = "failed"
        reports[-1].longrepr = f"{item.nodeid} imports torch, which makes later forks slow: give it the mark `torch`"
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    _cheapen_forks(grown=4096)
    return True


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a tmpfs for named caches. The fixture removes it with all its files."""
    path = Path(tempfile.mkdtemp(prefix="stocached-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def server(folder: Path) -> Iterator[Any]:
    """A server, not started yet, that clients of this process and of its children find. It ends
    with the test."""
    from served import Server

    made = Server(folder)
    yield made
    made.close()


@pytest.fixture(scope="session")
def warm() -> Iterator[Any]:
    """A process that has imported torch. Programs that are forked from it have one thread for each operation of torch."""
    from torch_helpers import Warm

    with Warm(sys.executable, ["torch"], os.environ | {"OMP_NUM_THREADS": "1"}) as found:
        yield found


@pytest.fixture(scope="session")
def warm_ranks(warm: Any) -> Any:
    """As `warm`, but it has imported torch._dynamo too, which DistributedDataParallel imports."""
    return warm.more(["torch._dynamo"])


@pytest.fixture(scope="session")
def warm_lightning(warm_ranks: Any) -> Any:
    """As `warm_ranks`, but it has imported Lightning too: that takes seconds in each rank."""
    return warm_ranks.more(["lightning.pytorch"])


@pytest.fixture(scope="session")
def in_lightning() -> None:
    """For tests that import Lightning into this process."""
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("Lightning is not installed: tools/setup.sh torch does it")
    prepare(["lightning.pytorch"])


@pytest.fixture(scope="session")
def in_accelerate() -> Any:
    """For tests that import accelerate into this process."""
    return pytest.importorskip("accelerate", reason="accelerate is not installed: tools/setup.sh torch does it")


@pytest.fixture(scope="session")
def transformers(in_accelerate: Any) -> Any:
    """Its Trainer imports accelerate."""
    return pytest.importorskip("transformers", reason="transformers is not installed: tools/setup.sh torch does it")


@pytest.fixture
def cache_name() -> Iterator[str]:
    """A name in the default folder that no other test uses, for calls that take a name and no
    folder. The fixture removes the cache."""
    name = f"pytest-{os.getpid()}-{os.urandom(4).hex()}"
    yield name
    Path(f"/dev/shm/stocached-{os.geteuid()}/{name}").unlink(missing_ok=True)


@pytest.fixture
def by_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples that worker threads of this process loaded in Python, and not in C."""
    from stocached._loader.worker import LoaderWorker

    came: list[int] = []
    load = LoaderWorker._load_samples

    def noted(self: LoaderWorker, tasks: list[Any]) -> None:
        came.extend(task.index for task in tasks)
        load(self, tasks)

    monkeypatch.setattr(LoaderWorker, "_load_samples", noted)
    return came
