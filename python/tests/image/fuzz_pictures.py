"""Damaged pictures: the C library beside Pillow. Both refuse a file, or their pixels agree.

`python fuzz_pictures.py FILES [SEED]` saves what differs in the folder of $FUZZ_OUT (default: fuzz), and prints
numbers of files by kind. `make -C cimage fuzz` runs it with sanitizers."""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import os
import re
import signal
import struct
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
from PIL import Image

from stocached._image.decoding import Decode
from stocached._image.errors import DecodeError
from stocached._image.parameters import LONGEST
from stocached._native import _image_header as native

MOST = 4_000_000  # pixels
SLOW, HANG, PER_PIXEL, BESIDE = 5, 60, 100, 24 << 20  # seconds, and bytes of memory
NUMBERS = [0, 1, 2, 3, 4, 7, 8, 15, 16, 127, 128, 255, 256, 1000, 4096, 65500, 65535, 2**31 - 1, 2**31, 2**32 - 1]
TESTDATA = Path(__file__).parents[3] / "source/decode/testdata"
Parts = list[tuple[bytes, bytes]]


def damaged(r: Random, data: bytes) -> bytes:
    """Some bytes are changed, lost or new."""
    for _ in range(r.choice([1, 1, 1, 2, 5, 20])):
        most = len(data) if r.random() < 0.5 else min(len(data), 200)  # headers
        at, n = r.randrange(most + 1), r.choice([1, 2, 3, 4, 8, 50])
        part, number = data[at : at + n], r.choice(NUMBERS).to_bytes(4, r.choice(["big", "little"]))
        flipped = bytes(byte ^ 1 << r.randrange(8) for byte in part[: r.choice([1, 1, n])])
        same, repeated = bytes([r.choice([0, 255])]) * n, part * r.choice([1, 2, 100])
        new = r.choice([b"", flipped, flipped, r.randbytes(n), repeated, same, number, number[2:]])
        lost = len(new) if new and r.random() < 0.7 else r.choice([0, 1, n, n, n, len(data)])
        data = data[:at] + new + data[at + lost :]
    return data


def rearranged(r: Random, parts: Parts) -> Parts:
    """A part is changed, lost, twice there or elsewhere."""
    at, way = r.randrange(len(parts)), r.randrange(8)
    rest = parts if way == 5 else parts[:at] + parts[at + 1 :]
    to = r.randrange(len(rest) + 1) if way in (5, 6) else at
    new = [(parts[at][0], damaged(r, parts[at][1])) if way < 5 else parts[at]] if way < 7 else []
    return rest[:to] + new + rest[to:]


def parts_of(data: bytes, at: int, order: Literal["big", "little"]) -> Parts:
    """The chunks: of PNG, which have a sum after the content, or of WebP, which have an even size."""
    parts: Parts = []
    while at + 8 <= len(data):
        halves = data[at : at + 4], data[at + 4 : at + 8]
        size, name = halves if order == "big" else halves[::-1]
        n = int.from_bytes(size, order)
        parts.append((name, data[at + 8 : at + 8 + n]))
        at += 12 + n if order == "big" else 8 + n + n % 2
    return parts


def mutated(r: Random, data: bytes) -> bytes:
    """Of PNG and WebP files, most have right sizes and sums. Or the inflated picture of a PNG file is damaged."""
    if data[:2] not in (b"\x89P", b"RI") or r.random() < 0.4:
        return damaged(r, data)
    if data[:2] == b"RI":
        parts = rearranged(r, parts_of(data, 12, "little"))
        made = b"".join(n + struct.pack("<I", len(c)) + c + bytes(len(c) % 2) for n, c in parts)
        return b"RIFF" + struct.pack("<I", len(made) + 4) + b"WEBP" + made
    parts = parts_of(data, 8, "big")
    if r.random() < 0.6:
        parts = rearranged(r, parts)
    else:
        first = next(k for k, part in enumerate(parts) if part[0] == b"IDAT")
        inflated = zlib.decompressobj().decompress(b"".join(c for n, c in parts if n == b"IDAT"), MOST)
        rest = [part for part in parts[first:] if part[0] != b"IDAT"]
        parts = [*parts[:first], (b"IDAT", zlib.compress(damaged(r, inflated), r.randrange(10))), *rest]
    sums = [struct.pack(">I", zlib.crc32(n + c)) for n, c in parts]
    return data[:8] + b"".join(struct.pack(">I", len(c)) + n + c + s for (n, c), s in zip(parts, sums, strict=True))


def seeds() -> list[bytes]:
    from odd_files import NATIVE

    named = [path.read_bytes() for path in sorted(TESTDATA.glob("*.*")) if path.suffix in (".jpg", ".png", ".webp")]
    return [odd.data for odd in NATIVE.values() if not odd.error] + [data for data in named if len(data) < 20_000]


def by_pillow(data: bytes) -> np.ndarray | str:
    """The pixels of an installation without decoders, or why there are none."""
    try:
        return Decode(max_pixels=MOST)._by_pillow(data, "")
    except DecodeError as error:
        return f"{type(error.__cause__).__name__}: {error.reason}"


@contextmanager
def a_worker() -> Iterator[ctypes.c_void_p]:
    worker = native.worker_new()
    yield worker
    native.worker_free(worker)


def decoded(worker: ctypes.c_void_p, data: bytes, how: native.Decode) -> np.ndarray | str:
    made = np.empty((how.height, how.width, 3), np.uint8)
    code = native.decode(worker, data, len(data), how, made.ctypes.data_as(ctypes.c_void_p), made.nbytes)
    return native.message(worker).decode(errors="replace") if code else made


def by_c(data: bytes) -> np.ndarray | str:
    """The pixels, or why there are none."""
    with a_worker() as worker:
        info = native.Info()
        if native.read_info(worker, data, len(data), info):
            return native.message(worker).decode(errors="replace")
        width, height = (info.width, info.height) if info.width * info.height <= MOST else (1, 1)
        return decoded(worker, data, native.Decode(width=width, height=height, layout=1, max_pixels=MOST))


def in_another_size(r: Random, data: bytes, whole: np.ndarray) -> bool:
    """Whether a decode to any size gives the pixels of the whole picture, cropped and resized."""
    height, width = whole.shape[:2]
    with a_worker() as worker:
        info = native.Info()
        native.read_info(worker, data, len(data), info)
        how = native.Decode(
            width=r.randrange(1, 90), height=r.randrange(1, 90), fit=r.randrange(3), filter=r.randrange(2),
            layout=1, max_pixels=MOST,
        )  # fmt: skip
        if how.fit == native.CROP and r.random() < 0.3:  # a window of the picture in its own size
            how.width, how.height, how.short_side = min(how.width, width), min(how.height, height), min(width, height)
        fast = native.Decode.from_buffer_copy(how)
        fast.fast = 1
        decoded(worker, data, fast)
        made, to = decoded(worker, data, how), native.Target()
        if isinstance(made, str):
            return True  # damage in the window alone
        assert native.target(worker, width, height, how, to) == 0
        part = made[to.y : to.y + to.height, to.x : to.x + to.width]
        sides = [
            (width, height),
            (to.resized_width, to.resized_height),
            (to.window_x, to.window_y),
            (to.width, to.height),
        ]
        if max(sides[1]) > LONGEST:
            return True  # steps resize to no such side
        right, pixels = np.empty(part.shape, np.uint8), np.ascontiguousarray(whole)
        steps = native.Augment(*(0, 0), *sum(sides, ()), filter=how.filter, layout=1, divisor=1, std=(1, 1, 1))
        picture = native.Picture(pixels.ctypes.data, *sides[0], 3, 1)
        assert native.augment(worker, picture, steps, right.ctypes.data_as(ctypes.c_void_p), right.nbytes) == 0
    return bool((part == right).all())


def memory(name: str) -> int:
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]


def compare(r: Random, data: bytes, measured: bool = False) -> str:
    """A kind of answer. Those that begin with a capital letter are differences."""
    if measured:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, began = memory("VmRSS"), time.process_time()
    made = by_c(data)
    if time.process_time() - began > SLOW:
        return "SLOW"
    if measured and memory("VmHWM") - before > PER_PIXEL * (0 if isinstance(made, str) else made.size // 3) + BESIDE:
        return "MEMORY"
    right = by_pillow(data)
    if not isinstance(made, str) and not in_another_size(r, data, made):
        return "Windows differ"
    refused = [f"{who} refuses: {a}" for who, a in (("C", made), ("Pillow", right)) if isinstance(a, str)]
    if refused:
        return "both refuse" if refused[1:] else re.sub(r"0x[0-9a-f]+|\d+|b'.*'|\".*\"", "N", refused[0])[:90]
    if made.shape != right.shape:
        return "Sizes differ"
    most = 0 if data[:4] == b"\x89PNG" or b"VP8L" in data[:400] else 2
    return "agree" if np.abs(made.astype(int) - right).max() <= most else "Pixels differ"


def main(count: int, seed: int) -> None:
    out, r, kinds = Path(os.environ.get("FUZZ_OUT", "fuzz")), Random(seed), Counter[str]()
    formats = [[data for data in seeds() if data[:2] == begin] for begin in (b"\xff\xd8", b"\x89P", b"RI")]
    out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    Image.MAX_IMAGE_PIXELS = MOST
    measured = "libasan" not in os.environ.get("LD_PRELOAD", "")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for k in range(count):
            data = mutated(r, r.choice(formats[k % 3]))
            (out / f"current-{seed}").write_bytes(data)  # a crash leaves it
            faulthandler.dump_traceback_later(HANG, exit=True)
            answer = compare(r, data, measured)
            kind = ("JPEG", "PNG", "WebP")[k % 3] + ": " + answer
            kinds[kind] += 1
            if answer[0].isupper() and kinds[kind] <= 20:
                print(digest := hashlib.sha256(data).hexdigest()[:12], kind, flush=True)
                (out / digest).write_bytes(data)
    except KeyboardInterrupt:
        pass  # a run that is ended has its numbers too
    faulthandler.cancel_dump_traceback_later()
    print(*(f"{n:8} {kind}" for kind, n in [*kinds.most_common(), ("files", kinds.total())]), sep="\n")
    # docs/spec/image.md has the other differences. Pillow's libjpeg-turbo smooths other files than older ones.
    if wrong := [kind for kind in kinds if re.search("SLOW|MEMORY|(Windows|Sizes|(PNG|WebP): Pixels) differ", kind)]:
        sys.exit(f"wrong: {wrong}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
