"""Pictures of an attacker: headers that claim many pixels, bytes of a cache that change during a decode."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from helpers import python
from pictures import encoded, picture

from stocached import Cache, image

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


def flip(path: str, samples: list[tuple[int, bytes]], end) -> None:
    """Changes the encoded bytes in a cache, most of them in headers, and puts them right again."""
    random = np.random.default_rng(0)
    memory = np.memmap(path, np.uint8, "r+")
    while not end.is_set():
        for at, data in samples:
            for place in random.integers(0, 700, 20):
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
                if k > 3000 and len(errors) > 100 and changed > 100:
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
