"""Pictures of formats that a server does not decode: Python decodes them. docs/spec/control.md, Files of other formats."""

from __future__ import annotations

import http.client
import io
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import time
from typing import Any

import numpy as np
import pytest
from helpers import without
from pictures import Image, encoded, picture
from served import Server, program, until

from stocached import Cache, FetchError, Loader, image
from stocached._cache import fetched_samples, other_formats, programs

pytestmark = pytest.mark.skipif(
    not program().with_name("stocached-decode").exists(), reason="headers of the decoders are missing"
)
GIF = encoded(picture(40, 30, 1), "GIF")
HOW = {"resize": [20, 24]}


def small_first_frame() -> bytes:
    """A GIF file whose first frame covers a part of the picture."""
    file = io.BytesIO()
    frames = [Image.new("P", (40, 30), k) for k in (1, 2)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], disposal=2)
    data = bytearray(file.getvalue())
    at = data.index(b"\x2c")
    data[at + 1 : at + 9] = (3).to_bytes(2, "little") * 2 + (40).to_bytes(2, "little") + (30).to_bytes(2, "little")
    data[6:10] = (50).to_bytes(2, "little") + (44).to_bytes(2, "little")
    return bytes(data)


def others() -> dict[str, bytes]:
    clear, turned = io.BytesIO(), Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(picture(40, 30, 2)).quantize(8).save(clear, "GIF", transparency=0)
    pixels = picture(44, 33, 3)
    return {
        "a/transparent.gif": clear.getvalue(),
        "a/part.gif": small_first_frame(),
        "b/picture.bmp": encoded(pixels, "BMP"),
        "b/turned.tif": encoded(pixels, "TIFF", exif=turned),
        "c/named.jpg": GIF,
        "c/unknown": encoded(pixels, "PPM"),
    }


def files_of(number: int) -> dict[str, bytes]:
    """Pictures that the server decodes, and as many GIF files."""
    good = {f"{k:03}.jpg": encoded(picture(40, 30, k)) for k in range(number)}
    return good | {f"{k:03}.gif": encoded(picture(40, 30, k), "GIF") for k in range(number)}


def right(data: bytes, **how: Any) -> np.ndarray:
    return image.decode(data, tuple(HOW["resize"]), **({"fit": "stretch", "layout": "chw"} | how))


def read(server: Server) -> int:
    """How many files the server has read, those included that it does not decode."""
    errors = re.findall(r'^stocached_source_errors_total\{.*kind="decode"\} (\d+)$', server.get("/metrics"), re.M)
    return server.reads() + sum(map(int, errors))


def without_decoders(cache: Cache, indices: list[int]) -> dict[int, tuple[str, str]]:
    """What a client in C gets that decodes nothing: kinds and texts of failures."""
    rows, ok = np.zeros((len(indices), cache.sample_bytes), np.uint8), np.zeros(len(indices), np.bool_)
    failures = fetched_samples.fetch_rows(cache, np.array(indices), rows.ctypes.data, rows.shape[1], ok, 60000)
    assert np.array_equal(np.flatnonzero(~ok), [failure.position for failure in failures])
    return {failure.index: (failure.kind, failure.message) for failure in failures}


def in_process(server: Server, function: Any, *arguments: Any) -> tuple[Any, Any]:
    """Runs a function with another handle of the cache in a forked process, and a pipe to it."""
    here, there = multiprocessing.Pipe()

    def run() -> None:
        function(Cache.attach(server.name), there, *arguments)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process, here


@pytest.mark.parametrize("labels", ["folders", "none"])
@pytest.mark.parametrize(("fit", "layout"), [("stretch", "hwc"), ("crop", "chw"), ("pad", "hwc")])
def test_pixels(server, fit, layout, labels):
    """They are those of image.decode, with the labels of the source, and the server keeps them."""
    files = others() | {"b/good.png": encoded(picture(50, 50), "PNG")}
    server.files(files, {"labels": labels}, decode=HOW | {"fit": fit, "layout": layout}, size="64MiB")
    cache, names = Cache.attach(server.name), sorted(files)
    for _ in range(2):
        made = cache.fetch(range(len(names)))[0]
        for k, name in enumerate(names):
            got = made if labels == "none" else made["image"]
            assert np.array_equal(got[k], right(files[name], fit=fit, layout=layout)), name
            assert labels == "none" or made["label"][k] == "abc".index(name[0])
    assert cache.stats().ready == len(names)
    assert read(server) == 2 * len(others()) + 1  # the server finds out the format, and reads the file for Python
    assert server.about()["bad_samples"] == 0


@pytest.mark.torch
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker": "thread"}], ids=str)
def test_loaders(server, options):
    from stocached.torch import SourceDataset

    files = files_of(10)
    server.files(files, decode=HOW, size="64MiB")
    dataset = SourceDataset(server.name)
    want = np.stack([right(files[name]) for name in sorted(files)])
    for augment in (None, image.Compose([image.ToDtype("uint8")])):
        loader = Loader(dataset, 4, augment=augment, **options)
        for _ in range(2):
            assert np.array_equal(np.concatenate([np.asarray(batch) for batch in loader]), want)
        loader.close()
    assert read(server) == 30


def test_one_program_decodes(server):
    """Processes that ask for the same samples at once decode each once."""
    files = files_of(12)
    server.files(files, decode=HOW, size="64MiB")

    def fetch(cache: Cache, pipe: Any) -> None:
        pipe.recv()
        pipe.send(cache.fetch(range(len(files)))[0])

    processes = [in_process(server, fetch) for _ in range(3)]
    for _, pipe in processes:
        pipe.send("go")
    for process, pipe in processes:
        assert np.array_equal(pipe.recv(), np.stack([right(files[name]) for name in sorted(files)]))
        process.join()
    assert read(server) == 3 * len(files) // 2


def test_killed(server, monkeypatch):
    """Another process waits for one that decodes, and takes over if it is killed."""
    server.files({"0.gif": GIF}, decode=HOW, size="64MiB")

    def hang(cache: Cache, pipe: Any) -> None:
        def offer(*arguments: Any) -> None:
            pipe.send("decoded")
            time.sleep(600)

        programs.offer = offer
        cache.fetch([0])

    process, pipe = in_process(server, hang)
    assert pipe.recv() == "decoded"
    cache = Cache.attach(server.name)
    with pytest.raises(FetchError, match="LOADING: another program"):
        cache.fetch([0], timeout=1)
    os.kill(process.pid, signal.SIGKILL)
    assert np.array_equal(cache.fetch([0])[0][0], right(GIF))
    process.join()


def test_a_program_gives_up(server, monkeypatch):
    """An exception in the middle of a load ends this load, and those that wait for it."""
    server.files(files_of(2), decode=HOW, size="64MiB")
    cache = Cache.attach(server.name)
    with monkeypatch.context() as patch:
        patch.setattr(image.Decode, "decode", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cache.fetch(range(4))
    other = Cache.attach(server.name)
    assert other.fetch(range(4), timeout=30)[1].all()


@pytest.mark.parametrize("skip", [True, False])
def test_damaged(server, skip):
    """A file that Pillow does not decode is a bad sample for all."""
    huge = GIF[:6] + b"\xff\xff\xff\xff" + GIF[10:]
    files = {"0.gif": GIF[:60], "1.gif": huge, "2.jpg": b"no picture", "3.gif": GIF}
    server.files(files, decode=HOW | {"bad_samples": "skip" if skip else "error"}, size="64MiB")
    cache, kind = Cache.attach(server.name), "BAD" if skip else "DAMAGED"
    before = without_decoders(cache, [0, 1, 2, 3])
    assert [code for code, _ in before.values()] == ["KIND", "KIND", kind, "KIND"]
    assert before[3][1] == f"{server.data}/3.gif does not decode: a GIF file, not a JPEG, PNG or WebP file"
    for _ in range(2):
        with pytest.raises(FetchError) as raised:
            cache.fetch(range(4))
        assert [(one.index, one.kind) for one in raised.value.failures] == [(k, kind) for k in range(3)]
        assert raised.value.bad == skip
        assert f"{server.data}/0.gif" in raised.value.failures[0].message
        assert "max_pixels is 67108864" in raised.value.failures[1].message
        assert np.array_equal(raised.value.out[3], right(GIF))
    after = without_decoders(cache, [0, 1, 2, 3])
    assert {k: code for k, (code, _) in after.items()} == {0: kind, 1: kind, 2: kind}
    assert "max_pixels is 67108864" in after[1][1]
    assert server.about()["bad_samples"] == (3 if skip else 0)
    reads = read(server)
    assert without_decoders(cache, [0, 1, 2]) == after
    assert read(server) == reads  # the server remembers them


def test_commands_name_the_format(server):
    """Go does not decode them either."""
    server.files({"0.gif": GIF}, decode=HOW, size="64MiB")
    done = subprocess.run([program(), "warm", server.name], capture_output=True, text=True)
    assert done.returncode != 0
    assert f"{server.data}/0.gif does not decode: a GIF file, not a JPEG, PNG or WebP file" in done.stdout + done.stderr
    assert server.about()["failures"] == []


def test_without_pillow(server):
    """The error says what to install. Another program decodes the sample."""
    server.files({"0.gif": GIF}, decode=HOW, size="64MiB")
    said = without("PIL", "stocached.Cache.attach(sys.argv[1]).fetch([0])", server.name)
    assert "a GIF file" in said
    assert "pip install pillow" in said
    assert Cache.attach(server.name).fetch([0], timeout=30)[1].all()


def test_a_format_without_a_plugin(server):
    """It is no bad sample: another program may have the plugin."""
    heic = b"\0\0\0\x18ftypheic" + bytes(100)
    server.files({"0.heic": heic}, decode=HOW | {"bad_samples": "skip"}, size="64MiB")
    cache = Cache.attach(server.name)
    with pytest.raises(image.NoDecoderError if hasattr(image, "NoDecoderError") else Exception, match="plugin"):
        cache.fetch([0])
    assert without_decoders(cache, [0])[0][0] == "KIND"


def test_tiers(server, tmp_path):
    """A tier keeps what a program has decoded, for clients that decode nothing too."""
    server.files(files_of(3), decode=HOW, size="64MiB", tiers=[{"kind": "disk", "dir": str(tmp_path), "size": "64MiB"}])
    cache = Cache.attach(server.name)
    want = cache.fetch(range(6))[0]
    until(lambda: server.about()["tiers"][0]["writes"] == 6)
    reads = read(server)
    cache.clear()
    assert without_decoders(cache, [0, 1, 2, 3, 4, 5]) == {}
    cache.clear()
    assert np.array_equal(cache.fetch(range(6))[0], want)
    assert read(server) == reads


def test_a_full_cache(server):
    """A cache that evicts takes decoded samples too, at their cost, and each answer is right."""
    files = {f"{k:03}.gif": encoded(picture(40, 30, k), "GIF") for k in range(24)}
    server.files(files, decode={"resize": [200, 200]}, size="6MiB", policy="cost")
    cache = Cache.attach(server.name)
    want = [image.decode(data, 200, fit="stretch", layout="chw") for data in files.values()]
    for _ in range(3):
        for first in range(0, 24, 8):
            assert np.array_equal(cache.fetch(range(first, first + 8))[0], np.stack(want[first : first + 8]))
    assert 0 < cache.stats().ready < 24
    assert (cache.costs() > 0).all()


def test_reads_ahead_end(server):
    """A plan and a prefetch read each such file once, and go on."""
    server.files(files_of(20), decode=HOW, size="64MiB")
    connection = http.client.HTTPConnection("stocached", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(server.sockets / "admin.sock"))
    connection.request("POST", f"/v1/caches/{server.name}/plan", json.dumps({"kind": "sequential", "samples": 40}))
    assert connection.getresponse().status == 201
    connection.close()
    until(lambda: json.loads(server.get(f"/v1/caches/{server.name}/plan")) == [])
    assert "planned=40 read=20 failed=0" in server.log()
    cache = Cache.attach(server.name)
    assert read(server) == 40
    assert cache.prefetch(range(40)) == 20
    until(lambda: server.about()["queue_depth"] == 0)
    assert cache.fetch(range(40))[1].all()
    assert read(server) == 60


@pytest.mark.torch
def test_planned(server):
    """The server reads ahead for a job, and stops at none of these."""
    from stocached.torch import SourceDataset

    files = {f"{k:03}": encoded(picture(40, 30, k), "GIF" if k % 2 else "JPEG") for k in range(60)}
    server.files(files, decode={"resize": [100, 100]}, size="5MiB", policy="planned")
    want = {image.decode(data, 100, fit="stretch", layout="chw").tobytes() for data in files.values()}
    loader = Loader(SourceDataset(server.name), 10, shuffle=True, seed=1)
    for _ in range(2):
        seen = [np.asarray(sample).tobytes() for batch in loader for sample in batch]
        assert len(seen) == 60
        assert set(seen) == want
    loader.close()


def test_other_caches_take_no_offer(server):
    server.records(10)
    from stocached import _native

    error = _native.Error()
    cache = Cache.attach(server.name)
    assert _native.offer(cache._handle, 1, None, 0, 5000, error) == 0  # no load ends
    part = np.zeros(cache.sample_bytes, np.uint8)
    vector = (_native.IoVec * 1)(_native.IoVec(part.ctypes.data, part.nbytes))
    assert _native.offer(cache._handle, 1, vector, 1, 5000, error) == _native.EINVAL
    assert b"come from its source" in error.message
    found, failures = fetched_samples.fetch_each(cache, np.array([1]), 5000, _native.FETCH_FILES, other_formats._bytes)
    assert (found, failures[0].kind) == ({}, "INVALID")
