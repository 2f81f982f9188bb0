"""Pictures of an attacker: headers that claim many pixels, bytes of a cache that change during a decode."""

from __future__ import annotations

import json
import multiprocessing
import struct
import zlib
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
MEMORY_A_PIXEL = 24  # the most that a decode takes for each pixel of the file


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


# ------------------------------------------------------------ bombs


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, data: bytes, chunks: bytes = b"", deep: bool = False, piece: int = 1 << 30) -> bytes:
    """A PNG file of 24 bits a pixel, or an interlaced one of 64. chunks: before the data, which are compressed. piece: of
    each chunk of them."""
    kind = (16, 6, 0, 0, 1) if deep else (8, 2, 0, 0, 0)
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, *kind))
    parts = b"".join(png_chunk(b"IDAT", data[k : k + piece]) for k in range(0, len(data), piece))
    return b"\x89PNG\r\n\x1a\n" + head + chunks + parts + png_chunk(b"IEND", b"")


def webp(chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks


def webp_chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def canvas(width: int, height: int, frames: int) -> bytes:
    """An animated WebP file, whose frames are one small picture."""
    sides = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    small = encoded(picture(8, 8), "WEBP", lossless=True)[12:]
    frame = webp_chunk(b"ANMF", bytes(6) + b"\7\0\0" * 2 + bytes(4) + small)
    return webp(webp_chunk(b"VP8X", b"\2\0\0\0" + sides) + webp_chunk(b"ANIM", bytes(6)) + frame * frames)


def scans(width: int, height: int, count: int, mode: str = "L") -> bytes:
    """A progressive JPEG file with the first scan, whose bits are cut off, again and again."""
    data = enlarged_jpeg(encoded(picture(64, 64), mode=mode, progressive=True), width, height)
    at = data.index(b"\xff\xda")
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    return data[: at + 2 + length] + b"\0" * 16 + (data[at : at + 2 + length] + b"\0" * 16) * (count - 1) + b"\xff\xd9"


def enlarged_jpeg(data: bytes, width: int, height: int) -> bytes:
    at = next(k for k in range(2, len(data)) if data[k] == 0xFF and data[k + 1] in (0xC0, 0xC2))
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def bombs() -> dict[str, tuple[bytes, int]]:
    """Files, and how many of their pixels are decoded; 0: none."""
    zeros, small = zlib.compress(bytes(40_000_000)), zlib.compress(bytes(18 * 73))
    text, more = zlib.compress(bytes(1_000_000)), b"XML:com.adobe.xmp\0"
    exif = b"\xff\xe1" + struct.pack(">H", 60_000) + b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + bytes(59_982)
    jpeg = encoded(picture(64, 64))
    return {
        "deflate": (png(24, 18, zeros), 24 * 18),
        "deflate in pieces": (png(24, 18, zeros, piece=10), 24 * 18),
        "deflate, interlaced": (png(2000, 2000, zeros, deep=True), 4_000_000),
        "deflate, 2000 x 2000": (png(2000, 2000, zeros), 4_000_000),
        "100,000 empty IDAT": (png(24, 18, small, png_chunk(b"IDAT", b"") * 100_000), 24 * 18),
        "iCCP": (png(24, 18, small, png_chunk(b"iCCP", b"p\0\0" + zeros)), 24 * 18),
        "zTXt": (png(24, 18, small, png_chunk(b"zTXt", more + b"\0" + zeros)), 24 * 18),
        "iTXt": (png(24, 18, small, png_chunk(b"iTXt", more + b"\1\0\0\0" + zeros)), 24 * 18),
        "10,000 zTXt": (png(24, 18, small, png_chunk(b"zTXt", more + b"\0" + text) * 10_000), 24 * 18),
        "PNG of 60,000 x 60,000": (png(60_000, 60_000, zeros), 0),
        "JPEG of 60,000 x 60,000": (enlarged_jpeg(jpeg, 60_000, 60_000), 0),
        "progressive JPEG of 60,000 x 60,000": (scans(60_000, 60_000, 1), 0),
        "progressive JPEG of 2000 x 2000": (scans(2000, 2000, 1, "CMYK"), 4_000_000),
        "100 scans": (scans(2000, 2000, 100), 4_000_000),
        "10,000 scans": (scans(2000, 2000, 10_000), 4_000_000),
        "100 times EXIF": (jpeg[:2] + exif * 100 + jpeg[2:], 64 * 64),
        "100 times ICC": (jpeg[:2] + exif.replace(b"\xff\xe1", b"\xff\xe2") * 100 + jpeg[2:], 64 * 64),
        "canvas of 16,384 x 16,384": (canvas(16_384, 16_384, 1), 0),
        "WebP of one colour": (encoded(np.zeros((2000, 2000, 3), np.uint8), "WEBP", lossless=True), 4_000_000),
        "canvas of 2000 x 2000": (canvas(2000, 2000, 1), 4_000_000),
        "20,000 frames": (canvas(64, 64, 20_000), 64 * 64),
    }


def test_bombs_take_bounded_memory_and_time(tmp_path):
    """docs/spec/image.md says how much."""
    code = """
        import json, os, sys, time
        from pathlib import Path
        from stocached import image

        def peak():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

        for path in Path(sys.argv[1]).iterdir():
            if os.fork():  # each in a process that has decoded nothing
                os.wait()
                continue
            data, said = path.read_bytes(), ""
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
            before, began = peak(), time.process_time()
            try:
                image.decode(data, 64)
            except image.DecodeError as error:
                said = str(error)
            print(json.dumps([path.name, peak() - before, time.process_time() - began, said]), flush=True)
            os._exit(0)
    """
    files = bombs()
    for name, (data, _) in files.items():
        (tmp_path / name).write_bytes(data)
    for line in python(code, str(tmp_path)).stdout.splitlines():
        name, took, seconds, said = json.loads(line)
        data, pixels = files.pop(name)
        print(f"{name:38} {len(data):10} bytes took {took / 1e6:6.1f} MB, {seconds:5.2f} s {said}")
        assert took < MEMORY_A_PIXEL * pixels + 3 * len(data) + (8 << 20), (name, took, said)
        assert seconds < 20, (name, seconds)
        assert bool(said) == (pixels == 0 or "10,000" in name or "progressive" in name or "scans" in name), (name, said)
    assert not files


# ------------------------------------------------------------ bytes of a cache that change


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
                if k > 300 and len(errors) > 30 and changed > 30:
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
