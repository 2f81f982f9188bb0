"""A bucket, and the server that reads it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from buckets import Bucket, environment, servers


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    made = Bucket()
    yield made
    made.close()


@pytest.fixture(scope="module")
def variables(bucket: Bucket) -> Iterator[dict[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="run-", dir="/tmp"))
    yield environment(bucket, folder, "10s") | {"XDG_CACHE_HOME": str(folder / "cache")}
    for pid in servers(folder):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


@pytest.fixture
def run(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Path(variables["XDG_RUNTIME_DIR"])
