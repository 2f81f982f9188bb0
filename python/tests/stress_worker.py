"""A worker of the stress test, which may be killed at any moment: `stress_worker.py <cache>
<samples> <seconds> <seed>`. Its contract is internal/verify/stress/doc.go."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time

import numpy as np

from stocached import Cache, ClientsError, CorruptError, _native
from stocached._cache import storing

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
SMALLEST = 32  # bytes of a sample


def mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def rotl(x: int, n: int) -> int:
    return (x << n | x >> (64 - n)) & MASK


def payload(sample: int, sequence: int, writer: int, length: int) -> np.ndarray:
    """The bytes of a sample."""
    seed = (sample ^ rotl(sequence, 21) ^ rotl(writer, 42) ^ length) + GAMMA & MASK
    check = mix(np.array([seed], np.uint64))
    steps = np.arange(1, max(-(-length // 8) - 4, 0) + 1, dtype=np.uint64)
    words = np.concatenate(
        [np.array([sample, sequence, writer], np.uint64), check, mix(check + steps * np.uint64(GAMMA))]
    )
    return words.view(np.uint8)[:length]


def torn(sample: int, data: np.ndarray) -> str | None:
    """What is wrong with the bytes of a sample; None if one writer wrote all of them."""
    if data.size < SMALLEST:
        return f"sample {sample} has {data.size} bytes"
    index, sequence, writer = data[:24].view(np.uint64).tolist()
    if index != sample:
        return f"sample {sample} holds sample {index} of writer {writer}"
    want = payload(sample, sequence, writer, data.size)
    wrong = np.flatnonzero(data != want)
    return (
        f"sample {sample}, sequence {sequence} of writer {writer}: byte {wrong[0]} of {data.size} is wrong, {wrong.size} are"
        if wrong.size
        else None
    )


def cost(sample: int) -> int:
    """What a load of the sample costs at this moment, in nanoseconds."""
    return 1000 << (sample + time.time_ns() // 250_000_000) % 12


class Worker:
    def __init__(self, cache: Cache, samples: int, seed: int) -> None:
        self.cache, self.samples, self.random = cache, samples, random.Random(seed)
        self.sequence = 0
        self.claims = 0

    def fresh(self, sample: int) -> np.ndarray:
        self.sequence += 1
        cache = self.cache
        length = self.random.randint(SMALLEST, min(cache.sample_bytes, 2**20)) if cache.variable else cache.sample_bytes
        return payload(sample, self.sequence, os.getpid(), length)

    def check(self, sample: int, value: object) -> None:
        wrong = torn(sample, np.frombuffer(value, np.uint8))  # type: ignore[call-overload]
        if wrong:
            print("TORN", wrong, file=sys.stderr, flush=True)
            os._exit(3)

    def turn(self) -> None:
        sample, what = self.random.randrange(self.samples), self.random.randrange(16)
        if what < 9:
            value = self.cache.get(sample, copy=True)
            if value is None:
                self.put(sample, 0)
            else:
                self.check(sample, value)
        elif what < 13:
            self.put(sample, _native.OVERWRITE)
        elif what < 15:
            wanted = [(sample + k) % self.samples for k in range(8)]
            values, hit = self.cache.gather(wanted)
            for index, value, there in zip(wanted, values, hit):
                if there:
                    self.check(index, value)
        else:
            self.in_pieces(sample)

    def put(self, sample: int, flags: int) -> None:
        storing.store(self.cache, sample, [self.fresh(sample)], flags, cost(sample))  # bytes, whatever the schema is

    def in_pieces(self, sample: int) -> None:
        data, claim, handle = self.fresh(sample), _native.Claim(), self.cache._handle
        if handle.check(_native.claim(handle, sample, data.size, 0, claim), sample) != _native.STORED:
            return
        half = data.size // 2
        for start, end in ((0, half), (half, data.size)):
            if (
                handle.check(_native.write(claim, start, data[start:end].ctypes.data, end - start), sample)
                == _native.FULL
            ):
                return
        self.claims += 1
        ended = _native.publish_loaded(claim, cost(sample)) if self.claims % 2 else _native.abort(claim)
        handle.check(ended, sample)


def raw_bytes(cache: Cache) -> Cache:
    """Reads samples as bytes, whatever their fields are: a variable sample then has only its
    bytes."""
    field = cache.fields[0]
    if len(cache.fields) != 1 or field.dtype.itemsize != 1:
        raise SystemExit(f"ERROR a stress cache has one field of bytes, not {cache.fields}")
    return cache


def forked() -> list[str]:
    """Forks a worker for each line on stdin. Returns the words of the line in the worker."""
    for line in sys.stdin:
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork() != 0:
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.001)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            os.write(1, b"%d\n" % os.getpid())
            return line.split()
        os.waitpid(between, 0)
    os._exit(0)


def main() -> int:
    arguments = forked() if sys.argv[1:] == ["fork"] else sys.argv[1:]
    path, samples, seconds, seed = arguments[0], int(arguments[1]), float(arguments[2]), int(arguments[3])
    assert (
        payload(5, 7, 1234, 45).tobytes().hex()
        == "05000000000000000700000000000000d20400000000000000b77615df6feacff6bb854794aefff9898ee19516"
    )
    end = time.monotonic() + seconds
    try:
        worker = Worker(raw_bytes(Cache.attach(path)), samples, seed)
        while time.monotonic() < end:
            worker.turn()
    except ClientsError:
        return 0
    except CorruptError as error:
        print("TORN", error, file=sys.stderr, flush=True)
        return 3
    except Exception as error:
        print("ERROR", type(error).__name__, error, file=sys.stderr, flush=True)
        return 4
    return 0


if __name__ == "__main__":
    with np.errstate(over="ignore"):
        code = main()
    os._exit(code)
