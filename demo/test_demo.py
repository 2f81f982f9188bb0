"""Tests of the demo: they run it on JPEGs made in a temporary folder, so that no package is
downloaded."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stocached
from PIL import Image
from stocached._loader.worker import LoaderWorker
from warm import Warm

from demo import __main__ as program
from demo import cluster, experiment, hosts, images, jpegs, loading, pipelines, pipelines_report, processes, workers
from demo.report import table

WHITE, RED = (255, 255, 255), (200, 10, 20)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    images.make_jpegs(folder, 24)
    return folder


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """A process that has imported what takes a second of each demo. It has not imported stocached."""
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    packages = ["numpy", "matplotlib.pyplot", "matplotlib.backends.backend_svg", "PIL.Image", "tqdm"]
    with Warm(sys.executable, packages, os.environ | {"PYTHONPATH": paths}) as found:
        yield found


def run_demo(warm: Warm, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As `python -m demo`."""
    root = Path(__file__).resolve().parents[1]
    return warm.run(root / "demo" / "__main__.py", root, os.environ | environment, timeout=600, arguments=arguments)


def test_json_has_every_fraction_with_its_hit_rate(warm: Warm, pictures: Path, tmp_path: Path) -> None:
    done = run_demo(
        warm, "--images", str(pictures), "--samples", "24", "--batch", "4", "--out", str(tmp_path), "--json"
    )
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["samples"] == 24
    assert [(run["slots"], run["policy"]) for run in numbers["runs"]] == [
        (0, None), (1, "first-come"), (6, "first-come"), (6, "cost"), (12, "first-come"), (12, "cost"), (18, "first-come"), (18, "cost"),
        (24, "first-come"),
    ]  # fmt: skip
    for run in numbers["runs"]:
        # In the first epoch, hits come only from the samples that CachedDataset compares.
        assert run["epoch_hit_rates"][0] == pytest.approx(0, abs=0.35)
        slack = 0.2 if run["policy"] == "cost" else 1e-6  # a sample that is evicted before its turn is a miss
        assert run["epoch_hit_rates"][1:] == [pytest.approx(run["cached_fraction"], abs=slack)] * 2
        assert min(run["epoch_seconds"]) > 0 and run["pss_bytes"] > 10_000_000
    crops = numbers["pipelines"]
    assert (crops["samples"], crops["classes"], crops["saved_as_jpeg"]) == (24, 2, 0)
    assert (crops["pillow"]["worker"], crops["pillow"]["misses"]) == ("process", [24] * 3)
    hits = crops["stocached"]["hits"]
    assert (crops["stocached"]["worker"], hits[0], hits[2]) == ("native", 0, 24) and hits[1] > 12
    for pipeline in (crops["pillow"], crops["stocached"]):
        assert min(pipeline["seconds"]) > 0 and len(pipeline["cpu_seconds"]) == 3
    for path in numbers["charts"]:
        assert Path(path).stat().st_size > 10_000
    with Image.open(tmp_path / "demo.png") as chart:
        assert chart.size[0] > 1000


def test_torchs_loader_reads_as_the_other_pool_does(pictures: Path) -> None:
    """What --torch takes in the place of WorkerPool. Each fork of a process with torch takes long."""
    pytest.importorskip("torch")
    from demo.dataloader import LoaderPool

    files, order = images.pick(images.Source(pictures, "", ""), 24), [*range(5, 24), *range(5)]
    for slots in (None, 24):
        sums: set[int] = set()
        for make in (LoaderPool, workers.WorkerPool):
            cache = None if slots is None else stocached.Cache.create(samples=24, shape=loading.SHAPE, slots=slots)
            pool = make(files, cache, workers=2, batch=4)
            sums |= {pool.epoch(order, lambda done: None) for _ in range(2)}
            pool.close()
            assert cache is None or cache.stats().stored == 24
        assert len(sums) == 1


def library() -> Path:
    """The C library that these tests use."""
    override = os.environ.get("STOCACHED_LIB_PATH")
    if not override:
        return Path(stocached.__file__).with_name("libstocached.so")
    return Path(override, "libstocached.so") if Path(override).is_dir() else Path(override)


def test_without_the_library_for_pictures_the_demo_says_what_to_run(warm: Warm, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "libstocached.so").symlink_to(library())
    arguments = ("--images", str(pictures), "--samples", "4", "--workers", "1", "--out", str(tmp_path), "--json")
    done = run_demo(warm, *arguments, STOCACHED_LIB_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "stocached.image" in line)
    assert line.endswith(
        f"is left out: stocached.image: no library at {tmp_path}/libstocached_image.so. Run: make build"
    )
    numbers = json.loads(done.stdout)
    assert numbers["pipelines"] is None and len(numbers["runs"]) == 9


def test_without_libjpeg_the_demo_says_who_decodes(warm: Warm, pictures: Path, tmp_path: Path) -> None:
    """The library for pictures, built without the headers of libjpeg-turbo."""
    build, source = tmp_path / "build", Path(__file__).resolve().parents[1] / "cimage"
    subprocess.run(["make", "-s", "-C", source, "CODECS=0", f"BUILD={build}", "CFLAGS=-O1"], check=True)
    (build / "libstocached.so").symlink_to(library())
    arguments = ("--images", str(pictures), "--samples", "8", "--workers", "2", "--out", str(tmp_path / "out"))
    done = run_demo(warm, *arguments, STOCACHED_LIB_PATH=str(build))
    assert done.returncode == 0, done.stderr
    assert "built without libjpeg-turbo, libpng, libdeflate or libwebp; on Debian and Ubuntu run: sudo" in done.stderr
    assert "stocached.image does it in 2 worker processes: Pillow decodes the files, because" in done.stdout
    assert "Epoch 1 starts the processes, takes memory" in done.stdout
    assert "in C, in" not in done.stdout
    for word in (
        "no cache", "0%", "25%", "50%", "75%", "100%", "first-come", "cost", "MB (PSS)", "demo.svg", "all 3 processes", "Pillow and NumPy",
        "stocached.image, epoch 3", "of Pillow's", "100% of the pictures",
    ):  # fmt: skip
        assert word in done.stdout


def test_pipelines_count_what_they_do(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_python: list[int] = []
    load = LoaderWorker._load_samples

    def noted(worker: LoaderWorker, tasks: list[Any]) -> None:
        by_python.extend(task.index for task in tasks)
        load(worker, tasks)

    monkeypatch.setattr(LoaderWorker, "_load_samples", noted)
    prepared = jpegs.prepare(sorted(pictures.iterdir()), pictures, tmp_path, 2)
    result = pipelines.measure(prepared, tmp_path, 2, 3, lambda what: lambda done: None)
    assert (result.pillow.worker, result.pillow.hits, result.pillow.misses) == ("process", [0] * 3, [24] * 3)
    # The first batches of epoch 2 begin while workers still load the last ones of epoch 1.
    ours = result.ours
    assert (ours.worker, ours.hits[0], ours.hits[2]) == ("native", 0, 24)
    assert [a + b for a, b in zip(ours.hits, ours.misses, strict=True)] == [24] * 3 and ours.misses[1] < 12
    assert not by_python, "C did all samples"
    assert result.cache_bytes == 24 * 3 * 256 * 256
    assert list(tmp_path.iterdir()) == [], "no copies of JPEG files, and the links are gone"
    assert result.shown[0].samples_a_second == 24 / min(result.pillow.seconds)
    numbers = pipelines_report.as_json(result)
    assert [speed["name"] for speed in numbers["shown"]] == [speed.name for speed in result.shown]
    assert json.loads(json.dumps(numbers)) == numbers
    assert "files are read where they are" in (legend := pipelines_report.legend(result))
    assert "stocached.image does it in C, in 2 threads. Epoch 1 starts the threads," in legend


def test_both_pipelines_give_the_same_kind_of_batches(pictures: Path, tmp_path: Path) -> None:
    prepared = jpegs.prepare(sorted(pictures.iterdir()), pictures, tmp_path, 2)
    means, labels = [], []
    with prepared.class_folders(tmp_path) as root:
        folder = pipelines.folder_of(root)
        for make in (pipelines.pillow_loader, pipelines.our_loader):
            loader = make(folder, 2, 24)
            batches = [batch for _ in range(8) for batch in loader]
            loader.close()
            assert {(some.shape, some.dtype) for some, _ in batches} == {((24, 3, 224, 224), np.dtype(np.float32))}
            means.append(np.mean([some.mean(axis=(0, 2, 3)) for some, _ in batches], axis=0))
            labels.append([some.tolist() for _, some in batches])
    assert labels[0] == labels[1], "in the same order"
    np.testing.assert_allclose(means[0], means[1], atol=0.1)  # each takes its own random parts


def test_pictures_are_saved_as_jpeg_once_with_their_classes(tmp_path: Path) -> None:
    source, out = tmp_path / "pictures", tmp_path / "out"
    for name in ("birds/a.png", "birds/b.jpg", "cats/a.png", "c.bmp"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (300, 200), RED).save(source / name)
    Image.new("RGBA", (300, 200), (0, 0, 0, 0)).save(source / "birds/a.png")  # transparent: on white
    files = sorted(images.found(source))

    first = jpegs.prepare(files, source, out, 2)
    assert first.copies == 3 and first.classes == ["birds", "birds", "others", "cats"]
    times = [file.stat().st_mtime_ns for file in first.files]
    with Image.open(first.files[0]) as picture:
        assert picture.format == "JPEG" and picture.size == (300, 200) and picture.getpixel((9, 9)) == WHITE
    assert first.files[1] == source / "birds/b.jpg"
    os.utime(source / "cats/a.png", (2e9, 2e9))  # it has changed
    again = jpegs.prepare(files, source, out, 2)
    changed = [file.stat().st_mtime_ns != time for file, time in zip(again.files, times, strict=True)]
    assert again == first and changed == [False, False, False, True]
    other = jpegs.prepare([source / "birds/a.png"], source / "birds", out, 1)
    assert other.files[0] not in first.files and other.classes == ["even"]

    with again.class_folders(out) as root:
        assert sorted(path.name for path in root.iterdir()) == ["birds", "cats", "others"]
        assert len(list(root.glob("*/*.jpg"))) == 4
    assert [path.name for path in out.iterdir()] == ["jpegs"]


def test_random_boxes_lie_in_the_picture() -> None:
    for width, height in ((300, 200), (1, 1), (2000, 3), (3, 2000)):
        for _ in range(200):
            left, top, right, bottom = pipelines.random_box(width, height)
            assert 0 <= left < right <= width and 0 <= top < bottom <= height


def test_wrong_use_names_the_next_step(warm: Warm, tmp_path: Path) -> None:
    for arguments, words in (
        (["--images", str(tmp_path)], "at least 2 are needed"),
        (["--images", str(tmp_path / "missing")], "is no folder"),
        (["--workers", "0"], "--workers 0 is too few"),
    ):
        done = run_demo(warm, *arguments, "--out", str(tmp_path / "out"))
        assert done.returncode != 0
        assert words in done.stderr and "Traceback" not in done.stderr


def test_a_broken_image_is_named(pictures: Path, tmp_path: Path) -> None:
    whole = (pictures / "00000.jpg").read_bytes()
    for k in range(4):
        (tmp_path / f"{k}.jpg").write_bytes(whole)
    (tmp_path / "2.jpg").write_bytes(whole[:2000])  # a header that opens, pixels that do not
    command = [sys.executable, "-m", "demo", "--images", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode != 0 and f"{tmp_path}/2.jpg cannot be decoded" in done.stderr


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    picture = Image.new("RGBA", (300, 300), (*RED, 255))
    picture.paste((0, 0, 0, 0), (0, 0, 150, 300))
    picture.save(tmp_path / "half.png")
    sample = loading.load(tmp_path / "half.png")
    assert sample.shape == loading.SHAPE and sample.dtype == np.uint8
    assert tuple(sample[100, 10]) == WHITE and tuple(sample[100, 200]) == RED


def test_pick_is_repeatable_and_leaves_out_what_does_not_fit(pictures: Path, tmp_path: Path) -> None:
    source = images.Source(pictures, "", "")
    assert images.pick(source, 5) == images.pick(source, 5) != images.pick(source, 5, seed=1)
    Image.new("RGB", (10, 10)).save(tmp_path / "small.png")
    Image.new("RGB", (300, 300)).save(tmp_path / "a.png")
    Image.new("RGB", (300, 301)).save(tmp_path / "b.PNG")
    (tmp_path / "no.png").write_text("no picture")
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "link.png").symlink_to("a.png")
    picked = images.pick(images.Source(tmp_path, "", "", min_side=224, max_pixels=100_000), 99)
    assert {path.name for path in picked} == {"a.png", "b.PNG"}


def test_without_a_package_jpegs_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "debian_pictures", lambda work: None)
    source = images.choose(None, tmp_path, 3)
    assert "made here" in source.description and len(images.pick(source, 99)) == 3


def test_a_package_that_cannot_be_downloaded_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "download", lambda folder: False)
    assert not images.unpack_debian_package(tmp_path / "pictures")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_worker_is_an_error_and_no_hang(pictures: Path) -> None:
    pool = workers.WorkerPool(images.pick(images.Source(pictures, "", ""), 24), None, workers=2, batch=2)
    victim = pool._processes[0].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    try:
        with pytest.raises((workers.WorkerError, OSError)):
            pool.epoch(range(24), lambda done: None)
    finally:
        pool.close()
    assert not any(process.is_alive() for process in pool._processes)


def test_prediction_is_a_straight_line() -> None:
    def run(slots: int | None, seconds: float) -> experiment.Run:
        return experiment.Run(
            slots, 100, "first-come", [9.0, seconds, seconds + 1], [9.0, 9.0, 9.0], [0.0, 0.5, 0.5], 1_000_000
        )

    result = experiment.Result(
        "pictures", "pictures", 100, 2, 8, "multiprocessing", run(None, 8.0), [run(0, 8.0), run(50, 5.0), run(100, 0.5)]
    )
    assert [result.predicted_seconds(c) for c in (0.0, 0.5, 1.0)] == [8.0, 4.25, 0.5]
    assert "+17.6%" in table(result) and "16.0 x" in table(result)
    for each in (result.without, *result.cached):
        each.cpu_seconds = [0.0] * 3
    assert "+17.6%" in table(result)  # the epochs are too short for the clock of processor time


def test_processes_are_counted_with_their_children() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; x = bytearray(b'x') * 50_000_000; print(flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in processes.tree(os.getpid())
        assert processes.pss_bytes(os.getpid()) - processes.pss_bytes(child.pid) > 1_000_000
        assert processes.pss_bytes(child.pid) > 50_000_000
    finally:
        child.kill()
        child.communicate()


def test_help_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--images", "--torch", "--json", "--workers"))


def test_three_hosts_share_what_they_read(tmp_path: Path) -> None:
    """A small job with the cluster tier and affinity, in which a host is lost."""
    pytest.importorskip("torch")
    if lacks := cluster.missing(root=True) + (["root"] if os.geteuid() != 0 else []):
        pytest.skip(f"needs {', '.join(lacks)}")
    results = tmp_path / "results.json"
    settings = ["--gigabytes", "0.06", "--epochs", "2", "--batch", "16", "--settings", "4", "--json", str(results),
                "--chart", str(tmp_path / "cluster.svg")]  # fmt: skip
    assert cluster.main(cluster.parser().parse_args(settings)) == 0
    first, second, third = json.loads(results.read_text())
    assert (first["number"], second["number"]) == (1, 2)
    assert third["number"] >= 3
    assert 1 <= first["storage"] < 1.1, "each sample came from the storage once"
    assert second["storage"] < 0.05, "the nodes and the tier together have all samples"
    assert second["hits"] > 0.6, "a third without affinity"
    assert "a host was lost" in third["note"]
    assert third["storage"] < 0.5, "only what the lost host had is read again"
    namespaces = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    assert f"stoc{os.getpid()}" not in namespaces


def test_cluster_without_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same small job on one host over loopback, which says what it lacks, and draws the chart."""
    pytest.importorskip("torch")
    if lacks := cluster.missing(root=False):
        pytest.skip(f"needs {', '.join(lacks)}")
    results, chart = tmp_path / "results.json", tmp_path / "cluster.svg"
    settings = ["--one-host", "--gigabytes", "0.06", "--epochs", "2", "--batch", "16", "--settings", "1", "4", "--json", str(results),
                "--chart", str(chart)]  # fmt: skip
    assert cluster.main(cluster.parser().parse_args(settings)) == 0
    said = capsys.readouterr().out
    assert said.startswith("one host, without what needs root: no namespaces, no tc"), said
    assert said.count("a link of 100mbps (a TCP proxy in place of tc)") == 2, "at the start, and above the table"
    _, plain, first, second, third = json.loads(results.read_text())
    assert plain["storage"] > 0.4, "node caches have a third each"
    assert plain["hits"] < 0.5, "a third"
    assert 1 <= first["storage"] < 1.1, "each sample came from the storage once"
    assert second["storage"] < 0.05, "the nodes and the tier together have all samples"
    assert second["hits"] > 0.6, "a third without affinity"
    assert third["storage"] < 0.5, "only what the lost host had is read again"
    assert "node caches" in chart.read_text(), "a bar for each setting"
    assert all(
        f">{heading}" in chart.read_text() for heading in ("seconds", "from storage", "from the tier", "local hits")
    )
    read, proxied = (first["storage"] + second["storage"]) * 0.06, first["seconds"] + second["seconds"]
    assert proxied > 0.9 * read / 0.1, "10^9 bytes by 10^8 a second"
    assert not list(Path("/dev/shm").glob(f"stoc{os.getpid()}-*")), "the memory of the hosts is removed"


def test_the_proxy_gives_all_connections_together_its_rate() -> None:
    """Two clients at once get the right bytes, as fast as the rate says, and what they send has no limit."""
    each, rate = 1_500_000, 2_000_000
    sent = [os.urandom(each) for _ in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as storage, socket.create_server(("127.0.0.1", 0)) as free:
        at, to = (f"127.0.0.1:{one.getsockname()[1]}" for one in (free, storage))
        free.close()

        def serve() -> None:
            for _ in sent:
                connection, _ = storage.accept()
                number = connection.recv(1)[0]
                while connection.recv(65536):  # the rest, to its end
                    pass
                threading.Thread(target=lambda c=connection, n=number: (c.sendall(sent[n]), c.close())).start()

        threading.Thread(target=serve, daemon=True).start()
        command = [sys.executable, "-m", "demo.link", str(rate), at, to]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cluster.ROOT) as proxy:
            assert proxy.stdout is not None
            assert proxy.stdout.readline() == "listening\n"

            def fetch(number: int) -> bytes:
                with socket.create_connection(("127.0.0.1", int(at.rpartition(":")[2]))) as connection:
                    connection.sendall(bytes([number]) * 3_000_000)
                    connection.shutdown(socket.SHUT_WR)
                    return b"".join(iter(lambda: connection.recv(65536), b""))

            began = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                got = list(pool.map(fetch, range(2)))
            took = time.monotonic() - began
            proxy.kill()
    assert got == sent
    assert took > 0.8 * 2 * each / rate


@pytest.mark.parametrize("lack", ["no program tc", "a kernel without tbf", "--no-tc"])
def test_hosts_without_tc_say_so(lack: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The demo then starts the proxy, and does not end because tc is missing."""
    if lacks := [tool for tool in hosts.TOOLS if shutil.which(tool) is None] + (["root"] if os.geteuid() != 0 else []):
        pytest.skip(f"needs {', '.join(lacks)}")
    fake = tmp_path / "tc"
    fake.write_text("#!/bin/sh\nexit 2\n")
    fake.chmod(0o700)
    find = shutil.which
    if lack == "no program tc":
        monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else find(name))
    elif lack == "a kernel without tbf":
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "tc" not in cluster.missing(root=True)
    with hosts.Hosts(1, "16m", "100mbps", use_tc=lack != "--no-tc") as made:
        assert not made.shaped
