"""`stocached advise` and `stocached.advise()` tell a slow source from slow decoding."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trace_file
from pictures import encoded, picture
from served import program

import stocached
from stocached import Loader, image

N, CONTROL = 60, 4_300_000
SLOW = [0.02, 0.3]  # seconds until the source answers; the second on a machine so busy that 0.02 are few


@contextlib.contextmanager
def serving(path: Path, slow: float) -> Iterator[Path]:
    """A socket at which each connection gets a file after `slow` seconds, as from a store in a network."""
    data = encoded(picture(64, 64), "jpeg")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)

    def answer(connection: socket.socket) -> None:
        with connection:
            time.sleep(slow)
            connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield path
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        path.unlink()


def holds_for_one(judge: Callable[[float], bool]) -> bool:
    return any(map(judge, SLOW))


class Remote:
    """Small pictures of a slow source."""

    def __init__(self, source: Path) -> None:
        self.source = str(source)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        data = b""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.source)
            while part := connection.recv(1 << 16):
                data += part
        return {"image": image.decode(data, size=32), "index": np.int64(index)}


class Large:
    """Large pictures of a fast source."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(encoded(picture(1200, 900), "jpeg"))

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        data = self.path.read_bytes()
        for _ in range(2):  # a load of 20 ms or so
            made = image.decode(data, size=(900, 1200))
        return {"image": np.ascontiguousarray(made[:32, :32]), "index": np.int64(index)}


def advice_of(path: Path) -> Any:
    done = subprocess.run([program(), "advise", path, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("slow", ["the source", "decoding"])
def test_advice_names_what_is_slow(slow, workers, tmp_path):
    path = tmp_path / "run.json"

    def shares(dataset: Any) -> list[float]:
        # The policy cost, for stocached.advise().
        loader = Loader(dataset, 10, num_workers=workers, size=CONTROL + 30 * 4000, policy="cost", trace=path)
        for _ in range(2):
            list(loader)
        told = stocached.advise(loader, 0.3)
        loader.close()
        advices = [told.numbers, advice_of(path)]
        assert "waits for the source" in str(told)
        assert [advice["points"][0]["limit"] for advice in advices] == [slow] * 2
        return [advice["source_share"] for advice in advices]

    def is_slow(seconds: float) -> bool:
        with serving(tmp_path / "source", seconds) as source:
            return min(shares(Remote(source))) > 0.8

    if slow == "the source":
        assert holds_for_one(is_slow)
    else:
        assert max(shares(Large(tmp_path / "large.jpg"))) < 0.4


@pytest.mark.torch
@pytest.mark.parametrize("slow", ["the source", "decoding"])
def test_advice_names_what_is_slow_in_a_server(slow, server):
    """The server measured the loads. stocached.advise(), `advise NAME` and `advise config.yaml` ask it."""
    from stocached.torch import DataLoader, SourceDataset

    if slow == "the source":
        pictures, settings = {f"{k:03}.jpg": encoded(picture(40, 30, seed=k), "jpeg") for k in range(N)}, {}
        settings["limits"] = {"latency": "20ms", "heads": 2}
    else:
        large = encoded(picture(1200, 900), "jpeg")
        pictures, settings = {f"{k:03}.jpg": large for k in range(N)}, {}
    server.files(pictures, settings, decode={"resize": [32, 32]}, size=CONTROL + 30 * 4000, policy="cost", parallel=2)
    loader = DataLoader(SourceDataset(server.name, timeout=60), 10, shuffle=True, seed=1, num_workers=2)
    for _ in range(2):
        list(loader)
    told = stocached.advise(loader, 0.3)
    loader.close()
    assert "waits for the source" in str(told)
    command = [program(), "advise", "--json", "--sockets", str(server.sockets)]

    def answer(*about: str) -> Any:
        return json.loads(subprocess.run([*command, *about], capture_output=True, text=True, check=True).stdout)

    for advice in (told.numbers, answer(str(server.path)), answer(str(server.folder / "config.yaml"))[0]):
        assert advice["points"][0]["limit"] == slow
        assert (advice["source_share"] > 0.5) == (slow == "the source")
    server.pause()
    silent = answer(str(server.path))
    assert silent["points"][0]["limit"] == "loading"
    assert any("none answers on" in note for note in silent["notes"])
    server.resume()


def test_a_whole_batch_says_it_too(tmp_path):
    def is_slow(seconds: float) -> bool:
        path = tmp_path / "run.json"
        with serving(tmp_path / "source", seconds) as source:
            loader = Loader(Remote(source), 10, num_workers=2, collate_fn=list, trace=path)
            list(loader)
            loader.close()
        spans = trace_file.read(path)["traceEvents"]
        took = {name: sum(s["dur"] for s in spans if s["name"] == name) for name in ("load", "source")}
        assert took["source"] <= took["load"]
        return 0.8 * took["load"] < took["source"]

    assert holds_for_one(is_slow)
