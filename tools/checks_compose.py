"""Runs deploy/compose.yaml and examples/served/compose.yaml in containers, and the image as docs/guides/kubernetes.md
says. `make test-compose` runs it; it needs Docker with `docker compose`.

$STOCACHED_TEST_NO_BUILD=1 takes the images `stocached`, `redis:7`, `versity/versitygw:v1.8.0` and `stocached-test-train`
that Docker has, and builds and loads none. $STOCACHED_TEST_COMPOSE is one more file for the example, such as for folders
that the image of the job lacks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import docs

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "deploy/compose.yaml"
EXAMPLE = ROOT / "examples/served/compose.yaml"
PICTURE = ROOT / "source/decode/testdata/500x375.jpg"
SAMPLES = 50
PICTURES = 32
BUILD = ["--no-build"] if os.environ.get("STOCACHED_TEST_NO_BUILD") else ["--build"]


def run(*command: str | Path, data: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DATA": str(data)}
    return subprocess.run(
        command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800
    )


def compose(*arguments: str, data: Path, files: tuple[str | Path, ...] = (FILE,)) -> str:
    options = [word for file in files for word in ("-f", file)]
    done = run("docker", "compose", *options, "-p", "stocached-test", *arguments, data=data)
    assert done.returncode == 0, f"docker compose {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


def readable(folder: Path) -> None:
    """The user of the image reads these files."""
    for path in (folder, *folder.parents[:2], *folder.rglob("*")):
        path.chmod(0o755)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of files that the containers serve."""
    folder = tmp_path_factory.mktemp("data")
    for k in range(SAMPLES):
        (folder / f"{k}.bin").write_bytes(bytes([k]) * 100)
    readable(folder)
    try:
        compose("up", "--detach", *BUILD, data=folder)
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
        if re.search(rf"writes {SAMPLES}\b", stats(data)):
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
    assert re.search(r"^(stocached +1 +)?65532 ", top, re.MULTILINE), top  # the form depends on the version of Compose
    with pytest.raises(AssertionError, match="read-only file system"):
        compose("exec", "stocached", "/usr/local/bin/stocached", "man", "/etc/manual", data=data)


def test_the_job_of_the_example_reads_a_bucket_once(tmp_path: Path) -> None:
    """The storage, the server and the job of the example, each in its container."""
    pictures = tmp_path / "pictures"
    for k in range(PICTURES):
        (pictures / f"class-{k % 2}").mkdir(parents=True, exist_ok=True)
        shutil.copy(PICTURE, pictures / f"class-{k % 2}/{k:02}.jpg")
    readable(pictures)
    more = os.environ.get("STOCACHED_TEST_COMPOSE")
    files = (EXAMPLE, more) if more else (EXAMPLE,)
    try:
        said = compose("up", *BUILD, "--exit-code-from", "train", data=pictures, files=files)
        hits = re.findall(r"train-1 +\| epoch (\d): loss [\d.]+, (\d+) of (\d+) samples from the cache", said)
        assert hits[0] == ("1", "0", str(PICTURES)) and hits[2] == ("3", str(PICTURES), str(PICTURES)), said
        assert len(hits) == 3 and "train-1 exited with code 0" in said, said
    finally:
        compose("down", "--volumes", data=pictures, files=files)


def test_the_image_runs_as_the_guide_says(tmp_path: Path) -> None:
    """The two lines of docs/guides/kubernetes.md, with a configuration and data of this test."""
    (lines,) = docs.blocks_by("tools/checks_compose.py", "docs/guides/kubernetes.md")
    build, begin = lines.splitlines(keepends=True)
    assert build.startswith("docker build ") and begin.startswith("docker run ")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one.txt").write_text("one")
    (tmp_path / "config.yaml").write_text("caches: [{name: one, source: {kind: dir, path: /data}, size: 16MiB}]\n")
    readable(tmp_path)
    begin = begin.replace("docker run", "docker run --detach").replace("./config.yaml", f"{tmp_path}/config.yaml")
    begin = begin.replace("/data:/data", f"{tmp_path}/data:/data")
    no_build = os.environ.get("STOCACHED_TEST_NO_BUILD")
    done = run("sh", "-ec", begin if no_build else build + begin, data=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    container = done.stdout.split()[-1]
    try:
        for _ in range(600):
            health = run("docker", "exec", container, "/usr/local/bin/stocached", "health", data=tmp_path)
            if health.returncode == 0:
                break
            time.sleep(0.1)
        assert "well and serves" in health.stdout, health.stdout + health.stderr
    finally:
        run("docker", "rm", "--force", container, data=tmp_path)
