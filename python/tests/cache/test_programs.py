"""Caches whose samples programs load (`source: {kind: none}`): each sample is loaded once, on all nodes together."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import limit
from served import Server, until

from stocached import Cache, FetchError, Loader, SetResult
from stocached._datasets.cached_samples import CachedSamples

N = 300
FIELDS = [{"name": "image", "shape": [3, 11], "dtype": "uint8"}, {"name": "label", "dtype": "int64"}]


def sample(index: int) -> tuple[np.ndarray, np.int64]:
    return np.full((3, 11), index % 251, np.uint8), np.int64(index * 7)


class Dataset:
    """Any code: it writes a line for each load. The fixture `logged` reads them."""

    def __init__(self, log: Path, pause: float = 0.001) -> None:
        self.log, self.pause = log, pause

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        with open(self.log, "a") as log:
            log.write(f"{index}\n")
        time.sleep(self.pause)
        return sample(index)


class Batched(Dataset):
    def __getitems__(self, indices: list[int]) -> list[tuple[np.ndarray, np.int64]]:
        return [self[index] for index in indices]


def loads(log: Path) -> dict[int, int]:
    """How often each sample was loaded."""
    indices, counts = np.unique(np.loadtxt(log, np.int64, ndmin=1), return_counts=True)
    return dict(zip(indices.tolist(), counts.tolist()))


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A redis-server, or the program that STOCACHED_REDIS_SERVER names: its address."""
    program = os.environ.get("STOCACHED_REDIS_SERVER", "redis-server")
    if program == "redis-server" and shutil.which(program) is None:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "redis-server"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(dir="/tmp")
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder]
    with open(os.devnull, "w") as quiet:
        process = subprocess.Popen(command, stdout=quiet)

    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    until(listens)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()
    shutil.rmtree(folder)


class Node:
    """A server with folders and sockets of its own, as on a machine of its own."""

    def __init__(self, name: str, engine: str | None, **cache: Any) -> None:
        self.segments = Path(tempfile.mkdtemp(prefix="stocached-test-", dir="/dev/shm"))
        self.server = Server(self.segments, Path(tempfile.mkdtemp(prefix="stocached-test-", dir="/tmp")) / "run")
        self.server.name = name
        source = {"kind": "none", "samples": N, "fields": FIELDS, "fingerprint": f"fingerprint of {name}"[:60]}
        tiers = [{"kind": "cluster", "addresses": [engine], "lease": "2s"}] if engine else []
        config = {"name": name, "dir": str(self.segments), "source": source, "tiers": tiers, **cache}
        (self.server.folder / "config.yaml").write_text(json.dumps({"caches": [config]}))
        self.server.start()
        if engine:
            until(lambda: "tier: " not in self.server.get("/readyz"))

    def attach(self) -> Cache:
        return Cache.attach(self.segments / self.server.name)

    def run(self, work: Callable[..., None], *arguments: Any) -> multiprocessing.Process:
        """Runs a program on this node."""

        def program() -> None:
            os.environ["STOCACHED_SOCKETS_DIR"] = str(self.server.sockets)
            work(self, *arguments)

        process = multiprocessing.get_context("fork").Process(target=program)
        process.start()
        return process

    def close(self) -> None:
        self.server.close()
        shutil.rmtree(self.segments)
        shutil.rmtree(self.server.sockets.parent)


@pytest.fixture
def nodes(engine: str) -> Iterator[Callable[..., list[Node]]]:
    made: list[Node] = []

    def make(count: int, with_engine: bool = True, **cache: Any) -> list[Node]:
        name = f"programs-{os.getpid()}-{os.urandom(4).hex()}"
        for _ in range(count):
            made.append(Node(name, engine if with_engine else None, **cache))
        return made[-count:]

    yield make
    for node in made:
        node.close()


def epochs(node: Node, dataset: Dataset, seed: int, workers: int, count: int = 1) -> None:
    cached = CachedSamples(dataset, node.attach(), allow_random=True)  # else some are loaded twice, to compare them
    loader = Loader(cached, batch_size=10, shuffle=True, seed=seed, num_workers=workers)
    for _ in range(count):
        seen = []
        for images, labels in loader:
            for image, label in zip(np.asarray(images).copy(), np.asarray(labels).tolist()):
                assert (image == sample(label // 7)[0]).all()
                seen.append(label // 7)
        assert sorted(seen) == list(range(N))


def wait(processes: list[multiprocessing.Process]) -> None:
    for process in processes:
        process.join(120)
        assert process.exitcode == 0


def test_loaders_of_two_nodes_load_each_sample_once(nodes, tmp_path):
    here, there = nodes(2, size="4199kB")  # room for a part
    dataset = Batched(tmp_path / "log")
    wait([node.run(epochs, dataset, seed, 2) for seed, node in enumerate((here, here, there))])
    counts = loads(dataset.log)
    # When it begins, each program looks at 17 samples.
    again = {index: count for index, count in counts.items() if count > 1}
    assert len(counts) == N
    assert len(again) <= 17, again
    assert all(count <= 4 for count in again.values()), again
    before = sum(counts.values())
    wait([there.run(epochs, dataset, 9, 0, 2)])  # two more epochs, without workers
    assert sum(loads(dataset.log).values()) <= before + 17


def test_get_or_load_and_put_share_samples(nodes, tmp_path):
    here, there = nodes(2)
    log = tmp_path / "log"
    dataset = Dataset(log, 0)

    def load(index):
        image, label = dataset[index]
        return {"image": image, "label": label}

    def first(node):
        cache = node.attach()
        assert cache.programs
        for index in range(50):
            cache.get_or_load(index, load, allow_random=True)
        for index in range(50, 60):
            image, label = sample(index)
            assert cache.put(index, {"image": image, "label": label}) is SetResult.STORED

    def second(node):
        cache = node.attach()
        for index in range(60):
            value = cache.get_or_load(index, load, allow_random=True)
            assert (value["image"] == sample(index)[0]).all()
            assert value["label"] == index * 7
            assert not value["image"].flags.writeable
        out, ok = cache.fetch(np.arange(60))
        assert ok.all()
        assert (out["label"] == np.arange(60) * 7).all()
        with pytest.raises(FetchError, match="LOAD: sample 60 .*load it yourself"):
            cache.fetch([60])

    wait([here.run(first)])
    until(lambda: "queued_bytes" in here.server.get("/metrics"))
    until(lambda: _tier(here, "writes_total") >= 60)
    wait([there.run(second)])
    assert sorted(loads(log)) == list(range(50))


ANY = {
    "kind": "none",
    "samples": N,
    "fields": [{"name": "points", "shape": ["any", 3], "dtype": "float32"}, {"name": "text", "shape": ["any"], "dtype": "bytes"}],
    "sample_bytes": "4KiB",
    "fingerprint": "of any size",
}  # fmt: skip


def ragged(index: int) -> dict[str, Any]:
    return {"points": np.full((index % 40, 3), index, np.float32), "text": b"t" * (index * 3 % 500)}


class Ragged(Dataset):
    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return ragged(index)


@pytest.mark.parametrize(
    ("cache", "wrapped"),
    [
        ({"size": "4300kB"}, True),
        ({"size": "4300kB", "policy": "clock"}, False),
    ],
    ids=["part, wrapped", "evicts"],
)
def test_samples_of_any_size_are_loaded_once(nodes, tmp_path, cache, wrapped):
    """Two programs on one node and one on another: samples that differ in size come through the tier, too."""
    here, there = nodes(2, source={**ANY, "fingerprint": os.urandom(8).hex()}, **cache)
    dataset = Ragged(tmp_path / "log")

    def read(node, seed, epochs=1):
        attached = node.attach()
        assert attached.programs
        assert attached.variable
        cached = CachedSamples(dataset, attached, allow_random=True) if wrapped else None
        for index in np.random.default_rng(seed).permutation(N * epochs) % N:
            index = int(index)
            value = cached[index] if cached else attached.get_or_load(index, dataset.__getitem__, allow_random=True)
            want = ragged(index)
            assert value["points"].shape == want["points"].shape
            assert (value["points"] == want["points"]).all()
            assert bytes(value["text"]) == want["text"]

    wait([node.run(read, seed) for seed, node in enumerate((here, here, there))])
    counts = loads(dataset.log)
    again = {index: count for index, count in counts.items() if count > 1}
    assert len(counts) == N
    assert len(again) <= (17 if wrapped else 0), again  # a program that wraps a dataset looks at some samples
    before = sum(counts.values())
    until(lambda: _tier(here, "writes_total") + _tier(there, "writes_total") >= N)
    wait([there.run(read, 9, 2)])
    assert sum(loads(dataset.log).values()) <= before + (17 if wrapped else 0)
    assert _tier(there, "poisoned_total") == 0


def _tier(node: Node, name: str) -> float:
    for line in node.server.get("/metrics").splitlines():
        if line.startswith(f"stocached_tier_{name}"):
            return float(line.rpartition(" ")[2])
    return 0.0


def test_a_load_that_raises_or_dies_goes_to_another_program(nodes, tmp_path):
    here, there = nodes(2)
    log = tmp_path / "log"

    def raises(node):
        def load(index):
            raise KeyError(index)

        with pytest.raises(KeyError):
            node.attach().get_or_load(5, load)

    def hangs(node):
        def load(index):
            (tmp_path / "hangs").touch()
            time.sleep(600)

        node.attach().get_or_load(6, load)

    def loads_it(node, index):
        image, label = sample(index)

        def load(index):
            with open(log, "a") as lines:
                lines.write(f"{index}\n")
            return {"image": image, "label": label}

        assert node.attach().get_or_load(index, load)["label"] == label

    wait([here.run(raises)])
    began = time.monotonic()
    wait([there.run(loads_it, 5)])
    assert time.monotonic() - began < limit(5)
    victim = here.run(hangs)
    until((tmp_path / "hangs").exists)
    waiting = there.run(loads_it, 6)
    waiting.join(0.5)
    assert waiting.is_alive(), "it does not wait for the other node"
    os.kill(victim.pid, signal.SIGKILL)
    wait([waiting])
    victim.join()
    assert loads(log) == {5: 1, 6: 1}


@pytest.mark.parametrize("end", ["kill", "pause"])
def test_without_a_server_programs_load_themselves(nodes, tmp_path, end):
    """A server that is stopped costs seconds, once."""
    (node,) = nodes(1, with_engine=False)
    dataset = Dataset(tmp_path / "log", 0)
    getattr(node.server, end)()
    began = time.monotonic()
    wait([node.run(epochs, dataset, 1, 2 if end == "kill" else 0)])
    assert set(loads(dataset.log)) == set(range(N))
    assert time.monotonic() - began < limit(30)
