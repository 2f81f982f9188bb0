"""Runs deploy/compose.yaml in containers. `make test-compose` runs it; it needs Docker with `docker compose`.

$STOCACHED_TEST_NO_BUILD=1 takes the images `stocached` and `redis:7` that Docker has, and builds and loads none."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / "deploy/compose.yaml"
SAMPLES = 50


def compose(*arguments: str, data: Path) -> str:
    done = subprocess.run(
        ["docker", "compose", "-f", FILE, "-p", "stocached-test", *arguments],
        env={**os.environ, "DATA": str(data)}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, f"docker compose {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of files that the containers serve."""
    folder = tmp_path_factory.mktemp("data")
    for k in range(SAMPLES):
        (folder / f"{k}.bin").write_bytes(bytes([k]) * 100)
    # The user of the image reads it.
    for path in (folder, *folder.parents[:2], *folder.iterdir()):
        path.chmod(0o755)
    build = ["--no-build"] if os.environ.get("STOCACHED_TEST_NO_BUILD") else ["--build"]
    try:
        compose("up", "--detach", *build, data=folder)
        yield folder
    finally:
        compose("down", "--volumes", data=folder)


def stats(data: Path) -> str:
    return compose("exec", "stocached", "/usr/local/bin/stocached", "stats", "samples", data=data)


def filled(data: Path) -> list[str]:
    return re.findall(r"^filled +(\d+)$", stats(data), re.MULTILINE)


def test_client_fills_the_cache_that_the_server_shares(data: Path) -> None:
    assert "samples holds every sample" in compose("run", "--rm", "client", data=data)
    assert filled(data) == [str(SAMPLES)]


def test_samples_come_from_the_cluster_tier_without_the_source(data: Path) -> None:
    """The memory of the server goes with its container. The next server reads no file that Redis has."""
    for _ in range(600):  # tiers are written in the background
        if f"writes {SAMPLES}," in stats(data):
            break
        time.sleep(0.1)
    else:
        pytest.fail(stats(data))
    compose("up", "--detach", "--wait", "--no-build", "--force-recreate", "stocached", data=data)
    assert filled(data) == ["0"]
    compose("run", "--rm", "client", data=data)
    assert filled(data) == [str(SAMPLES)]
    assert re.search(rf"^tiers +cluster: hits {SAMPLES},", stats(data), re.MULTILINE), stats(data)
    assert re.search(r"^source reads +0$", stats(data), re.MULTILINE), stats(data)


def test_container_is_read_only_and_not_root(data: Path) -> None:
    said = compose("exec", "stocached", "/usr/local/bin/stocached", "health", data=data)
    assert "well and serves" in said
    top = compose("top", "stocached", data=data)
    assert re.search(r"^stocached +1 +65532 ", top, re.MULTILINE), top
    with pytest.raises(AssertionError, match="read-only file system"):
        compose("exec", "stocached", "/usr/local/bin/stocached", "man", "/etc/manual", data=data)
