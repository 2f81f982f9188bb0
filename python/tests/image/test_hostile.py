"""Pictures of an attacker: headers that claim many pixels, bytes of a cache that change during a decode."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import python
from native_samples import folder_of_small
from pictures import encoded, picture

from stocached import Cache, Loader, _native, image
from stocached._image.pipeline import Worker

context = multiprocessing.get_context("spawn")


def test_bombs_take_no_memory():
    """The peak of the process rises by less than 4 MiB. The pixels would take 12 GB."""
    code = """
        import sys
        from pathlib import Path
        from stocached import image

        def enlarged(data):
            at = next(k for k in range(2, len(data)) if data[k] == 0xFF and data[k + 1] in (0xC0, 0xC2))
            return data[: at + 5] + bytes([0xFF, 0xDC]) * 2 + data[at + 9 :]  # 65,500 x 65,500

        def peak():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

        files = [bytes.fromhex(text) for text in sys.argv[1:]]
        ways = [dict(size=size, fit=fit) for size in (64, (3, 500)) for fit in ("crop", "pad", "stretch")]
        ways += [dict(), dict(short_side=64), dict(size=64, fast=True), dict(size=64, layout="chw")]
        for data in files:  # what the library needs for pictures of this kind
            for how in ways:
                image.decode(data, **how)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before = peak()
        for data in map(enlarged, files):
            for how in ways:
                try:
                    image.decode(data, **how)
                except image.DecodeError as error:
                    assert "65500 x 65500" in str(error) and "max_pixels is 178956970" in str(error), error
                else:
                    raise AssertionError("a bomb was decoded")
        print(peak() - before)
    """
    small = picture(100, 80)
    files = [encoded(small), encoded(small, progressive=True), encoded(small, mode="L"), encoded(small, mode="CMYK")]
    assert int(python(code, *(data.hex() for data in files)).stdout) < 4 << 20


def flip(path: str, samples: list[tuple[int, bytes]], end, flips: int = 20) -> None:
    """Changes the encoded bytes in a cache, most of them in headers, and puts them right again. flips: of each file in
    turn."""
    random = np.random.default_rng(0)
    memory = np.memmap(path, np.uint8, "r+")
    while not end.is_set():
        for at, data in samples:
            for place in random.integers(0, 700, flips):
                memory[at + place] = random.integers(256)
            if random.random() < 0.2:
                memory[at : at + len(data)] = np.frombuffer(data, np.uint8)


def test_bytes_in_a_cache_that_change(folder):
    """Views of encoded files are copied before they are decoded: a picture or an error, and no crash."""
    files = [encoded(picture(120 + 40 * k, 90), progressive=k == 2) for k in range(4)]
    bytes_ = max(map(len, files))
    rows = [np.frombuffer(data.ljust(bytes_, b"\0"), np.uint8) for data in files]  # zeros after the end do not matter
    whole = [image.decode(data, 32) for data in files]
    with Cache.create("hostile", samples=len(files), shape=(bytes_,), dtype="uint8", dir=folder) as cache:
        for k, row in enumerate(rows):
            cache.put(k, row)
        segment = Path(cache.path).read_bytes()
        places = [(segment.index(data), data) for data in files]
        end = context.Event()
        attacker = context.Process(target=flip, args=(str(cache.path), places, end))
        attacker.start()
        try:
            errors: list[str] = []
            changed = 0
            for k in range(100_000):
                try:
                    made = image.decode(cache.get(k % len(files)), 32)
                    changed += not np.array_equal(made, whole[k % len(files)])
                except image.DecodeError as error:
                    errors.append(str(error))
                if k > 1000 and len(errors) > 30 and changed > 30:
                    break
            assert attacker.is_alive()
        finally:
            end.set()
            attacker.join()
        assert changed, "the bytes did not change"
        assert errors
        assert all(error.startswith("bytes: ") for error in errors)
        assert np.array_equal(image.decode(files[0], 32), whole[0]), "the worker goes on"


@pytest.mark.parametrize("size", [None, 32])
def test_a_decode_sees_one_copy(monkeypatch, size):
    """An array whose bytes change is read once, before the decoder begins."""
    data = np.frombuffer(encoded(picture(60, 40)), np.uint8).copy()
    seen = []

    def decode(self, given, name):
        seen.append(given)
        data[:] = 0
        return real(self, given, name)

    real = image.Decode.decode
    monkeypatch.setattr(image.Decode, "decode", decode)
    assert image.decode(data, size).any()
    assert type(seen[0]) is bytes


# ------------------------------------------------------------ in native workers


def native_loader(root: Path, name: str, **settings: Any) -> Loader:
    how = {"num_workers": 2, "worker": "native", "size": "8MiB", "policy": "first-come", **settings}
    return Loader(image.Folder(root, size=32), 2, name=name, **how)


@pytest.mark.parametrize(("store", "variable"), [("encoded", True), ("decoded", False), ("decoded", True)])
def test_native_workers_copy_files_alone(tmp_path, cache_name, monkeypatch, by_python, store, variable):
    """On a hit, a decoder gets a copy of a file: its bytes must not change. Pixels are read where they lie, except in
    variable-size caches that evict, whose samples lie in pieces."""
    places: list[int] = []
    finish = _native.Finish(Worker.finish)

    def noted(worker: int, seed: int, sample: int, *rest: int) -> int:
        places.append(sample)
        return finish(worker, seed, sample, *rest)

    monkeypatch.setattr(Worker, "finish", staticmethod(noted))
    how = {"store": store, "variable": variable, "augment": image.RandomHorizontalFlip()}
    loader = native_loader(folder_of_small(tmp_path, 12), cache_name, **how)
    list(loader)
    places.clear()
    list(loader)
    inode = str(Path(loader.cache.path).stat().st_ino)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    mapped = [range(*(int(end, 16) for end in one[0].split("-"))) for one in maps if one[4] == inode]
    assert loader.stats().hits == len(places) == 12
    assert {any(place in part for part in mapped) for place in places} == {store == "decoded"}
    assert by_python == []
    loader.close()


def test_native_workers_and_bytes_in_a_cache_that_change(tmp_path, cache_name, by_python):
    """A batch, or an error that names the file, and no crash. Afterwards the loader makes the batches of before."""
    root = folder_of_small(tmp_path, 8)
    loader = native_loader(root, cache_name, store="encoded")
    whole = [pictures.copy() for pictures, _ in loader]
    segment = Path(loader.cache.path).read_bytes()
    files = [path.read_bytes() for path in sorted(root.rglob("*.jpg"))]
    places = [(segment.index(data), data) for data in files]
    end = context.Event()
    attacker = context.Process(target=flip, args=(loader.cache.path, places, end, 1))
    attacker.start()
    changed, errors = 0, []
    try:
        while Path(loader.cache.path).read_bytes() == segment:
            assert attacker.is_alive()
        for _ in range(3000):
            try:
                for (pictures, _), want in zip(loader, whole):
                    changed += not np.array_equal(pictures, want)
            except image.DecodeError as error:
                errors.append(str(error))
            if changed > 10 and len(errors) > 10:
                break
        assert attacker.is_alive()
    finally:
        end.set()
        attacker.join()
    assert changed > 10
    assert len(errors) > 10
    assert all(str(root) in error for error in errors)
    with open(loader.cache.path, "r+b") as file:
        for at, data in places:
            file.seek(at)
            file.write(data)
    by_python.clear()
    assert all(np.array_equal(pictures, want) for (pictures, _), want in zip(loader, whole))
    assert by_python == []
    loader.close()
