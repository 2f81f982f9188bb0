"""`stocached advise` and `loader.advise()` tell a slow source from slow decoding."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trace_file
from pictures import encoded, picture
from served import program

from stocached import Loader, image

N, CONTROL = 60, 4_300_000
SLOW = 0.02  # seconds until the source answers


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A socket at which each connection gets a file after a while, as from a store in a network."""
    path, data = tmp_path / "source", encoded(picture(64, 64), "jpeg")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)

    def answer(connection: socket.socket) -> None:
        with connection:
            time.sleep(SLOW)
            connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield path
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


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
def test_advice_names_what_is_slow(slow, workers, source, tmp_path):
    dataset: Any = Remote(source) if slow == "the source" else Large(tmp_path / "large.jpg")
    path = tmp_path / "run.json"
    # The policy cost, for loader.advise().
    loader = Loader(dataset, 10, num_workers=workers, size=CONTROL + 30 * 4000, policy="cost", trace=path)
    for _ in range(2):
        for _ in loader:
            pass
    told = loader.advise()
    loader.close()
    recorded = advice_of(path)
    for advice in (told.numbers, recorded):
        share = advice["source_share"]
        assert share > 0.8 if slow == "the source" else share < 0.4, share
        assert advice["points"][0]["limit"] == slow
    assert "waits for the source" in str(told)


def test_threads_do_not_say(source, tmp_path):
    """The interpreter's lock looks like a source."""
    path = tmp_path / "run.json"
    loader = Loader(Remote(source), 10, num_workers=2, worker="thread", trace=path)
    for _ in loader:
        pass
    loader.close()
    assert advice_of(path)["source_share"] is None
    assert advice_of(path)["points"][0]["limit"] == "loading"


def test_a_whole_batch_says_it_too(source, tmp_path):
    path = tmp_path / "run.json"
    loader = Loader(Remote(source), 10, num_workers=2, collate_fn=list, trace=path)
    for _ in loader:
        pass
    loader.close()
    spans = trace_file.read(path)["traceEvents"]
    took = {name: sum(s["dur"] for s in spans if s["name"] == name) for name in ("load", "source")}
    assert 0.8 * took["load"] < took["source"] <= took["load"], took
