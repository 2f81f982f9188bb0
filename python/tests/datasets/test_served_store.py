"""What a server keeps of pictures: decode: {store: decoded | encoded | auto}. docs/spec/stores.md, In a server"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import encoded, picture
from served import ROOT, Server, program, until
from torch_helpers import TORCH_WARNINGS, DataLoader, SourceDataset, run_alone, torch

from stocached import Cache, FetchError, image

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:stocached. a bad sample"), *TORCH_WARNINGS]

HELPER = program().with_name("stocached-decode")
TESTDATA = ROOT / "source" / "decode" / "testdata"
SUFFIXES = (".jpg", ".png", ".webp")


def dataset(server: Server, **options: Any) -> Any:
    return SourceDataset(server.name, **options)


def jpegs(n: int) -> dict[str, bytes]:
    """In two folders, of several sizes, kinds and orientations."""
    kinds: list[dict[str, Any]] = [{}, {"progressive": True}, {"orientation": 6}, {"mode": "L"}, {"mode": "CMYK"}]
    kinds += [{"subsampling": 0}, {"orientation": 3}]
    return {
        f"{'cat' if k % 2 else 'ant'}/{k:03}.jpg": encoded(picture(60 + 7 * k, 90 - k, k), **kinds[k % len(kinds)])
        for k in range(n)
    }


def again(server: Server, **cache: Any) -> None:
    """The same files with other keys of the cache."""
    server.stop()
    config = server.folder / "config.yaml"
    settings = json.loads(config.read_text())
    settings["caches"][0] |= cache
    config.write_text(json.dumps(settings))
    server.start()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


@pytest.mark.skipif(not HELPER.exists(), reason="the server decodes with Go, and its pixels differ a little")
@pytest.mark.parametrize("labels", ["folders", "none"])
@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_both_stores_give_the_same_samples(server, fit, labels):
    layout = "hwc" if fit == "crop" else "chw"
    how = {"resize": [40, 56], "fit": fit, "layout": layout}
    server.files(jpegs(16), {"labels": labels}, decode=how, size="64MiB")
    decoded = dataset(server)
    want = decoded.__getitems__(range(16))
    assert not decoded.cache.variable
    assert decoded.cache.decode is None
    again(server, decode=how | {"store": "encoded"})
    files = dataset(server)
    assert files.cache.variable
    assert files.cache.fields[0].shape == (None,)
    assert [field.name for field in files.cache.fields] == [field.name for field in decoded.cache.fields]
    assert files.cache.fingerprint != decoded.cache.fingerprint
    for _ in range(2):  # misses, then hits
        assert all(map(same, files.__getitems__(range(16)), want))
    assert same(files[5], want[5])
    assert same(pickle.loads(pickle.dumps(files))[5], want[5])


@pytest.mark.skipif(not HELPER.exists(), reason="see above")
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker": "thread"}])
def test_both_stores_give_the_same_batches(server, options):
    if "num_workers" in options and "worker" not in options:
        options = options | {"multiprocessing_context": "fork"}
    steps = image.Compose([image.RandomResizedCrop(24), image.RandomHorizontalFlip(), image.ToDtype("float32")])
    paths: list[dict[str, Any]] = [{}, {"augment": steps}]

    def epochs() -> list[Any]:
        source = dataset(server)
        loads = [DataLoader(source, 5, shuffle=True, seed=3, **path, **options) for path in paths]
        return [batch for load in loads for _ in range(2) for batch in load]

    server.files(jpegs(16), {"labels": "folders"}, decode={"resize": [48, 48]}, size="64MiB")
    want = epochs()
    again(server, decode={"resize": [48, 48], "store": "encoded"})
    assert all(map(same, epochs(), want))
    plain = torch.utils.data.DataLoader(dataset(server), 16)
    assert next(iter(plain))["image"].shape == (16, 3, 48, 48)


def test_all_formats(server):
    """JPEG, PNG and WebP files of all kinds are the same pictures, whether the server or its client decodes them."""
    names = [path.name for path in sorted(TESTDATA.iterdir()) if path.suffix in SUFFIXES]
    files = {name: (TESTDATA / name).read_bytes() for name in names}
    server.files(files, decode={"resize": [33, 47], "fit": "pad"}, size="64MiB")
    want = dataset(server).__getitems__(range(len(names)))
    again(server, decode={"resize": [33, 47], "fit": "pad", "store": "encoded"})
    got = dataset(server).__getitems__(range(len(names)))
    for name, one, other in zip(names, got, want, strict=True):
        assert same(one, other), name


def test_other_formats(server):
    """Pillow knows more formats than the server, and clients use it with each store."""
    files = {"0.bmp": encoded(picture(30, 20), "BMP"), "1.gif": encoded(picture(30, 20), "GIF")}
    server.files(files, decode={"resize": [8, 8], "bad_samples": "skip"}, size="64MiB")
    for store in ("decoded", "encoded"):
        again(server, decode={"resize": [8, 8], "store": store})
        for k, data in enumerate(files.values()):
            assert np.array_equal(dataset(server)[k].numpy(), image.decode(data, 8, fit="stretch", layout="chw"))


@pytest.mark.parametrize("skip", [True, False])
def test_bad_samples(server, skip):
    files = jpegs(12) | {"ant/004.jpg": b"no picture", "cat/007.jpg": b"\xff\xd8\xff\xe0 cut off"}
    how = {"resize": [16, 16], "store": "encoded", "bad_samples": "skip" if skip else "error", "max_pixels": 12000}
    large = encoded(picture(140, 90))
    server.files(files | {"dog/000.jpg": large}, {"labels": "folders"}, decode=how, size="64MiB")
    source = dataset(server)
    names = sorted(files)
    bad = [names.index("ant/004.jpg"), names.index("cat/007.jpg"), 12]
    kind = "BAD" if skip else "DAMAGED"
    with pytest.raises(
        FetchError, match=rf"sample {bad[0]}: {kind}: its file in cache '{server.name}'.*and 2 more"
    ) as raised:
        source.__getitems__(range(13))
    assert [(failure.position, failure.index, failure.kind) for failure in raised.value.failures] == [
        (k, k, kind) for k in bad
    ]
    assert "max_pixels is 12000" in raised.value.failures[2].message
    for options in ({}, {"num_workers": 2, "worker": "thread"}):
        loads = DataLoader(source, 5, bad_samples="skip", **options)
        if skip:
            for epoch in (1, 2):
                assert sum(len(batch["label"]) for batch in loads) == 10
                assert loads.stats().bad_samples == 3 * epoch
            assert sorted(one.index for one in loads.stats().bad) == bad
        else:
            with pytest.raises(FetchError, match="DAMAGED"):
                list(loads)
    assert server.metric("stocached_bad_samples") == 0  # the server decodes nothing


def test_what_the_server_says(server):
    how = {"resize": [16, 24], "fit": "crop", "store": "encoded"}
    server.files(jpegs(4), decode=how, size="64MiB")
    assert server.about()["store"] == "encoded"
    assert "store=encoded" in server.log()
    assert "decoder=clients" in server.log()
    cache = Cache.attach(server.name)
    assert cache.decode == "height=16 width=24 fit=crop layout=chw max_pixels=67108864 bad_samples=error"
    assert bytes(cache.fetch([0])[0]) == (server.data / "ant/000.jpg").read_bytes()

    def told(*arguments: Any) -> Any:
        done = subprocess.run([program(), *arguments, "--json"], capture_output=True, check=True)
        return json.loads(done.stdout)

    assert told("inspect", server.path)["header"]["decode"] == cache.decode
    assert told("inspect", server.path)["header"]["layout"] == 1
    assert told("stats", server.path)["store"] == "encoded"
    info = told("source", "info", server.data, "--decode", "resize=[16,24],store=encoded")
    assert {"name": "store", "text": "encoded"} in info["notes"]


def test_a_restart_keeps_the_cache_and_other_settings_do_not(server):
    how: dict[str, Any] = {"resize": [16, 16], "store": "encoded"}
    server.files(jpegs(4), decode=how, size="64MiB")
    dataset(server).__getitems__(range(4))
    again(server)
    assert server.about()["adopted"]
    for other in ({"fit": "pad"}, {"bad_samples": "skip"}, {"store": "decoded"}):
        again(server, decode=how | other)
        assert not server.about()["adopted"], other


def pictures(n: int) -> dict[str, bytes]:
    """Each takes a third of a picture of 224 x 224."""
    return {f"{k:03}.jpg": encoded(picture(400, 300, k)) for k in range(n)}


SLOW = {"latency": "40ms", "heads": 1}  # much more than a decode takes on a busy machine
HALF = 4_300_000 + 40 * 3 * 224 * 224  # bytes of 80 pictures


@pytest.mark.parametrize(("limits", "store"), [(SLOW, "encoded"), ({}, "decoded")])
def test_auto(server, limits, store):
    how: dict[str, Any] = {"resize": [224, 224], "store": "auto"}
    source = {"limits": limits} if limits else {}
    server.files(pictures(80), source, decode=how, size=HALF)
    about = server.about()
    assert about["store"] == store, about
    assert about["store_reason"].startswith("an epoch takes about ")
    (line,) = [line for line in server.log().splitlines() if "msg=serving" in line]
    assert f"store={store}" in line
    assert "because=" in line
    got = dataset(server).__getitems__(range(80))
    assert got[0].shape == (3, 224, 224)
    assert server.metric("stocached_source_reads_total") == 80  # the measurement counts for nothing
    told = subprocess.run([program(), "stats", server.path, "--json"], capture_output=True, check=True).stdout
    assert json.loads(told)["store"] == store
    assert json.loads(told)["store_reason"] == about["store_reason"]
    # An existing cache keeps its store, also if the source is another one now: as slow, or fast.
    other = {"kind": "dir", "path": str(server.data)} | ({} if limits else {"limits": SLOW})
    again(server, source=other)
    assert server.about()["adopted"]
    assert (server.about()["store"], server.about()["store_reason"]) == (store, "the existing cache has this store")
    # A new one does not. Another size is not enough: the server limits it to what the pictures need.
    server.stop()
    server.path.unlink()
    again(server, source=other)
    assert not server.about()["adopted"]
    assert server.about()["store"] == ("decoded" if limits else "encoded")


def test_auto_after_a_reload(server):
    """Another number of readers is no other cache."""
    server.files(pictures(80), {"limits": SLOW}, decode={"resize": [224, 224], "store": "auto"}, size=HALF)
    source = dataset(server)
    source[0]
    config = server.folder / "config.yaml"
    settings = json.loads(config.read_text())
    settings["caches"][0]["source"]["retry"] = {"tries": 2}
    config.write_text(json.dumps(settings))
    server.process.send_signal(signal.SIGHUP)
    until(lambda: "opened again; the segment stays" in server.log())
    assert server.about()["uuid"] == source.cache.uuid.hex()
    assert server.about()["store"] == "encoded"


def test_a_cache_that_evicts(server):
    how = {"resize": [32, 32], "store": "encoded"}
    files = {f"{k:03}.jpg": encoded(picture(200, 150, k)) for k in range(150)}
    server.files(files, decode=how, size="5MiB", policy="lru")
    source = dataset(server)
    for _ in range(2):
        for start in range(0, 150, 10):
            for k, got in enumerate(source.__getitems__(range(start, start + 10)), start):
                want = image.decode(files[f"{k:03}.jpg"], 32, fit="stretch", layout="chw")
                assert np.array_equal(got.numpy(), want)
    assert source.stats().evicted > 0


def test_without_the_library_it_says_what_to_do(server, warm, tmp_path):
    """The program has the library for caches alone."""
    server.files(jpegs(2), decode={"resize": [8, 8], "store": "encoded"}, size="64MiB")
    from stocached._native import _library

    tmp_path.joinpath("libstocached.so").symlink_to(Path(_library.path).resolve())
    code = (
        "import sys, stocached\nfrom stocached.torch import SourceDataset\n"
        "try: SourceDataset(sys.argv[1])\nexcept stocached.UnsupportedError as error: print(error)\n"
        "print(len(bytes(stocached.Cache.attach(sys.argv[1]).fetch([0])[0])) > 0)"
    )
    done = run_alone(warm, tmp_path, code, server.name, STOCACHED_LIB_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"cache '{server.name}' keeps files (store: encoded)" in done.stdout
    assert "Run: make build" in done.stdout
    assert "store: decoded" in done.stdout
    assert done.stdout.endswith("True\n")


def test_wrong_settings(server):
    def refused(**cache: Any) -> str:
        source = {"kind": "dir", "path": str(server.data)}
        config = server.folder / "config.yaml"
        config.write_text(json.dumps({"caches": [{"name": server.name, "source": source, **cache}]}))
        done = subprocess.run([program(), "serve", "-c", config, "--check"], capture_output=True, text=True)
        assert done.returncode != 0
        return done.stderr

    server.data.mkdir()
    server.data.joinpath("0.jpg").write_bytes(b"")
    assert 'store is "zip", but must be decoded' in refused(decode={"resize": [8, 8], "store": "zip"})
    assert "resize is [], but must be" in refused(decode={"store": "encoded"})
    assert "store: there is no such key" in refused(store="encoded")
